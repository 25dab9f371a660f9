"""The file formats of exported models: how each is written, and read back to predict.

torch's tracer is slow to load, and ONNX is an extra: both are imported when they are needed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fullrank.deploy.prepared import bare
from fullrank.deploy.registry import FORMATS
from fullrank.errors import InputError, nearest
from fullrank.files import save_tensors

OPSET = 18
"""The ONNX opset: the oldest that torch's exporter writes without converting, which most runtimes can read."""
CARD = "model.json"
"""Name of the description in a .pt2 file."""
INPUT, OUTPUT, BATCH = "x", "logits", "batch"
"""Names of an ONNX file's input, output and axis of any length."""

Predict: TypeAlias = Callable[[Tensor], Tensor]
"""A function that returns scores (N, C) of a batch of inputs."""
Card: TypeAlias = Mapping[str, Any]
"""The metadata of a model that a file stores if its format can: input, output and classes."""


@dataclass(frozen=True)
class Format:
    """A file format of exported models."""

    file: str
    write: Callable[[nn.Module, Tensor, Path, Card], None]
    """Writes a module in eval mode, given a batch of two inputs or more as an example."""
    read: Callable[[Path, nn.Module], Predict]
    """Reads the file as a function that predicts; the module is for files that hold weights only."""
    needs: tuple[str, ...] = ()
    """Modules that an extra installs."""

    def facts(self) -> dict[str, Any]:
        """Return facts about the file itself."""
        versions = {name: importlib.metadata.version(name) for name in self.needs}
        return {"opset": OPSET, "input": INPUT, "output": OUTPUT, "versions": versions} if self.needs else {}


def chosen(names: Sequence[str]) -> dict[str, Format]:
    """Return formats by name.

    Args:
        names: The names; each format is returned once.

    Raises:
        InputError: If there is no such format, or the extra that it needs is not installed.
    """
    if not names:
        raise InputError(f"no format was named; choose from {', '.join(FORMATS)}")
    for name in names:
        if name not in FORMATS:
            raise InputError(f'the format "{name}" is not known; {nearest(name, FORMATS)}')
        missing = [module for module in FORMATS[name].needs if importlib.util.find_spec(module) is None]
        if missing:
            raise InputError(f"the format \"{name}\" needs {', '.join(missing)}: pip install 'fullrank[{name}]'")
    return {name: FORMATS[name] for name in dict.fromkeys(names)}


def _write_weights(module: nn.Module, example: Tensor, path: Path, card: Card) -> None:
    save_tensors(path, bare(module).state_dict())


def _read_weights(path: Path, module: nn.Module) -> Predict:
    bare(module).load_state_dict(load_file(path))
    return module


def _write_program(module: nn.Module, example: Tensor, path: Path, card: Card) -> None:
    program = _traced(module, example)
    with _quiet():
        torch.export.save(program, path, extra_files={CARD: json.dumps(card)})


def _read_program(path: Path, module: nn.Module) -> Predict:
    with _quiet():
        return torch.export.load(path).module()


def _write_onnx(module: nn.Module, example: Tensor, path: Path, card: Card) -> None:
    program = _traced(module, example)
    with _quiet():
        made = torch.onnx.export(
            program,
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: BATCH},),
        )
        assert made is not None
        for graph in (made.model.graph, *made.model.functions.values()):
            for node in graph:
                node.metadata_props.clear()  # the origins of a node, with paths of this machine
        made.model.metadata_props.update({key: _as_text(value) for key, value in card.items()})
        made.save(path)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _read_onnx(path: Path, module: nn.Module) -> Predict:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # as many as torch uses
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def predict(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])

    return predict


def _traced(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """Return the module's forward as a program for batches of any size.

    It is traced by running it with symbolic sizes, which supports any Python but makes `len(x)` a number; if that
    fails, by analysing its bytecode, which keeps `len(x)` symbolic and supports less.
    """
    any_size = ({0: torch.export.Dim(BATCH)},)
    problems: list[Exception] = []
    for strict in (False, True):
        try:
            with _quiet(), torch.no_grad():
                program = torch.export.export(module, (example,), dynamic_shapes=any_size, strict=strict)
                return _without_traces(program)
        except Exception as error:
            problems.append(error)
    first = next(iter(str(problems[0]).strip().splitlines()), "")
    raise InputError(
        f"torch cannot trace the forward of {type(bare(module)).__name__} for batches of any size "
        f'({type(problems[0]).__name__}: {first}); the format "safetensors" needs no trace'
    ) from problems[0]


def _without_traces(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the program without its stack traces, which name files of the exporting machine."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of torch's exporters about optional packages and their own deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


WEIGHTS = Format("model.safetensors", _write_weights, _read_weights)
ONNX = Format("model.onnx", _write_onnx, _read_onnx, ("onnx", "onnxscript", "onnxruntime"))
PROGRAM = Format("model.pt2", _write_program, _read_program)
