"""The log of a site: a line for every request, in files of a limited size."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from fullrank.errors import naming_file
from fullrank.files import append_line, read_lines

LOG = "sent.jsonl"
"""The file in the site's folder with the newest lines: what was asked, and what was sent."""
FILES = 10
"""The number of files of a log that has reached its limit."""
MEGABYTE = 1_000_000
SEAL = 40
"""More bytes than a line has in addition to its values."""
WAIT = 60.0
"""The largest number of seconds in which another process gives the files their next numbers."""


class SiteLog:
    """The log of a site.

    The newest lines are in `sent.jsonl`. When that is full, it becomes `sent.1.jsonl`, that becomes `sent.2.jsonl`, and
    so on; the last of the files is deleted. At least nine tenths of the limit are therefore there at any time. Several
    processes may write at the same time, because each message of Flower starts one.

    Args:
        folder: The folder of the files.
        limit: The largest number of bytes of all files. 0 is any number.

    >>> import tempfile
    >>> log = SiteLog(Path(tempfile.mkdtemp()), limit=0)
    >>> log.append({"request": "join"})
    >>> list(log)
    [{'request': 'join'}]
    """

    def __init__(self, folder: Path, limit: int):
        self.folder, self.limit = folder, limit

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line.

        Args:
            line: The values of the line.

        Raises:
            WriteFailed: If it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        size = len(json.dumps(line)) + SEAL
        if not self._fits(size):
            with naming_file(self.path(0)), filelock.FileLock(self.folder / ".sent.lock", timeout=WAIT):
                if not self._fits(size):  # another process may have renumbered the files meanwhile
                    self._renumber()
        append_line(self.path(0), line)

    def path(self, number: int) -> Path:
        """Return a file of the log; 0 is the newest one."""
        return self.folder / (f"sent.{number}.jsonl" if number else LOG)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the lines, the oldest first."""
        for number in range(FILES - 1, -1, -1):
            yield from read_lines(self.path(number))

    def _fits(self, size: int) -> bool:
        """Return whether a line of some bytes fits into the newest file; into an empty one, any line does."""
        used = 0
        with contextlib.suppress(FileNotFoundError):
            used = self.path(0).stat().st_size
        return not used or not self.limit or used + size <= self.limit // FILES

    def _renumber(self) -> None:
        # Only as far as the first number without a file, which is there if an earlier call was killed.
        free = next((number for number in range(1, FILES) if not self.path(number).exists()), FILES - 1)
        for number in range(free, 0, -1):
            os.replace(self.path(number - 1), self.path(number))
