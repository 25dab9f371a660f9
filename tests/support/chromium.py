"""Pages in Debian's Chromium. Without it such tests are skipped, or fail where FULLRANK_NEED_CHROMIUM is set."""

import contextlib
import importlib.util
import os
import shutil

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ABSENT = shutil.which("chromium") is None or importlib.util.find_spec("playwright") is None
needs_chromium = pytest.mark.skipif(
    ABSENT and not os.environ.get("FULLRANK_NEED_CHROMIUM"), reason="needs chromium and playwright"
)
SECONDS = 20_000
"""Milliseconds after which waiting for something on a page fails."""


@contextlib.contextmanager
def browser():
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            yield started
        finally:
            started.close()


@contextlib.contextmanager
def opened(browser, url, width=1280, scheme="light"):
    """A page, which must report no problem until the end of the block."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(SECONDS)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message) or dialog.dismiss())
    try:
        page.goto(url)
        yield page
        assert problems == []
    finally:
        context.close()
