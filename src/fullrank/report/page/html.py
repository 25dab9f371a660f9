"""A page as one HTML file: its text and tables as HTML, and its charts as JSON that the page's script draws.

Everything that a run, a class or a site is called is escaped here, and the script only ever sets text. In addition the
page's content security policy allows no script and no style but its own two, and no connection to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from fullrank._version import __version__
from fullrank.errors import printable
from fullrank.report.page.blocks import Block, figures_in

SHORT = 18
"""The largest number of letters of a text in a table that is never broken into lines."""
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="generator" content="fullrank $version">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="bar"><strong>fullrank</strong><nav aria-label="Sections">$links</nav>
<label class="no-print"><span class="visually-hidden">Colours</span>
<select id="theme"><option value="auto">Auto</option><option value="light">Light</option>
<option value="dark">Dark</option></select></label></header>
<main id="main">$main</main>
<noscript><p class="absent">The charts are drawn by a script in this file, which this browser does not run; the
text and the tables are complete without it.</p></noscript>
<script type="application/json" id="charts">$charts</script>
<script>$script</script>
</body>
</html>
""")


def html_of(page: Mapping[str, Any], *, connect: bool = False) -> str:
    """Return a page as one HTML file.

    Args:
        page: The page, as `blocks` describes it.
        connect: Whether the page may connect to the server that it came from, for a page that follows a run.
    """
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; img-src data:; "
        f"base-uri 'none'; form-action 'none'{'; connect-src ' + repr('self') if connect else ''}"
    )
    return PAGE.substitute(
        policy=policy,
        version=__version__,
        title=_text(f"{page['title']} · fullrank"),
        style=style,
        links="".join(f'<a href="#{each["id"]}">{_text(each["short"])}</a>' for each in page["sections"]),
        main=main_of(page),
        charts=charts_of(page),
        script=script,
    )


def main_of(page: Mapping[str, Any]) -> str:
    """Return the content of a page without its frame: headings, texts, tables, and a place for each chart."""
    head = f'<h1>{_text(page["title"])}</h1><p class="lead">{_text(page["lead"])}</p>'
    foot = f"<footer>{_text(page['foot'])}</footer>"
    return head + "".join(_section(each) for each in page["sections"]) + foot


