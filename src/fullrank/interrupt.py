"""SIGTERM and Ctrl-C: noted when they come, obeyed where nothing is lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from .errors import Interrupted

_requested = False
_guarded = False


_thread = threading.local()


def check() -> None:
    """Raise `Interrupted` if a signal has come since the guard was entered, or whoever started this thread gave up."""
    if _requested or ((given_up := getattr(_thread, "given_up", None)) is not None and given_up.is_set()):
        raise Interrupted


def obey(given_up: threading.Event) -> None:
    """Let `check`, in this thread, also look at an event."""
    _thread.given_up = given_up


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Inside, the first signal only asks `check` to stop the run; a second Ctrl-C stops it at once.

    A guard inside another changes nothing, so that a signal noted late in one of several runs stops them all.
    """
    global _requested, _guarded
    if _guarded or threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; there the embedding program decides
        return

    def note(number: int, frame: Any) -> None:
        global _requested
        if _requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        _requested = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    _requested, _guarded = False, True
    try:
        yield
    finally:
        _requested, _guarded = False, False
        for number, handler in before.items():
            signal.signal(number, handler)
