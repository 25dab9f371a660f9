"""Export of a run's model to files for deployment, which are checked against the run's model before they are kept."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fullrank import methods, models
from fullrank._version import __version__
from fullrank.data import DataSet
from fullrank.deploy.formats import Format, Predict, chosen
from fullrank.deploy.prepared import INPUTS, Inputs, WithPreparation, description
from fullrank.deploy.registry import FORMATS
from fullrank.engine.machine import threads
from fullrank.errors import CallFailed, InputError, writing
from fullrank.federated.site import Stage
from fullrank.files import Damaged, load_tensors, write_json
from fullrank.methods import Composition
from fullrank.models.network import Network
from fullrank.models.reparam.fuse import to_deploy
from fullrank.models.reparam.operators import operators
from fullrank.plugins import GIVEN, reject_untrusted
from fullrank.randomness import seeded
from fullrank.runs.directory import read_json
from fullrank.runs.network import apply_method
from fullrank.runs.prediction import note_on
from fullrank.runs.result import Run, check_model, chosen_model, run_at

DESCRIPTION = "model.json"
TOLERANCE = 1e-4
"""Largest allowed difference between an exported model's scores and the run's, as a share of the largest score."""
SAMPLES = 100
"""Number of samples on which both are compared."""
ACCURACY, ACCURACY_ELSEWHERE = 0.001, 0.01
"""Largest allowed differences of test accuracy from the recorded one, on the same and on another kind of device."""
VERSION = 2
"""Version of model.json; in version 1 all models took prepared inputs."""


class ExportFailed(RuntimeError):
    """Raised if an exported file cannot be read back, or does not give the predictions of the run's model; it was
    removed."""


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    """The directory."""
    facts: dict[str, Any]
    """The content of its model.json."""
    remarks: tuple[str, ...] = ()
    """Remarks that are not in model.json because they may name paths of this machine."""


def export(
    run: Run | str | Path,
    to: str | Path | None = None,
    formats: Sequence[str] = ("safetensors",),
    client: int | None = None,
    *,
    stage: Stage | None = None,
    inputs: Inputs = "raw",
    trust: bool = False,
    root: str | Path = "",
) -> Exported:
    """Write a run's model for deployment.

    By default, the models take samples in the form of the run's data and normalise them: for images, 8-bit images with
    values 0 to 255 in uint8, which the models enforce. A re-parameterisable network is converted to its plain form; all
    weights are in float32. `model.json` alongside the files says what a program needs to use them. Each file is read
    back and must give the same predictions as `run.model()`, or the client's model, on test samples; otherwise no file
    is kept and `ExportFailed` is raised. No sample is written to any file. The global model needs the run's directory
    only: if the data are not available, the files are compared on random inputs, and model.json says so. A model that a
    program gave to `fit` is exported from the run that `fit` returns; its weights need the program's class, the other
    formats do not.

    Args:
        run: A run or its directory.
        to: The directory of the files, by default `export` in the run's directory.
        formats: One or more of "safetensors", "onnx" (fullrank[onnx]) and "torch" (.pt2). A safetensors file holds the
            weights of the network; `load_export` returns it with the preparation that model.json describes.
        client: The client whose own model is exported instead of the global one.
        stage: The stage of the client's model, as in `Run.client_model`.
        inputs: "raw" for samples in the form of the run's data, or "prepared" for samples that a program has
            normalised.
        trust: Whether code outside the library that a run's directory names may be imported, which runs it.
        root: The folder of the data, if it is not the one of the run.

    Returns:
        The directory of the export and the content of its model.json.

    Raises:
        InputError: If there is no such model, or if it no longer has the test accuracy that the run recorded.
        ExportFailed: If a file does not predict as the run's model does.

    >>> import fullrank, tempfile
    >>> run = fullrank.run({"train.rounds": 1, "model.name": "mlp", "model.width": 8}, out=tempfile.mkdtemp())
    >>> sorted(file.name for file in export(run).path.iterdir())
    ['model.json', 'model.safetensors']
    """
    if inputs not in INPUTS:
        raise InputError(f'the input "{inputs}" is not known; choose from {", ".join(INPUTS)}')
    wanted = chosen([formats] if isinstance(formats, str) else list(formats))
    run = run if isinstance(run, Run) else run_at(run, trust, root)
    _reject_without_model(run)
    folder = _folder(run, to, client)
    trained = _trained(run, client, stage)
    plain, form = _deployed(trained)
    facts = _facts(run, client, stage, plain, form, inputs)
    samples = _samples(run, trained, inputs)
    if client is None:
        _reject_other_accuracy(run, facts["accuracy"])
    facts["checked_on"] = samples.kind
    with _place_for(folder, wanted) as scratch:
        facts["files"] = {
            kind.file: {"format": name, **_written(kind, plain, facts, samples, scratch)}
            for name, kind in wanted.items()
        }
        _forget_earlier(folder)
        for file in facts["files"]:
            (scratch / file).replace(folder / file)
    write_json(folder / DESCRIPTION, facts)
    return Exported(folder, facts, samples.remarks)


def load_export(path: str | Path, *, trust: bool = False) -> nn.Module:
    """Load the model of an export in the format "safetensors".

    Args:
        path: The directory of the export.
        trust: Whether code outside the library that model.json names (a user's model or method) may be imported, which
            runs it.

    Returns:
        A module in eval mode, built from model.json. It takes inputs as model.json describes, by default samples in the
        form of the run's data, and returns the scores of the classes.

    Raises:
        InputError: If the directory has no such export or a damaged one, if its model was given by a program, or if
            code outside the library would be imported without `trust`.

    >>> import fullrank, tempfile, torch
    >>> run = fullrank.run({"train.rounds": 1, "model.name": "mlp", "model.width": 8}, out=tempfile.mkdtemp())
    >>> model = load_export(export(run).path)
    >>> model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """
    path = Path(path)
    facts = read_json(path / DESCRIPTION)
    if not trust:
        reject_untrusted(path / DESCRIPTION, {f"{key}.name": facts[key]["name"] for key in ("model", "method")})
    file = path / FORMATS["safetensors"].file
    if file.name not in facts["files"]:
        raise InputError(f'"{path}" holds {", ".join(facts["files"])}; export it in the format "safetensors" as well')
    if facts["model"]["name"] == GIVEN:
        plain = facts["model"]["form"] == "plain"
        how = "give it its plain form by fullrank.models.reparam.fuse.to_deploy, and load" if plain else "and load"
        raise InputError(
            f'the model in "{path}" is a {facts["model"]["class"]} that a program gave: create it there, {how} '
            f'"{file.name}" with safetensors.torch.load_model'
        )
    module = _rebuilt(facts)
    try:
        module.load_state_dict(load_tensors(file))
    except Damaged as problem:
        raise InputError(f'"{file}" is damaged ({problem}); export the run again') from None
    return _taking(facts, module)


def _taking(facts: Mapping[str, Any], module: nn.Module) -> nn.Module:
    """Return a module that takes the inputs that model.json describes; modules of version 1 take prepared inputs."""
    if facts["input"].get("takes") != "raw":
        return module
    return WithPreparation.described(module, facts["input"]).eval()


# The exported model


def _reject_without_model(run: Run) -> None:
    """Reject a run of another process if its directory lacks the model."""
    if run.path is None or run._assembly is not None:
        return
    check_model(run, "export")
    if run.experiment.is_given:
        raise InputError(
            f'the model of "{run.path}" was given to fullrank.fit by a program: pass the same module, clients and '
            f'settings to fullrank.fit with out="{run.path}", and its result to fullrank.export'
        )


def _is_given(name: str) -> bool:
    """Return whether a program gave a model or method, so that it cannot be found by name."""
    return name == GIVEN or name.startswith(f"{GIVEN}:")


def _reject_other_accuracy(run: Run, recorded: float | None) -> None:
    """Reject a global model whose test accuracy is not the recorded one, which means that code has changed."""
    assembly = run._assembly
    if assembly is None or assembly.federation.data.test is None or recorded is None:
        return
    with threads(run.experiment.engine.threads):
        found = assembly.evaluator.evaluate(run._final_entries(assembly))["accuracy"]
    elsewhere = assembly.experiment.engine.device != run.experiment.engine.device
    if abs(found - recorded) > (ACCURACY_ELSEWHERE if elsewhere else ACCURACY):
        raise InputError(
            f"the model has a test accuracy of {found:.4f}, but the run recorded {recorded:.4f}: the code of its model "
            "or method, or a version that environment.json names, is no longer the one with which it was trained"
        )


def _folder(run: Run, to: str | Path | None, client: int | None) -> Path:
    if to is not None:
        if Path(to).exists() and not Path(to).is_dir():
            raise InputError(f'"{to}" is a file; name a directory to export to')
        return Path(to)
    if run.path is None:
        raise InputError("the run has no directory, so to= must name one to export to")
    return run.path / ("export" if client is None else f"export-client-{client}")


def _trained(run: Run, client: int | None, stage: Stage | None) -> nn.Module:
    """Return the run's model with its own copies of tensors on the CPU, in float32 or float64."""
    module = chosen_model(run, client, stage)
    for tensor in (*module.parameters(), *module.buffers()):
        # Tensors may be views of one vector, or in the channels-last format; files have neither.
        tensor.data = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        tensor.requires_grad_(False)
    return module if _dtype(module) == torch.float64 else module.float()


def _deployed(trained: nn.Module) -> tuple[nn.Module, str]:
    """Return a copy in its plain form, in float32, and the name of the form."""
    if any(operators(trained)):
        return to_deploy(trained).float().requires_grad_(False), "plain"
    return copy.deepcopy(trained).float(), "as trained"


def _dtype(module: nn.Module) -> torch.dtype:
    kinds = (tensor.dtype for tensor in module.parameters())
    return next((kind for kind in kinds if kind.is_floating_point), torch.float32)


def _facts(
    run: Run, client: int | None, stage: Stage | None, plain: nn.Module, form: str, inputs: Inputs
) -> dict[str, Any]:
    """Return the facts that a program needs to use the model, and the model's origin."""
    assembly, experiment, data = run._without_data(), run.experiment, run._data_facts()
    # The plain weights include the constant scales, so their file is not needed.
    options = {key: value for key, value in experiment.model.options.items() if form != "plain" or key != "scales"}
    score = run.summary().get("accuracy", {}) if client is None else {}
    return {
        "format": VERSION,
        "model": {
            "name": experiment.model.name,
            "options": options,
            "head": experiment.model.head,
            "class": type(plain).__name__,
            "form": form,
            "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        },
        "classes": data["classes"],
        "input": _input_facts(run, inputs),
        "output": "logits",
        "method": {"name": experiment.method.name, **experiment.method.tables},
        "note": note_on(assembly.composition) if client is not None else "",
        "client": client,
        "stage": run.stage_of(stage) if client is not None else None,
        "accuracy": score.get("final", score.get("last")),
        "rounds": run.metrics[-1]["round"] if run.metrics else 0,
        "seed": experiment.seed,
        "experiment": assembly.experiment.hash(),
        "data": {"name": data["name"], "fingerprint": data["fingerprint"]},
        "weights": _hash_of(plain),
        "versions": {"fullrank": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }


def _input_facts(run: Run, inputs: Inputs) -> dict[str, Any]:
    """Return facts about the inputs of the exported models, and how a sample is prepared, by them or by the program."""
    data = run._data_facts()
    stored: torch.dtype = getattr(torch, data["dtype"])
    own = stored == torch.uint8 or bool(data.get("columns"))
    taken = stored if own and inputs == "raw" else _prepared_dtype(stored)
    shape = data["input_shape"]
    facts = {
        "takes": inputs,
        "dtype": str(taken).removeprefix("torch."),
        "shape": shape if inputs == "raw" else list(run._without_data().federation.pipeline.shape(shape)),
        "cropped_to": data.get("crop"),
        "channels": run._without_data().federation.data.in_channels,
        "resized_to": run.experiment.data.size or None,
        "stored_as": data["dtype"],
        "divide_by": 255 if stored == torch.uint8 else 1,
        "mean": data["mean"],
        "std": data["std"],
        "columns": data.get("columns", []),
    }
    return {"description": description(facts), **facts}


def _hash_of(module: nn.Module) -> str:
    """Return SHA-256 over all entries, which does not depend on the file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _rebuilt(facts: Mapping[str, Any]) -> nn.Module:
    """Build a module like the exported one from model.json, without loading its entries."""
    model, shape, seed = facts["model"], facts["input"]["shape"], facts["seed"]
    shape = [*shape[:-2], *(facts["input"].get("cropped_to") or shape[-2:])]
    tables = dict(facts["method"])
    example = torch.zeros(2, *shape, dtype=_prepared_dtype(getattr(torch, facts["input"]["stored_as"])))
    with seeded(seed, "model"):
        module = models.build(model["name"], len(facts["classes"]), facts["input"]["channels"], **model["options"])
        network = Network.of(module, example, len(facts["classes"]), model["head"] or None)
    with seeded(seed, "method"):
        network = apply_method(network, Composition(methods.build(tables.pop("name"), **tables)), example)
    module = to_deploy(network.module) if model["form"] == "plain" else network.module
    return module.eval().requires_grad_(False)


def _prepared_dtype(stored: torch.dtype) -> torch.dtype:
    """Return the dtype of prepared inputs; whole numbers that are not pixels, such as words, are not converted."""
    return torch.float32 if stored == torch.uint8 or stored.is_floating_point else stored


# Files and their checks


@dataclass(frozen=True)
class _Samples:
    """Inputs of the exported models, their kind, the scores of the run's model for them, and remarks."""

    x: Tensor
    scores: Tensor
    kind: str
    remarks: tuple[str, ...] = ()

    def compare(self, predict: Predict) -> dict[str, Any]:
        """Return the largest difference between scores, absolute and relative, and the number of equal classes."""
        with torch.no_grad():
            found = predict(self.x).double()
        largest = float((found - self.scores).abs().max())
        return {
            "samples": len(self.x),
            "largest_difference": largest,
            "relative_difference": largest / max(float(self.scores.abs().max()), 1e-30),
            "same_class": int((found.argmax(1) == self.scores.argmax(1)).sum()),
        }


def _samples(run: Run, trained: nn.Module, inputs: Inputs) -> _Samples:
    """Return samples of the run's data, or random inputs of their shape if the data cannot be read."""
    remarks: tuple[str, ...] = ()
    try:
        assembly = run._assembled()
        data = assembly.federation.data
        # Evenly spaced over the set, which may be sorted by class; training samples if there is no test set.
        x = (data.test or data.train).x
        x = x[torch.linspace(0, len(x) - 1, min(SAMPLES, len(x))).long()].cpu()
        kind = "test samples" if data.test is not None else "training samples"
    except (InputError, CallFailed) as problem:
        assembly = run._without_data()
        x = _random_inputs(assembly.federation.data)
        kind = "random inputs"
        remarks = (f"the data were not read, so the files were compared on random inputs: {problem}",)
    prepare = assembly.federation.pipeline
    converted = x.is_floating_point() and not assembly.federation.data.columns
    taken = prepare(x) if inputs == "prepared" else x.float() if converted else x
    with torch.no_grad():
        return _Samples(taken, trained(prepare(x, None, _dtype(trained))).double(), kind, remarks)


def _random_inputs(like: DataSet) -> Tensor:
    shape, dtype = (SAMPLES, *like.input_shape), like.train.x.dtype
    drawn = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=drawn, dtype=dtype)
    # For whole numbers that are not pixels, the range that the model takes is unknown.
    return torch.randint(256 if dtype == torch.uint8 else 2, shape, generator=drawn, dtype=dtype)


def _written(
    kind: Format, plain: nn.Module, facts: Mapping[str, Any], samples: _Samples, folder: Path
) -> dict[str, Any]:
    """Write one file, read it back, compare it, and return its facts."""
    path = folder / kind.file
    # New zeros, because torch.export stores its example with the whole storage behind it; a batch of two, because it
    # takes a size of 1 for a constant.
    example = torch.zeros(2, *samples.x.shape[1:], dtype=samples.x.dtype)
    kind.write(_taking(facts, plain), example, path, _card(facts))
    try:
        found = samples.compare(kind.read(path, _taking(facts, _to_fill(plain, facts))))
    except Exception as error:
        raise ExportFailed(
            f"{kind.file} was removed: it cannot be read back ({type(error).__name__}: {error})"
        ) from error
    if not found["relative_difference"] <= TOLERANCE:
        raise ExportFailed(
            f"{kind.file} was removed: on {found['samples']} samples its scores differ from the run's model by up to "
            f"{found['relative_difference']:.1e} of the largest; {TOLERANCE:g} is allowed"
        )
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), **found, **kind.facts()}


