"""The command `fullrank keys`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from fullrank.cli.options import AsJson
from fullrank.config.experiment import Experiment
from fullrank.config.schema import Table
from fullrank.errors import Refusal, nearest


def list_keys(
    word: Annotated[str, typer.Argument(metavar="[WORD]", help="A table, a key, or a part of one.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys of an experiment: what each means, its default, and what it may be.

    Example: fullrank keys lr
    """
    found = {key: _facts(field) for key, field in _fields(Experiment) if word.lower() in key}
    if not found:
        every = {piece for key, _ in _fields(Experiment) for piece in (key, *key.split("."))}
        hint = nearest(word, every, otherwise='"fullrank keys" lists them all')
        raise Refusal(f'no key of an experiment has "{word}" in its name; {hint}')
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console(highlight=False)
    for key, known in found.items():
        choice = f"  [dim]({', '.join(map(str, known['values']))})[/dim]" if known["values"] else ""
        console.print(f"[bold]{key}[/bold] = {escape(json.dumps(known['default'], ensure_ascii=False))}{choice}")
        console.print(Padding(escape(known["what"]), (0, 0, 0, 4), expand=False))
    if not word:
        print("\nFurther keys of [model] are the network's (fullrank models), tables of [method] its methods'")
        print("(fullrank methods). In a file or as --set KEY=VALUE.")


def _fields(table: type[Table], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in table.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Table):
            yield from _fields(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", field


def _facts(field: FieldInfo) -> dict[str, Any]:
    return {
        "what": " ".join((field.description or "").split()),
        "default": field.default,
        "values": list(_choices(field.annotation)),
    }


def _choices(annotation: Any) -> Iterator[Any]:
    """The words (or numbers) that a type allows, wherever they stand in it."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    for part in get_args(annotation):
        yield from _choices(part)
