"""Labels of runs in figures: the settings in which the runs differ, and one name for all seeds of a line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fullrank.config.experiment import method_labels, same
from fullrank.errors import InputError
from fullrank.report.style import method_colours
from fullrank.runs.result import Run

NO_MATTER = ("run.", "engine.", "probe.", "evaluate.", "data.root")
"""Keys that do not belong in a label, because they are about where and how a run was made."""
LONGEST = 40
"""The number of letters of a label for which a legend has room."""
DEEPEST = 3
"""The most parts of a directory's path that are tried as a name."""
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
class SeedGroup:
    """Runs that differ only in the seed; a figure shows them in one colour, under one name."""

    label: str
    colour: Any
    runs: tuple[Run, ...]
    given: str = ""
    """The name that a user has given, if any."""

    @property
    def name(self) -> str:
        """The name in the legend, with the number of seeds if there are several."""
        seeds = len({run.experiment.seed for run in self.runs})
        return self.given or (f"{self.label} ({seeds} seeds)" if seeds > 1 else self.label)


def grouped(runs: Sequence[Run], labels: Sequence[str] = (), axis: str = "") -> list[SeedGroup]:
    """Return the lines of a figure, each with its runs, in the order of their first runs.

    Args:
        runs: The runs.
        labels: Names for all lines, instead of those from the settings.
        axis: A key in which the runs of a line may differ besides the seed.
    """
    found: dict[str, list[Run]] = {}
    for run, name in zip(runs, names_of(runs, by_seed=False, axis=axis), strict=True):
        found.setdefault(name, []).append(run)
    colours = method_colours(len(found))
    groups = [SeedGroup(name, colour, tuple(own)) for (name, own), colour in zip(found.items(), colours, strict=True)]
    given = chosen(labels, [group.name for group in groups])
    return [replace(group, given=name) for group, name in zip(groups, given, strict=True)]


def chosen(labels: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return the names of lines: those that a user has given, or by default those from the settings.

    Args:
        labels: The user's names; none for the default.
        names: The default names.

    Raises:
        InputError: If there is not one distinct name for each line.
    """
    if not labels:
        return names
    if isinstance(labels, str):
        raise InputError(f'labels = "{labels}": must be a list of names, as in ["{labels}"]')
    listed = ", ".join(f'"{name}"' for name in names)
    if len(labels) != len(names):
        raise InputError(
            f"the figure has {len(names)} to name, in this order: {listed}; give one --label (labels=[…] in Python) "
            f"for each, not {len(labels)}"
        )
    for label in labels:
        if labels.count(label) > 1 or not label.strip():
            raise InputError(f'--label "{label}": each label must be a different name; they stand for {listed}')
        _check_formulas(label)
    return labels


def _check_formulas(label: str) -> None:
    """Reject a label in which something between two dollar signs is no formula."""
    from matplotlib.mathtext import MathTextParser

    if label.count("$") > 1:
        try:
            MathTextParser("path").parse(label)
        except ValueError as error:
            reason = str(error).splitlines()[-1]
            raise InputError(f'--label "{label}": not a formula between dollar signs ({reason})') from None


def titles_of(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[str]:
    """Return titles for panels of one run each, with the seed if runs would share a title otherwise."""
    names = names_of(runs)
    titles = [
        f"{name}, seed {run.experiment.seed}" if names.count(name) > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]
    return list(chosen(labels, titles))


def names_of(runs: Sequence[Run], *, by_seed: bool = True, axis: str = "") -> list[str]:
    """Return names of runs from the method, α and all other settings that differ.

    The seed is used only if nothing else differs, and directories if settings give no distinct short names.

    Args:
        runs: The runs.
        by_seed: Whether runs that differ only in the seed have different names; otherwise they have the method's.
        axis: A key in which the runs of one name may differ as well, if not `by_seed`.
    """
    labels = method_labels([run.experiment for run in runs])
    tables = [
        run.experiment.resolved().flat() | {"method.name": label} for run, label in zip(runs, labels, strict=True)
    ]
    shared = [key for key in tables[0] if all(key in table for table in tables) and not key.startswith(NO_MATTER)]
    varied = [key for key in shared if any(not same(table[key], tables[0][key]) for table in tables)]
    varied += (own := _of_some_methods(tables, shared))
    ignored = (*LAST, axis)
    telling = [key for key in varied if key not in ignored]
    telling.sort(key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key))
    if not varied:
        return [_words("method.name", tables[0]["method.name"])] if len(runs) == 1 else _places(runs)
    names = _joined(tables, telling or (varied if by_seed else FIRST[:1]))
    if max(map(len, names)) > LONGEST:
        names = _joined(tables, [key for key in telling if key in (*FIRST, *own)])
    return names if all(names) and _differ_only_in(ignored, names, tables) else _places(runs)


def _of_some_methods(tables: Sequence[Mapping[str, Any]], shared: Sequence[str]) -> list[str]:
    """Return the hyper-parameters of some of the methods in which runs of these methods differ."""
    found = dict.fromkeys(key for table in tables for key in table if key.startswith("method.") and key not in shared)
    values = {key: [table[key] for table in tables if key in table] for key in found}
    return [key for key, own in values.items() if any(not same(value, own[0]) for value in own)]


def _differ_only_in(ignored: Sequence[str], names: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether runs of one name differ only in ignored keys, as the seed; a name does not include every setting.

    They must differ in one of them.
    """
    first: dict[str, Mapping[str, Any]] = {}
    seen = set()
    for name, table in zip(names, tables, strict=True):
        seen.add((name, *(table.get(key) for key in ignored)))
        if not _alike(first.setdefault(name, table), table, ignored):
            return False
    return len(seen) == len(names)


def _alike(one: Mapping[str, Any], other: Mapping[str, Any], ignored: Sequence[str]) -> bool:
    keys = {key for key in (*one, *other) if key not in ignored and not key.startswith(NO_MATTER)}
    return all(key in one and key in other and same(one[key], other[key]) for key in keys)


def _joined(tables: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    return [", ".join(_words(key, table[key]) for key in keys if key in table) for table in tables]


def _places(runs: Sequence[Run]) -> list[str]:
    """Return as much of directories' paths as distinguishes them, numbered if a run is given twice."""
    names: list[str] = []
    for depth in range(1, DEEPEST + 1):
        names = [_place(run, number, depth) for number, run in enumerate(runs)]
        if len(set(names)) == len(names):
            return names
    return [f"{name} #{number}" if names.count(name) > 1 else name for number, name in enumerate(names, 1)]


def _place(run: Run, number: int, depth: int) -> str:
    name = "/".join(run.path.absolute().parts[-depth:]) if run.path is not None else f"run {number}"
    name = name.replace("$", "\\$")  # no formula
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _words(key: str, value: Any) -> str:
    shown = (
        "∞" if isinstance(value, float) and math.isinf(value) else f"{value:g}" if isinstance(value, float) else value
    )
    return WORDS.get(key, f"{key.rpartition('.')[2]} = {{}}").format(shown)
