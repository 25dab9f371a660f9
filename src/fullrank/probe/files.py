"""The files of probes: a line of JSON with the numbers of each, and a safetensors file with its arrays."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from fullrank.collapse import recall
from fullrank.errors import InputError, naming_file
from fullrank.files import Damaged, append_line, load_tensors, read_lines, save_tensors, write_lines

LINES, FOLDER = "probes.jsonl", "probes"
_FILE = re.compile(r"\d{6}\.safetensors|\..*\.part")


@dataclass(frozen=True)
class Probe:
    """A probe: its numbers, and its arrays by path (`global/spectrum`, `locals/0/confusion`)."""

    row: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def joined(self) -> dict[str, Any]:
        """Return numbers and arrays in one dict, with the accuracy of each class."""
        found: dict[str, Any] = copy.deepcopy(dict(self.row))
        for path, array in sorted(self.arrays.items()):
            *above, name = path.split("/")
            place: Any = found
            for step in above:
                place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
            place[name] = array
            if name == "confusion":
                place["class_accuracy"] = recall(array)
        if "cka" in found:
            found["cka"] = {layer: found["cka"][layer] for layer in found["layers"]}  # from the first to the last
        return found


def write_probe(path: Path, probe: Probe) -> None:
    """Write a probe to a run directory. Its line is written last, so that every line has a file of arrays.

    Args:
        path: The run directory.
        probe: The probe.
    """
    with naming_file(path / FOLDER):
        (path / FOLDER).mkdir(exist_ok=True)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in probe.arrays.items()}
    save_tensors(_file(path, probe.row["round"]), tensors)
    append_line(path / LINES, probe.row)


def cut_probes(path: Path, done: int, rounds: Collection[int]) -> None:
    """Delete probes of a run directory.

    Args:
        path: The run directory.
        done: The number of rounds that are saved; probes of later rounds are deleted.
        rounds: The rounds whose probes are kept.
    """
    kept = [line for line in _lines(path, done) if line["round"] in rounds]
    if (path / LINES).is_file():
        write_lines(path / LINES, kept)
    needed = {_file(path, line["round"]).name for line in kept}
    if (path / FOLDER).is_dir():
        for file in (path / FOLDER).iterdir():
            if file.name not in needed and _FILE.fullmatch(file.name):
                file.unlink()


def read_probes(path: Path, done: float = math.inf) -> list[dict[str, Any]]:
    """Read the probes in a run directory.

    Args:
        path: The run directory.
        done: The number of the last round whose probe is read; by default all are.

    Returns:
        The probes in the order of rounds. Each is a dict of numbers and arrays.

    Raises:
        InputError: If a file is missing or damaged.

    >>> import fullrank, tempfile
    >>> settings = {"train.rounds": 1, "data.clients": 3, "model.name": "mlp", "probe.every": 1, "probe.clients": 1}
    >>> run = fullrank.run(settings, out=tempfile.mkdtemp())
    >>> [probe["round"] for probe in read_probes(run.path)]
    [1]
    """
    return [_read(path, line) for line in _lines(path, done)]


class _Line(TypedDict):
    round: int
    global_: NotRequired[Annotated[dict[str, Any], Field(alias="global")]]
    clients: NotRequired[list[int]]
    locals: NotRequired[list[dict[str, Any]]]
    layers: NotRequired[list[str]]
    prototype_consistency: NotRequired[float | None]
    cka_by_layer: NotRequired[dict[str, float | None]]
    cka_mean: NotRequired[float | None]


def _lines(path: Path, done: float) -> list[dict[str, Any]]:
    """Return the lines up to that of a round; those after it are not read, so they may be damaged."""
    return list(itertools.takewhile(lambda line: line["round"] <= done, read_lines(path / LINES, _Line)))


def _read(path: Path, line: dict[str, Any]) -> dict[str, Any]:
    file = _file(path, line["round"])
    try:
        arrays = {name: tensor.numpy() for name, tensor in load_tensors(file).items()}
        return Probe(line, arrays).joined()
    except FileNotFoundError:
        raise InputError(f'the file "{file}", which "{path / LINES}" names, is missing') from None
    except (Damaged, KeyError, IndexError, ValueError) as error:
        raise InputError(f'the file "{file}" is damaged ({error})') from None


def _file(path: Path, round: int) -> Path:
    return path / FOLDER / f"{round:06d}.safetensors"
