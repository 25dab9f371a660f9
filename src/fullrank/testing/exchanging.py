"""Checks of what a method exchanges between server and clients."""

from __future__ import annotations

from typing import Any

from fullrank.channels import Traffic
from fullrank.engine.recording import RecordingEngine
from fullrank.engine.serial import Serial
from fullrank.testing.results import CheckFailed
from fullrank.testing.trial import ROUNDS, Trial
from fullrank.trees import Tree, flatten, misfit


def check_exchange(trial: Trial) -> str:
    """Check that the same is exchanged in every round and with every client, and nothing personal; count numbers."""
    parts = trial.assembled()
    seen: dict[str, Tree] = {}
    name = trial.method.name
    server, entries = parts.server, parts.entries
    downs: dict[str, set[int]] = {"first": set(), "later": set()}
    ups: set[int] = set()
    met: set[int] = set()

    class Watching(Serial):
        """An engine that inspects everything that is exchanged."""

        def run(self, jobs: Any) -> Any:
            for job in jobs:
                if job.kind == "data":  # answers before the first round are not those of a round
                    result = self.site.do(job)
                    _inspect(name, result.upload, set(entries.personal), {})
                    yield result
                    continue
                traffic = Traffic()
                traffic.count_down(job.broadcast)
                traffic.count_down(job.personal)
                first = job.client not in met
                if server.store.contacts.get(job.client) != server.frozen_version:
                    traffic.count_down(job.frozen)
                downs["first" if first else "later"].add(traffic.elements_down)
                met.add(job.client)
                if leak := set(entries.personal) & {path.split("/")[-1] for path in flatten(job.broadcast)}:
                    raise CheckFailed(f'"{name}" broadcasts {leak.pop()}, which is personal')
                result = self.site.do(job)
                if result.error is None:
                    _inspect(name, result.upload, set(entries.personal), seen)
                    counted = Traffic()
                    counted.count_up(result.upload)
                    ups.add(counted.elements_up)
                yield result

    engine = Watching(parts.site)
    for _ in range(ROUNDS + 1):
        server.run_round(engine)
    if len(ups) != 1 or any(len(found) > 1 for found in downs.values()):
        raise CheckFailed(f'"{name}" does not exchange the same amount with every client: up {ups}, down {downs}')
    _, ending, _ = server.finished(Serial(parts.site))
    trial.exchange = {
        "down_first": downs["first"].pop(),
        "down_later": downs["later"].pop() if downs["later"] else 0,
        "up": ups.pop(),
        "down_at_end": ending.elements_down,
        "up_at_end": ending.elements_up,
    }
    return "holds"


def _inspect(name: str, upload: Any, personal: set[str], seen: dict[str, Tree]) -> None:
    for space, uploads in upload.items():
        for part, sent in uploads.items():
            where = f"{space}/{part}" if space else part
            if leak := personal & sent.tree.keys():
                raise CheckFailed(f'"{name}" uploads {leak.pop()} in {where}, which is personal')
            before = seen.setdefault(where, sent.tree)
            if problem := misfit(sent.tree, before):
                raise CheckFailed(f'"{name}" uploads {where} in another form than in an earlier round: {problem}')


def check_uploads(trial: Trial) -> str:
    """Check that all uploads besides the model are declared."""
    parts = trial.assembled()
    engine = RecordingEngine(parts.site)
    for _ in range(ROUNDS):
        parts.server.run_round(engine)
    parts.server.finished(engine)
    declared = {f"{part.name}/{name}" for part in trial.method.parts for name in part.uploads}
    if missing := sorted(what for what in (engine.seen | engine.asked).keys() - declared if "/" in what):
        part, name = missing[0].split("/", 1)
        raise CheckFailed(
            f'"{part}" sends {name}, which it does not declare; write uploads = {{"{name}": "what it is, in plain '
            'words"} in its class'
        )
    return "holds"
