"""Reads the published tables: what a paper prints in each cell, and the experiments behind it.

The folder of a paper holds `paper.toml`, a file of settings for each data set (or the name of the paper whose settings
it shares), and a file for each table and figure. A file of settings is an experiment, with the hyper-parameters of all
methods of the paper, and `notes`. A file of a table has `rows` and `columns`. Both have coordinates, such as
`method = "fedavg"` or `alpha = 0.05`, and a cell has those of its row and its column:

- `data` names the file of settings, `method` is `method.name`,
- a coordinate listed in `axes` sets the key that stands there,
- `values` has further keys of single values, for example `values.clients.50`, where `measure`, `value` and `unit` may
  stand besides keys of an experiment,
- the keys of `set` hold for all cells, before those of coordinates,
- a coordinate in braces, as in `measure = "accuracy_by_site.{site}"`, is replaced by its value,
- a coordinate that is a list stands for all its values: such a cell is the mean over several experiments.

The `axes`, `values` and `notes` of `paper.toml` hold for all files of the paper. Times are compared as ratios to the
cell that `reference` leads to. A file of a figure has `draw`, the kind of `fullrank figure` and its options, or a list
of several such pairs, and `panels`, the coordinates of which each combination is drawn separately; its rows have
nothing printed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from fullrank import methods
from fullrank.comparison.measured import check_name, check_value, with_terms
from fullrank.config.experiment import Experiment, merged, nested, read_toml
from fullrank.errors import InputError, nearest, sentence
from fullrank.metrics.registry import find_metrics

FOLDER = Path(__file__).parent
TIME = "time_ratio"
"""The measure that compares times as ratios, because they depend on the machine."""
Kind = Literal["slip", "choice", "note", "impossible"]
"""A slip is an error of the paper, a choice something that the paper does not say and that fullrank had to choose; an
impossible cell cannot be run."""
UNITS = {"%": 100.0, "": 1.0, "M": 1e-6, "M one way": 0.5e-6, "min": 1 / 60, "s": 1.0, "×": 1.0}
"""The factors that convert numbers of a run to units; a count "one way" is half of what goes up and down."""


@dataclass(frozen=True)
class Printed:
    """The printed value of a cell: the mean over the paper's runs and, where it is printed, their standard deviation.

    >>> Printed.read("64.85 ± 2.01")
    Printed(mean=64.85, std=2.01)
    """

    mean: float
    std: float | None = None
    text: str = field(default="", repr=False, compare=False)
    """The value as the paper prints it."""

    @classmethod
    def read(cls, text: str) -> Printed | None:
        """Parse a printed value.

        Args:
            text: A number with or without a standard deviation; empty for a cell without a value.

        Raises:
            InputError: If the text is of another form.
        """
        if not text:
            return None
        if (match := re.fullmatch(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?", text)) is None:
            raise InputError(f'"{text}" is not a printed value, as in "64.85 ± 2.01"')
        return cls(float(match[1]), float(match[2]) if match[2] else None, text)

    def __str__(self) -> str:
        """Return the value as it is printed in tables."""
        return self.text or f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "")


@dataclass(frozen=True)
class Note:
    """A sentence about the cells whose coordinates have the values that it names.

    If `uses` is among the coordinates, it names methods, one of which the cell's experiments must use.
    """

    kind: Kind
    text: str
    at: Mapping[str, Sequence[str]]

    def holds_for(self, at: Mapping[str, str], used: Set[str] = frozenset()) -> bool:
        """Return whether a cell with these coordinates, whose experiments use these methods, has the note."""
        here = {name: {at.get(name)} for name in self.at}
        return all({**here, "uses": used}[name] & set(values) for name, values in self.at.items())


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its coordinates, what is printed, the measure, and the values of its experiments."""

    at: Mapping[str, str]
    printed: Printed | None
    measure: str
    value: str
    unit: str
    """The unit of the printed value, one of `UNITS`."""
    notes: tuple[Note, ...]
    parts: tuple[Mapping[str, Any], ...]
    """The values of the experiments: one, or several of which the cell is the mean."""

    @property
    def name(self) -> str:
        """The coordinates in one line, as `--cell` of `fullrank reproduce` takes them."""
        return ",".join(f"{name}={value}" for name, value in self.at.items())

    @property
    def impossible(self) -> str:
        """Why the cell cannot be run, or empty text."""
        return " ".join(note.text for note in self.notes if note.kind == "impossible")

    def experiments(self, seed: int, changes: Mapping[str, Any] | None = None) -> list[Experiment]:
        """Return the complete experiments of the cell.

        Args:
            seed: The seed.
            changes: Values that replace those of the cell, by dotted key.
        """
        return [Experiment(**merged(merged(part, nested(changes or {})), {"seed": seed})) for part in self.parts]


