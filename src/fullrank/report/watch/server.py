"""A small local server for the page: it serves the page and the state of the runs, to this machine only."""

from __future__ import annotations

import json
import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fullrank.errors import InputError
from fullrank.report.watch.follow import Follower, Snapshot

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
"""The names under which the server answers; a page of another site that has its own name point here is rejected."""
FRESH = 0.5
"""Seconds for which a snapshot is used again, however many pages are open."""
SLOW = 10.0
"""Seconds after which a connection on which nothing comes is closed."""


class PageServer:
    """Serves the page that follows runs, on the loopback address.

    Args:
        follower: What is followed.
        port: The port; 0 takes a free one.

    Raises:
        InputError: If the port is in use or not allowed.
    """

    def __init__(self, follower: Follower, port: int = 0):
        shared = _Shared(follower)
        handler = type("Handler", (_Handler,), {"snapshot": staticmethod(shared.snapshot)})
        try:
            self._server = _Server((HOST, port), handler)
        except OSError as error:
            raise InputError(f"--port {port} cannot be used: {error.strerror or error}; 0 takes a free one") from None
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self.snapshot = shared.snapshot

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Answers each request in a thread, which does not keep the program from ending."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two programs use one port

    def handle_error(self, *_: Any) -> None:
        """Print nothing if a browser has closed its connection."""


class _Shared:
    """Takes one snapshot at a time, for all threads."""

    def __init__(self, follower: Follower):
        self._follower, self._lock = follower, threading.Lock()
        self._taken = 0.0
        self._newest: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Return a snapshot that is at most a moment old."""
        with self._lock:
            if self._newest is None or time.monotonic() - self._taken > FRESH:
                self._newest = self._follower.snapshot()
                self._taken = time.monotonic()
            return self._newest


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the page and its state, and nothing else."""

    snapshot: Callable[[], Snapshot]
    timeout = SLOW
    server_version = "fullrank"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the content."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer without the content."""
        self._answer()

    def _answer(self) -> None:
        if not self._names_this_machine():
            self._reply(403, "text/plain", b"This server answers only under the address that fullrank watch printed.\n")
            return
        address = urlsplit(self.path)
        if address.path == "/":
            page, policy = page_and_policy()
            self._reply(200, "text/html", page, policy)
        elif address.path == "/state":
            found = self.snapshot().as_json(_selected(address.query))
            self._reply(200, "application/json", json.dumps(found).encode())
        else:
            self._reply(404, "text/plain", b"There is nothing here.\n")

    def _names_this_machine(self) -> bool:
        """Return whether the request names this machine, as the page does."""
        named = [urlsplit(f"//{host}").hostname for host in self.headers.get_all("Host", [])]
        return len(named) == 1 and named[0] in HOSTS

    def _reply(self, status: int, kind: str, content: bytes, policy: str = "default-src 'none'") -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing of a request."""


def _selected(query: str) -> int | None:
    """Return which run a page shows in full."""
    given = parse_qs(query).get("run", [""])[0]
    return int(given) if given.isascii() and given.isdigit() and len(given) < 7 else None


@cache
def page_and_policy() -> tuple[bytes, str]:
    """Return the page and its content security policy.

    Returns:
        The page as bytes, and the policy, which allows the page's own style and script and no others.
    """
    folder = files("fullrank.report.watch")
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    page = (folder / "page.html").read_text(encoding="utf-8")
    page = page.replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'"
    )
    return page.encode(), policy


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
