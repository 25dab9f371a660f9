"""Read data sets of the Hugging Face hub, and local folders in the same forms, with the library `datasets`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fullrank.data.dataset import DataSet, with_classes
from fullrank.data.sources.cache import Content, cached_as
from fullrank.data.sources.decode import Pixels, decode_content
from fullrank.data.sources.images import FILES_NAMED, LEAST_KEPT, Canvas, reject_missing_pillow
from fullrank.data.sources.parquet import of_arrow
from fullrank.data.sources.progress import report
from fullrank.data.sources.table import SIDES, USUAL, Roles, of_table
from fullrank.errors import InputError, message_of

OLDEST = 4
"""The first version of `datasets` that never runs code that a data set brings."""

Indices = npt.NDArray[np.int64]


def from_hub(
    name: str,
    root: str | Path,
    seed: int,
    num_classes: int | None,
    *,
    label: str = "",
    image: str = "",
    client: str = "",
    group: str = "",
    size: int | Sequence[int] = 0,
    unreadable: Literal["stop", "skip"] = "stop",
) -> DataSet:
    """Read a data set with `datasets.load_dataset`; no code that comes with it is run.

    Args:
        name: "hub:NAME" or "hub:NAME:CONFIGURATION". NAME is that of a data set of the hub, or a local folder.
        root: The folder in which the local folder is.
        seed: The seed of the test split, for a data set without one.
        num_classes: The number of classes that the labels must have.
        label: The column of the labels; by default the first one with names of classes, or "label" or "y".
        image: The column of images, by default the first one, if there is one; then no other column is a feature.
        client: The column of the natural clients, by default "client" if it is there.
        group: The column of the groups, by default "group" if it is there.
        size: As in `load_dataset`, for images.
        unreadable: As in `load_dataset`, for images.

    Raises:
        InputError: If `datasets` is missing or too old, or the data set cannot be read or used.
    """
    short = name.partition(":")[2]
    try:
        found = _loaded(short, root)
        keys = {"label": label or found.label, "client": client, "group": group}
        stem = Path(short.partition(":")[0]).name
        images = found.images(image)
        if not images and unreadable != "stop":
            raise InputError(f'data.unreadable = "{unreadable}": applies to images, and the data set has none')
        if not images:
            table, classes = of_arrow(found.table()), found.classes(keys["label"])
            data = of_table(stem, table, keys, seed, classes=classes, sides=found.rows)
        else:
            data = _Images(stem, found, images, keys, seed, size, unreadable).load([short, str(root)])
        return with_classes(data, num_classes)
    except InputError as error:
        raise InputError(f'data.name = "{name}": {error}') from None


def _loaded(name: str, root: str | Path) -> _Parts:
    """Return the parts of a data set; a local folder is searched first."""
    try:
        import datasets
    except ImportError:
        raise InputError("the library datasets reads it, which is missing: pip install 'fullrank[hub]'") from None
    if int(datasets.__version__.partition(".")[0]) < OLDEST:
        raise InputError(
            f"datasets {datasets.__version__} may run code that a data set brings; install version {OLDEST} or newer "
            "(pip install 'fullrank[hub]')"
        )
    path, _, configuration = name.partition(":")
    if not path:
        raise InputError('the name of a data set must follow, as in "hub:mnist", or the path of a folder')
    folder = (Path(root) / path).expanduser()
    if path.startswith((".", "~", "/")) and not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if str(root) and not folder.is_dir():
        raise InputError(f"data.root has no folder {path}; leave data.root empty for a data set of the hub")
    if folder.is_dir() and not any(folder.iterdir()):
        raise InputError(f"the folder {folder} is empty")
    try:
        found = datasets.load_dataset(str(folder) if folder.is_dir() else path, configuration or None)
    except Exception as error:  # an error of the network, of a file's format or of a name
        why = (message_of(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"the library datasets cannot read it ({type(error).__name__}: {why})") from None
    return _Parts(found, folder if folder.is_dir() else None)


class _Parts:
    """The parts of a data set for training and for the test, if there is one."""

    def __init__(self, parts: Mapping[str, Any], folder: Path | None):
        self.folder = folder
        if "train" not in parts:
            raise InputError(f'it has the parts {", ".join(parts)}; one must be called "train"')
        self.parts = [parts[side] for side in SIDES if side in parts]
        for side, part in zip(SIDES, self.parts, strict=False):
            if not len(part):
                raise InputError(f'its part "{side}" has no rows')
        self.features: Mapping[str, Any] = self.parts[0].features
        if any(part.features != self.features for part in self.parts):
            raise InputError("its parts train and test have other columns; both must have the same")

    @property
    def rows(self) -> tuple[Indices, Indices] | None:
        """The rows for training and for the test, if there is a part for the test."""
        if len(self.parts) == 1:
            return None
        end, total = len(self.parts[0]), sum(map(len, self.parts))
        return np.arange(end), np.arange(end, total)

    @property
    def label(self) -> str:
        """The first column with names of classes, or a usual one; empty if there is none."""
        usual = next((name for name in USUAL["label"] if name in self.features), "")
        return next((name for name, kind in self.features.items() if getattr(kind, "names", None)), usual)

    def classes(self, label: str) -> tuple[str, ...]:
        """Return the names of the classes that labels are the numbers of, if a column has such names."""
        return tuple(getattr(self.features.get(label), "names", None) or ())

    def images(self, given: str) -> str:
        """Return the column of images: the given one or the first; empty if there is none."""
        import datasets

        there = [name for name, kind in self.features.items() if isinstance(kind, datasets.Image)]
        if given and given not in there:
            raise InputError(
                f'data.image = "{given}": there is no such column of images; there are {", ".join(there) or "none"}'
            )
        return given or (there[0] if there else "")

    def table(self, but: str = "") -> Any:
        """Return the rows of all parts as one pyarrow.Table, without one of the columns."""
        import pyarrow

        parts = [part.remove_columns([but]) if but else part for part in self.parts]
        return pyarrow.concat_tables([part.with_format("arrow")[:] for part in parts])

    def encoded(self, name: str) -> Iterator[bytes | None]:
        """Yield the content of the image file of each row."""
        import datasets

        for part in self.parts:
            for cell in part.select_columns([name]).cast_column(name, datasets.Image(decode=False)):
                content, path = (cell[name] or {}).get("bytes"), (cell[name] or {}).get("path")
                if content is None and path and self._is_own(Path(path)):
                    content = Path(path).read_bytes()
                yield content

    def _is_own(self, path: Path) -> bool:
        """Return whether a file is in the local folder or was downloaded; a data set may name any file."""
        import datasets

        places = (self.folder, datasets.config.HF_CACHE_HOME, datasets.config.HF_DATASETS_CACHE)
        real = path.resolve()
        return real.is_file() and any(real.is_relative_to(Path(place).resolve()) for place in places if place)


@dataclass(frozen=True)
class _Images:
    """A data set with a column of images."""

    name: str
    parts: _Parts
    column: str
    keys: Mapping[str, str]
    seed: int
    size: int | Sequence[int]
    unreadable: Literal["stop", "skip"]

    def load(self, place: Sequence[str]) -> DataSet:
        """Return the data set, from the cache if it is there."""
        key = json.dumps([*place, self.column, dict(self.keys), self.seed, self.size, self.unreadable])
        state = json.dumps([part._fingerprint for part in self.parts.parts])
        return cached_as(self.name, key, state, self._content, self._complete, LEAST_KEPT)

    def _complete(self, content: Content) -> DataSet:
        return DataSet(
            self.name,
            content.train,
            content.test,
            content.classes,
            clients=content.clients,
            unreadable=content.unreadable,
        )

    def _content(self) -> Content:
        reject_missing_pillow()
        classes = self.parts.classes(self.keys["label"])
        roles = Roles.of(of_arrow(self.parts.table(but=self.column)), self.keys, classes, self.parts.rows)
        x, problems = self._decode(len(roles.labels))
        left_out = tuple(f"row {number + 1}: {why}" for number, why in problems.items())
        if problems and self.unreadable == "stop":
            raise InputError(
                f"{len(problems)} of {len(x)} images cannot be read ({', '.join(left_out[:FILES_NAMED])}); set "
                'data.unreadable = "skip" to leave them out'
            )
        sides = [np.setdiff1d(rows, list(problems)) for rows in roles.sides(self.seed)]
        if not all(map(len, sides)):
            raise InputError("no image of the part for training, or of that for the test, can be read")
        train, test = (roles.split(torch.from_numpy(x[rows]), rows) for rows in sides)
        return Content(train, test, roles.classes, clients=roles.clients, unreadable=left_out)

    def _decode(self, total: int) -> tuple[Pixels, dict[int, str]]:
        """Return the images, of which those that cannot be read are arbitrary, and why these cannot."""
        canvas = Canvas(total, self.size, colour=False)
        problems: dict[int, str] = {}
        for number, content in enumerate(self.parts.encoded(self.column)):
            image = decode_content(io.BytesIO(content), self.size) if content else "there is no image"
            if isinstance(image, str):
                problems[number] = image
            else:
                canvas.put(number, image, f"row {number + 1}")
            report(f"decoding {self.name}", number + 1, total)
        return canvas.x, problems
