"""Ordered dispatch: jobs start in order on idle workers, and their results come in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from fullrank.federated.site import Job, Result


class Worker(Protocol):
    """A worker that runs one job at a time."""

    job: Job | None
    """The job that it is running."""

    def give(self, number: int, job: Job) -> None:
        """Start a job."""


def run_in_order(
    jobs: Iterable[Job], workers: Callable[[], Sequence[Worker]], some_results: Callable[[], dict[int, Result]]
) -> Iterator[Result]:
    """Start jobs in order; at most twice as many results as there are workers wait for their turn.

    `some_results` waits until there are results, or for a while, and returns them by the number of their job.
    """
    numbered = enumerate(jobs)
    waiting: dict[int, Result] = {}
    given = turn = 0
    more = True
    while True:
        crew = workers()
        idle = [hand for hand in crew if hand.job is None]
        while more and idle and len(waiting) < 2 * len(crew):
            if (pair := next(numbered, None)) is None:
                more = False
                break
            idle.pop(_fittest(idle, pair[1])).give(*pair)
            given += 1
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1
        if turn == given:
            if not more:
                return
            continue
        waiting |= some_results()


def _fittest(idle: Sequence[Worker], job: Job) -> int:
    """Return the index of a worker that has met the client before and may have prepared for it, else the last index."""
    had = (index for index, hand in enumerate(idle) if job.client in getattr(hand, "met", ()))
    return next(had, len(idle) - 1)
