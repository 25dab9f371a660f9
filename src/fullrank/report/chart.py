"""Any chart of a report as a figure for a paper, from the same values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.errors import InputError, nearest
from fullrank.report.legend import draw_legend
from fullrank.report.page import blocks
from fullrank.report.page.build import page_of
from fullrank.report.page.subject import subject_of
from fullrank.report.style import CLASS_MARKERS, GREY, LOCAL, drawing, figure_file, line, method_colours
from fullrank.runs.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 8
"""The largest number of panels of a figure."""
PANEL = 1.9
"""The height of a panel in inches."""
ROW = 0.15
"""The height of a name on the vertical axis in inches."""
COLOURS = 12
"""The number of colours of a page, which repeat."""
ROOM = 24
"""The number of names that an axis has room for; of more, some are left out."""
LETTERS = 18
"""The number of letters of a name on an axis; longer names are cut."""


def draw_chart(runs: Sequence[Run], path: str | Path, *, chart: str = "", rounds: Sequence[int] = ()) -> None:
    """Draw a chart of the report of some runs.

    What the reader of a report chooses from a list, such as the method of a heat map, has one panel per choice; of what
    the slider of a report moves through, one round is shown.

    Args:
        runs: The runs.
        path: The file.
        chart: The name of the chart, as in the files of `fullrank report --csv`; by default the first of the report.
        rounds: The round that is shown, by default the last.

    Raises:
        InputError: If the report has no such chart or round.
    """
    figure_file(path)
    page = page_of(subject_of([*runs]))
    known = {block["id"]: block["chart"] for block in blocks.figures_in(page) if block["type"] == "figure"}
    if chart and chart not in known:
        listed = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f'the report of these runs has no chart "{chart}"; {nearest(chart, known, listed)}')
    if not known:
        raise InputError("the report of these runs has no chart")
    panels = _panels(known[chart or next(iter(known))], rounds)
    with drawing(path, sum(map(_height, (found for _, found in panels)))) as figure:
        shares = [_height(found) for _, found in panels]
        styles: dict[str, Mapping[str, Any]] = {}
        for axes, (title, found) in zip(
            figure.subplots(len(panels), squeeze=False, height_ratios=shares)[:, 0], panels, strict=True
        ):
            axes.set(xlabel=found["x"]["label"], ylabel=found["y"]["label"], title=title)
            if found["kind"] == "heatmap":
                _heat_map(axes, found)
            else:
                styles |= _series(axes, found)
        draw_legend(figure, styles if len(styles) > 1 else {}, _notes(panels[0][1]))


def _panels(chart: Mapping[str, Any], rounds: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """Return the charts of a chart with frames, with their titles; of rounds only the chosen one."""
    if not chart.get("dimensions"):
        if rounds:
            raise InputError("--rounds: the chart shows all rounds at once")
        return [("", dict(chart))]
    outer = {key: value for key, value in chart.items() if key not in ("frames", "dimensions")}
    names = [each["name"] for each in chart["dimensions"]]
    values = [each["values"] for each in chart["dimensions"]]
    at = names.index("round") if "round" in names else None
    if rounds and at is None:
        raise InputError("--rounds: the chart is not of single rounds")
    chosen = _chosen(values[at], rounds) if at is not None else None
    frames = [frame for frame in chart["frames"] if at is None or frame["at"][at] == chosen]
    if len(frames) > MOST_PANELS:
        warnings.warn(f"the figure has the first {MOST_PANELS} of {len(frames)} panels", stacklevel=3)
    found = []
    for frame in frames[:MOST_PANELS]:
        place = [(k, values[k][number]) for k, number in enumerate(frame["at"])]
        told = [(names[k], text) for k, text in place if len(values[k]) > 1 or k == at]
        title = ", ".join(f"layer {text}" if name == "layer" else text for name, text in told)
        found.append((title, {**outer, **frame}))
    return found


def _chosen(known: Sequence[str], rounds: Sequence[int]) -> int:
    """Return the place of a round among those of a chart, which are texts such as "round 5"."""
    numbers = [int("".join(filter(str.isdigit, text)) or 0) for text in known]
    if len(rounds) > 1:
        raise InputError(f"--rounds: a chart shows one round, not {len(rounds)}")
    if rounds and rounds[0] not in numbers:
        raise InputError(f"--rounds {rounds[0]}: the chart has the rounds {', '.join(map(str, numbers))}")
    return numbers.index(rounds[0] if rounds else max(numbers))


def _height(chart: Mapping[str, Any]) -> float:
    """Return the height of a panel, which grows with the names on its vertical axis."""
    names = len(chart["y"].get("categories", ()))
    return max(PANEL, 0.8 + ROW * min(names, 3 * ROOM)) if names else PANEL


def _heat_map(axes: Axes, chart: Mapping[str, Any]) -> None:
    scale = chart["scale"]
    rows = [[math.nan if value is None else value for value in row] for row in chart["values"]]
    if scale.get("blank_zero"):
        rows = [[math.nan if value == 0 else value for value in row] for row in rows]
    ends = {"vmin": scale.get("min"), "vmax": scale.get("max")}
    shown = axes.imshow(rows, cmap="cividis", aspect="auto", interpolation="nearest", **ends)
    axes.figure.colorbar(shown, ax=axes, label=scale["label"])
    _names(axes, chart)
    axes.spines[:].set_visible(False)


def _series(axes: Axes, chart: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Draw lines, points or bars, and return the styles of those that the legend has."""
    palette = method_colours(COLOURS)
    named: dict[str, Mapping[str, Any]] = {}
    for number, each in enumerate(chart["series"]):
        colour = palette[each["colour"] % COLOURS] if isinstance(each["colour"], int) else GREY
        style = _style(chart["kind"], each, colour)
        x, y = _values(each["x"]), _values(each["y"])
        if chart["kind"] == "bars":
            width = 0.8 / len(chart["series"])
            axes.bar([place + (number + 0.5) * width - 0.4 for place in x], y, width, color=colour)
            style = line(colour, marker="s", linestyle="none")
        else:
            axes.plot(x, y, clip_on=chart["kind"] == "lines", **style)  # a point on the edge is shown whole
        _spread(axes, chart["kind"], each, x, y, colour)
        if each.get("legend", True):
            named[each["name"]] = style
    _references(axes, chart)
    for which in ("x", "y"):
        if chart[which].get("scale") == "log":
            getattr(axes, f"set_{which}scale")("log")
        ends = {"left" if which == "x" else "bottom": chart[which].get("min")}
        ends |= {"right" if which == "x" else "top": chart[which].get("max")}
        getattr(axes, f"set_{which}lim")(**{end: value for end, value in ends.items() if value is not None})
    _names(axes, chart)
    return named


