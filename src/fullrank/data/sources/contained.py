"""Paths that lists and tables name, which must not lead out of the folder of a data set."""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fullrank.errors import InputError

_ENDINGS = (".jpg", ".jpeg", ".png")


class Folder:
    """The folder of a data set, whose files are looked up by relative paths."""

    def __init__(self, root: Path):
        self.root = root
        self._real = Path(os.path.realpath(root))
        self._inside: dict[Path, bool] = {}

    def file(self, name: str, where: str) -> Path:
        """Return the file with this relative path.

        Args:
            name: The path, with "/" between its parts.
            where: What names it; errors begin with that.

        Raises:
            InputError: If the path is absolute, has a part "..", leads outside by a link, or is no file.
        """
        path = PurePosixPath(name)
        if not name or "\0" in name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0]:
            raise InputError(f'{where} names "{name}"; it must be a path below {self.root}, with / between its parts')
        found = self.root / path
        try:
            mode = os.lstat(found).st_mode
        except OSError:
            raise InputError(f"{where} names {name}, which is not in {self.root}") from None
        self.reject_outside(found, where, stat.S_ISLNK(mode))
        if not found.is_file() if stat.S_ISLNK(mode) else not stat.S_ISREG(mode):
            raise InputError(f"{where} names {name}, which is no file in {self.root}")
        return found

    def reject_outside(self, path: Path, where: str, link: bool) -> None:
        """Reject a path below the folder that leads outside, because it is a link or is in a folder that is one."""
        if path.parent not in self._inside:
            self._inside[path.parent] = self._is_inside(path.parent)
        if not self._inside[path.parent] or (link and not self._is_inside(path)):
            raise InputError(f"{where}: {path} is a link that leads out of {self.root}; put the file itself there")

    def _is_inside(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)

    def images(self) -> dict[str, Path]:
        """Return the image files anywhere below by their names without ending; hidden files and folders are left out.

        Raises:
            InputError: If two files of different content have the same name.
        """
        found: dict[str, Path] = {}
        for path in sorted(self._walk()):
            first = found.setdefault(path.stem, path)
            if first is not path and not filecmp.cmp(first, path, shallow=False):
                raise InputError(
                    f"{first} and {path} have the same name and different content, so it is not known which one to"
                    " read; move one of their folders away"
                )
        return found

    def _walk(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                if not name.startswith(".") and path.suffix.lower() in _ENDINGS and path.is_file():
                    self.reject_outside(path, str(self.root), link=path.is_symlink())
                    yield path
