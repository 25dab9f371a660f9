"""Predictions of a run's model for image files or arrays, as a table."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fullrank.data.sources.table import TABLES, features_in
from fullrank.data.sources.unlabelled import ImageFiles, array_in, image_files
from fullrank.errors import InputError
from fullrank.federated.site import Stage
from fullrank.files import write_atomically
from fullrank.runs.display import counted
from fullrank.runs.prediction import Predictor
from fullrank.runs.result import Run, check_model, run_at

COLUMNS = ("label", "probability")
"""The columns between the name of a sample and the probabilities of the classes."""
PREFIX = "p_"
"""The prefix of the names of the columns with the probabilities of classes."""
NAMED = 10
"""The largest number of files that a message names."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of a model for some samples."""

    kind: str
    """The kind of `names`: "path" or "index"."""
    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Tensor
    """The probability of each class, (N, C)."""
    unreadable: dict[str, str]
    """Why files were left out, by their names."""
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The predicted class of each sample."""
        return [self.classes[k] for k in self.probabilities.argmax(1).tolist()]

    @property
    def counts(self) -> dict[str, int]:
        """The number of samples that are predicted as each class, the most frequent first."""
        return dict(Counter(self.labels).most_common())

    @property
    def header(self) -> list[str]:
        """The names of the columns of the table."""
        return [self.kind, *COLUMNS, *(f"{PREFIX}{name}" for name in self.classes)]

    def as_csv(self) -> str:
        """Return the table: name, predicted label and its probability, then the probability of each class."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        for name, label, row in zip(self.names, self.labels, self.probabilities.tolist(), strict=True):
            writer.writerow([name, label, f"{max(row):.8g}", *(f"{value:.8g}" for value in row)])
        return text.getvalue()

    def write(self, file: str | Path) -> None:
        """Write the table to a CSV file.

        Args:
            file: The file, which may be an earlier table of predictions.

        Raises:
            InputError: If the file is another one, or cannot be written.
        """
        file = Path(file)
        reject_others(file)
        write_atomically(file, self.as_csv().encode())


def predict(
    run: Run | str | Path,
    data: str | Path | Sequence[str | Path],
    *,
    client: int | None = None,
    stage: Stage | None = None,
    unreadable: Literal["stop", "skip"] = "stop",
    trust: bool = False,
    root: str | Path = "",
) -> Predictions:
    """Predict the classes of images or arrays with a run's model.

    Samples are prepared as in the run. The global model needs the run's directory only.

    Args:
        run: A run or its directory.
        data: Image files and folders of images, or one `.npz` file with an array x or x_test, or for a run on a table
            one `.csv` or `.parquet` file.
        client: The number of a client, to predict with the client's own model in place of the global one.
        stage: The stage of the client's model, as in `Run.client_model`.
        unreadable: Whether image files that cannot be read are an error or are left out.
        trust: Whether code outside the library that a run's directory names may be imported, which runs it.
        root: The folder of the run's data, if not the one of the run; only a client's own model may need them.

    Returns:
        The predictions.

    Raises:
        InputError: If there is no such model, or if samples do not fit it.
    """
    given = [data] if isinstance(data, (str, Path)) else list(data)
    if not given:
        raise InputError("name image files, folders of images, or an .npz file to predict")
    if unreadable not in ("stop", "skip"):
        raise InputError(f'unreadable = "{unreadable}": must be "stop" or "skip"')
    arrays = [one for one in map(Path, given) if one.suffix in (".npz", *TABLES)]
    if arrays and len(given) > 1:
        raise InputError(f'"{arrays[0]}" holds samples and cannot be predicted together with other files')
    run = run if isinstance(run, Run) else run_at(run, trust, root)
    check_model(run, "predict")
    if arrays:
        return _of_array(Predictor.of(run, client, stage), arrays[0])
    shape = _image_shape(run)
    files = image_files(given, shape, run.experiment.data.size)
    return _of_files(Predictor.of(run, client, stage), files, unreadable)


def reject_others(file: Path) -> None:
    """Check that a file may be replaced by a table of predictions.

    Args:
        file: The file.

    Raises:
        InputError: If it exists and is not such a table, or its folder does not exist.
    """
    if file.is_dir():
        raise InputError(f'"{file}" is a folder; name a file for the table, such as "{file / "predictions.csv"}"')
    if not file.parent.is_dir():
        raise InputError(f'there is no folder "{file.parent}" for the table')
    if file.exists() and not _is_table(file):
        raise InputError(f'"{file}" exists and is not a table of predictions; choose another --out')


def _is_table(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as opened:
        start = opened.readline(1000)
    return start.startswith(tuple(f"{kind},{','.join(COLUMNS)},{PREFIX}" for kind in ("path", "index")))


def _image_shape(run: Run) -> tuple[int, ...]:
    """Return the shape of the images of a run before the model, or reject a run whose samples are not images."""
    data = run._without_data().federation.data
    shape = data.input_shape
    if data.train.x.dtype != torch.uint8 or len(shape) != 3 or shape[0] not in (1, 3):
        kind = str(data.train.x.dtype).removeprefix("torch.")
        raise InputError(
            f"the run was trained on samples of {kind} of shape {'×'.join(map(str, shape))}, which image files do not "
            "hold; give an .npz file with an array x"
        )
    return shape


def _of_array(predictor: Predictor, file: Path) -> Predictions:
    if file.suffix in TABLES and not predictor.columns:
        raise InputError(
            f'"{file}" is a table, but the run was not trained on one; give samples as the run\'s data have them'
        )
    name, x = ("x", features_in(file, predictor.columns)) if file.suffix in TABLES else array_in(file)
    try:
        probabilities = predictor(x)
    except InputError as error:
        raise InputError(f"{file}: {str(error).replace('x ', f'{name} ', 1)}") from None
    numbers = tuple(map(str, range(len(x))))
    return Predictions("index", numbers, predictor.classes, probabilities, {}, predictor.notes)


def _of_files(predictor: Predictor, files: ImageFiles, unreadable: str) -> Predictions:
    names: list[str] = []
    found: list[Tensor] = [torch.empty(0, len(predictor.classes))]
    for some, images in files.read():
        names += some
        if not files.unreadable or unreadable == "skip":
            found.append(predictor(images))
    if files.unreadable and (unreadable == "stop" or not names):
        number = len(files.unreadable)
        advice = "; repair them, or leave them out with --unreadable skip (unreadable=)" if names else ""
        raise InputError(
            f"{number} of {len(files.files)} image files cannot be read: {_listed(files.unreadable)}{advice}"
        )
    notes = (*_notes(files), *predictor.notes)
    return Predictions("path", tuple(names), predictor.classes, torch.cat(found), dict(files.unreadable), notes)


def _notes(files: ImageFiles) -> list[str]:
    notes = [f"{change}: {number} of {counted(len(files.files), 'image')}" for change, number in files.changed.items()]
    if files.ignored:
        names = ", ".join(files.ignored[:NAMED]) + (", …" if len(files.ignored) > NAMED else "")
        notes.append(f"{counted(len(files.ignored), 'file')} left out, not an image by its name: {names}")
    if files.unreadable:
        notes.append(f"{counted(len(files.unreadable), 'unreadable image')} left out: {_listed(files.unreadable)}")
    return notes


def _listed(unreadable: dict[str, str]) -> str:
    named = [f'"{name}" ({why})' for name, why in list(unreadable.items())[:NAMED]]
    more = len(unreadable) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")
