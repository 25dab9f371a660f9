"""Runs in children that are forked after import, and that may be made to kill themselves at a chosen point.

The points lie in the library's own functions, which are replaced in the child only: nothing in the library knows of
them. Forking is safe because torch has one thread, here set before anything could have started more.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import re
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fullrank
import fullrank.federated.aggregation
import fullrank.federated.client_states
import fullrank.federated.server
import fullrank.files
import fullrank.local.step
import fullrank.runs.directory

torch.set_num_threads(1)
fullrank.methods.available()  # imports what it lists, so that no child has to

ANY = "any"
"""In place of a point's name: whichever is reached as the n-th of all."""


# Points


@dataclass(frozen=True)
class Strike:
    """A signal that the process sends itself when it reaches a point for the n-th time."""

    point: str
    arrival: int = 1
    signal: int = signal.SIGKILL

    def __str__(self) -> str:
        return f"{signal.Signals(self.signal).name} at {self.point!r}, arrival {self.arrival}"


class Points:
    """Counts arrivals at the points, and strikes where it was told to."""

    def __init__(self, strike: Strike | None = None, reached: Callable[[], None] | None = None):
        self.trace: list[str] = []
        self._strike = strike
        self._reached = reached
        self._counts: Counter[str] = Counter()

    def due(self, point: str) -> bool:
        """Count an arrival; whether this is the one."""
        self.trace.append(point)
        self._counts[point] += 1
        if self._strike is None:
            return False
        number = len(self.trace) if self._strike.point == ANY else self._counts[point]
        return self._strike.point in (ANY, point) and number == self._strike.arrival

    def strike(self) -> None:
        """Now."""
        assert self._strike is not None
        if self._reached is not None:
            self._reached()
        os.kill(os.getpid(), self._strike.signal)

    def arrive(self, point: str) -> None:
        """Pass a point."""
        if self.due(point):
            self.strike()

    def install(self) -> None:
        """Put the points into the library's functions, in this process, for good."""
        self._around(fullrank.local.step.Step, "advance_", before="a local step")
        self._around(
            fullrank.federated.aggregation.RunningMean, "add", before="an upload, not yet summed", after="a sum"
        )
        self._around(fullrank.federated.server.Server, "run_round", after="a round, not yet written")
        self._around(fullrank.federated.server.Server, "finished", after="the methods' finish")
        self._around(fullrank.runs.directory.RunDirectory, "append_row", after="a row, not yet its checkpoint")
        self._around(fullrank.runs.directory.RunDirectory, "sweep", before="a checkpoint, not yet swept")
        self._around(fullrank.federated.client_states.ClientStates, "saved_as", before="a note, not yet its checkpoint")
        self._around(fullrank.runs.directory.RunDirectory, "save", after="a checkpoint")
        self._around(Path, "unlink", before="a deletion")
        self._tear_rows()
        self._tear_files()

    def _around(self, owner: Any, name: str, before: str = "", after: str = "") -> None:
        original = getattr(owner, name)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.arrive(before)
            result = original(*args, **kwargs)
            if after:
                self.arrive(after)
            return result

        setattr(owner, name, replacement)

    def _tear_rows(self) -> None:
        original = fullrank.runs.directory.append_line

        def append_line(path: Path, value: Mapping[str, Any]) -> None:
            if self.due("half a row" if path.name == "metrics.jsonl" else "half a note"):
                text = json.dumps(value)
                with path.open("a") as file:
                    file.write(text[: len(text) // 2])
                self.strike()
            original(path, value)

        fullrank.runs.directory.append_line = append_line

    def _tear_files(self) -> None:
        original, replace = fullrank.files.write_atomically, os.replace

        def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
            content = b"".join(parts)
            if self.due(f"half of {kind(path)}"):
                path.with_name(f".{path.name}.{os.getpid()}.part").write_bytes(content[: len(content) // 2])
                self.strike()
            original(path, content)

        def replace_or_die(source: Any, target: Any) -> None:
            self.arrive(f"bytes of {kind(target)}")
            replace(source, target)
            self.arrive(f"name of {kind(target)}")

        os.replace = replace_or_die
        fullrank.files.write_atomically = write_atomically
        importlib.import_module("fullrank.runs.resume").write_atomically = write_atomically


def kind(path: Any) -> str:
    """What a file of a run directory is, without its round."""
    name = Path(path).name
    if re.fullmatch(r"\d+\.json", name):
        return "manifest"
    return re.sub(r"-\d+", "", name).split(".")[0]


# Children


@dataclass
class Ended:
    """How a child ended: its function's value, its exception, or the signal that killed it."""

    signal: int = 0
    value: Any = None
    error: str = ""
    """Name of the exception's class."""
    message: str = ""
    traceback: str = field(default="", repr=False)

    def succeeded(self) -> Any:
        """The value; anything else fails the test, with the child's own traceback."""
        assert not self.signal, f"the child was killed by signal {self.signal}"
        assert not self.error, self.traceback
        return self.value


def forked(function: Callable[[], Any], seconds: int = 120, during: Callable[[int], None] | None = None) -> Ended:
    """Run a function in a forked child; `during(pid)` runs here meanwhile. A child that hangs is killed."""
    assert torch.get_num_threads() == 1, "forking is only safe while torch has one thread"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(seconds)
            with os.fdopen(writing, "wb") as answer:
                pickle.dump(_called(function), answer)
        finally:
            os._exit(0)
    os.close(writing)
    if during is not None:
        during(child)
    with os.fdopen(reading, "rb") as answer:
        content = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    assert content, "the child ended without an answer"
    ended = pickle.loads(content)
    if "Autograd-and-Fork" in ended.traceback:
        # PyTorch built for CUDA: to compile or export without a GPU in sight makes it take note of one
        pytest.skip("autograd has started threads in this process; run this file by itself")
    return ended


def _called(function: Callable[[], Any]) -> Ended:
    try:
        return Ended(value=function())
    except BaseException as error:
        return Ended(error=type(error).__name__, message=str(error), traceback=traceback.format_exc())


def attempt(
    experiment: Mapping[str, Any],
    out: Path,
    strike: Strike | None = None,
    seconds: int = 120,
    during: Callable[[int], None] | None = None,
    reached: Callable[[], None] | None = None,
    **options: Any,
) -> Ended:
    """`fullrank.run` in a child; its value is the list of points that it passed."""

    def run() -> list[str]:
        points = Points(strike, reached)
        points.install()
        fullrank.run(experiment, out=out, **options)
        return points.trace

    return forked(run, seconds, during)


# What a run leaves behind


def outcome(path: Path) -> dict[str, Any]:
    """Everything of a complete run that must not depend on where it was interrupted, flat: name to value."""
    newest = sorted((path / "checkpoints").glob("[0-9]*.json"))[-1]
    manifest = json.loads(newest.read_text())
    found: dict[str, Any] = {
        "model.safetensors": (path / "model.safetensors").read_bytes(),
        "round": manifest["round"],
    }
    found |= _tensors("server", load_file(newest.with_name(manifest["server"])))
    found |= {f"contact {client}": version for client, version in noted(path)[1].items()}
    for file, clients in saved_states(path).items():
        tensors = load_file(newest.with_name(file))
        for client in clients:
            own = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{client}/")}
            assert own, f"{file} holds nothing of client {client}"
            found |= _tensors("client", own)
    for line in (path / "metrics.jsonl").read_text().splitlines():
        row = timeless(json.loads(line))
        found |= {f"row {row['round']} {key}": value for key, value in row.items()}
    found["rows"] = len((path / "metrics.jsonl").read_text().splitlines())
    summary = timeless(json.loads((path / "summary.json").read_text()))
    found["clients.jsonl"] = (path / "clients.jsonl").read_bytes()
    found |= {f"summary {key}": value for key, value in summary.items()}
    return found


def noted(path: Path, until: int | None = None) -> tuple[dict[int, str], dict[int, int]]:
    """Of each client that took part, up to a checkpoint, the file of its newest state and its last contact."""
    files: dict[int, str] = {}
    contacts: dict[int, int] = {}
    notes = path / "checkpoints" / "clients.jsonl"
    for note in map(json.loads, notes.read_text().splitlines() if notes.is_file() else []):
        if until is None or note["round"] <= until:
            files |= dict.fromkeys(note["states"], note["file"])
            contacts |= {client: int(version) for version, met in note["contacts"].items() for client in met}
    return files, contacts


def saved_states(path: Path, until: int | None = None) -> dict[str, list[int]]:
    """Whose newest states each file holds, up to a checkpoint."""
    found: dict[str, list[int]] = {}
    for client, file in noted(path, until)[0].items():
        found.setdefault(file, []).append(client)
    return found


def _tensors(what: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {
        f"{what} {name}": (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes())
        for name, tensor in tensors.items()
    }


def timeless(value: Any) -> Any:
    """JSON without what is measured by a clock."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if not key.endswith(("seconds", "checksum"))}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def assert_equal_outcomes(path: Path, reference: Path, why: str = "") -> None:
    """Two complete runs left the same, bit by bit."""
    got, want = outcome(path), outcome(reference)
    differing = sorted(name for name in got.keys() | want.keys() if got.get(name) != want.get(name))
    assert not differing, f"{why or path}: differs from the uninterrupted run in {', '.join(differing[:8])}"


def assert_tidy(path: Path, keep: int = 1) -> None:
    """The checkpoints' folder holds the newest checkpoints, what they name, and nothing else."""
    manifests = sorted((path / "checkpoints").glob("[0-9]*.json"))
    assert 1 <= len(manifests) <= keep
    named = {"clients.jsonl", *(manifest.name for manifest in manifests)}
    for manifest in manifests:
        named |= {json.loads(manifest.read_text())["server"], *saved_states(path, int(manifest.stem))}
    rounds = [json.loads(line)["round"] for line in (path / "checkpoints" / "clients.jsonl").read_text().splitlines()]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == int(manifests[-1].stem)
    assert {entry.name for entry in (path / "checkpoints").iterdir()} == named


@contextlib.contextmanager
def nothing_changes(path: Path) -> Any:
    """The files below a path are the same afterwards, byte by byte."""

    def files() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}

    before = files()
    yield
    assert files() == before
