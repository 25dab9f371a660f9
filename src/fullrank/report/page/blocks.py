"""The parts of pages as plain data: texts, tiles, tables and charts. `html` writes them, and `csv_of` exports them.

A page is a dict with `title`, `lead` and `sections`; a section has an `id`, a `title`, perhaps a sentence `about` it,
and a list of blocks. A block is a dict whose `type` says which of the functions below made it. A chart contains the
values that it shows, in the units of its axes, so that the page, its CSV files and its JSON cannot differ.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from fullrank.errors import printable

Block: TypeAlias = dict[str, Any]
Series: TypeAlias = dict[str, Any]
Axis: TypeAlias = dict[str, Any]

INNER = ("series", "values")
"""The parts of a chart that differ between its frames."""
SLIDERS = ("round", "layer")
"""Parts of a frame's place that have an order."""
RESCALED = ("quantity",)
"""Parts of a frame's place of which each value has axes that are scaled to it; other frames share their axes."""
LEVELS = ("good", "note", "warn")
"""The levels of a sentence of the reading."""
DIGITS = 6
"""The number of significant digits with which a page stores a value that it shows."""


def section(id: str, title: str, blocks: Iterable[Block], about: str = "", *, short: str = "") -> Block:
    """Return a section of a page.

    Args:
        id: The identifier of its heading in HTML.
        title: The title.
        blocks: The blocks. Those that are None are left out.
        about: A sentence below the title.
        short: The title in the menu, by default the title.
    """
    return {
        "id": id,
        "title": title,
        "short": short or title,
        "about": about,
        "blocks": [block for block in blocks if block],
    }


def tiles(items: Iterable[tuple[str, str, str]]) -> Block:
    """Return a row of tiles, each a label, a value and a note below it."""
    return {"type": "tiles", "items": [{"label": label, "value": value, "note": note} for label, value, note in items]}


def verdict(level: str, lines: Sequence[str]) -> Block:
    """Return the sentences at the top of a page: what was found, and whether it can be believed.

    Args:
        level: The worst level of the sentences, which decides the colour.
        lines: The sentences.
    """
    return {"type": "verdict", "level": level, "lines": list(lines)}


def reading(items: Iterable[Mapping[str, Any]]) -> Block:
    """Return a list of sentences, each with its `level`, the `rule` that wrote it, and `more` of this rule."""
    return {"type": "reading", "items": [dict(item) for item in items]}


def absent(text: str) -> Block:
    """Return the sentence that says what is missing, and which key records it."""
    return {"type": "absent", "text": text}


def text(words: str) -> Block:
    """Return a paragraph."""
    return {"type": "text", "text": words}


def code(words: str) -> Block:
    """Return a text that is shown as it is, for example an experiment."""
    return {"type": "code", "lines": words.splitlines()}


def details(summary: str, blocks: Iterable[Block]) -> Block:
    """Return blocks that are shown on demand.

    Args:
        summary: The text by which a reader shows them.
        blocks: The blocks.
    """
    return {"type": "details", "summary": summary, "blocks": list(blocks)}


def column(name: str, kind: str = "number", *, first: str = "ascending") -> dict[str, str]:
    """Return a column of a table.

    Args:
        name: The name in the header.
        kind: "number", "text", "key" (monospaced) or "spark" (a small curve).
        first: The order of the first click on its header, "ascending" or "descending".
    """
    return {"name": name, "kind": kind, "first": first}


def cell(value: Any, words: str, *, best: bool = False) -> dict[str, Any]:
    """Return a cell whose text differs from the value by which its column is sorted.

    Args:
        value: The value.
        words: The text.
        best: Whether the cell is printed in bold as one of the best of its column.
    """
    return {"value": value, "text": words, "best": best}


def table(
    id: str,
    title: str,
    columns: Sequence[Mapping[str, str]],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str = "",
    details: Sequence[Block | None] = (),
) -> Block:
    """Return a table that sorts.

    Args:
        id: The identifier of the table in HTML and the name of its CSV file.
        title: The title.
        columns: The columns, made by `column`.
        rows: The rows, whose cells are values or made by `cell`.
        caption: The text below the title.
        details: A block for each row, which the page shows on demand.
    """
    kept = [list(row) for row in rows]
    return {
        "type": "table",
        "id": id,
        "title": title,
        "columns": [dict(each) for each in columns],
        "rows": kept,
        "caption": caption,
        "details": list(details),
    }


