"""The file `site.toml`, which stays at a site: its name, its data, and what it lets a server do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PrivateAttr, ValidationError

from fullrank import methods, models
from fullrank.channels import Mean, Sum, Upload, part_name
from fullrank.config.experiment import Experiment, read_toml
from fullrank.config.schema import Table
from fullrank.data.augment.registry import is_import_path
from fullrank.errors import InputError, sentence
from fullrank.methods import Composition
from fullrank.methods._method import Method
from fullrank.plugins import LIBRARY, is_foreign
from fullrank.trees import flatten

MODEL_PARTS = ("w", "buffers")
"""The names of the uploads of the model itself."""

SERVER_ONLY = ("train.aggregator", "engine.name", "run.track")
"""Keys that may name code and that a site does not read."""


class Rejected(InputError):
    """Raised if a site does not do what a server asks for; the message says what it does not allow."""


class SiteTable(Table):
    """The name and the number of the site, and where it computes."""

    name: str = ""
    """Name of the site, in tables, messages and logs of the server. Needed if `data.path` is set."""
    client: Annotated[int, Field(ge=-1)] = -1
    """Number of the site among the clients, from 0 on, which no other site may have. -1 takes the number that the
    node was started with."""
    device: str = ""
    """Device on which the client trains: cpu, cuda or cuda:1. If empty, cpu."""
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    """Number of threads. 0 takes that of the experiment, with which results are those of a simulation to the bit."""
    folder: str = "state"
    """Folder of the client's states and of the log of what was sent, relative to this file."""
    log_megabytes: Annotated[int, Field(ge=0)] = 100
    """Largest size of the log of what was sent, of `sent.jsonl` and of the older files `sent.1.jsonl` to `sent.9.jsonl`
    together. A full file gets the next number, and the oldest one is deleted. 0 is any size."""


class DataTable(Table):
    """The samples of the site."""

    path: str = ""
    """Folder of images (one folder per class, with or without a test part) or .npz file, relative to this file. If
    empty, the site has the part of the experiment's own data that its number names, for trials. It then takes part with
    data sets of the library only, and reads no folder that the experiment names."""
    classes: list[str] = []
    """Names of all classes of the federation, in the same order at every site, also of those that this site lacks. If
    empty, those of the data."""


class Allowed(Table):
    """The limits of what a server may ask for. What is not allowed is not computed, and the server is told why."""

    methods: list[str] | None = None
    """Names of the methods that may run; all of a combination must be named. Without this key, all methods of the
    library."""
    uploads: list[str] | None = None
    """Names of what may be sent, as `fullrank methods show` lists them, as in ["w", "buffers", "scaffold/change"].
    Without this key, what the method declares."""
    code: list[str] = []
    """Import paths outside the library that an experiment may name, as in "mine:network". They are imported here."""
    rounds: Annotated[int, Field(ge=0)] = 0
    """Number of rounds of a run in which the site takes part. 0 is any number."""
    largest_model: Annotated[int, Field(ge=0)] = 0
    """Largest number of parameters and buffers of a model, including those that are not trained. 0 is any number."""
    min_count: Annotated[int, Field(ge=0)] = 0
    """Smallest number of samples of a class of which statistics by class are sent, such as prototypes and class
    counts. With fewer samples of a class (but not none), such an upload is withheld, and so are the recall and the
    confusion of the class in evaluations."""
    class_counts: bool = False
    """Whether the server is told, when the site joins, how many training samples of each class it has, of `min_count`
    and more. Uploads of some methods and criteria contain such counts as well; `uploads` and `min_count` limit them."""
    models: bool = False
    """Whether the server may ask for the client's own model, for example for probes. With methods that keep a part of
    the model at the client, it contains that part."""
    tracebacks: bool = False
    """Whether the message and the traceback of an unexpected exception are sent, which can quote data. Otherwise only
    its class is, and the rest is in the log of the site."""


