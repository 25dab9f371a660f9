"""Slots, which run the jobs of several clients at a time in one process, each in a thread with its own site."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from fullrank.engine.dispatch import run_in_order
from fullrank.errors import Interrupted
from fullrank.federated.site import Job, Result
from fullrank.local import interrupt

WAKE_SECONDS = 0.2

Do: TypeAlias = Callable[[Job], Result]
Done: TypeAlias = tuple["Slot", int, "Result | BaseException"]


class Slot:
    """A thread that runs one job at a time, and remembers the clients whose jobs it has run.

    Args:
        do: Runs a job.
        done: The queue of results.
        given_up: An event that ends the job early.
    """

    def __init__(self, do: Do, done: queue.SimpleQueue[Done], given_up: threading.Event):
        self.job: Job | None = None
        self.met: set[int] = set()
        self._do, self._done, self._given_up = do, done, given_up
        self._inbox: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def start(self, number: int, job: Job) -> None:
        """Start a job in the slot's thread."""
        self.job = job
        self.met.add(job.client)
        self._inbox.put((number, job))

    def stop(self) -> None:
        """End the thread after its current job."""
        self._inbox.put(None)
        self._thread.join()

    def _work(self) -> None:
        interrupt.obey(self._given_up)
        while (given := self._inbox.get()) is not None:
            number, job = given
            try:
                self._done.put((self, number, self._do(job)))
            except BaseException as error:  # raised again in the thread that waits for the result
                self._done.put((self, number, error))


class Slots:
    """Runs jobs on several slots at once, and yields their results in the order of the jobs.

    Args:
        functions: For each slot the function that runs a job.
    """

    def __init__(self, functions: Sequence[Do]):
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._given_up = threading.Event()
        self.slots = [Slot(do, self._done, self._given_up) for do in functions]

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs."""
        try:
            yield from run_in_order(jobs, lambda: self.slots, self._some)
        finally:
            self._empty()

    def _some(self) -> dict[int, Result]:
        try:
            slot, number, result = self._done.get(timeout=WAKE_SECONDS)
        except queue.Empty:
            interrupt.check()
            return {}
        slot.job = None
        if isinstance(result, BaseException):
            raise result
        return {number: result}

    def _empty(self) -> None:
        """Stop all jobs that are still running, and discard their results."""
        self._given_up.set()
        while any(slot.job is not None for slot in self.slots):
            slot, _, result = self._done.get()
            slot.job = None
            if isinstance(result, BaseException) and not isinstance(result, Interrupted):
                raise result
        self._given_up.clear()

    def close(self) -> None:
        """Stop all slots after their current jobs."""
        for slot in self.slots:
            slot.stop()