def figure(
    id: str, title: str, chart: Mapping[str, Any], *, caption: str = "", command: str = "", wide: bool = False
) -> Block:
    """Return a chart with its title.

    Args:
        id: The identifier of the chart in HTML and the name of its CSV file.
        title: The title.
        chart: The chart.
        caption: The text below the title, which says what is shown.
        command: The command that draws the chart for a paper, if there is one.
        wide: Whether the chart is as wide as the page.
    """
    return {
        "type": "figure",
        "id": id,
        "title": title,
        "caption": caption,
        "command": command,
        "wide": wide,
        "chart": tidy(chart),
    }


# Charts


def axis(label: str, **further: Any) -> Axis:
    """Return an axis.

    Args:
        label: Its label, with the unit.
        **further: `unit` of the values where they are read out, `scale` ("log"), `min`, `max`, `integer`, `digits`,
            and `categories`, the names of places on an axis without numbers.
    """
    return {"label": label, **further}


def per_cent(label: str, **further: Any) -> Axis:
    """Return an axis of shares in per cent, with a label and further entries as in `axis`."""
    return axis(f"{label} (%)", unit="%", digits=1, **further)


def series(name: str, x: Iterable[Any], y: Iterable[Any], colour: int | str = 0, **further: Any) -> Series:
    """Return a line, or points of one kind.

    Args:
        name: The name in the legend.
        x: The places on the horizontal axis.
        y: The values; None where there is none.
        colour: The number of a colour of the palette, or "grey".
        **further: `low` and `high`, the ends of a band or of intervals; `xlow` and `xhigh` for horizontal ones;
            `dash`, `thin`, `markers`, `open`, `shape`, `labels`, `legend`.
    """
    return {"name": name, "x": list(x), "y": list(y), "colour": colour, **further}


def lines(x: Axis, y: Axis, found: Sequence[Series], **further: Any) -> dict[str, Any]:
    """Return a chart of lines.

    Args:
        x: The horizontal axis.
        y: The vertical axis.
        found: The lines.
        **further: `refs`, `notes` and `height`.
    """
    return {"kind": "lines", "x": x, "y": y, "series": list(found), **further}


def points(x: Axis, y: Axis, found: Sequence[Series], **further: Any) -> dict[str, Any]:
    """Return a chart of points, with intervals where their series have ends.

    Args:
        x: The horizontal axis.
        y: The vertical axis.
        found: The points of each kind.
        **further: As of `lines`.
    """
    return {"kind": "points", "x": x, "y": y, "series": list(found), **further}


def bars(x: Axis, y: Axis, found: Sequence[Series], **further: Any) -> dict[str, Any]:
    """Return a chart of bars.

    Args:
        x: The horizontal axis.
        y: The vertical axis.
        found: The bars of each kind.
        **further: As of `lines`.
    """
    return {"kind": "bars", "x": x, "y": y, "series": list(found), **further}


def heatmap(x: Axis, y: Axis, values: Sequence[Sequence[Any]], scale: Axis, **further: Any) -> dict[str, Any]:
    """Return a heat map.

    Args:
        x: The horizontal axis.
        y: The vertical axis.
        values: The values, row by row.
        scale: The axis of the colours.
        **further: With `blank_zero`, cells of 0 stay empty.
    """
    return {"kind": "heatmap", "x": x, "y": y, "values": [list(row) for row in values], "scale": scale, **further}


def framed(charts: Sequence[tuple[Sequence[str], Mapping[str, Any]]], names: Sequence[str]) -> dict[str, Any]:
    """Return one chart that shows one of several charts of a kind at a time.

    Args:
        charts: The charts, each with its place, for example a method and a round.
        names: What the parts of a place are, for example "method" and "round". A reader moves through rounds with a
            slider, and chooses others from a list.
    """
    values = [list(dict.fromkeys(place[k] for place, _ in charts)) for k in range(len(names))]
    first = charts[0][1]
    if "round" in names:  # in order also where methods have different rounds
        at = list(names).index("round")
        values[at].sort(key=lambda name: int("".join(filter(str.isdigit, name)) or 0))
    frames = []
    for place, chart in charts:
        own = {key: chart[key] for key in chart if key in INNER or chart[key] != first.get(key)}
        frames.append({"at": [values[k].index(part) for k, part in enumerate(place)], **own})
    outer = {key: value for key, value in first.items() if key not in INNER}
    dimensions = [
        {"name": name, "values": found, "slides": name in SLIDERS, "rescales": name in RESCALED}
        for name, found in zip(names, values, strict=True)
    ]
    return {**outer, "frames": frames, "dimensions": dimensions}


