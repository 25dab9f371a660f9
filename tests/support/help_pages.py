"""All commands of the command line, and their help pages."""

import os
from unittest import mock

import typer.main

from commands import fullrank
from fullrank.cli.app import app


def commands():
    """The names of all commands, groups included; the empty name is `fullrank` itself."""
    return list(_below(typer.main.get_command(app), ""))


def _below(command, name):
    yield name
    for inner, below in getattr(command, "commands", {}).items():
        yield from _below(below, f"{name} {inner}".strip())


def help_of(name, width, capsys):
    """The help page of a command in a terminal of this width."""
    with mock.patch.dict(os.environ, {"COLUMNS": str(width)}):
        status, out, err = fullrank(*name.split(), "--help", capsys=capsys)
    assert (status, err) == (0, "")
    return out