@dataclass(frozen=True)
class Drawing:
    """The drawing of a figure from the runs of its cells: the kind of `fullrank figure`, its options, and its panels.

    Runs that differ in the coordinates of `panels` are drawn in separate figures.
    """

    kind: str
    options: Mapping[str, Any]
    panels: tuple[str, ...] = ()
    name: str = ""
    """What tells it from other drawings of the figure, for the names of files; empty if it is the only one."""


@dataclass(frozen=True)
class Table:
    """A table of a paper with all its cells, row by row; or a figure, of which no values are printed."""

    name: str
    title: str
    paper: str
    cells: tuple[Cell, ...]
    rows: tuple[Mapping[str, str], ...]
    columns: tuple[Mapping[str, str], ...]
    unavailable: str = ""
    """Why the values of the table are not available, if they are not."""
    drawings: tuple[Drawing, ...] = ()
    """The ways in which a figure is drawn; none for a table."""
    to: Mapping[str, str] = field(default_factory=dict)
    """The coordinates in which the cells differ from those to which their times are ratios."""

    @cached_property
    def coordinates(self) -> dict[str, list[str]]:
        """The values of each coordinate, in the order of the table."""
        found: dict[str, list[str]] = {}
        for cell in self.cells:
            for name, value in cell.at.items():
                known = found.setdefault(name, [])
                if value not in known:
                    known.append(value)
        return found

    def select(self, patterns: Sequence[str]) -> list[Cell]:
        """Return the cells that match any of the patterns, all without one.

        A pattern gives some coordinates of a cell, as in "method=fedavg,alpha=0.05".

        Args:
            patterns: The patterns; all cells are returned if there is none.

        Raises:
            InputError: If a pattern is of another form, or no cell matches.
        """
        asked = [self._pattern(text) for text in patterns]
        chosen = [
            cell
            for cell in self.cells
            if not asked or any(all(cell.at.get(name) == value for name, value in one.items()) for one in asked)
        ]
        if not chosen:
            raise InputError(f"no cell of {self.name} is at {' or '.join(patterns)}; `--list` shows the cells")
        return chosen

    def reference(self, cell: Cell) -> Cell | None:
        """Return the cell to which the times of a cell are ratios, if the table has one."""
        at = {**cell.at, **self.to}
        return next((other for other in self.cells if self.to and other.at == at), None)

    def _pattern(self, text: str) -> dict[str, str]:
        found = {}
        for piece in text.split(","):
            name, equals, value = (part.strip() for part in piece.partition("="))
            if not equals:
                raise InputError(f'--cell "{text}": coordinates are written as NAME=VALUE, as in {self.cells[0].name}')
            if name not in self.coordinates:
                raise InputError(
                    f'--cell "{text}": {self.name} has no coordinate "{name}"; {nearest(name, self.coordinates)}'
                )
            known = {other.lower(): other for other in self.coordinates[name]}
            if value.lower() not in known:
                hint = nearest(value, self.coordinates[name])
                raise InputError(f'--cell "{text}": {name} has no value "{value}" in {self.name}; {hint}')
            found[name] = known[value.lower()]
        return found


def available() -> list[str]:
    """List the tables of papers that the library has.

    Returns:
        The names of the tables by paper and number, for example "feddecorr-tpami/table-1".
    """
    return _named("table-*.toml")


def figures() -> list[str]:
    """List the figures of papers that are measurements.

    Returns:
        The names of the figures by paper and number, for example "feddecorr-tpami/figure-9".
    """
    return _named("figure-*.toml")


