"""A site: it answers the requests of a server with its own data, as far as its settings allow it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fullrank._version import __version__
from fullrank.channels import part_name
from fullrank.config.experiment import Experiment
from fullrank.deploy.sites.log import LOG, MEGABYTE, SiteLog
from fullrank.deploy.sites.message import PROTOCOL, Message
from fullrank.deploy.sites.samples import SiteData, load_site
from fullrank.deploy.sites.settings import Rejected, SiteSettings
from fullrank.deploy.sites.states import Receipt, StateFolder
from fullrank.engine.machine import threads
from fullrank.errors import FullrankError, InputError, kind_of, message_of
from fullrank.federated.codec import BadMessage, pack, unpack
from fullrank.federated.site import SETS, Job, Result, Site
from fullrank.methods._method import Method
from fullrank.runs.assemble import assemble_site, hosted_data
from fullrank.trees import Tree, elements, nbytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Load = Callable[[Experiment, SiteSettings, Sequence[int]], SiteData]
"""Loads the samples of a site: a function of the experiment, the site's settings and its number among the clients."""
SITES_KEPT = 4
MOST_WORDS = 4000
"""The largest number of characters of a reason that is sent."""
MOST_LOGGED = 10_000
"""The largest number of characters of an exception in the log. Texts of a server that were not cut off would have the
lines before them deleted sooner."""


class _JobFailed(Exception):
    """Raised if the code of a client failed."""

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason


