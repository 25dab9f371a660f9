"""Starts or resumes a run: everything is checked before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fullrank.config.experiment import Experiment, Recorded, same
from fullrank.engine.resolve import as_recorded
from fullrank.errors import InputError
from fullrank.files import save_tensors, sealed_text, write_atomically, write_json
from fullrank.metrics.registry import facts_of
from fullrank.plugins import is_foreign
from fullrank.runs.assemble import Assembly
from fullrank.runs.directory import RunDirectory, read_json
from fullrank.runs.environment import environment
from fullrank.runs.prober import Prober
from fullrank.runs.recorded import check_data, check_files, federation_facts, file_hashes, source_fingerprints
from fullrank.runs.starting import KEPT, weights_file
from fullrank.runs.status import Status

FREE_ON_RESUME = ("train.rounds", "data.root", "engine.workers", "engine.address", "run.")


@dataclasses.dataclass
class Start:
    """The state from which a run starts or continues."""

    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """The rows of the rounds that are saved."""
    cautions: list[str] = dataclasses.field(default_factory=list)
    finished: bool = False
    """Whether the run is complete."""
    write: Callable[[], None] = lambda: None
    """Writes the files that must exist before the next round. Everything that can be rejected is checked before."""


def begin(assembly: Assembly, directory: RunDirectory, prober: Prober, changes: Mapping[str, Any]) -> Start:
    """Prepare round 1, or restore the newest checkpoint of a run.

    Args:
        assembly: The parts of the run.
        directory: The run directory.
        prober: The prober of the run.
        changes: The keys of `[engine]` that differ from the recorded ones.

    Returns:
        The state from which the run starts.

    Raises:
        InputError: If the data, files or keys are not the recorded ones, or the checkpoint cannot be used.
    """
    around = {
        **environment(assembly.experiment.engine.threads, assembly.device),
        "engine": assembly.engine.facts(),
        "sources": source_fingerprints(assembly),
    }
    if facts := facts_of(assembly.site.metrics):
        around["metrics"] = facts
    if directory.started:
        return _continue(assembly, directory, prober, changes, around)
    path = directory.path

    def write() -> None:
        save_tensors(path / "partition.safetensors", assembly.federation.tensors())
        write_json(path / "partition.json", federation_facts(assembly.federation))
        files = file_hashes(assembly.experiment, assembly.files_read)
        started = {} if assembly.start is None else {"start": assembly.start.facts()}
        write_json(path / "environment.json", {**around, "files": files, **started})
        if started:
            save_tensors(path / KEPT, assembly.server.model)
        _write_experiment(assembly.experiment, path)
        directory.write_rows([])

    return Start(write=write)


def _continue(
    assembly: Assembly,
    directory: RunDirectory,
    prober: Prober,
    changes: Mapping[str, Any],
    around: dict[str, Any],
) -> Start:
    """Check everything that the run depends on, and restore its newest checkpoint."""
    experiment, path = assembly.experiment, directory.path
    directory.check("resume", experiment.train.rounds)
    check_data(path, assembly.federation)
    history = read_json(path / "environment.json")
    check_files(path, history.get("files", {}), file_hashes(experiment, assembly.files_read))
    damage = directory.restore(assembly.server, assembly.device, older=True)
    done = assembly.server.round
    start = Start(directory.rows_until(done), [damage] if damage else [])
    prober.resume(done)
    kept = range(assembly.federation.clients) if experiment.run.keep_personal else ()
    if done == experiment.train.rounds and directory.status(done, kept, verify=True) is Status.COMPLETE:
        start.finished = True
        return start
    start.cautions += _differences({**history, **(history.get("resumed") or [{}])[-1]}, around)
    entry = {"after_round": done, **around, "changed_engine": dict(changes)}
    history.setdefault("resumed", []).append(entry)

    def write() -> None:
        write_json(path / "environment.json", history)
        _write_experiment(experiment, path)
        directory.tidy(experiment.run.keep, done)
        directory.write_rows(start.rows)
        prober.cut(done)

    start.write = write
    return start


def _write_experiment(experiment: Experiment, path: Path) -> None:
    write_atomically(path / "experiment.toml", sealed_text(experiment.as_toml()).encode())


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return warnings about software that has changed since the rounds so far were run."""
    found = [
        f"the run so far used {name} {before[name]} and continues with {name} {now[name]}, so it may not end as an "
        "uninterrupted run would"
        for name in ("fullrank", "torch")
        if before.get(name) not in (None, now[name])
    ]
    known = before.get("sources", {})
    changed = [name for name, value in now["sources"].items() if known.get(name, value) != value]
    if changed:
        found.append(
            f"the source code of {', '.join(changed)} has changed since the rounds so far were run, so the run may not "
            "end as an uninterrupted run would"
        )
    return found


def kept_start(experiment: Experiment, directory: RunDirectory) -> Path | None:
    """Return the run directory's own copy of the initial weights, if the file of `model.start` is gone."""
    kept = directory.path / KEPT
    gone = bool(experiment.model.start) and not weights_file(Path(experiment.model.start)).is_file()
    return kept if gone and kept.is_file() else None


def check_resumable(
    experiment: Experiment, directory: RunDirectory, change_engine: bool = False
) -> tuple[Experiment, dict[str, Any]]:
    """Check that an experiment can continue the run in a directory.

    Args:
        experiment: The experiment with which the run is to continue.
        directory: The run directory.
        change_engine: Whether keys of `[engine]` may differ.

    Returns:
        The experiment to continue with, in which `auto` means what the run recorded, and the keys of `[engine]` that
        differ, with their values before and now.

    Raises:
        InputError: If a key differs from the recorded one that must not.
    """
    path = directory.path
    recorded = Recorded.by(path).named_by(experiment).resolved()
    foreign = is_foreign("engine.name", recorded.engine.name)
    experiment = experiment.but(engine=as_recorded(experiment.engine, recorded.engine, foreign))
    before, now = recorded.flat(), experiment.flat()
    different = [
        key
        for key in sorted(before.keys() | now.keys())
        if not same(before.get(key), now.get(key)) and not key.startswith(FREE_ON_RESUME)
    ]
    rejected = [key for key in different if not (change_engine and key.startswith("engine."))]
    if rejected:
        shown = "; ".join(f"{key} was {before.get(key)!r}, is now {now.get(key)!r}" for key in rejected)
        free = all(key.startswith("engine.") for key in rejected)
        hint = " (fullrank run --change-engine allows it)" if free else ""
        raise InputError(f'"{path}" holds another experiment: {shown}; choose another --out{hint}')
    done = directory.last_round()
    if done and now["train.lr_schedule"] == "cosine" and before["train.rounds"] != now["train.rounds"]:
        raise InputError(
            f"train.rounds was {before['train.rounds']}, is now {now['train.rounds']}: the cosine schedule runs over "
            "all rounds, so the rounds so far would have had other learning rates; choose another --out"
        )
    if experiment.train.rounds < done:
        raise InputError(f'train.rounds = {experiment.train.rounds}, but the run in "{path}" has {done} rounds already')
    return experiment, {key: [before.get(key), now.get(key)] for key in different}
