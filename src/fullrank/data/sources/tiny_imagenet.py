"""List Tiny-ImageNet's images from its official folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fullrank.data.dataset import DataSet
from fullrank.data.sources.images import load_listing
from fullrank.data.sources.listing import ImageFile, Listing, visible
from fullrank.data.sources.places import Layout, Place, find, roots
from fullrank.errors import InputError

_LAYOUT = Layout(
    "official folder", ("tiny-imagenet-200",), (("wnids.txt",), ("words.txt",), ("val/val_annotations.txt",))
)
_HOW_TO_GET = (
    "get it from http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it, and set data.root (--root) or "
    "$FULLRANK_DATA if it is elsewhere"
)


def tiny_imagenet(
    root: str | Path = "", seed: int = 0, size: int | Sequence[int] = 0, unreadable: Literal["stop", "skip"] = "stop"
) -> DataSet:
    """Load Tiny-ImageNet: 100,000 training images of 200 classes, 64×64, and as test part the 10,000 of val.

    The official test images have no labels and are not used. Classes are in the order of their WordNet ids, as in
    torchvision's ImageFolder, and named by the first word of words.txt. Grey images become colour images.

    Args:
        root: The folder of the files; by default it is searched in the usual places.
        seed: The seed, which has no effect, because the data set has a test part.
        size: As in `load_dataset`.
        unreadable: As in `load_dataset`.
    """
    place = find("Tiny-ImageNet", (_LAYOUT,), roots(root), _HOW_TO_GET)
    return load_listing(
        "tiny-imagenet",
        lambda: _list(place),
        root=place.folder,
        size=size,
        unreadable=unreadable,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        augment=("autoaugment:bins",),
        colour=True,
    )


def _list(place: Place) -> Listing:
    ids, words, annotations = place.files
    wnids = sorted({line.strip() for line in _lines(ids)} - {""})
    label = {wnid: k for k, wnid in enumerate(wnids)}
    train = []
    for wnid in wnids:
        folder = place.folder / "train" / wnid / "images"
        train += [ImageFile(f"{folder}/{name}", label[wnid]) for name in visible(folder)[1]]
    images = place.folder / "val" / "images"
    test = []
    for number, line in enumerate(_lines(annotations), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0].strip()
        if wnid not in label:
            raise InputError(
                f'{annotations}, line {number}: "{line[:80]}" must have the name of an image and a class of {ids.name}'
            )
        test.append(ImageFile(f"{images}/{name}", label[wnid]))
    test.sort()
    return Listing(train, test, _names(words, wnids), place.files)


def _names(words: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """Return the first name of each class, with its WordNet id where two classes have the same."""
    named = dict(line.split("\t", 1) for line in _lines(words) if "\t" in line)
    first = [named.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    count = Counter(first)
    return tuple(name if count[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(first, wnids, strict=True))


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