def load_table(name: str | Path) -> Table:
    """Read a table or figure of a paper.

    Args:
        name: A name of `available` or `figures`, or the path of a `.toml` file of the same form, in a folder with its
            settings.

    Returns:
        The table, with the printed values and the experiments of each cell.

    Raises:
        InputError: If there is no such table or file, or if the file is not of this form.
    """
    file = Path(name) if str(name).endswith(".toml") else FOLDER / f"{name}.toml"
    if not file.is_file():
        if str(name).endswith(".toml"):
            raise InputError(f'"{name}" does not exist')
        raise InputError(f'there is no table "{name}"; {nearest(str(name), [*available(), *figures()])}')
    return _Reader(file).table(str(name))


def _named(pattern: str) -> list[str]:
    files = sorted(FOLDER.glob(f"*/{pattern}"), key=lambda file: (file.parent.name, _numbers(file.stem), file.stem))
    return [f"{file.parent.name}/{file.stem}" for file in files]


class _Row(BaseModel):
    """A row in the file of a table."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at: dict[str, Any]
    printed: list[str] = []


class _Note(BaseModel):
    """A note in the file of a table."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind
    text: str
    at: dict[str, Any] = {}


class _File(BaseModel):
    """The file of a table or figure."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str
    settings: str = ""
    measure: str = ""
    value: str = ""
    unit: str = ""
    set: dict[str, Any] = {}
    axes: dict[str, str] = {}
    values: dict[str, dict[str, dict[str, Any]]] = {}
    columns: list[dict[str, Any]] = []
    rows: list[_Row] = []
    notes: list[_Note] = []
    reference: dict[str, Any] = {}
    draw: list[Any] = []
    panels: list[str] = []
    unavailable: str = ""


def _check_form(file: Path, content: Mapping[str, Any]) -> None:
    """Reject the file of a table with unknown keys, or with values of other types."""
    try:
        _File.model_validate(content)
    except ValidationError as error:
        detail = error.errors()[0]
        *above, key = map(str, detail["loc"])
        where = ".".join([*above, key])
        if detail["type"] == "extra_forbidden":
            form: type[BaseModel] = _Row if "rows" in above else _Note if "notes" in above else _File
            known = form.model_fields
            raise InputError(f'"{file}": {where}: there is no such key; {nearest(key, known)}') from None
        raise InputError(f'"{file}": {sentence(where, detail)}') from None


class _Reader:
    """Reads one file of a table and the files of settings that it names."""

    def __init__(self, file: Path):
        self.file = file
        self.content = read_toml(file)
        _check_form(file, self.content)
        self.paper = read_toml(file.parent / "paper.toml")
        self.folder = file.parent.parent / self.paper.get("settings", file.parent.name)
        self.shared = read_toml(self.folder / "paper.toml")
        self.axes = {"method": "method.name", **self.shared.get("axes", {}), **self.content.get("axes", {})}
        self.values = merged(self.shared.get("values", {}), self.content.get("values", {}))
        self.settings: dict[str, dict[str, Any]] = {}

    def table(self, name: str) -> Table:
        content = self.content
        rows, columns = content.get("rows", []), content.get("columns", [])
        cells = []
        for row in rows:
            printed = row.get("printed", [""] * len(columns))
            if len(printed) != len(columns):
                raise InputError(f'"{self.file}": row {row["at"]} has {len(printed)} values for {len(columns)} columns')
            cells += [self._cell({**row["at"], **column}, text) for column, text in zip(columns, printed, strict=True)]
        return Table(
            name,
            content["title"],
            self.paper["title"],
            tuple(cells),
            tuple(_texts(row["at"]) for row in rows),
            tuple(_texts(column) for column in columns),
            content.get("unavailable", ""),
            _drawings(content),
            _texts(content.get("reference", {})),
        )

    def _cell(self, at: Mapping[str, Any], text: str) -> Cell:
        texts = _texts(at)
        parts = []
        shown = {name: self.content.get(name, usual) for name, usual in _SHOWN.items()}
        for one in _each(at):
            keys = self._keys(one, shown)
            shown |= {name: keys.pop(name) for name in _SHOWN if name in keys}
            parts.append(self._experiment(one, keys))
        filled = _filled(shown, texts)
        self._check_shown(filled, parts)
        notes = [note for source in (self.content, self.shared, self._settings(at)) for note in _notes(source)]
        used = {piece for name in _methods(parts) for piece in name.split("+")}
        about = tuple(note for note in notes if note.holds_for(texts, used))
        return Cell(texts, Printed.read(text), **filled, notes=about, parts=tuple(parts))

    def _check_shown(self, shown: Mapping[str, str], parts: Sequence[Mapping[str, Any]]) -> None:
        """Reject a unit, a measure or a value of a cell that there is not."""
        if shown["unit"] not in UNITS:
            raise InputError(f'"{self.file}": there is no unit "{shown["unit"]}"; {nearest(shown["unit"], UNITS)}')
        names = parts[0].get("evaluate", {}).get("metrics", ())
        try:
            check_name(shown["measure"], find_metrics(names), with_terms(_methods(parts)))
            check_value(shown["value"])
        except InputError as problem:
            raise InputError(f'"{self.file}": {problem}') from None
        if shown["measure"] == TIME and not self.content.get("reference"):
            raise InputError(f'"{self.file}": {TIME} needs reference, the coordinates of the cells to compare with')

    def _keys(self, at: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
        """Return the keys that coordinates set, with what is shown of a run where they choose it."""
        texts = _texts(at)
        keys: dict[str, Any] = dict(self.content.get("set", {}))
        keys |= {self.axes[name]: value for name, value in at.items() if name in self.axes}
        for name, text in texts.items():
            own = self.values.get(name, {}).get(text)
            if own is None and name not in (*self.axes, "data") and f"{{{name}}}" not in shown["measure"]:
                raise InputError(f'"{self.file}" does not say what {name} = {text} sets')
            keys |= _filled(own or {}, texts)
        return keys

    def _experiment(self, at: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the experiment, with the hyper-parameters of the methods that it uses."""
        settings = {key: value for key, value in self._settings(at).items() if key != "notes"}
        values = merged(settings, nested(keys))
        table = values.get("method", {})
        used = {methods.find(piece).name for piece in table.get("name", "fedavg").split("+")}
        return {**values, "method": {key: v for key, v in table.items() if key in used or key == "name"}}

    def _settings(self, at: Mapping[str, Any]) -> dict[str, Any]:
        name = at.get("data", self.content.get("settings"))
        if name is None:
            raise InputError(f'"{self.file}" does not name the file of settings of a cell; add settings = "NAME"')
        if name not in self.settings:
            self.settings[name] = read_toml(self.folder / f"{name}.toml")
        return self.settings[name]


