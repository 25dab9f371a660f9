"""Who is told how far the reading of a data set is: nobody, unless a program asks."""

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
    """Also tell `watch` of the reading of data sets inside a `with` block; with None, tell nobody.

    A watch may raise an exception to stop the reading.
    """
    token = _watches.set(() if watch is None else (*_watches.get(), watch))
    try:
        yield
    finally:
        _watches.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Tell whoever watches how far something is.

    >>> with watching(lambda what, done, total: print(f"{what}: {done} of {total}")):
    ...     report("decoding digits", 5, 10)
    decoding digits: 5 of 10
    """
    for watch in _watches.get():
        watch(what, done, total)
