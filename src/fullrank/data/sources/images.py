"""Load data sets of image files: decoded once, kept in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fullrank.data.augment.resize import new_shape, resize
from fullrank.data.dataset import DataSet, Split
from fullrank.data.sources.cache import Content, cached
from fullrank.data.sources.listing import ImageFile, Listing
from fullrank.errors import InputError


def load_listing(
    name: str,
    list_files: Callable[[], Listing],
    *,
    root: Path,
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    augment: tuple[str, ...] = (),
    domains_order: Sequence[str] | None = None,
) -> DataSet:
    """Load the images that a listing names.

    Args:
        name: The name of the data set.
        list_files: Makes the list of the files, which is called whenever the data set is loaded.
        root: The folder of the data set, which all files must be in.
        size: Length of the short side of the images, or their height and width; 0 keeps the stored size.
        unreadable: Whether a file that cannot be read stops the run or is left out.
        mean: The usual mean of the images, per channel.
        std: Their usual standard deviation.
        augment: The usual augmentation.
        domains_order: The names of the domains in the order of their numbers; by default sorted by name.
    """
    listing = list_files()
    there = {file.domain for file in (*listing.train, *listing.test)} - {""}
    domains = tuple(domains_order or sorted(there))
    groups = {name: k for k, name in enumerate(sorted({f.group for f in (*listing.train, *listing.test)}))}

    def decode() -> Content:
        train = _split(listing.train, size, domains, groups)
        return Content(train, _split(listing.test, size, domains, groups), listing.classes, domains)

    def complete(content: Content) -> DataSet:
        return DataSet(
            name,
            content.train,
            content.test,
            content.classes,
            domains=content.domains,
            mean=mean,
            std=std,
            augment=augment,
        )

    sources = [*(file.path for file in (*listing.train, *listing.test)), *listing.described_by]
    return cached(name, sources, decode, complete)


def _split(
    files: Sequence[ImageFile], size: int | Sequence[int], domains: Sequence[str], groups: dict[str, int]
) -> Split:
    x = torch.stack([_decoded(file.path, size) for file in files])
    columns: dict[str, Any] = {}
    if domains:
        columns["domain"] = torch.tensor([domains.index(file.domain) for file in files])
    if any(groups):
        columns["group"] = torch.tensor([groups[file.group] for file in files])
    return Split(x, torch.tensor([file.label for file in files]), **columns)


def _decoded(path: Path, size: int | Sequence[int]) -> torch.Tensor:
    from PIL import Image

    try:
        with Image.open(path) as image:
            x = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return x if size == 0 else resize(x[None], *new_shape(*x.shape[1:], size))[0]
