"""Read MNIST, Fashion-MNIST and EMNIST from IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fullrank.data.dataset import Split
from fullrank.data.memory_limit import memory_limit
from fullrank.data.sources.places import Layout, Place
from fullrank.data.sources.stored import Array, Download, Official, Stored, content_md5, read_whole, reject_labels
from fullrank.errors import InputError

_File = gzip.GzipFile | io.BytesIO

_CHUNK = 2**24
_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read_idx(path: Path, dimensions: int) -> Array:
    """Read an IDX file of bytes, gzipped or not.

    Args:
        path: The file.
        dimensions: The number of dimensions that the array must have.

    Raises:
        InputError: If the file is not such a file, is damaged, or does not fit into memory.
    """
    raw = read_whole(path)
    packed = raw[:2] == b"\x1f\x8b"
    file = gzip.GzipFile(fileobj=io.BytesIO(raw)) if packed else io.BytesIO(raw)
    try:
        return _read(path, file, dimensions)
    except MemoryError:
        raise InputError(f"{path} does not fit into memory when it is unpacked") from None
    except EOFError:
        raise InputError(f"{path} is truncated: its compressed content ends too early") from None
    except (OSError, zlib.error) as error:
        raise InputError(f"{path} is damaged: it cannot be unpacked ({error})") from None


def _read(path: Path, file: _File, dimensions: int) -> Array:
    magic = _up_to(file, 4)
    if magic != bytes((0, 0, 8, dimensions)):
        raise InputError(
            f"{path} is no IDX file of bytes in {dimensions} dimension{'s' if dimensions > 1 else ''}:"
            f" it begins with 0x{magic.hex()} and must begin with 0x{bytes((0, 0, 8, dimensions)).hex()}"
        )
    sizes = _up_to(file, 4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise InputError(f"{path} is truncated: it ends within its header")
    shape = struct.unpack(f">{dimensions}I", sizes)
    announced = math.prod(shape)
    limit = memory_limit() // 3  # the bytes exist twice while they are joined
    content = _up_to(file, min(announced, limit) + 1)  # one byte more, so that gzip verifies its checksum
    if len(content) > limit:
        raise InputError(f"{path} does not fit into memory: it unpacks to more than {limit / 2**30:.4g} GiB")
    if len(content) != announced:
        found = f"only {len(content)} follow" if len(content) < announced else "more follow"
        what = "truncated" if len(content) < announced else "damaged"
        raise InputError(f"{path} is {what}: its header announces {'×'.join(map(str, shape))} bytes, and {found}")
    if announced == 0:
        raise InputError(f"{path} holds no records; its header announces {'×'.join(map(str, shape))}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _up_to(file: _File, count: int) -> bytes:
    """Read up to `count` bytes, without allocating more than there are: a damaged header may announce any number."""
    parts = []
    while count and (part := file.read(min(count, _CHUNK))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


@dataclass(frozen=True, kw_only=True)
class IdxSet(Stored):
    """Images and labels in separate files."""

    mistakable: tuple[str, str] | None = None
    """Another data set whose files have the same names, and the MD5 of its training labels."""
    first_label: int = 0
    """The label of the first class in the files."""
    transposed: bool = False
    """Whether the files have the columns of images before the rows."""

    def read(self, place: Place, number: int) -> Array:
        """Return images (n, height, width) for an even number, labels (n,) for an odd one."""
        path = place.files[number]
        if number % 2 == 0:
            return read_idx(path, 3)
        labels = read_idx(path, 1)
        reject_labels(path, "label", labels, len(self.classes), self.first_label)
        return labels

    def header(self, array: Array) -> bytes:
        """Return the magic number and the sizes."""
        return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)

    def join(self, place: Place, arrays: Sequence[Array]) -> tuple[Split, Split]:
        """Combine images of one channel with their labels."""
        if self.mistakable is not None and content_md5(self.header(arrays[1]), arrays[1]) == self.mistakable[1]:
            raise InputError(f"{place.files[1]} is of {self.mistakable[0]}, not of {self.title}; {self.how_to_get()}")
        for images, labels in ((0, 1), (2, 3)):
            if len(arrays[images]) != len(arrays[labels]):
                raise InputError(
                    f"{place.files[images]} has {len(arrays[images])} images and {place.files[labels]}"
                    f" {len(arrays[labels])} labels; both numbers must be equal"
                )
        if arrays[0].shape[1:] != arrays[2].shape[1:]:
            raise InputError(
                f"{place.files[0]} has images of {arrays[0].shape[1]}×{arrays[0].shape[2]} and {place.files[2]}"
                f" of {arrays[2].shape[1]}×{arrays[2].shape[2]}; both sizes must be equal"
            )
        return self._split(*arrays[:2]), self._split(*arrays[2:])

    def _split(self, images: Array, labels: Array) -> Split:
        upright = images.transpose(0, 2, 1) if self.transposed else images
        # copies: the arrays are views of bytes, which torch must not write to
        x = torch.from_numpy(upright[:, None].copy())
        return Split(x, torch.from_numpy(labels.astype(np.int64) - self.first_label))


def _layout(*folders: str, names: Sequence[str] = _FILES) -> Layout:
    files = tuple(
        tuple(stem + end for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")) for name in names
    )
    return Layout("IDX files, gzipped or not", folders, files)


def _official(*md5s: str) -> tuple[Official, ...]:
    return tuple(map(Official, (60000, 60000, 10000, 10000), md5s))


def _downloads(base: str, folder: str, *md5s: str) -> tuple[tuple[Download, ...]]:
    return (tuple(Download(f"{base}{name}.gz", md5, folder) for name, md5 in zip(_FILES, md5s, strict=True)),)


MNIST = IdxSet(
    name="mnist",
    title="MNIST",
    page="http://yann.lecun.com/exdb/mnist/",
    layouts=(_layout("mnist", "MNIST/raw"),),
    official=_official(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    downloads=_downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    classes=tuple("0123456789"),
    mean=(0.1307,),
    std=(0.3081,),
    mistakable=("Fashion-MNIST", "9018921c3c673c538a1fc5bad174d6f9"),
)

FASHION_MNIST = IdxSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    page="https://github.com/zalandoresearch/fashion-mnist",
    layouts=(_layout("fashion-mnist", "FashionMNIST/raw"),),
    official=_official(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    downloads=_downloads(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "fashion-mnist",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    mean=(0.2860,),
    std=(0.3530,),
    elsewhere=(Path("/usr/share/datasets"),),
    package="dataset-fashion-mnist",
    mistakable=("MNIST", "a25bea736e30d166cdddb491f175f624"),
)


def _emnist(division: str, classes: str, train: int, test: int, name: str = "", first_label: int = 0) -> IdxSet:
    files = _emnist_files(division)
    return IdxSet(
        name=name or f"emnist-{division}",
        title=f"EMNIST ({division})",
        page="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        layouts=(_layout("gzip", "emnist", "EMNIST/raw", names=files),),
        official=tuple(Official(records, "") for records in (train, train, test, test)),
        downloads=((_EMNIST,),),
        classes=tuple(classes),
        first_label=first_label,
        transposed=True,
    )


def _emnist_files(division: str) -> tuple[str, ...]:
    return tuple(f"emnist-{division}-{name.replace('t10k', 'test')}" for name in _FILES)


_DIGITS, _LETTERS = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_EMNIST = Download(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    members=tuple(
        f"gzip/{file}.gz" for division in ("balanced", "byclass", "letters") for file in _emnist_files(division)
    ),
)
EMNIST = _emnist("balanced", f"{_DIGITS}{_LETTERS}abdefghnqrt", 112800, 18800, name="emnist")
"""Digits and letters, as many of each; small letters that look like capital ones count as capital."""
EMNIST_BYCLASS = _emnist("byclass", f"{_DIGITS}{_LETTERS}{_LETTERS.lower()}", 697932, 116323)
"""All digits, capital and small letters, as often as they were written."""
EMNIST_LETTERS = _emnist("letters", _LETTERS.lower(), 124800, 20800, first_label=1)
"""Letters, whether capital or small."""
