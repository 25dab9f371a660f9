"""A serial engine that also records the form of what clients send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fullrank.engine.base import EngineOptions
from fullrank.engine.serial import Serial
from fullrank.federated.checks import malformed
from fullrank.federated.site import Job, Result, Site
from fullrank.federated.uploads import described


class RecordingEngine(Serial):
    """The serial engine, which also records the form of everything that clients send.

    `asked` has what they answer to questions about their data before the first round, `seen` everything else.

    Args:
        site: The site that has the clients.
        options: The settings of the engine, which it ignores.
    """

    def __init__(self, site: Site, options: EngineOptions | None = None):
        super().__init__(site, options)
        self.seen: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, dict[str, Any]] = {}

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs."""
        for job in jobs:
            for result in super().run([job]):
                if not malformed(result.upload):  # the server rejects malformed uploads
                    (self.asked if job.kind == "data" else self.seen).update(described(result.upload))
                yield result
