"""The weights with which a run starts (`model.start`): reading them, and loading the entries that fit the model."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullrank.errors import InputError
from fullrank.files import Damaged, load_tensors, reading
from fullrank.models.network import Network
from fullrank.trees import Tensors

KEPT = "start.safetensors"
"""The file in a run directory with the initial weights of a run that has `model.start`."""
MODEL = "model.safetensors"
TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")
"""Suffixes of files that `torch.save` wrote."""
INSIDE = ("state_dict", "model_state_dict", "model")
"""Keys under which checkpoints of training programs hold the state dict."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes of DataParallel, torch.compile and Lightning, which are left out where all names have them."""
NAMED = 10
"""The largest number of entries that a message names."""


@dataclass(frozen=True)
class StartReport:
    """A report on which entries of a file with initial weights fitted the model."""

    source: str
    fitted: tuple[str, ...]
    left_out: dict[str, str]
    """Why entries of the file were not used, by their names."""
    initial: tuple[str, ...]
    """The entries of the model that kept their initial values."""
    prefix: str = ""
    """The prefix that was left out of each name of the file."""

    @property
    def complete(self) -> bool:
        """Whether every entry of the file and of the model fitted."""
        return not self.left_out and not self.initial

    def facts(self) -> dict[str, Any]:
        """Return the report as a run directory records it."""
        return {
            "source": self.source,
            "fitted": list(self.fitted),
            "left_out": self.left_out,
            "initial": list(self.initial),
            "prefix": self.prefix,
        }

    def text(self) -> str:
        """Return the report in a sentence."""
        total = len(self.fitted) + len(self.initial)
        text = f'model.start: {len(self.fitted)} of {total} entries of the model come from "{self.source}"'
        if self.prefix:
            text += f', whose names start with "{self.prefix}"'
        if self.initial:
            text += f"; left at their initial values: {_listed(self.initial)}"
        if self.left_out:
            text += f"; left out of the file: {_listed(f'{name} {why}' for name, why in self.left_out.items())}"
        return text


def start_from(network: Network, source: str | Path, partial: bool = False) -> StartReport:
    """Load the weights with which a run starts into its network, and report what fitted.

    Args:
        network: The network.
        source: A safetensors file, a file with a state dict that `torch.save` wrote, or the directory of a run, whose
            final global model is taken.
        partial: Whether entries that do not fit are left out; otherwise they are an error.

    Raises:
        InputError: If the file cannot be read or does not fit.
    """
    own = network.tensors()
    given, prefix = _without_prefix(read_weights(Path(source)), own)
    fitted = tuple(name for name in own if name in given and given[name].shape == own[name].shape)
    left_out = {
        name: f"has shape {_shape(tensor)} instead of {_shape(own[name])}" if name in own else "is not in the model"
        for name, tensor in given.items()
        if name not in fitted
    }
    initial = tuple(name for name in own if name not in fitted)
    report = StartReport(str(source), fitted, left_out, initial, prefix)
    if (not partial and not report.complete) or not fitted:
        raise InputError(_misfit(report, given, len(own)))
    network.load({name: given[name] for name in fitted})
    return report


def _misfit(report: StartReport, given: Mapping[str, Tensor], entries: int) -> str:
    wrong = [f"{name} {why}" for name, why in report.left_out.items()]
    wrong += [f"{name} is missing" for name in report.initial if name not in given]
    advice = ""
    if report.fitted:
        advice = f"; model.start_partial = true takes the {len(report.fitted)} of {entries} entries that fit"
    return f'model.start: "{report.source}" does not fit the model: {_listed(wrong)}{advice}'


def weights_file(path: Path) -> Path:
    """Return the file that `model.start` names: that of the final global model, for the directory of a run."""
    return path / MODEL if path.is_dir() else path


def read_weights(path: Path) -> Tensors:
    """Read initial weights.

    Args:
        path: A safetensors file, a torch state dict, or the directory of a run, for its final global model.

    Raises:
        InputError: If there is no such file, or it does not hold tensors by name.
    """
    file = weights_file(path)
    if path.is_dir() and not (path / "experiment.toml").is_file():
        raise InputError(f'model.start: "{path}" is a folder, but not the directory of a run')
    if not file.is_file():
        if path.is_dir():
            raise InputError(f'model.start: the run in "{path}" has no {MODEL}, which it gets at its end')
        raise InputError(f'model.start: there is no file "{path}"')
    return _state_dict(file) if file.suffix.lower() in TORCH else _safetensors(file)


def _safetensors(file: Path) -> Tensors:
    try:
        return load_tensors(file)
    except Damaged as error:
        raise InputError(f'model.start: "{file}" is not a safetensors file or is damaged ({error})') from None


def _state_dict(file: Path) -> Tensors:
    try:
        with reading(file), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of another protocol, which are read or rejected below
            found = torch.load(file, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except pickle.UnpicklingError:
        raise InputError(
            f'model.start: "{file}" holds other objects than tensors, which are not loaded because that could run '
            "code, or it is damaged; save model.state_dict() with torch.save"
        ) from None
    except Exception as error:  # torch has many kinds of errors
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise InputError(f'model.start: "{file}" is no state dict, or it is damaged ({why})') from None
    tensors = _tensors_in(found)
    if not tensors:
        raise InputError(
            f'model.start: "{file}" holds no tensors by name, neither itself nor under {", ".join(INSIDE)}; save '
            "model.state_dict() with torch.save"
        )
    return tensors


def _tensors_in(found: object) -> Tensors:
    if not isinstance(found, Mapping):
        return {}
    inside = next((found[key] for key in INSIDE if isinstance(found.get(key), Mapping)), None)
    if inside is not None:
        return _tensors_in(inside)
    return {str(name): value.detach() for name, value in found.items() if isinstance(value, Tensor)}


def _without_prefix(given: Tensors, own: Iterable[str]) -> tuple[Tensors, str]:
    """Return the tensors without a prefix that all their names have and the model's do not, and the prefix."""
    names, left_out = set(own), ""
    while not names & given.keys():
        prefix = next((one for one in PREFIXES if given and all(name.startswith(one) for name in given)), None)
        if prefix is None:
            break
        given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
        left_out += prefix
    return given, left_out


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _listed(texts: Iterable[str]) -> str:
    found: Sequence[str] = list(texts)
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more
