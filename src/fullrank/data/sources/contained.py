"""Find the files that the lists and tables of a data set name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fullrank.errors import InputError

_ENDINGS = (".jpg", ".jpeg", ".png")


def below(root: Path, name: str, where: str) -> Path:
    """Return the path that a list names relative to the folder of a data set; the file need not exist.

    Links are followed, and those that lead elsewhere rejected, by `load_listing`.

    Args:
        root: The folder of the data set.
        name: The path, with "/" between its parts.
        where: The list or table that has the name, with which the error begins.

    Raises:
        InputError: If the path is absolute, has a part "..", or is not written with "/".
    """
    path = PurePosixPath(name)
    if not path.parts or "\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts:
        raise InputError(f'{where} names "{name}"; it must be a path below {root}, with / between its parts')
    return root / path


def images_by_name(root: Path) -> dict[str, Path]:
    """Return the image files anywhere below a folder by their names without ending.

    Hidden files and folders are left out. Of files with the same name and size the first is taken.

    Args:
        root: The folder.

    Raises:
        InputError: If two files of different sizes have the same name.
    """
    found: dict[str, Path] = {}
    for path in sorted(_images(root)):
        first = found.setdefault(path.stem, path)
        if first is not path and first.stat().st_size != path.stat().st_size:
            raise InputError(
                f"{first} and {path} have the same name and different sizes, so it is not clear which one to read; move"
                " one of their folders away"
            )
    return found


def _images(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if path.suffix.lower() in _ENDINGS and not name.startswith(".") and path.is_file():
                yield path
