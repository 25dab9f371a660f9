"""A lock that threads share while they work on a device, and that one of them holds exclusively while it captures a
step.

Work that other threads start on the device meanwhile would become part of the capture or make it fail.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CaptureLock:
    """A lock that many threads share, or that one of them holds exclusively once the others have released it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._asking = 0
        self._held = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock inside the block, together with other threads."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the shared lock inside the block, and acquire it again afterwards."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock exclusively inside the block. The thread must hold it shared before."""
        with self._changed:
            self._working -= 1
            self._asking += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._working and not self._held)
            self._asking -= 1
            self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._working += 1
                self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._held and not self._asking)
            self._working += 1

    def _leave(self) -> None:
        with self._changed:
            self._working -= 1
            self._changed.notify_all()
