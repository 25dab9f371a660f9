"""The command line, run in this process, and the environment of processes of their own."""

import os
import sys
from pathlib import Path

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


def finding(*modules, **variables):
    """An environment in which a process finds what this one does, and the modules of the given files.

    The package may be found through PYTHONPATH, which must therefore be extended and not replaced.
    """
    folders = [*(str(Path(file).parent) for file in modules), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **variables}
