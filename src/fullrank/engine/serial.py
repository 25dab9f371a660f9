"""The reference engine, which runs one client's job after the other in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fullrank.engine.base import Engine, EngineOptions
from fullrank.federated.site import Job, Result, Site
from fullrank.local import interrupt


class Serial(Engine):
    """An engine that runs each job when its result is read. It ignores the options.

    Args:
        site: The site that has the clients.
        options: The settings of the engine.
    """

    def __init__(self, site: Site, options: EngineOptions | None = None):
        self.site = site

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs."""
        for job in jobs:
            interrupt.check()
            yield self.site.do(job)
