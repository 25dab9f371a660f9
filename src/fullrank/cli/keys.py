"""The command `fullrank keys`."""

from __future__ import annotations

import inspect
import json
import textwrap
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape

from fullrank.cli.options import AsJson
from fullrank.config.experiment import Experiment
from fullrank.config.schema import NameIn, Table
from fullrank.data.registry import VARIANTS
from fullrank.errors import InputError, nearest

TYPES = {bool: "true or false", int: "integer", float: "float", str: "string"}
BOUNDS = {"ge": ">=", "gt": ">", "lt": "<", "le": "<="}
LARGE = 10**6
"""Bounds from here on only catch typing errors and are not shown."""


def list_keys(
    word: Annotated[str, typer.Argument(metavar="WORD", help="Show only a table, a key, or keys with this word.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys of an experiment, with their defaults.

    For each key, the list has its default, its type or choices, and its meaning. Keys are set in an experiment file or
    with --set KEY=VALUE.

    Example: fullrank keys train

    Example: fullrank keys train.lr
    """
    found = {key: _facts(field) for key, field in _fields(Experiment) if word.lower() in key}
    if not found:
        every = {piece for key, _ in _fields(Experiment) for piece in (key, *key.split("."))}
        hint = nearest(word, every, otherwise='"fullrank keys" lists them all')
        raise InputError(f'no key of an experiment has "{word}" in its name; {hint}')
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console(highlight=False, soft_wrap=True)
    last = ""
    for key, known in found.items():
        table, dot, _ = key.partition(".")
        if dot and table != last:
            print("\n" if last or "seed" in found else "", end="")
            _print_table(table, console)
            last = table
        _print_key(key, known, console)
    if not word:
        print()
        for paragraph in (
            "Options of a network are further keys of the table model, and hyper-parameters of a method are keys of "
            "the table method.NAME: see `fullrank models` and `fullrank methods`.",
            "Set a key in an experiment file or with --set KEY=VALUE.",
        ):
            print(_wrapped(paragraph, console.width))


def _print_table(name: str, console: Console) -> None:
    """Print the heading of a table: its name and a sentence about it."""
    what = inspect.getdoc(type(Experiment.model_fields[name].default)) or ""
    console.print(f"[bold]{escape(f'[{name}]')}[/bold]")
    console.print(escape(_wrapped(what, console.width)))


def _print_key(key: str, known: dict[str, Any], console: Console) -> None:
    """Print the key with its default and type, in one line if they fit, and its description."""
    default, kind = json.dumps(known["default"], ensure_ascii=False), f"({known['type']})"
    first = f"  [bold]{key}[/bold] = {escape(default)}"
    if len(f"  {key} = {default}  {kind}") <= console.width:
        console.print(f"{first}  [dim]{escape(kind)}[/dim]")
    else:
        console.print(first)
        console.print(f"[dim]{escape(_wrapped(kind, console.width, 6))}[/dim]")
    console.print(escape(_wrapped(known["what"], console.width, 6)))


def _wrapped(text: str, width: int, indent: int = 0) -> str:
    lines = textwrap.wrap(" ".join(text.split()), width - indent, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), " " * indent)


def _fields(table: type[Table], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in table.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Table):
            yield from _fields(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", field


def _facts(field: FieldInfo) -> dict[str, Any]:
    variants = "; ".join(f"{_listed([*known])} for {name}" for name, known in VARIANTS.items())
    return {
        "what": " ".join((field.description or "").replace("{variants}", variants).split()),
        "default": field.default,
        "values": [*_choices(field.annotation), *(name for mark in field.metadata for name in _choices(mark))],
        "type": ", ".join([_type(field.annotation, field.metadata), *_bounds(field)]),
    }


def _choices(annotation: Any) -> Iterator[Any]:
    """Yield the values that a type allows, at any depth; those of a registry are the names that need no import path."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    if isinstance(annotation, NameIn):
        yield from annotation.registry.names()
        return
    for part in get_args(annotation):
        yield from _choices(part)


def _type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Describe a type and its annotations in the words of TOML.

    >>> _type(Literal["auto", "none"] | list[str])
    'auto, none or list of strings'
    """
    if registries := [mark.registry for mark in metadata if isinstance(mark, NameIn)]:
        return _listed([*registries[0].names(), f'"package.module:{registries[0].attribute}"'])
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return _type(inner, marks)
    if get_origin(annotation) is Literal:
        return _listed([str(value) for value in get_args(annotation)])
    if get_origin(annotation) in (Union, types.UnionType):
        choices = [str(value) for one in get_args(annotation) if get_origin(one) is Literal for value in get_args(one)]
        others = [_type(one) for one in get_args(annotation) if get_origin(one) is not Literal]
        return _listed([*choices, *others])
    if get_origin(annotation) is list:
        (item,) = get_args(annotation)
        return f"list of {TYPES[item]}s" if item in TYPES else f"any of {_type(item)}"
    return TYPES.get(annotation, "table")


def _listed(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _bounds(field: FieldInfo) -> Iterator[str]:
    """Yield the bounds of a number."""
    for name, sign in BOUNDS.items():
        for limits in field.metadata:
            bound = getattr(limits, name, None)
            if bound is not None and abs(bound) < LARGE:
                yield f"{sign} {bound}"
