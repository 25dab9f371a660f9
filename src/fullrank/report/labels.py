"""What a figure calls the runs that it shows: by what they differ in, and one colour for runs that differ in the seed
alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fullrank.config import same
from fullrank.result import Run

from .style import line_colours

NO_MATTER = ("run.", "engine.", "probe.", "evaluate.", "data.root")
"""Keys that say where and how a run was made, not what it is."""
LONGEST = 40
"""Letters of a label for which a legend has room."""
FIRST, LAST = ("method.name", "data.alpha"), ("seed",)
WORDS = {
    "method.name": "{}",
    "data.alpha": "α = {}",
    "data.name": "{}",
    "data.partition": "{}",
    "model.name": "{}",
    "seed": "seed {}",
    "train.rounds": "{} rounds",
    "data.clients": "{} clients",
}


@dataclass(frozen=True)
class Series:
    """A run as a figure shows it."""

    run: Run
    label: str
    """In the legend, once for all runs that share it."""
    colour: Any


def labelled(runs: Sequence[Run]) -> list[Series]:
    """Each run with its label and colour, in the order given."""
    names = names_of(runs)
    known = list(dict.fromkeys(names))
    colours = dict(zip(known, line_colours(len(known)), strict=True))
    return [Series(run, name, colours[name]) for run, name in zip(runs, names, strict=True)]


def names_of(runs: Sequence[Run]) -> list[str]:
    """By method, α and whatever else differs; by the seed only where nothing else does; else by the directory."""
    tables = [run.experiment.resolved().flat() for run in runs]
    shared = [key for key in tables[0] if all(key in table for table in tables) and not key.startswith(NO_MATTER)]
    varied = [key for key in shared if any(not same(table[key], tables[0][key]) for table in tables)]
    telling = [key for key in varied if key not in LAST] or varied
    telling.sort(key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key))
    if not telling:
        return [_words("method.name", tables[0]["method.name"])] if len(runs) == 1 else _places(runs)
    names = _joined(tables, telling)
    if max(map(len, names)) > LONGEST:
        names = _joined(tables, [key for key in telling if key in FIRST])
    seen = [(name, table["seed"]) for name, table in zip(names, tables, strict=True)]
    # runs of one name should differ in their seed alone, but may in something that not all of them have
    return names if len(set(seen)) == len(seen) and all(names) else _places(runs)


def _joined(tables: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    return [", ".join(_words(key, table[key]) for key in keys) for table in tables]


def _places(runs: Sequence[Run]) -> list[str]:
    names = [run.path.name if run.path is not None else f"run {number}" for number, run in enumerate(runs)]
    return [name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}" for name in names]


def legend_names(series: Sequence[Series]) -> dict[str, str]:
    """By label what a legend says: with the number of runs where several share it."""
    labels = [each.label for each in series]
    return {label: f"{label} ({n} seeds)" if (n := labels.count(label)) > 1 else label for label in labels}


def _words(key: str, value: Any) -> str:
    shown = (
        "∞" if isinstance(value, float) and math.isinf(value) else f"{value:g}" if isinstance(value, float) else value
    )
    return WORDS.get(key, f"{key.rpartition('.')[2]} = {{}}").format(shown)
