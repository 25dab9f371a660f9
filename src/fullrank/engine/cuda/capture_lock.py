"""Many at once, or one alone: who records a step must not be disturbed by others who start work on the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CaptureLock:
    """Threads work together; one that asks for it works alone, as soon as the others have stepped aside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._asking = 0
        self._alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work beside others."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For one who works together: let others be alone meanwhile."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For one who works together: go on alone, then together again."""
        with self._changed:
            self._working -= 1
            self._asking += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._working and not self._alone)
            self._asking -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._working += 1
                self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._asking)
            self._working += 1

    def _leave(self) -> None:
        with self._changed:
            self._working -= 1
            self._changed.notify_all()