def _methods(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the methods of experiments, of which each may join several."""
    return [part["method"].get("name", "fedavg") for part in parts]


_SHOWN = {"measure": "accuracy", "value": "last", "unit": "%"}
"""The measure of a run in a cell, unless a table or a coordinate has another one."""


def _filled(values: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return values in which coordinates in braces are replaced."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in texts:
            hint = nearest(match[1], texts)
            raise InputError(f'{match[0]} of a table: no coordinate of the cell is "{match[1]}"; {hint}')
        return texts[match[1]]

    return {
        key: re.sub(r"\{(\w+)\}", value_of, value) if isinstance(value, str) else value for key, value in values.items()
    }


def _drawings(content: Mapping[str, Any]) -> tuple[Drawing, ...]:
    """Return the drawings of a figure; several are named after the options in which they differ."""
    found = content.get("draw", [])
    pairs = [found] if found and isinstance(found[0], str) else found
    keys = dict.fromkeys(key for _, options in pairs for key in options)
    telling = [key for key in keys if any(options.get(key) != pairs[0][1].get(key) for _, options in pairs)]
    return tuple(
        Drawing(
            kind,
            options,
            tuple(content.get("panels", ())),
            "-".join(f"{key}-{_text(options[key])}" for key in telling if key in options),
        )
        for kind, options in pairs
    )


def _notes(source: Mapping[str, Any]) -> Iterator[Note]:
    for entry in source.get("notes", []):
        if entry["kind"] not in get_args(Kind):
            raise InputError(f'"{entry["kind"]}" is not a kind of note: {", ".join(get_args(Kind))}')
        yield Note(
            entry["kind"],
            entry["text"],
            {
                name: [_text(value) for value in (values if isinstance(values, list) else [values])]
                for name, values in entry.get("at", {}).items()
            },
        )


def _each(at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the coordinates with one value each, for coordinates of which some have several."""
    several = [value if isinstance(value, list) else [value] for value in at.values()]
    for values in itertools.product(*several):
        yield dict(zip(at, values, strict=True))


def _texts(at: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in at.items()}


def _text(value: Any) -> str:
    return " ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
