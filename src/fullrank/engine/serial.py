"""The reference engine: one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fullrank.federated.site import Job, Result, Site
from fullrank.local import interrupt


class Serial:
    """Does each job when its result is asked for."""

    def __init__(self, site: Site):
        self.site = site

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Results in the jobs' order."""
        for job in jobs:
            interrupt.check()
            yield self.site.do(job)

    def notes(self) -> dict[str, Any]:
        """Nothing: every step ran as it was asked for."""
        return {}

    def close(self) -> None:
        """Nothing is held."""