def _style(kind: str, series: Mapping[str, Any], colour: Any) -> dict[str, Any]:
    if kind == "lines":
        dots = {"marker": ".", "markersize": 3} if series.get("markers") or len(series["x"]) < 3 else {}
        thin = {"linewidth": 0.7} if series.get("thin") else {}
        return line(colour, linestyle=LOCAL if series.get("dash") else "-", **thin, **dots)
    marker = CLASS_MARKERS[series.get("shape", 0) % len(CLASS_MARKERS)]
    fill = {"markerfacecolor": "none"} if series.get("open") else {}
    return line(colour, marker=marker, markersize=1.2 * series.get("size", 2.8), linestyle="none", **fill)


def _spread(axes: Axes, kind: str, series: Mapping[str, Any], x: list[float], y: list[float], colour: Any) -> None:
    """Draw the bands of lines and the intervals of points."""
    if series.get("low"):
        low, high = _values(series["low"]), _values(series["high"])
        if kind == "lines":
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        else:
            axes.vlines(x, low, high, color=colour, linewidth=0.7)
    if series.get("xlow"):
        axes.hlines(y, _values(series["xlow"]), _values(series["xhigh"]), color=colour, linewidth=0.7)


def _references(axes: Axes, chart: Mapping[str, Any]) -> None:
    for ref in chart.get("refs", ()):
        if ref.get("diagonal"):
            ends = [max(axes.get_xlim()[0], axes.get_ylim()[0]), min(axes.get_xlim()[1], axes.get_ylim()[1])]
            axes.plot(ends, ends, **line(GREY, linewidth=0.7, linestyle=LOCAL))
        if ref.get("y") is not None:
            axes.axhline(ref["y"], color=GREY, linewidth=0.7)
        if ref.get("x") is not None:
            axes.axvline(ref["x"], color=GREY, linewidth=0.7)


def _names(axes: Axes, chart: Mapping[str, Any]) -> None:
    """Write the names of places on axes without numbers, and put ticks at whole numbers where there are no others."""
    from matplotlib.ticker import MaxNLocator

    for which in ("x", "y"):
        found = chart[which]
        if names := found.get("categories"):
            every = -(-len(names) // (ROOM if which == "x" else 3 * ROOM))
            short = [name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…" for name in names]
            slanted = which == "x" and sum(map(len, short[::every])) > 40
            getattr(axes, f"set_{which}ticks")(range(0, len(names), every), short[::every])
            axes.tick_params(axis=which, **({"rotation": 90} if slanted else {}))
            if which == "y" and chart["kind"] != "heatmap":
                axes.set_ylim(len(names) - 0.5, -0.5)
        elif found.get("integer"):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))


def _notes(chart: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the entries of the legend that explain bands, intervals and dashes."""
    styles: dict[str, Mapping[str, Any]] = {
        "band": line(GREY, linewidth=5, alpha=0.4),
        "interval": line(GREY, linewidth=0.8),
        "dash": line(GREY, linestyle=LOCAL),
    }
    return {note["text"]: styles.get(note["kind"], line(GREY)) for note in chart.get("notes", ())}


def _values(found: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else value for value in found]
