"""A lock that is shared by threads that work on a device, and exclusive for one that records a step there.

Work that other threads start on the device would end up in the recording, or spoil it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CaptureLock:
    """Shared by many threads, or held by one exclusively as soon as the others have released it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._asking = 0
        self._held = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with other threads."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release a shared lock inside, and take it again afterwards."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold a shared lock exclusively inside."""
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
