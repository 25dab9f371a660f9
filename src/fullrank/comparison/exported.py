"""The table of a comparison as a file: CSV for further computation, Markdown and LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fullrank.comparison.printed import difference_text, format_of, mean_text, p_text, title_of
from fullrank.comparison.table import Comparison, Row
from fullrank.errors import writing
from fullrank.files import write_atomically

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "α": r"$\alpha$",
}
"""Characters that LaTeX does not print as they are."""
MARKDOWN = "\\|*_`<>[]"


def write_table(found: Comparison, path: str | Path, kind: str) -> None:
    """Write the table of a comparison into a file.

    Args:
        found: The comparison.
        path: The file. Its folder is created if it is missing.
        kind: "csv", "markdown" or "latex".
    """
    target = Path(path)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, KINDS[kind](found).encode())


def as_csv(found: Comparison) -> str:
    """Return the table as CSV, with all digits, shares as fractions, and one row per method."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    statistics = ("mean", "std", "reference", "difference", "low", "high", "p", "p_holm", "best")
    writer.writerow(["method", *found.varied, *(f"seed {seed}" for seed in found.seeds), *statistics])
    best = found.best()
    for row in found.rows():
        settings = found.settings_of(row.method)
        numbers = [row.values.get(seed) for seed in found.seeds]
        difference: list[Any] = [None] * 6
        if (it := row.difference) is not None:
            difference = [it.to, it.mean, it.low, it.high, it.p, it.p_holm]
        writer.writerow([row.method, *settings, *numbers, row.mean, row.std, *difference, int(row.method in best)])
    return stream.getvalue()


def as_markdown(found: Comparison) -> str:
    """Return the table in Markdown, with the best methods in bold."""
    lines = [_line(_header(found)), _line(["---", *["---:"] * (len(_header(found)) - 1)])]
    lines += [_line(cells) for cells in _cells(found, "**{}**".format, _escaped_markdown)]
    return "\n".join([title_of(found), "", *lines, "", _caption(found), ""])


def as_latex(found: Comparison) -> str:
    r"""Return the table in LaTeX, with the best methods in bold. It needs `\usepackage{booktabs}`."""
    header = [_escaped_latex(cell) for cell in _header(found)]
    rows = [" & ".join(cells) + r" \\" for cells in _cells(found, r"\textbf{{{}}}".format, _escaped_latex)]
    return "\n".join(
        [
            f"% {title_of(found)}",
            f"% {_caption(found)}",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            " & ".join(header) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


KINDS: dict[str, Callable[[Comparison], str]] = {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}
"""The formats of an exported table."""


def _header(found: Comparison) -> list[str]:
    tested = any(row.difference is not None and row.difference.p_holm is not None for row in found.rows())
    several = len(found.methods) > 1
    return ["method", "mean ± std", *["difference (95 % CI)"] * several, *["p (Holm)"] * tested]


def _cells(found: Comparison, bold: Callable[[str], str], escaped: Callable[[str], str]) -> list[list[str]]:
    best, columns = found.best(), len(_header(found))
    return [_row(found, row, row.method in best, bold, escaped)[:columns] for row in found.rows()]


def _row(
    found: Comparison, row: Row, best: bool, bold: Callable[[str], str], escaped: Callable[[str], str]
) -> list[str]:
    show = format_of(found)
    mean = escaped(mean_text(row, show))
    cells = [row.method, difference_text(row, show), p_text(row)]
    name, difference, p = (escaped(cell) for cell in cells)
    return [name, bold(mean) if best else mean, difference, p]


def _caption(found: Comparison) -> str:
    seeds = len(found.seeds)
    bold = ""
    if found.best():
        best = "lowest" if found.lower_is_better else "highest"
        bold = f" Bold: the {best} mean on its data, and means whose paired difference to it has an interval with 0."
    return f"Mean and standard deviation over {seeds} seed{'' if seeds == 1 else 's'}.{bold}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped_markdown(text: str) -> str:
    return "".join(f"\\{letter}" if letter in MARKDOWN else letter for letter in text)


def _escaped_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