class SiteSettings(Table):
    """The content of `site.toml`.

    Args:
        **values: The tables `site`, `data` and `allow`, as dicts or objects; an absent table has its defaults.

    Raises:
        InputError: If there is an unknown key or an invalid value.

    >>> SiteSettings(site={"name": "north", "client": 0}, allow={"methods": ["fedavg"]}).allow.methods
    ['fedavg']
    """

    site: SiteTable = SiteTable()
    data: DataTable = DataTable()
    allow: Allowed = Allowed()
    _base: Path = PrivateAttr(default_factory=Path)
    _from_file: bool = PrivateAttr(default=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = error.errors()[0]
            raise InputError(f"site.toml: {sentence('.'.join(map(str, found['loc'])), found)}") from None

    @classmethod
    def from_toml(cls, path: str | Path) -> SiteSettings:
        """Read a `site.toml`. Relative paths in it start at its folder.

        Raises:
            InputError: If it cannot be read, or has an unknown key or an invalid value.
        """
        settings = cls(**read_toml(path))
        settings._base, settings._from_file = Path(path).expanduser().absolute().parent, True
        return settings

    def within(self, base: Path) -> SiteSettings:
        """Return the same settings with relative paths that start at another folder."""
        settings = self.model_copy()
        settings._base = base
        return settings

    @property
    def folder(self) -> Path:
        """The folder of states and logs."""
        return self._base / Path(self.site.folder).expanduser()

    @property
    def from_file(self) -> bool:
        """Whether these are the settings of a file, which a site has written, and not those of a simulation."""
        return self._from_file

    @property
    def samples(self) -> Path | None:
        """The path of the site's own data, if it has any."""
        return self._base / Path(self.data.path).expanduser() if self.data.path else None

    # What is allowed

    def check_values(self, values: Mapping[str, Any]) -> None:
        """Check the raw values of an experiment before anything that they name is imported or built.

        Raises:
            Rejected: If they name code that the site does not allow, or a method.
        """
        for key in (key for key in LIBRARY if key not in SERVER_ONLY):
            table, _, name = key.partition(".")
            found = values.get(table, {})
            value = found.get(name) if isinstance(found, Mapping) else None
            names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
            for piece in (piece.strip() for text in names if isinstance(text, str) for piece in text.split("+")):
                code = is_foreign(key, piece) and (key != "data.augment" or is_import_path(piece))
                if code and piece not in self.allow.code:
                    raise Rejected(f'does not allow the code "{piece}" of {key}; allow.code in its site.toml lists it')
        method = values.get("method", {})
        name = method.get("name", "") if isinstance(method, Mapping) else ""
        for piece in str(name).split("+"):
            known = piece.strip() in (self.allow.methods or ())
            if self.allow.methods is not None and not known and piece.strip() not in self.allow.code:
                raise Rejected(f'does not allow the method "{piece.strip()}"{_listed("methods", self.allow.methods)}')

    def check_experiment(self, experiment: Experiment) -> None:
        """Check what the methods of an experiment declare.

        Raises:
            Rejected: If they send something that the site does not allow.
        """
        method = methods.build(experiment.method.name, **experiment.method.tables)
        parts = Composition(method, experiment.train.criterion).parts
        declared = [part_name(part.name, name) for part in parts if exchanges(part) for name in part.uploads]
        for name in declared:
            if self.allow.uploads is not None and name not in self.allow.uploads:
                raise Rejected(f'does not allow the upload "{name}"{_listed("uploads", self.allow.uploads)}')
        for part in parts:
            count = getattr(part, "min_count", None)
            if isinstance(count, int) and count < self.allow.min_count and exchanges(part):
                raise Rejected(
                    f"needs method.{part.name}.min_count of at least {self.allow.min_count} (allow.min_count in its "
                    f"site.toml), and it is {count}"
                )

    def check_model(self, experiment: Experiment, classes: int, channels: int) -> None:
        """Check the size of the model that an experiment names, without memory for its values.

        Args:
            experiment: The experiment.
            classes: The number of classes.
            channels: The number of channels of the inputs.

        Raises:
            Rejected: If the model is larger than the site allows.
        """
        if not self.allow.largest_model:
            return
        try:
            with torch.device("meta"):
                made = models.build(experiment.model.name, classes, channels, **experiment.model.options)
            entries: Iterable[torch.Tensor] = made.state_dict().values()
            size = sum(entry.numel() for entry in entries)
        except Exception as error:
            raise Rejected(
                f'cannot tell the size of the model "{experiment.model.name}" ({type(error).__name__}), and '
                f"allow.largest_model in its site.toml is {self.allow.largest_model}"
            ) from None
        self.check_size(size)

    def check_size(self, size: int) -> None:
        """Check a number of parameters and buffers.

        Raises:
            Rejected: If the site does not allow as many.
        """
        if self.allow.largest_model and size > self.allow.largest_model:
            raise Rejected(
                f"allows models of at most {self.allow.largest_model} parameters (allow.largest_model in its "
                f"site.toml), and this one has {size}"
            )

    def check_round(self, round: int) -> None:
        """Check the number of complete rounds.

        Raises:
            Rejected: If the site takes part in no more rounds.
        """
        if self.allow.rounds and round >= self.allow.rounds:
            raise Rejected(f"takes part in {self.allow.rounds} rounds of a run (allow.rounds in its site.toml)")

    def check_upload(self, upload: Upload, parts: Sequence[Method], counts: Sequence[int], entries: set[str]) -> None:
        """Check what is about to be sent.

        Args:
            upload: The upload of a client.
            parts: The methods that run.
            counts: The number of the client's training samples of each class.
            entries: The names of the entries of the model, whose rows are no statistics of classes.

        Raises:
            Rejected: If something is not declared or not allowed, or is a statistic of too few samples.
        """
        declared = {*MODEL_PARTS, *(part_name(part.name, name) for part in parts for name in part.uploads)}
        few = [c for c, count in enumerate(counts) if 0 < count < self.allow.min_count]
        for space, named in upload.items():
            for name, part in named.items():
                what = part_name(space, name)
                if what not in declared:
                    raise Rejected(f'withholds "{what}", which the method sends without declaring it')
                if self.allow.uploads is not None and what not in self.allow.uploads:
                    raise Rejected(f'does not allow the upload "{what}"{_listed("uploads", self.allow.uploads)}')
                if space and few:
                    self._check_classes(what, part, few, len(counts), entries)

    def _check_classes(self, what: str, part: Sum | Mean, few: Sequence[int], classes: int, entries: set[str]) -> None:
        """Check that rows of an upload about classes with few samples are zeros."""
        for path, value in flatten(part.tree).items():
            if path in entries or value.dim() == 0 or value.shape[0] != classes:
                continue
            if any(bool(value[c].any()) for c in few):
                raise Rejected(
                    f'withholds "{what}": it has statistics of classes of which the client has fewer than '
                    f"{self.allow.min_count} samples (allow.min_count in its site.toml)"
                )


def exchanges(part: Method) -> bool:
    """Return whether a method makes use of its further uploads with its hyper-parameters."""
    return bool(getattr(part, "exchanges", True))


def _listed(key: str, allowed: Sequence[str]) -> str:
    return f" (allow.{key} in its site.toml: {', '.join(allowed) or 'none'})"
