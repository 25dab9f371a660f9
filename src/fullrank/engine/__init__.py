"""The engines, which run clients' jobs. `serial` defines what is correct, and every other engine must reproduce it."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fullrank.engine.base import Engine, EngineFactory, EngineOptions
from fullrank.errors import CallFailed, FullrankError, InputError, message_of
from fullrank.lazy import OnFirstUse
from fullrank.local import interrupt
from fullrank.plugins import Registry, called

if TYPE_CHECKING:
    from fullrank.federated.site import Job, Result, Site

__all__ = ["ENGINES", "Engine", "EngineFactory", "EngineOptions", "open_engine"]


ENGINES: Registry[EngineFactory] = Registry(
    "engines",
    "engine.name",
    OnFirstUse(
        {
            "serial": "fullrank.engine.serial:Serial",
            "processes": "fullrank.engine.processes.engine:Processes",
            "vectorised": "fullrank.engine.vectorised:Vectorised",
            "cuda": "fullrank.engine.cuda.engine:Cuda",
            "ray": "fullrank.engine.ray.engine:Ray",
        }
    ),
    "Class",
    '"auto"',
)
"""The engines that `engine.name` can name."""


def open_engine(name: str, site: Site, options: EngineOptions | None = None) -> Engine:
    """Open an engine that runs jobs at a site.

    Args:
        name: A name of the registry `ENGINES`, or "package.module:Class".
        site: The site that has the clients.
        options: The settings of the engine.

    Returns:
        The engine, which its `close` ends.

    Raises:
        InputError: If there is no such engine, or it cannot run at this site.
        CallFailed: If an engine outside the library raises; also from its `run`, `notes` and `close`.

    >>> from fullrank import Experiment
    >>> from fullrank.runs.assemble import assemble
    >>> parts = assemble(Experiment.of({"model.name": "mlp", "data.clients": 4, "train.epochs": 1}))
    >>> engine = open_engine("serial", parts.site)
    >>> len(parts.server.run_round(engine).results)
    4
    >>> engine.close()
    """
    options = options or EngineOptions()
    if name in ENGINES.own:
        return ENGINES.find(name)(site, options)
    return _Foreign(name, site, options)


class _Foreign:
    """An engine outside the library. Its exceptions become errors that name it, and its results are checked."""

    def __init__(self, name: str, site: Site, options: EngineOptions):
        self.name = name
        make = ENGINES.find(name)
        self._engine: Any = called(lambda: make(site, options), name, ENGINES.key)
        for member in ("run", "notes", "close"):
            if not callable(getattr(self._engine, member, None)):
                raise InputError(
                    f'{ENGINES.key} = "{name}": it created a {type(self._engine).__name__} without {member}; '
                    "derive its class from fullrank.engine.Engine"
                )

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Run the jobs and yield their results in order."""
        expected: deque[int] = deque()

        def handed_out() -> Iterator[Job]:
            for job in jobs:
                interrupt.check()
                expected.append(job.client)
                yield job

        waiting = handed_out()
        try:
            for result in self._engine.run(waiting):
                self._check(result, expected)
                yield result
        except FullrankError:
            raise
        except Exception as error:
            what = f"it raised {type(error).__name__}: {message_of(error)}"
            raise CallFailed(f'{ENGINES.key} = "{self.name}": {what}', traceback.format_exc()) from error
        next(waiting, None)  # a job that the engine has not asked for lacks its result, too
        if expected:
            raise self._wrong(f"it yielded no result for client {expected[0]}")

    def notes(self) -> dict[str, Any]:
        """Return the engine's notes on a round."""
        return dict(called(self._engine.notes, self.name, ENGINES.key) or {})

    def close(self) -> None:
        """Free the resources of the engine."""
        called(self._engine.close, self.name, ENGINES.key)

    def _check(self, result: Any, expected: deque[int]) -> None:
        client = getattr(result, "client", None)
        if client is None:
            raise self._wrong(f"it yielded a {type(result).__name__}, which is not a result of a job")
        if not expected or client != expected[0]:
            due = f"client {expected[0]}'s" if expected else "none"
            raise self._wrong(
                f"it yielded the result of client {client} where {due} was due; keep the order of the jobs"
            )
        expected.popleft()

    def _wrong(self, what: str) -> InputError:
        return InputError(f'{ENGINES.key} = "{self.name}": {what}')