class Host:
    """Answers the requests of a server. The samples of the clients, and their states, never leave it.

    Args:
        settings: The content of `site.toml`.
        clients: The numbers of the site's clients, if `site.toml` does not say it.
        load: Loads the samples, in place of `load_site`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> host = Host(SiteSettings().within(Path(tempfile.mkdtemp())), clients=[0])
    >>> answer = host.answer(Message({"kind": "shell"}))
    >>> answer.kind, answer.values["reason"]
    ('rejected', 'cannot take part: a request of the kind "shell" is not known')
    """

    def __init__(self, settings: SiteSettings, clients: Sequence[int] = (), load: Load = load_site):
        self.settings = settings
        self.clients = (settings.site.client,) if settings.site.client >= 0 else tuple(clients)
        self._load = load
        self._experiments: dict[str, Experiment] = {}
        self._data: dict[str, SiteData] = {}
        self._sites: dict[str, Site] = {}

    def answer(self, request: Message) -> Message:
        """Answer a request.

        Args:
            request: The request.

        Returns:
            The answer. If the request is not allowed or fails, it contains the reason; no exception is raised.
        """
        try:
            return self._answer(request)
        except OSError as error:  # of the log itself, without which nothing is sent
            print(f"fullrank: the log of this site cannot be written: {error}", file=sys.stderr, flush=True)
            return Message({"kind": "rejected", "reason": "cannot take part: the log of the site cannot be written"})

    def _answer(self, request: Message) -> Message:
        try:
            if request.kind not in ("join", "job"):
                raise BadMessage(f'a request of the kind "{request.kind[:40]}" is not known')
            if request.values.get("protocol") != PROTOCOL:
                raise BadMessage(
                    "the request comes from another release of fullrank; use the same at the server and at the sites"
                )
            return self._join(request) if request.kind == "join" else self._job(request)
        except _JobFailed as failure:
            reason = failure.reason[:MOST_WORDS]
            self._log(request, {"failed": reason})
            return Message({"kind": "failed", "error": failure.kind, "reason": reason})
        except Rejected as problem:
            return self._rejection(request, str(problem))
        except FullrankError as problem:
            return self._rejection(request, f"cannot take part: {problem}")
        except Exception as error:
            return self._rejection(request, f"cannot take part: {self._reason_of(error)}")

    # Joining

    def _join(self, request: Message) -> Message:
        _, data = self._prepared(request.text("experiment"))
        told = data.facts(max(self.settings.allow.min_count, 1) if self.settings.allow.class_counts else None)
        self._log(request, {"told": told["clients"]})
        return Message({"kind": "joined", "release": __version__, **told})

    def _prepared(self, text: str) -> tuple[Experiment, SiteData]:
        """Return the experiment of a request as it runs here, and the data, after all checks of the settings."""
        name = _digest(text)
        if name not in self._experiments:
            values = _table(text)
            self.settings.check_values(values)
            experiment = self._here(values)
            self.settings.check_experiment(experiment)
            _keep(self._experiments, name, experiment)
            _keep(self._data, name, self._load(experiment, self.settings, self.clients))
        experiment, data = self._experiments[name], self._data[name]
        self.settings.check_model(experiment, data.data.num_classes, data.data.in_channels)
        return experiment, data

    def _here(self, values: dict[str, Any]) -> Experiment:
        """Return the experiment as a site runs it: on its own device, without what only the server reads."""
        engine, model = values.get("engine", {}), dict(values.get("model", {}))
        for name in ("start", "start_partial"):  # all initial values come with the jobs
            model.pop(name, None)
        if isinstance(model.get("scales"), str):  # so do these, as frozen entries
            del model["scales"]
        kept = {name: engine[name] for name in ("precision", "threads") if name in engine}
        if self.settings.site.threads:
            kept["threads"] = self.settings.site.threads
        run = {name: value for name, value in values.get("run", {}).items() if name != "track"}
        train = {name: value for name, value in values.get("train", {}).items() if name != "aggregator"}
        table = {"name": "serial", "device": self.settings.site.device, **kept}
        return Experiment(**{**values, "engine": table, "model": model, "run": run, "train": train})

    # Jobs

    def _job(self, request: Message) -> Message:
        experiment, data = self._prepared(request.text("experiment"))
        job = unpack(request.table("job"), request.tensors)
        if not isinstance(job, Job):
            raise BadMessage("the request contains no job")
        order = _Order.of(request, job)
        _check_facts(order.facts, experiment, data)
        self.settings.check_round(job.round)
        if job.client not in data.clients:
            raise InputError(f"it has no data of client {job.client}")
        if (job.show or (job.kind == "personal" and not job.evaluate)) and not self.settings.allow.models:
            raise Rejected("does not give the client's own model (allow.models in its site.toml)")
        states = StateFolder(self.settings.folder / "clients", order.run, job.client)
        frozen = _frozen(order, job, states)
        if frozen is None:
            self._log(request, {"client": job.client, "round": job.round + 1, "lacks": "frozen entries"})
            return Message({"kind": "lacks"})
        parts = (job.broadcast["w"], job.broadcast.get("buffers", {}), job.personal, frozen)
        self.settings.check_size(sum(map(elements, parts)))
        if job.frozen and order.digest:
            states.keep_frozen(order.digest, frozen)
        if job.kind == "train":
            states.prune(order.receipt, order.oldest)
        site = self._site(experiment, data, order.facts)
        self._check_query(site, job)
        whole = dataclasses.replace(job, state=states.load(order.receipt), frozen=frozen)
        with threads(experiment.engine.threads):
            result = site.do(whole)
        return self._answered(request, job, self._outgoing(site, result, data), states)

    def _site(self, experiment: Experiment, data: SiteData, facts: Mapping[str, Any]) -> Site:
        name = _digest(repr(experiment), json.dumps(facts, sort_keys=True))
        if name not in self._sites:
            samples = hosted_data(experiment, facts, data.clients)
            _keep(self._sites, name, assemble_site(experiment, facts, samples))
        return self._sites[name]

    def _check_query(self, site: Site, job: Job) -> None:
        """Check that a query names a function with which a method asks clients, and no other attribute."""
        if job.kind not in ("query", "data"):
            return
        part = next((part for part in site.composition.parts if part.name == job.query[0]), None)
        name = job.query[1]
        if (
            part is None
            or name.startswith("_")
            or hasattr(Method, name)
            or not callable(getattr(type(part), name, None))
        ):
            raise Rejected(f'does not answer the question "{name[:80]}" of "{job.query[0][:80]}", which no method asks')

    def _outgoing(self, site: Site, result: Result, data: SiteData) -> Result:
        """Check and reduce a result to what may leave the site."""
        if result.error is not None:
            raise _JobFailed(kind_of(result.error), self._reason_of(result.error))
        counts, entries = data.counts(result.client), set(site.network.tensors())
        self.settings.check_upload(result.upload, site.composition.parts, counts, entries)
        few = self.settings.allow.min_count
        if few > 1:
            for row in result.metrics.get("rows", []):
                _without_small_classes(row, few)
            for name in SETS:
                if any(0 < count < few for count in data.counts(result.client, name)):
                    _without_classes(result.metrics.get(SETS[name], {}))
        return result

    def _answered(self, request: Message, job: Job, result: Result, states: StateFolder) -> Message:
        receipt = None
        if job.kind == "train" and result.state:
            receipt = states.save(job.round, result.state)
        result.state = {}
        packed = pack(result)
        sent = {
            part_name(space, name): nbytes(part.tree)
            for space, of in result.upload.items()
            for name, part in of.items()
        }
        self._log(
            request,
            {
                "client": job.client,
                "round": job.round + (job.kind != "personal"),  # these jobs come after a round, others are part of it
                "job": job.kind,
                "uploads": sent,
                "metrics": sorted(result.metrics),
                "model": bool(result.model),
            },
        )
        kept = None if receipt is None else [receipt.round, receipt.token]
        return Message({"kind": "result", "result": packed.form, "receipt": kept}, packed.tensors, packed.paths)

    # Records

    def _rejection(self, request: Message, reason: str) -> Message:
        reason = reason[:MOST_WORDS]
        self._log(request, {"rejected": reason})
        return Message({"kind": "rejected", "reason": reason})

    def _reason_of(self, error: BaseException) -> str:
        """Return the reason that the server is told for an exception; the rest goes into the log of the site."""
        text = "".join(traceback.format_exception(error))
        self._log(None, {"exception": text[-MOST_LOGGED:]})
        if isinstance(error, FullrankError):
            return message_of(error)
        if self.settings.allow.tracebacks:
            return f"{kind_of(error)}: {message_of(error)}\n{text}"
        return f"its code raised {kind_of(error)}; the log of the site ({LOG}) has the message"

    def _log(self, request: Message | None, facts: Mapping[str, Any]) -> None:
        """Append a line to the log of the site."""
        asked = {}
        if request is not None:
            asked = {"request": request.kind[:40], "run": str(request.values.get("run", ""))[:64]}
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        log = SiteLog(self.settings.folder, self.settings.site.log_megabytes * MEGABYTE)
        log.append({"time": when, **asked, **facts})