def charts_of(page: Mapping[str, Any]) -> str:
    """Return the charts of a page by their ids, as JSON that can stand in a script element."""
    found = {block["id"]: block["chart"] for block in figures_in(page) if block["type"] == "figure"}
    packed = json.dumps(found, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return packed.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def asset(name: str) -> str:
    """Return a file that every page contains."""
    return files("fullrank.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hashed(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _text(words: object) -> str:
    """Return a text with markup escaped, and control characters replaced by question marks."""
    return escape(printable(str(words)))


def _section(found: Mapping[str, Any]) -> str:
    about = f'<p class="about">{_text(found["about"])}</p>' if found["about"] else ""
    name = escape(found["id"])
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{_text(found["title"])}</h2>'
        f"{about}{_blocks(found['blocks'])}</section>"
    )


def _blocks(found: Iterable[Mapping[str, Any]]) -> str:
    return "".join(_gathered(found))


def _gathered(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the HTML of blocks; figures that follow each other share a grid."""
    for is_figure, group in itertools.groupby(found, lambda block: block["type"] == "figure"):
        if is_figure:
            yield _grid(list(group))
        else:
            yield from (WRITERS[block["type"]](block) for block in group)


def _grid(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return figures in two columns, or in three if their number fits; an odd one is as wide as the page."""
    narrow = [block for block in figures if not block["wide"]]
    three = len(narrow) % 3 == 0 and len(narrow) % 2
    flexible = [block for block in narrow if block["chart"]["kind"] == "lines"] or narrow
    odd = flexible[-1]["id"] if len(narrow) % 2 and not three else ""
    inner = "".join(_figure({**block, "wide": block["wide"] or block["id"] == odd}) for block in figures)
    return f'<div class="grid{" three" if three else ""}">{inner}</div>'


def _tiles(block: Mapping[str, Any]) -> str:
    inner = (
        f'<div class="tile"><dt>{_text(item["label"])}</dt><dd>{_text(item["value"])}</dd>'
        f"<dd>{_text(item['note'])}</dd></div>"
        for item in block["items"]
    )
    return f'<dl class="tiles">{"".join(inner)}</dl>'


def _verdict(block: Mapping[str, Any]) -> str:
    lines = "".join(f"<p>{_text(line)}</p>" for line in block["lines"])
    return f'<div class="card verdict {block["level"]}">{lines}</div>'


BADGES = {"good": "good", "note": "note", "warn": "warning"}


def _reading(block: Mapping[str, Any]) -> str:
    sentences = "".join(map(_sentence, block["items"]))
    return f'<div class="card"><h3>What the records say</h3><ul class="reading">{sentences}</ul></div>'


def _sentence(item: Mapping[str, Any]) -> str:
    more = "".join(f"<p>{_text(each)}</p>" for each in item["more"])
    if more:
        number = len(item["more"])
        more = f"<details><summary>and {number} more of this kind</summary>{more}</details>"
    return (
        f'<li data-rule="{escape(item["rule"])}"><span class="badge {item["level"]}">{BADGES[item["level"]]}</span>'
        f"<div>{_text(item['text'])}{more}</div></li>"
    )


def _absent(block: Mapping[str, Any]) -> str:
    return f'<p class="absent">{_text(block["text"])}</p>'


def _paragraph(block: Mapping[str, Any]) -> str:
    return f"<p>{_text(block['text'])}</p>"


def _code(block: Mapping[str, Any]) -> str:
    lines = "\n".join(map(_text, block["lines"]))
    return f'<pre tabindex="0">{lines}</pre>'


def _details(block: Mapping[str, Any]) -> str:
    return f"<details><summary>{_text(block['summary'])}</summary>{_blocks(block['blocks'])}</details>"


def _figure(block: Mapping[str, Any]) -> str:
    name, title = escape(block["id"]), _text(block["title"])
    caption = f"<p>{_text(block['caption'])}</p>" if block["caption"] else ""
    command = ""
    if block["command"]:
        command = (
            f"<span>For a paper:</span> <code>{_text(block['command'])}</code>"
            f'<button type="button" data-copy="{_text(block["command"])}" aria-label="Copy the command">Copy</button>'
        )
    return (
        f'<figure class="card{" wide" if block["wide"] else ""}" id="figure-{name}">'
        f"<figcaption><h3>{title}</h3>{caption}</figcaption>"
        f'<div data-chart="{name}" data-title="{title}"></div>'
        f'<div class="tools"><button type="button" data-csv="{name}" aria-label="Download {title} as CSV">CSV</button>'
        f'<button type="button" data-show="{name}" data-title="{title}" aria-expanded="false" '
        f'aria-label="Show {title} as a table">Table</button>{command}</div><div class="data" hidden></div></figure>'
    )


def _table(block: Mapping[str, Any]) -> str:
    columns, details = block["columns"], block["details"]
    head = "".join(
        f'<th scope="col" class="{each["kind"]}" data-first="{each["first"]}">'
        + (_text(each["name"]) if each["kind"] == "spark" else f'<button type="button">{_text(each["name"])}</button>')
        + "</th>"
        for each in columns
    )
    title = f"<h3>{_text(block['title'])}</h3>" if block["title"] else ""
    caption = f'<p class="caption">{_text(block["caption"])}</p>' if block["caption"] else ""
    more = '<th scope="col" class="no-print"><span class="visually-hidden">Curves</span></th>' if any(details) else ""
    bodies = []
    for number, row in enumerate(block["rows"]):
        cells = "".join(_cell(value, each["kind"]) for value, each in zip(row, columns, strict=True))
        detail = details[number] if number < len(details) else None
        extra = inner = ""
        if any(details):
            place = f"{escape(block['id'])}-{number}"
            extra = '<td class="no-print"></td>'
            if detail:
                extra = (
                    f'<td class="no-print"><button type="button" data-detail="{place}" aria-expanded="false" '
                    f'aria-label="Curves of {_text(_shown(row[0]))}">Curves</button></td>'
                )
                wide = f'<td class="detail" colspan="{len(columns) + 1}">{_figure(detail)}</td>'
                inner = f'<tr id="{place}" hidden>{wide}</tr>'
        bodies.append(f"<tbody><tr>{cells}{extra}</tr>{inner}</tbody>")
    return (
        f'<div class="card">{title}{caption}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{_text(block["title"])}"><table id="table-{escape(block["id"])}" data-sort>'
        f'<caption class="visually-hidden">{_text(block["title"])}</caption>'
        f"<thead><tr>{head}{more}</tr></thead>{''.join(bodies)}</table></div></div>"
    )


def _cell(found: Any, kind: str) -> str:
    if kind == "spark":
        if not found:
            return "<td></td>"
        drawn = 'class="curve s0" viewBox="0 0 92 22" role="img" aria-label="curve over rounds"'
        return f'<td class="spark"><svg {drawn} data-spark="{_text(json.dumps(found))}"></svg></td>'
    value = found["value"] if isinstance(found, Mapping) else found
    best = " best" if isinstance(found, Mapping) and found["best"] else ""
    sorted_by = "" if value is None else _text(value)
    short = " short" if kind == "text" and len(_shown(found)) <= SHORT else ""
    return f'<td class="{kind}{short}{best}" data-v="{sorted_by}">{_text(_shown(found))}</td>'


def _shown(found: Any) -> str:
    if isinstance(found, Mapping):
        return str(found["text"])
    return "–" if found is None else f"{found:.4g}" if isinstance(found, float) else str(found)


WRITERS: dict[str, Any] = {
    "tiles": _tiles,
    "verdict": _verdict,
    "reading": _reading,
    "absent": _absent,
    "text": _paragraph,
    "code": _code,
    "details": _details,
    "table": _table,
}
"""The function that writes a block, by its type; figures are gathered into grids."""

__all__ = ["Block", "asset", "charts_of", "html_of", "main_of"]
