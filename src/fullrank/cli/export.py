"""The command `fullrank export`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fullrank.cli.options import AsJson, Root, StageName, Trust, fail
from fullrank.deploy.registry import FORMATS
from fullrank.runs.terminal import say

if TYPE_CHECKING:
    from fullrank.deploy.export import Exported
    from fullrank.deploy.prepared import Inputs
    from fullrank.federated.site import Stage


def export_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Directory of a finished run.")],
    client: Annotated[
        int | None,
        typer.Option("--client", metavar="K", help="Export the own model of client K."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DIR", help="Output folder. By default RUN/export or RUN/export-client-K."),
    ] = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format", metavar="A,B", help=f"Formats: {', '.join(FORMATS)}. onnx needs the extra of that name."
        ),
    ] = "safetensors",
    stage: StageName = None,
    inputs: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="raw|prepared",
            help="Inputs of the models: samples in the form of the run's data, or normalised samples.",
        ),
    ] = "raw",
    root: Root = "",
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Export the model of a run for deployment.

    Re-parameterisable networks (repvgg, repghost) are converted to plain convolutions with fused BatchNorm. The file
    model.json describes what a program needs to use the model: network, classes, input shape and normalisation.

    By default, the models take samples in the form of the run's data and normalise them: for images, 8-bit images
    with values 0 to 255 (uint8) of the size of the run. With --input prepared they take float32 values that your
    program has normalised as model.json describes.

    Each file is compared with the model of the run. A file whose scores differ by more than 1e-4 of the largest score
    is removed, and the exit status is not 0. The global model can be exported without the data; it is then compared on
    random inputs. The own model of a client needs the data of that client, unless the run saved the model
    (run.keep_personal).

    Example: fullrank export runs/demo --format safetensors,onnx --to model
    """
    from fullrank.deploy.export import ExportFailed, export

    try:
        wanted = [name.strip() for name in formats.split(",") if name.strip()]
        done = export(
            run,
            to,
            wanted,
            client,
            stage=cast("Stage | None", stage),
            inputs=cast("Inputs", inputs),
            trust=trust,
            root=root,
        )
    except ExportFailed as failure:
        fail(str(failure), 1)
    if as_json:
        print(json.dumps({"path": str(done.path), **done.facts, "remarks": list(done.remarks)}, indent=1))
    else:
        _print(done)


def _print(done: Exported) -> None:
    from fullrank.runs.display import STAGES, size

    model, shape = done.facts["model"], "×".join(map(str, done.facts["input"]["shape"]))
    form = "in its plain form, with fused BatchNorm" if model["form"] == "plain" else "as it was trained"
    say(f"{model['name']} {form}: {model['parameters']:,} parameters, input {shape}")
    say(f"takes {done.facts['input']['description']}")
    if done.facts["client"] is not None:
        stage = done.facts["stage"]
        say(f"client {done.facts['client']}, stage {stage}: {STAGES[stage]}")
    for name, file in done.facts["files"].items():
        print(
            f"{name}: {size(file['bytes'])}, largest difference from the run's model {file['largest_difference']:.1e} "
            f"({file['relative_difference']:.1e} of the largest score), the same class for {file['same_class']} of "
            f"{file['samples']} {done.facts['checked_on']}"
        )
    for remark in done.remarks:
        say(f"note: {remark}")
    if done.facts["note"]:
        say(f"note: {done.facts['note']}")
    print(f"written to {done.path}, with model.json")