@dataclass(frozen=True)
class _Order:
    """The values that come with a job."""

    run: str
    facts: dict[str, Any]
    receipt: Receipt | None
    """The receipt of the client's state, which the server presents."""
    oldest: int
    """The number of complete rounds of the oldest checkpoint to which the server can return."""
    digest: str
    """The digest of the frozen entries; empty if there are none."""

    @classmethod
    def of(cls, request: Message, job: Job) -> _Order:
        oldest, digest = request.values.get("oldest", 0), request.values.get("frozen", "")
        if type(oldest) is not int or not isinstance(digest, str) or len(digest) > 64:
            raise BadMessage("a message cannot be used: oldest or frozen is something else than expected")
        receipt = Receipt.of_values(request.values.get("receipt"))
        if job.round < 0 or (receipt is not None and receipt.round > job.round):
            raise BadMessage("a message cannot be used: its round is before that of the client's state")
        return cls(request.text("run"), request.table("facts"), receipt, oldest, digest)


def _check_facts(facts: Mapping[str, Any], experiment: Experiment, data: SiteData) -> None:
    """Check that a request describes samples of the same form as the site's own.

    With another number of classes, statistics by class would not be recognised as such, and the names of augmentations
    may be import paths.

    Raises:
        BadMessage: If it describes others, or another number of clients than the experiment has.
    """
    described = facts.get("data")
    for name, value in data.form.items():
        if name not in ("mean", "std") and (not isinstance(described, dict) or described.get(name) != value):
            raise BadMessage(f"a request describes data of another form than the site has: {name} differs")
    if facts.get("clients") != experiment.data.clients:
        raise BadMessage("a request names another number of clients than its experiment")


def frozen_digest(frozen: Tree) -> str:
    """Return a digest of frozen entries, or "" if there are none."""
    if not frozen:
        return ""
    found = hashlib.blake2b(digest_size=16)
    for name, value in sorted(frozen.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(memoryview(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return found.hexdigest()


def _frozen(order: _Order, job: Job, states: StateFolder) -> Tree | None:
    """Return the frozen entries of a job: those that came with it, or those that were kept; None if they are lost."""
    if not order.digest:
        return {}
    return job.frozen or states.frozen(order.digest)


def _without_small_classes(row: dict[str, Any], few: int) -> None:
    """Remove recalls and confusions from a row if a class of its samples has few of them, but some."""
    counts: dict[int, int] = {}
    for label, _, count in row.get("confusion", []):
        counts[label] = counts.get(label, 0) + count
    if any(count < few for count in counts.values()):
        classes = len(row.get("recall", []))
        row |= {"confusion": [], "recall": [None] * classes, "recall_intervals": [None] * classes}


def _without_classes(scores: dict[str, Any]) -> None:
    """Replace the values of metrics by class with None, in the scores of every stage and in their courses."""
    for name, value in scores.items():
        if isinstance(value, dict):
            _without_classes(value)
        elif isinstance(value, list) and name == "course":
            for point in value:
                _without_classes(point)
        elif isinstance(value, list):
            scores[name] = [None] * len(value)


def _table(text: str) -> dict[str, Any]:
    """Return the values of an experiment's TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the experiment of a request is not valid TOML ({str(error)[:200]})") from None


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def _keep(kept: dict[str, Any], name: str, value: Any) -> None:
    """Keep an object under a name, and drop the oldest ones."""
    while len(kept) >= SITES_KEPT:
        del kept[next(iter(kept))]
    kept[name] = value
