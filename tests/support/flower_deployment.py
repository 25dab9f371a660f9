"""Flower as tests run it: a simulation, or a SuperLink and SuperNodes on loopback with TLS and authentication."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
CERTIFICATES = r"""
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -sha256 -days 2 -nodes -keyout ca.key -out ca.crt \
  -subj "/CN=test CA" -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key -out server.csr \
  -subj "/CN=localhost"
printf "subjectAltName=DNS:localhost,IP:127.0.0.1" > names.txt
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -sha256 -out server.pem \
  -extfile names.txt
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes: nothing is reported or installed, and all files are in a folder."""
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",
        "FLWR_HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(condition, seconds: float, what: str):
    """Wait until a condition is true and return its value; fail after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} did not happen within {seconds} s")


@dataclass
class Deployment:
    """A SuperLink with TLS on loopback, and SuperNodes whose keys it knows."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def start(self, sites: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        subprocess.run(["bash", "-ec", CERTIFICATES], cwd=self.folder, check=True, capture_output=True, timeout=60)
        lines = ['[superlink]\ndefault = "test"', f'[superlink.test]\naddress = "localhost:{self.port}"']
        lines.append(f'root-certificates = "{self.folder / "ca.crt"}"')
        (self.folder / "home" / "config.toml").write_text("\n".join(lines) + "\n")
        self.start_link()
        for site in range(sites):
            self.register(site)
            self.start_node(site)

    def start_link(self) -> None:
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        self._launch(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), *tls, "--enable-supernode-auth"),
            *("--disable-runtime-dependency-installation", "--database", "link.db"),
        )
        until(self._listens, 30, "the start of the SuperLink")

    def register(self, site: int) -> None:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", f"site{site}", "-f", f"site{site}"],
            cwd=self.folder,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        self.flwr("supernode", "register", f"site{site}.pub", "test")

    def settings(self, site: int, more: str = "") -> Path:
        """Write the `site.toml` of a site, which has a part of the digits, and return its path."""
        path = self.folder / f"{site}.toml"
        path.write_text(f'[site]\nname = "ward {site}"\nclient = {site}\nfolder = "state{site}"\n{more}')
        return path

    def start_node(self, site: int, config: str | None = None) -> None:
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        self._launch(
            f"site{site}",
            *("flower-supernode", "--root-certificates", "ca.crt", "--superlink", f"localhost:{self.port}", *tls),
            *("--port", str(free_port()), "--auth-supernode-private-key", f"site{site}"),
            *("--node-config", config or f'site="{self.settings(site)}" partition-id={site}'),
        )

    def run(self, app: Path, out: Path, overrides: Sequence[str] = (), seconds: float = 300, **config) -> str:
        """Run an app and return its status; the log goes to `log`."""
        self.begin(app, out, overrides, **config)
        return self.finish(seconds)

    def begin(self, app: Path, out: Path, overrides: Sequence[str] = (), **config) -> None:
        values = {"set": " ".join(overrides), "out": str(out), **config}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
        self._launch("run", "flwr", "run", str(app), "test", "--stream", "--run-config", text)

    def finish(self, seconds: float) -> str:
        """Wait for the end of the run that was begun, and return its status."""
        self.processes.pop("run").wait(timeout=seconds)
        return until(self._ended, 30, "the end of the run")

    def _ended(self) -> str:
        status = str(self.runs()[0]["status"])
        return status if status.startswith("finished") else ""

    def runs(self) -> list[dict]:
        return json.loads(self.flwr("ls", "test", "--format", "json"))["runs"]

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text()

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            ["flwr", *arguments],
            cwd=self.folder,
            env=environment(self.folder),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self, name: str) -> None:
        """Kill a process and its children at once."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name)

    def _launch(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment(self.folder, **self.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _listens(self) -> bool:
        assert self.processes["superlink"].poll() is None, (self.folder / "superlink.log").read_text()
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0


@contextlib.contextmanager
def deployed(folder: Path, sites: int, **variables: str) -> Iterator[Deployment]:
    """A running deployment, whose processes are ended in any case."""
    found = Deployment(folder, variables=variables)
    try:
        found.start(sites)
        yield found
    finally:
        found.close()
