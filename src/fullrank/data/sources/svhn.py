"""Read SVHN, house numbers cropped to 32×32 pixels, from its MATLAB files."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fullrank.data.dataset import Split
from fullrank.data.memory_limit import reject_too_large
from fullrank.data.sources.places import Layout, Place
from fullrank.data.sources.stored import (
    Array,
    Download,
    FileFacts,
    Official,
    Stored,
    content_md5,
    read_whole,
    reject_labels,
)
from fullrank.errors import InputError

_IMAGE = (32, 32, 3)
_PIXELS = math.prod(_IMAGE)
_SITE = "http://ufldl.stanford.edu/housenumbers/"
_FILES = {
    "train_32x32.mat": Official(73257, "e26dedcc434d2e4c54c9b2d4a06d8373"),
    "test_32x32.mat": Official(26032, "eb5a983be6a315427106f1b164d9cef3"),
}


_BYTES = {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "single": 4, "double": 8}
"""The bytes of a number by the classes of MATLAB that are read."""


@dataclass(frozen=True, kw_only=True)
class Svhn(Stored):
    """Two MATLAB files with images X of shape (32, 32, 3, N) and labels y, in which 10 stands for the digit 0."""

    def read(self, place: Place, number: int) -> Array:
        """Return records (n, 1 + 3072) of the digit and the pixels by channel."""
        path = place.files[number]
        arrays = read_mat(path, ("X", "y"))
        images, labels = arrays["X"], arrays["y"]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != _IMAGE:
            raise InputError(
                f"{path}: X is {images.dtype} of shape {images.shape}; it must be uint8 of shape (32, 32, 3, N)"
            )
        count = images.shape[3]
        if labels.shape not in ((count, 1), (1, count)):
            raise InputError(f"{path}: X has {count} images and y is of shape {labels.shape}; it must be ({count}, 1)")
        labels = labels.reshape(-1)
        if labels.dtype.kind not in "iu" and not (labels == np.floor(labels)).all():
            raise InputError(f"{path}: y must hold whole numbers")
        reject_labels(path, "label", labels, 10, first=1)
        records = np.empty((count, 1 + _PIXELS), np.uint8)
        records[:, 0] = labels % 10
        records[:, 1:] = images.transpose(3, 2, 0, 1).reshape(count, _PIXELS)
        return records

    def join(self, place: Place, arrays: Sequence[Array]) -> tuple[Split, Split]:
        """Take the first file for training and the second for the test."""
        train, test = map(_split, arrays)
        return train, test

    def inspect(self, place: Place) -> list[FileFacts]:
        """Return the facts about each file; the checksums of SVHN are those of the files as they are stored."""
        facts = []
        for number, (path, official) in enumerate(zip(place.files, self.official, strict=True)):
            facts.append(FileFacts(path, len(self.read(place, number)), official, content_md5(read_whole(path))))
        return facts


def read_mat(path: Path, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of numbers from a MATLAB file of version 5, of which nothing is executed.

    Args:
        path: The file.
        wanted: The names of the arrays.

    Returns:
        The arrays by name.

    Raises:
        InputError: If SciPy is not installed, or if the file is damaged, of another version, or lacks an array.
    """
    try:
        import scipy.io
    except ImportError:
        raise InputError(f"{path} can be read with SciPy only: pip install 'fullrank[mat]'") from None
    raw = io.BytesIO(read_whole(path))
    try:
        _reject_variables(path, {name: (shape, kind) for name, shape, kind in scipy.io.whosmat(raw)}, wanted)
        raw.seek(0)
        arrays = scipy.io.loadmat(raw, variable_names=list(wanted))
        return {name: np.asarray(arrays[name]) for name in wanted}
    except InputError:
        raise
    except NotImplementedError:
        raise InputError(f"{path} is a MATLAB file of version 7.3; the official file has version 5") from None
    except MemoryError:
        raise InputError(f"{path} does not fit into memory when it is unpacked") from None
    except Exception as error:  # a damaged file can fail in any way
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged or no MATLAB file: it cannot be read ({why})") from None


def _reject_variables(path: Path, found: Mapping[str, tuple[Sequence[int], str]], wanted: Sequence[str]) -> None:
    """Reject a file by the headers of its variables, before any of them is unpacked."""
    if any(name not in found for name in wanted):
        there = f"the variables {', '.join(found)}" if found else "no variables"
        raise InputError(f"{path} has {there}; it must have {' and '.join(wanted)}")
    for name in wanted:
        shape, kind = found[name]
        if kind not in _BYTES:
            raise InputError(f"{path}: the variable {name} is of MATLAB's class {kind}; it must hold numbers")
        if 0 in shape:
            raise InputError(f"{path}: the variable {name} is empty")
        needed = math.prod(shape) * _BYTES[kind]
        reject_too_large(f"{path}: the variable {name}", needed, "the file is damaged or of another data set")


def _split(records: Array) -> Split:
    x, y = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
    return Split(torch.from_numpy(x), torch.from_numpy(y))


SVHN = Svhn(
    name="svhn",
    title="SVHN",
    page=_SITE,
    layouts=(Layout("cropped digits in MATLAB files", ("svhn", "SVHN"), tuple((name,) for name in _FILES)),),
    official=tuple(_FILES.values()),
    downloads=(tuple(Download(_SITE + name, official.md5, "svhn") for name, official in _FILES.items()),),
    classes=tuple("0123456789"),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
)
