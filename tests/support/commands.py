"""The command line, run in this process."""

import sys

from fullrank.cli import app as cli


def fullrank(*arguments, capsys):
    """The exit status and the two outputs of one command."""
    capsys.readouterr()
    before, sys.argv = sys.argv, ["fullrank", *map(str, arguments)]
    try:
        cli.main()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    return status, captured.out, captured.err
