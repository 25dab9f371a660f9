"""List the image files of a data set, with what is known about each of them before it is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fullrank.errors import InputError

SYSTEM_FILES = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "icon\r")
"""Files and folders of operating systems, in lower case; like hidden ones, they are not part of a data set."""


class ImageFile(NamedTuple):
    """An image file with its label, domain, group and client."""

    path: str | Path
    """Its path; text where files are many, since a Path takes longer to make than the file to find."""
    label: int
    domain: str = ""
    """The domain or site, such as "webcam"; empty for data without domains."""
    group: str = ""
    """The group, such as a patient, whose files must not be separated; empty for a file without a group."""
    client: str = ""
    """The natural client, such as a writer; empty for data without natural clients."""


@dataclass(frozen=True)
class Listing:
    """The files of a data set, in the order of its samples."""

    train: Sequence[ImageFile]
    test: Sequence[ImageFile]
    classes: tuple[str, ...]
    described_by: tuple[Path, ...] = field(default=())
    """The files that were read to make the list, such as a table of labels."""
    remarks: tuple[str, ...] = field(default=())
    """Remarks for the user about how the list was made, one sentence each."""
    variant: str = ""
    """A text that distinguishes the list from others of the same files, such as the seed of its test part."""


def visible(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of what is in a folder, sorted and without what is hidden.

    Args:
        folder: The folder.

    Returns:
        The names of the folders in it, and those of the files.

    Raises:
        InputError: If the folder does not exist or cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not _hidden(entry.name)]
            folders = sorted(entry.name for entry in shown if entry.is_dir())
            return folders, sorted(entry.name for entry in shown if not entry.is_dir())
    except FileNotFoundError:
        raise InputError(f"there is no folder {folder}") from None
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be read: {error.strerror}") from None


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_FILES
