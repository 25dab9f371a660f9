"""The command `fullrank export`."""

from __future__ import annotations

import json
from typing import Annotated, cast

import typer

from fullrank.cli.options import AsJson, Root, StageName, Trust, fail
from fullrank.deploy.export import Exported, ExportFailed, export
from fullrank.deploy.formats import FORMATS
from fullrank.federated.site import Stage
from fullrank.runs.display import STAGES, size


def export_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    client: Annotated[
        int | None, typer.Option("--client", metavar="K", help="The model of client K instead of the global one.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="Where to write; else RUN/export, or RUN/export-client-K.")
    ] = None,
    formats: Annotated[
        str,
        typer.Option("--format", metavar="A,B", help=f"Of {', '.join(FORMATS)}; onnx needs the extra of that name."),
    ] = "safetensors",
    stage: StageName = None,
    root: Root = "",
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's model in files for deployment, and check that each predicts as the run's model does.

    Re-parameterisable networks (repvgg, repghost) become plain convolutions with BatchNorm fused. model.json says what
    a program needs to use the files: network, classes, input shape, normalisation. A file whose scores differ by more
    than a ten-thousandth of the largest is removed, and the exit status is not 0. The global model needs no data:
    without them the files are compared on random inputs. A client's own model needs that client's data, unless the run
    kept it (run.keep_personal).

    Example: fullrank export runs/demo --format safetensors,onnx --to model
    """
    try:
        wanted = [name.strip() for name in formats.split(",") if name.strip()]
        done = export(run, to, wanted, client, stage=cast(Stage | None, stage), trust=trust, root=root)
    except ExportFailed as failure:
        fail(str(failure), 1)
    if as_json:
        print(json.dumps({"path": str(done.path), **done.facts, "remarks": list(done.remarks)}, indent=1))
    else:
        _print(done)


def _print(done: Exported) -> None:
    model, shape = done.facts["model"], "×".join(map(str, done.facts["input"]["shape"]))
    form = "in its plain form, BatchNorm fused" if model["form"] == "plain" else "as it was trained"
    print(f"{model['name']} {form}: {model['parameters']:,} parameters, input {shape}")
    if done.facts["client"] is not None:
        stage = done.facts["stage"]
        print(f"client {done.facts['client']}, stage {stage}: {STAGES[stage]}")
    for name, file in done.facts["files"].items():
        print(
            f"{name}: {size(file['bytes'])}, largest difference from the run's model {file['largest_difference']:.1e} "
            f"({file['relative_difference']:.1e} of the largest score), the same class for {file['same_class']} of "
            f"{file['samples']} {done.facts['checked_on']}"
        )
    for remark in done.remarks:
        print(f"note: {remark}")
    if done.facts["note"]:
        print(f"note: {done.facts['note']}")
    print(f"written to {done.path}, with model.json beside")
