"""A round's work, memory and disk depend on who takes part, not on how many clients there are or ever took part.

Nothing is timed: what is counted is the same on every machine. Counted are the lines of Python that a round executes,
the bytes that it allocates and those that it writes; and the lists of all clients note who read them.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fullrank.runs.directory
from fullrank import Method
from fullrank.config.experiment import Experiment
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import Federation, divide_by_sizes
from fullrank.engine import open_engine
from fullrank.runs.assemble import assemble
from fullrank.runs.callbacks import Callbacks
from fullrank.runs.directory import RunDirectory, save_tensors
from fullrank.runs.prober import Prober
from fullrank.runs.resume import begin
from fullrank.runs.run import _one_round, all_callbacks
from stateful import Variates

FEW, MANY, TAKING_PART = 1_000, 100_000, 20
WARM_UP, COUNTED = 2, 2


class Watched(Sequence):
    """One array a client; notes which clients were read, and cannot be iterated while it is watched."""

    def __init__(self, arrays: Any):
        self.arrays, self.touched, self.watching = arrays, set(), False

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, client: Any) -> Any:
        assert not self.watching or not isinstance(client, slice), "a slice over clients was taken"
        self.touched.add(client)
        return self.arrays[client]

    def __contains__(self, client: Any) -> bool:
        return client in self.arrays if isinstance(self.arrays, dict) else super().__contains__(client)

    def __iter__(self) -> Iterator[Any]:
        assert not self.watching, "all clients were gone through"
        return iter(self.arrays)


class Closed(dict):
    """What is known of clients, which may be looked up by client only."""

    def _reject(self, *_: Any) -> Any:
        raise AssertionError("all clients that ever took part were gone through")

    __iter__ = keys = values = items = copy = _reject


@functools.cache
def federation(clients: int) -> Federation:
    """Four samples a client, one of them held out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4 * clients, 3, generator=generator)
    y = torch.randint(0, 2, (4 * clients,), generator=generator)
    data = DataSet("given", Split(x, y), Split(x[:20], y[:20]), ("0", "1"))
    return divide_by_sizes(data, Pipeline(), [4] * clients, holdout=0.25)


class Session:
    """A run in a directory, round by round."""

    def __init__(self, clients: int, method: Method, path: Path):
        divided = federation(clients)
        self.lists = [Watched(divided.parts), Watched(divided.holdouts)]
        divided = dataclasses.replace(divided, parts=self.lists[0], holdouts=self.lists[1])
        table = {
            "data": {"name": "given", "partition": "given", "clients": clients},
            "model": {"name": "given"},
            "method": {"name": f"given:{method.name}"},
            "train": {"rounds": 1000, "participation": TAKING_PART, "momentum": 0.9, "optimizer_state": "keep"},
            "evaluate": {"personal": "every"},
            "engine": {"name": "serial"},
        }
        module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))
        self.assembly = assemble(Experiment(**table).resolved(), federation=divided, module=module, method=method)
        site = self.assembly.site
        self.hosted = [Watched(site.data.training), Watched(site.data.holdouts)]
        site.data = dataclasses.replace(site.data, training=self.hosted[0], holdouts=self.hosted[1])
        self.server = self.assembly.server
        self.directory = RunDirectory(path)
        self.directory.open()
        prober = Prober(self.assembly, path)
        start = begin(self.assembly, self.directory, prober, {})
        start.write()
        self.rows = start.rows
        self.engine = open_engine("serial", self.assembly.site)
        self.callbacks = all_callbacks(Callbacks([]), self.assembly, self.directory, prober)

    def everybody_took_part(self) -> None:
        """As after very many rounds, each of which left the states of its clients in a file."""
        folder, store = self.directory.checkpoints, self.server.store
        for number in range(len(self.lists[0]) // TAKING_PART):
            some = list(range(number * TAKING_PART, (number + 1) * TAKING_PART))
            file = f"clients-{900_000 + number}.safetensors"
            if not number:
                save_tensors(folder / file, {"nothing": torch.empty(0)})
            else:
                (folder / file).hardlink_to(folder / "clients-900000.safetensors")
            # A client of which the file holds nothing starts afresh, which is as much work as continuing.
            store.follow({"contacts": {"0": some}, "file": file, "states": some}, folder)
        store.contacts, store.files = Closed(store.contacts), Closed(store.files)

    def round(self) -> None:
        _one_round(self.assembly, self.engine, self.rows, self.callbacks)


@contextmanager
def lines_counted() -> Iterator[list[int]]:
    """How many lines of Python are executed inside; one iteration of a loop counts as one at least."""
    counted, before = [0], sys.gettrace()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        counted[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield counted
    finally:
        sys.settrace(before)


@contextmanager
def bytes_written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes go into the run directory inside."""
    written = [0]
    atomically, line = fullrank.files.write_atomically, fullrank.runs.directory.append_line

    def write_atomically(path: Path, *content: bytes | memoryview) -> None:
        written[0] += sum(map(len, content))
        atomically(path, *content)

    def append_line(path: Path, value: Any) -> None:
        before = path.stat().st_size if path.is_file() else 0
        line(path, value)
        written[0] += path.stat().st_size - before

    with monkeypatch.context() as patch:
        patch.setattr(fullrank.files, "write_atomically", write_atomically)
        patch.setattr(fullrank.runs.directory, "append_line", append_line)
        yield written


def allocated(step: Callable[[], None]) -> int:
    """By how much the memory of Python and NumPy rises at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        step()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def cost(session: Session, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What a round takes: the least of some, because a cache may grow in one of them."""
    lines, written, memory = [], [], []
    for _ in range(COUNTED):
        with lines_counted() as executed, bytes_written(monkeypatch) as on_disk:
            session.round()
        lines.append(executed[0])
        written.append(on_disk[0])
        memory.append(allocated(session.round))
    return {"lines": min(lines), "bytes written": min(written), "bytes allocated": min(memory)}


@pytest.mark.parametrize("method", [Method(), Variates()], ids=lambda method: method.name)
def test_a_round_costs_the_same_whatever_the_number_of_clients(method, tmp_path, monkeypatch):
    found = {}
    for clients in (FEW, MANY):
        session = Session(clients, method, tmp_path / str(clients))
        session.everybody_took_part()
        for _ in range(WARM_UP):
            session.round()
        for arrays in session.lists + session.hosted:
            arrays.watching, arrays.touched = True, set()
        first = session.server.round
        found[clients] = cost(session, monkeypatch)
        took_part = {client for round in range(first, session.server.round) for client in session.server.sample(round)}
        assert all(arrays.touched == took_part for arrays in session.hosted)
        assert all(arrays.touched <= took_part for arrays in session.lists)
    for what, few in found[FEW].items():
        many = found[MANY][what]
        assert many < 1.1 * few + 10_000, f"{what} of a round: {few} with {FEW} clients, {many} with {MANY}"
