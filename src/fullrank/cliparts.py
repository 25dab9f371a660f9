"""What the commands have in common: options, how an experiment is read, and how a failure ends."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer

from .config import merged, parse_overrides, read_toml

File = Annotated[
    str | None,
    typer.Argument(metavar="[FILE.toml]", help="The experiment; without one, the defaults (embedded digits)."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Another value for a key, as in --set data.alpha=0.05. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def experiment_values(file: str | None, overrides: list[str] | None) -> dict[str, Any]:
    """A file's values, if there is one, with the overrides on top; not yet checked."""
    values = read_toml(file) if file is not None else {}
    return merged(values, parse_overrides(overrides or []))


def fail(sentence: str, status: int) -> NoReturn:
    """End the process with one sentence and a status."""
    print(f"fullrank: {sentence}", file=sys.stderr)
    sys.exit(status)