def _card(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that a file stores, which suffice to use it without model.json."""
    return {name: facts[name] for name in ("input", "output", "classes")}


def _to_fill(plain: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
    """Return a module to load weights into, built as in `load_export` unless a program gave the model."""
    if not _is_given(facts["model"]["name"]) and not _is_given(facts["method"]["name"]):
        return _rebuilt(json.loads(json.dumps(facts)))
    empty = copy.deepcopy(plain)
    for tensor in empty.state_dict().values():
        tensor.zero_()
    return empty


@contextlib.contextmanager
def _place_for(folder: Path, wanted: Mapping[str, Format]) -> Iterator[Path]:
    """Create a temporary directory in the target folder, so that files that fail leave earlier ones untouched."""
    _reject_others_files(folder, wanted)
    new = not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".export-")
    try:
        with scratch as path:
            yield Path(path)
    except BaseException:
        if new:
            with contextlib.suppress(OSError):  # another process may have written there meanwhile
                folder.rmdir()
        raise


def _reject_others_files(folder: Path, wanted: Mapping[str, Format]) -> None:
    """Reject a folder with files of these names that are not listed in the model.json of an earlier export."""
    own = _listed(folder)
    for name in (DESCRIPTION, *(kind.file for kind in wanted.values())):
        if (folder / name).exists() and name not in own:
            raise InputError(f'"{folder / name}" exists and is not an export of fullrank; choose another --to (to=)')


def _forget_earlier(folder: Path) -> None:
    for name in _listed(folder):
        (folder / name).unlink(missing_ok=True)


def _listed(folder: Path) -> list[str]:
    """Return the files of an earlier export in a directory."""
    try:
        facts = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return [DESCRIPTION, *(kind.file for kind in FORMATS.values() if kind.file in facts["files"])]
    except (OSError, ValueError, KeyError, TypeError):
        return []