def tidy(value: Any) -> Any:
    """Return a value in the types of JSON: short numbers, None for those that are not finite, printable text."""
    if isinstance(value, Mapping):
        return {str(key): tidy(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [tidy(inner) for inner in value]
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    short = float(f"{number:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


# Export

FORMULA = re.compile(r"[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def figures_in(page: Mapping[str, Any]) -> Iterator[Block]:
    """Yield all charts and tables of a page, those in details included."""
    for each in page["sections"]:
        yield from _figures(each["blocks"])


def _figures(blocks: Iterable[Mapping[str, Any] | None]) -> Iterator[Block]:
    for block in blocks:
        if not block:
            continue
        if block["type"] in ("figure", "table"):
            yield dict(block)
        if block["type"] == "details":
            yield from _figures(block["blocks"])
        if block["type"] == "table":
            yield from _figures(block["details"])


def csv_of(block: Mapping[str, Any]) -> str:
    """Return the values of a chart or a table as CSV, the same as the page's own download.

    An apostrophe comes before a text that a spreadsheet would take for a formula, such as the name "=A1" of a class.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    rows = rows_of(block["chart"]) if block["type"] == "figure" else _rows_of_table(block)
    writer.writerows([_guarded(value) for value in row] for row in rows)
    return stream.getvalue()


def _guarded(value: Any) -> Any:
    formula = isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value)
    return f"'{value}" if formula else value


def _rows_of_table(block: Mapping[str, Any]) -> Iterator[list[Any]]:
    shown = [place for place, each in enumerate(block["columns"]) if each["kind"] != "spark"]
    yield [block["columns"][place]["name"] for place in shown]
    for row in block["rows"]:
        yield [_plain(row[place]) for place in shown]


def _plain(found: Any) -> Any:
    return found["value"] if isinstance(found, Mapping) else found


def rows_of(chart: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the rows of a chart's values, the first with the names of the columns."""
    dimensions = chart.get("dimensions", [])
    frames = [{**chart, **frame} for frame in chart["frames"]] if dimensions else [{**chart, "at": []}]
    first = [each["name"] for each in dimensions]
    if chart["kind"] == "heatmap":
        yield [*first, chart["y"]["label"], chart["x"]["label"], chart["scale"]["label"]]
        for frame in frames:
            own = _place(dimensions, frame)
            for name, row in zip(frame["y"]["categories"], frame["values"], strict=True):
                for other, value in zip(frame["x"]["categories"], row, strict=True):
                    yield [*own, name, other, _written(value)]
        return
    every = [each for frame in frames for each in frame["series"]]
    across, up, named = (any(each.get(key) for each in every) for key in ("xlow", "low", "labels"))
    ends = ["low", "high"]
    x, y = chart["x"], chart["y"]
    yield [*first, "series", x["label"], *ends * across, y["label"], *ends * up, *["label"] * named]
    for frame in frames:
        own, x, y = _place(dimensions, frame), frame["x"], frame["y"]
        for each in frame["series"]:
            for place, (left, right) in enumerate(zip(each["x"], each["y"], strict=True)):
                yield [
                    *own,
                    each["name"],
                    _written(_named(x, left)),
                    *[_at(each, key, place) for key in ("xlow", "xhigh")] * across,
                    _written(_named(y, right)),
                    *[_at(each, key, place) for key in ("low", "high")] * up,
                    *[_at(each, "labels", place)] * named,
                ]


def _place(dimensions: Sequence[Mapping[str, Any]], frame: Mapping[str, Any]) -> list[str]:
    return [each["values"][place] for each, place in zip(dimensions, frame["at"], strict=True)]


def _named(of: Mapping[str, Any], value: Any) -> Any:
    return of["categories"][value] if "categories" in of else value


def _at(found: Mapping[str, Any], key: str, place: int) -> Any:
    return _written(found[key][place]) if found.get(key) else None


def _written(value: Any) -> Any:
    """Return a number in the digits in which browsers write it, so that both exports are equal.

    >>> _written(0.00002), _written(1e-7), _written(3)
    ('0.00002', '1e-7', 3)
    """
    if not isinstance(value, float):
        return value
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        return format(Decimal(repr(value)), "f")
    return re.sub(r"e([+-])0+", r"e\1", repr(value))
