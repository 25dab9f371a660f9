"""Find the folder of a data set, or raise an error that lists the folders that were searched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fullrank.errors import InputError


@dataclass(frozen=True)
class Layout:
    """A form in which a data set is distributed."""

    form: str
    """The name of the form, such as "binary version"."""
    folders: tuple[str, ...]
    """The usual subfolders of the files."""
    files: tuple[tuple[str, ...], ...]
    """The necessary files, each with the names that it may have, the usual one first."""
    class_names: str = ""
    """The file with the names of the classes, which may be absent."""


@dataclass(frozen=True)
class Place:
    """A folder that has all files of a layout."""

    layout: Layout
    folder: Path
    files: tuple[Path, ...]
    """The files in the order of the layout."""

    @property
    def class_names(self) -> Path | None:
        """The file with the names of the classes, if it is there."""
        path = self.folder / self.layout.class_names
        return path if os.path.isfile(path) else None

    @property
    def sources(self) -> tuple[Path, ...]:
        """All files that are read."""
        return self.files if self.class_names is None else (*self.files, self.class_names)


def user_cache() -> Path:
    """Return the folder for what can be computed or downloaded again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fullrank"


def roots(root: str | Path = "", elsewhere: Sequence[Path] = ()) -> list[Path]:
    """Return the folders in which data sets are searched.

    Args:
        root: The only folder to search; if empty, $FULLRANK_DATA and the usual places are searched.
        elsewhere: Further folders that are searched last.
    """
    if str(root):
        return [Path(root).expanduser().absolute()]
    named = os.environ.get("FULLRANK_DATA")
    first = [Path(named).expanduser().absolute()] if named else []
    return [*first, Path("data").absolute(), user_cache() / "data", *elsewhere]


def download_root(root: str | Path = "") -> Path:
    """Return the folder for a download, which the same `root` finds afterwards."""
    return roots(root)[0] if str(root) or os.environ.get("FULLRANK_DATA") else user_cache() / "data"


def search(layouts: Sequence[Layout], where: Sequence[Path]) -> Place | None:
    """Return the first folder that has all files of one of the layouts, or None.

    Args:
        layouts: The forms in which the data set is distributed.
        where: The folders to search.
    """
    for layout, folder in _candidates(layouts, where):
        files = [_present(folder, names) for names in layout.files]
        if all(files):
            return Place(layout, folder, tuple(path for path in files if path is not None))
    return None


def find(title: str, layouts: Sequence[Layout], where: Sequence[Path], hint: str) -> Place:
    """Find a data set.

    Args:
        title: The name of the data set, for errors.
        layouts: The forms in which it is distributed.
        where: The folders to search, as :func:`roots` returns them.
        hint: How to get the data set, as the last clause of the error.

    Returns:
        The first folder that has all files of one of the layouts.

    Raises:
        InputError: If there is none; it names the missing files, or the folders that were searched.
    """
    found = search(layouts, where)
    if found is not None:
        return found
    for layout, folder in _candidates(layouts, where):
        missing = [names[0] for names in layout.files if _present(folder, names) is None]
        if len(missing) < len(layout.files):
            raise InputError(f"{folder} lacks {', '.join(missing)} of {title} ({layout.form}); {hint}")
    below = ", ".join(f"{folder}/" for layout in layouts for folder in layout.folders)
    expected = " or ".join(f"{', '.join(names[0] for names in lay.files)} ({lay.form})" for lay in layouts)
    searched = ", ".join(f"{path}{'' if path.is_dir() else ' (no such folder)'}" for path in where)
    raise InputError(
        f"{title} is not in {searched}, neither directly nor in {below}; expected there: {expected}; {hint}"
    )


def _candidates(layouts: Sequence[Layout], where: Sequence[Path]) -> Iterator[tuple[Layout, Path]]:
    for root in where:
        for layout in layouts:
            for folder in layout.folders:
                yield layout, root / folder
        # files that lie there directly come last: their names may be those of another data set too
        for layout in layouts:
            yield layout, root


def _present(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if os.path.isfile(folder / name)), None)


def find_folder(
    title: str, root: str | Path, folders: Sequence[str], complete: Callable[[Path], bool], hint: str
) -> Path:
    """Find the folder of a data set whose files have no fixed names.

    Args:
        title: The name of the data set.
        root: The folder to search, or "" for $FULLRANK_DATA and the usual places.
        folders: The usual subfolders of the data set.
        complete: Returns whether a folder has the data set.
        hint: What is expected and where to get it, as the last clauses of the error.

    Raises:
        InputError: If no folder has the data set; it names the folders that were searched.
    """
    where = roots(root)
    for folder in (base / sub for base in where for sub in (*folders, "")):
        if folder.is_dir() and complete(folder):
            return folder
    searched = ", ".join(f"{path}{'' if path.is_dir() else ' (no such folder)'}" for path in where)
    below = ", ".join(f"{folder}/" for folder in folders)
    raise InputError(
        f"{title} is not in {searched}, neither directly nor in {below}; {hint}, and set data.root or $FULLRANK_DATA if"
        " it is elsewhere"
    )
