"""Debian's Chromium, driven by Playwright, for tests that open a page as a reader does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NEEDED = "FULLRANK_NEED_CHROMIUM"
"""The environment variable with which a missing browser is a failure and not a skip."""
PATIENCE = 20_000
"""Milliseconds after which anything that a page should do has failed."""


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser; skip, or fail where it is needed, if it is not installed."""
    path = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        missing = "Chromium or Playwright is not installed"
        if os.environ.get(NEEDED):
            pytest.fail(f"{missing}, and {NEEDED} is set")
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS), timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """An open page, with what it complained about and what it asked the network for."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Any, file: Path, width: int = 1280, scheme: str = "light") -> Iterator[Opened]:
    """Open a page from a file."""
    size = {"width": width, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.problems.append(message.text))
    found.page.on("pageerror", lambda error: found.problems.append(str(error)))
    found.page.on("dialog", lambda dialog: (found.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(file.resolve().as_uri())
    found.page.wait_for_selector("html[data-ready]")
    try:
        yield found
    finally:
        context.close()
