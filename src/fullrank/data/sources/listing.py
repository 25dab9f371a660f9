"""The image files of a data set, with what is known of each before any of them is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class ImageFile(NamedTuple):
    """An image file and what belongs to it."""

    path: Path
    label: int
    domain: str = ""
    """The domain or site, such as "webcam"; empty for data without domains."""
    group: str = ""
    """The group of files that must not be separated, such as a patient; empty for a file without a group."""


@dataclass(frozen=True)
class Listing:
    """The files of a data set, in the order of its samples."""

    train: Sequence[ImageFile]
    test: Sequence[ImageFile]
    classes: tuple[str, ...]
    described_by: tuple[Path, ...] = field(default=())
    """The files that were read to make the list, such as a table of labels."""
