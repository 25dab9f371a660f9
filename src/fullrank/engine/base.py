"""The protocol of engines, which run clients' jobs at a site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fullrank.federated.site import Job, Result, Site


@dataclass(frozen=True)
class EngineOptions:
    """The settings with which an engine is created: keys of the table `[engine]`, and facts about the run.

    Args:
        workers: Number of worker processes or devices (`engine.workers`); 0 leaves it to the engine.
        threads: Number of torch's threads per process (`engine.threads`).
        slots: Number of clients that train at the same time on one device (`engine.slots`); 0 leaves it to the engine.
        compile: Whether forward passes are compiled.
        clients: Number of clients of a round.
        address: The address of a cluster (`engine.address`).
        device: The device on which clients train (`engine.device`), which may differ from the site's where they train
            on other machines; if empty, that of the site.
        last_row: The metrics of the previous round if a run continues, including what `notes` added to them.

    >>> EngineOptions(workers=2).slots
    0
    """

    workers: int = 0
    threads: int = 1
    slots: int = 0
    compile: bool = False
    clients: int = 1
    address: str = ""
    device: str = ""
    last_row: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """Runs the jobs of clients. A subclass, or any class with these three members, is an engine.

    An engine is created as `Engine(site, options)`, with a `Site` and `EngineOptions`, once per run, and closed at the
    end. `site.do(job)` runs one job in this process; an exception of the client becomes the `error` of the result.
    A site runs one job at a time, and `site.twin(device)` creates another one for the same clients.

    An engine outside the library is named by `engine.name = "package.module:Class"`. Its results should equal those of
    `serial`, which defines what is correct.

    >>> class Backwards(Engine):
    ...     def __init__(self, site, options):
    ...         self.site = site
    ...     def run(self, jobs):
    ...         results = [self.site.do(job) for job in reversed(list(jobs))]
    ...         return reversed(results)
    """

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Run jobs, in any order and place.

        Args:
            jobs: The jobs.

        Returns:
            The results, in the order of the jobs.
        """
        raise NotImplementedError

    def notes(self) -> dict[str, Any]:
        """Return entries for the metrics of a round about how the round was run, by name."""
        return {}

    def close(self) -> None:
        """Free the resources of the engine."""
        return None


class EngineFactory(Protocol):
    """The type of an object that creates an engine: the class of an engine, or a function with the same arguments."""

    def __call__(self, site: Site, options: EngineOptions) -> Engine:
        """Create an engine that runs jobs at a site.

        Args:
            site: The site that has the clients.
            options: The settings of the engine.
        """
