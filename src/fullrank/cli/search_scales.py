"""The command `fullrank search-scales`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fullrank.cli.options import AsJson, Overrides, Quiet, ended_if_interrupted
from fullrank.config.experiment import merged, nested, parse_overrides
from fullrank.errors import InputError
from fullrank.runs.terminal import say


def search_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Network with scales: repvgg-a0, repghost-0.5 …")],
    data: Annotated[
        str, typer.Option("--data", metavar="NAME", help="Public or server-side data set to search on.")
    ] = "cifar100",
    root: Annotated[str, typer.Option("--root", metavar="DIR", help="Folder of the data set.")] = "",
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", metavar="N", help="Number of epochs. By default 240 (RepVGG) or 600 (RepGhost)."),
    ] = None,
    per_class: Annotated[
        int, typer.Option("--per-class", metavar="N", help="Train on N random samples per class; 0 for all.")
    ] = 0,
    client: Annotated[
        int | None,
        typer.Option("--client", metavar="K", help="Train on the samples of client K of the partition given by --set."),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        str, typer.Option("--out", metavar="NAME", help="Write NAME.safetensors, NAME.json and the run NAME.run.")
    ] = "",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Search the scales of a re-parameterisable network.

    Trains the network with its scales (mode "hs") on one data set and saves the scales, for use in model.scales of an
    experiment. If the search was interrupted, the same command resumes it. Images are converted to three channels and
    32 pixels.

    Example: fullrank search-scales repvgg-a0 --root data --set engine.device=cuda --out scales/a0

    Example: fullrank search-scales repghost-0.5 --client 0 --set data.partition=dirichlet --set data.alpha=0.1
    --set data.variant=plain --set data.clients=10 --root data
    """
    from fullrank.runs import display
    from fullrank.search.scales import search_scales, searched

    short = nested({"data.name": data, "data.root": root})
    if epochs is not None:
        if epochs < 1:
            raise InputError(f"--epochs {epochs}: must be at least 1")
        short = merged(short, nested({"train.rounds": epochs}))
    values = merged(short, parse_overrides(overrides or []))
    name = out or f"scales/{model.rpartition(':')[2]}-{searched(model, values).data_label}"
    with ended_if_interrupted(), display.choose(quiet, as_json) as shown:
        found = search_scales(model, name, values=values, per_class=per_class, client=client, callbacks=[shown])
    if as_json:
        print(json.dumps({"scales": str(found.scales), "facts": str(found.facts)}))
    elif not quiet:
        say(f"scales written to {found.scales}, their origin to {found.facts}")
        keys = {"method.name": "fedrepopt", "model.name": model, "model.mode": "repopt", "model.scales": found.scales}
        say(" ".join(["to use them:", *(f"--set {key}={value}" for key, value in keys.items())]))
