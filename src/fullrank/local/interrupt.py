"""Handling of SIGTERM and Ctrl-C: the first asks a run to stop where nothing is lost, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from fullrank.errors import Interrupted, StoppedNow

NOTICE = "fullrank: stopping after the current step; press Ctrl-C or send the signal again to stop now\n"
LAST_WORDS = (
    "fullrank: stopped at once, because the code that was running did not return; every round that was saved is "
    "intact, and the same command continues from there\n"
)
AGAIN = 0.25
"""Seconds within which signals count as one, because `timeout`, for example, sends each to process and group."""
GRACE = 3.0
"""Seconds after the second signal in which the main thread must have ended the run."""
STATUS = 130

_requested = False
_guarded = False
_owned = False

_thread = threading.local()


def check() -> None:
    """Stop the work of this thread if a signal was received.

    Raises:
        Interrupted: If a signal was received since the guard was entered, or the event given to `obey` is set.
    """
    if _requested or ((given_up := getattr(_thread, "given_up", None)) is not None and given_up.is_set()):
        raise Interrupted


def obey(given_up: threading.Event) -> None:
    """Make `check` in this thread raise once an event is set as well."""
    _thread.given_up = given_up


def raised_by_code(error: BaseException) -> bool:
    """Return whether an exception was raised by the code that ran (`sys.exit` included) and not by a signal.

    Inside a guard no signal raises a plain KeyboardInterrupt.
    """
    if isinstance(error, (Interrupted, GeneratorExit)):
        return False
    return _guarded or not isinstance(error, KeyboardInterrupt)


def leave_to_parent() -> None:
    """Ignore Ctrl-C in a worker process: it reaches the whole process group, and the parent handles it."""
    global _guarded
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _guarded = True


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Allow a guard inside to end the process itself if the run's code never returns, as at the command line."""
    global _owned
    before, _owned = _owned, True
    try:
        yield
    finally:
        _owned = before


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Handle SIGTERM and Ctrl-C inside the block.

    The first signal makes `check` raise, and prints a message; the second ends the block at once.

    Raises:
        StoppedNow: On the second signal.
    """
    global _requested, _guarded
    if _guarded or threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; there the embedding program decides
        return
    first = 0.0

    def note(number: int, frame: Any) -> None:
        global _requested
        nonlocal first
        if not _requested:
            _requested, first = True, time.monotonic()
            _say(NOTICE)
        elif time.monotonic() - first > AGAIN:
            raise StoppedNow

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    _requested, _guarded = False, True
    try:
        with _watchdog() if _owned and os.name == "posix" else contextlib.nullcontext():
            yield
    finally:
        # A process that stops on request must not be killed by a further signal while it ends its workers and exits.
        ending = _requested and _owned
        _requested, _guarded = False, False
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ending else handler)


@contextlib.contextmanager
def _watchdog() -> Iterator[None]:
    """End the process some seconds after the second signal, unless the run has ended by then.

    Python calls a handler between two steps of the main thread, so one long call into other code keeps the handler
    waiting. The number of each signal is written into a pipe at once, where a thread sees it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    over = threading.Event()

    def watch() -> None:
        first = 0.0
        while number := os.read(reader, 1):
            now = time.monotonic()
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            if not first:
                first = now
            elif now - first > AGAIN and not over.wait(GRACE):
                _show_cursor()
                _say(LAST_WORDS)
                os._exit(STATUS)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writer)  # the thread reads the end of the pipe, and ends
        thread.join()
        os.close(reader)


def _say(text: str) -> None:
    """Write to the terminal directly, because the signal may have interrupted a stream while it was writing."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _show_cursor() -> None:
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")
