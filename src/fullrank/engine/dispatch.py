"""Ordered dispatch: jobs start in order on idle workers, and their results come in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from fullrank.federated.site import Job, Result


class Worker(Protocol):
    """A worker that runs one job at a time."""

    job: Job | None
    """The job that it is running."""

    def start(self, number: int, job: Job) -> None:
        """Start a job.

        Args:
            number: The place of the job in the order of jobs.
            job: The job.
        """


def run_in_order(
    jobs: Iterable[Job], workers: Callable[[], Sequence[Worker]], some_results: Callable[[], dict[int, Result]]
) -> Iterator[Result]:
    """Run jobs on workers, and yield their results in the order of the jobs.

    Jobs start in order, each as soon as a worker is idle. At most twice as many results as there are workers are held
    back until their turn comes.

    Args:
        jobs: The jobs.
        workers: Returns the workers, which may be replaced while the jobs run.
        some_results: Waits until there are results, or for a short time, and returns them by the number of their job.
    """
    numbered = enumerate(jobs)
    waiting: dict[int, Result] = {}
    given = turn = 0
    more = True
    while True:
        all_workers = workers()
        idle = [worker for worker in all_workers if worker.job is None]
        while more and idle and len(waiting) < 2 * len(all_workers):
            if (pair := next(numbered, None)) is None:
                more = False
                break
            idle.pop(_best_worker(idle, pair[1])).start(*pair)
            given += 1
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1
        if turn == given:
            if not more:
                return
            continue
        waiting |= some_results()


def _best_worker(idle: Sequence[Worker], job: Job) -> int:
    """Return the index of an idle worker for a job, if possible of one that has run a job of the same client before.

    Such a worker may have recorded steps that this client's next job can replay.
    """
    had = (index for index, worker in enumerate(idle) if job.client in getattr(worker, "met", ()))
    return next(had, len(idle) - 1)
