"""Reporting the progress of reading a data set to programs that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Watch: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, such as "decoding digits", how much of it is done, and how much there is."""

_watches: ContextVar[tuple[Watch, ...]] = ContextVar("watches", default=())


@contextmanager
def watching(watch: Watch | None) -> Iterator[None]:
    """Report the progress of reading data sets inside a `with` block.

    Args:
        watch: A function that is called in addition to those of surrounding blocks, and may raise an exception to stop
            the reading; with None, none of them is called.
    """
    token = _watches.set(() if watch is None else (*_watches.get(), watch))
    try:
        yield
    finally:
        _watches.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Report progress.

    Args:
        what: What is being done.
        done: How much of it is done.
        total: How much there is to do.

    >>> with watching(lambda what, done, total: print(f"{what}: {done} of {total}")):
    ...     report("decoding digits", 5, 10)
    decoding digits: 5 of 10
    """
    for watch in _watches.get():
        watch(what, done, total)
