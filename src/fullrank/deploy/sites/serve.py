"""Runs an experiment whose clients are at sites elsewhere, and writes the same run directory as a simulation."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank.config.experiment import Experiment
from fullrank.data import Split
from fullrank.deploy.sites.channel import Channel
from fullrank.deploy.sites.engine import Limits, RemoteEngine
from fullrank.deploy.sites.federation import ClientFacts, RemoteFederation
from fullrank.deploy.sites.roster import Roster
from fullrank.errors import InputError
from fullrank.files import Damaged, read_json, write_json
from fullrank.plugins import GIVEN, SITES
from fullrank.runs.callbacks import Callback
from fullrank.runs.result import Run
from fullrank.runs.run import execute

FILE = "sites.json"
"""The file of a run directory that says which sites take part."""
DEFAULT_TIMEOUT = 3600.0
"""The number of seconds within which a client must answer if the experiment does not say it."""


def serve(
    experiment: Experiment | str | Path | Mapping[str, Any],
    channel: Channel,
    out: str | Path,
    *,
    wait: float = 600.0,
    patience: float = 60.0,
    test: Split | None = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """Run an experiment at the sites that a channel reaches, or continue it from its last checkpoint.

    The weights are those that the engine `serial` gives in a simulation of the same clients, to the bit if sites and
    server compute on CPUs of the same kind with the same version of torch.

    Args:
        experiment: The experiment, as `fullrank.run` takes it. `data.clients` is the number of clients;
            `run.min_clients`, `run.client_timeout` and `run.on_client_error` say what happens if sites are missing.
        channel: Carries the messages.
        out: The run directory.
        wait: The number of seconds within which the sites must join. With `run.on_client_error = "skip"` the run starts
            without missing sites if `run.min_clients` are there, and they may join later.
        patience: The number of seconds within which a site that was lost must be back.
        test: A test set at the server, on which the global model is evaluated. By default it is only evaluated at
            sites.
        callbacks: Objects that are notified of the events of the run.
        say: Called with a sentence when a site has joined or cannot take part.

    Returns:
        The complete run.

    Raises:
        InputError: If the experiment, the directory or a site does not fit.
        ClientFailed: If a client fails and `run.on_client_error` is "stop".
        RunFailed: If too few clients take part.

    >>> import tempfile
    >>> from fullrank.deploy.sites import Host, Message, SiteSettings
    >>> from fullrank.deploy.sites.channel import InMemory
    >>> def node(client):
    ...     host = Host(SiteSettings().within(Path(tempfile.mkdtemp())), [client])
    ...     return lambda request: host.answer(Message.from_bytes(request)).to_bytes()
    >>> few = {"data.clients": 2, "model.name": "mlp", "train.rounds": 1}
    >>> run = serve(few, InMemory({7: node(0), 8: node(1)}), tempfile.mkdtemp())
    >>> run.complete
    True
    """
    experiment, path = Experiment.of(experiment).resolved(), Path(out)
    if experiment.data.clients < 1:
        raise InputError("data.clients = 0: give the number of sites that take part")
    record = _Record.of(path)
    known = dict(record.sites)
    roster = Roster(channel, experiment.as_toml(), record.run, experiment.data.clients, known, max(wait, patience), say)
    stops = experiment.run.on_client_error == "stop"
    roster.await_sites(wait, experiment.data.clients if stops else experiment.run.min_clients)
    assert roster.described is not None
    federation = RemoteFederation.of(experiment, roster.described, roster.known, test)
    roster.joined = federation.add
    recorded = experiment
    if roster.described["name"] == SITES:
        recorded = experiment.but(**{"data.name": SITES, "data.partition": GIVEN, "data.root": ""})
    facts = federation.for_sites()
    common = {"run": record.run, "experiment": experiment.as_toml(), "facts": facts}
    checkpoints = _Checkpoints(path, record, roster)
    limits = Limits(experiment.run.client_timeout or DEFAULT_TIMEOUT, patience, experiment.engine.workers)
    engine = RemoteEngine(channel, roster, lambda: common, checkpoints.oldest, limits)
    table = {"name": "serial", "device": "", "precision": recorded.engine.precision, "threads": recorded.engine.threads}
    return execute(
        recorded.but(engine=table),
        path,
        callbacks=[checkpoints, *callbacks],
        federation=federation,
        engines=("serial",),
        engine=lambda site, options: engine,
    )


@dataclasses.dataclass
class _Record:
    """The content of `sites.json`: the identifier of the run, under which sites keep states, and the sites."""

    run: str
    sites: dict[int, ClientFacts]

    @classmethod
    def of(cls, path: Path) -> _Record:
        """Read the record of a run directory, or begin one."""
        try:
            kept = read_json(path / FILE)
        except FileNotFoundError:
            return cls(secrets.token_hex(16), {})
        except Damaged as problem:
            raise InputError(f'the file "{path / FILE}" is damaged ({problem}); start a new run') from None
        sites = {
            int(client): ClientFacts(**{**facts, "classes": tuple(facts["classes"]) if facts["classes"] else None})
            for client, facts in kept["sites"].items()
        }
        return cls(kept["run"], sites)

    def write(self, path: Path) -> None:
        sites = {str(client): dataclasses.asdict(facts) for client, facts in sorted(self.sites.items())}
        write_json(path / FILE, {"run": self.run, "sites": sites})


class _Checkpoints(Callback):
    """Keeps `sites.json`, and knows to which round the server can return."""

    def __init__(self, path: Path, record: _Record, roster: Roster):
        self._path, self._record, self._roster = path, record, roster

    def oldest(self) -> int:
        """Return the number of rounds of the oldest checkpoint in the run directory, 0 without one."""
        rounds = [int(file.stem) for file in (self._path / "checkpoints").glob("*.json") if file.stem.isdecimal()]
        return min(rounds, default=0)

    def started(self, experiment: Experiment, path: Path | None, done: int, clients: int) -> None:
        """Write the identifier of the run before the first job."""
        self._write()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Note the sites that have joined meanwhile."""
        if self._record.sites.keys() != self._roster.known.keys():
            self._write()

    def _write(self) -> None:
        self._record.sites = dict(self._roster.known)
        self._record.write(self._path)
