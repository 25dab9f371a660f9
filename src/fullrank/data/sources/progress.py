"""Who is told how far the reading of a data set is: nobody, unless a program asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Watch: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, such as "decoding digits", how much of it is done, and how much there is."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Tell `watch` of the reading of data sets inside a `with` block."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Tell whoever watches how far something is.

    >>> with watching(lambda what, done, total: print(f"{what}: {done} of {total}")):
    ...     report("decoding digits", 5, 10)
    decoding digits: 5 of 10
    """
    watch = _watch.get()
    if watch is not None:
        watch(what, done, total)
