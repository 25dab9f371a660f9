"""The options, the seeds and the formats of numbers that commands for several experiments share."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from fullrank.errors import InputError

Jobs = Annotated[
    int,
    typer.Option("--jobs", "-j", metavar="N", help="Number of parallel runs. 0: one per core, or one on a GPU."),
]
QuietTable = Annotated[bool, typer.Option("--quiet", "-q", help="Print the table without progress.")]
MOST_SEEDS = 10_000


def parse_seeds(text: str) -> list[int]:
    """Parse seeds from a list of numbers and ranges.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", piece)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise InputError(f'--seeds "{text}" is not a list of seeds, as in 0,1,2 or 0-4')
        several = range(int(match[1]), int(match[2] or match[1]) + 1)
        if several.stop - several.start > MOST_SEEDS:
            raise InputError(f'--seeds "{text}" are more than {MOST_SEEDS} seeds; each seed is a run of every method')
        found += several
    return found


def with_spread(mean: float | None, std: float | None, is_share: bool) -> str:
    """Format a mean over seeds with its standard deviation, in percent if it is a share.

    >>> with_spread(0.5, 0.01, True), with_spread(0.5, None, False), with_spread(None, None, True)
    ('50.00 ± 1.00', '0.5000', 'absent')
    """
    if mean is None:
        return "absent"
    scale, digits = (100, 2) if is_share else (1, 4)
    spread = f" ± {scale * std:.{digits}f}" if std is not None else ""
    return f"{scale * mean:.{digits}f}{spread}"
