"""The command `fullrank search-scales`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fullrank.cli.options import AsJson, Overrides, fail
from fullrank.config.experiment import merged, nested, parse_overrides
from fullrank.errors import Interrupted, Refusal
from fullrank.runs import display
from fullrank.search.scales import search_scales, searched


def search_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A network with scales: repvgg-a0, repghost-0.5 …")],
    data: Annotated[
        str, typer.Option("--data", metavar="NAME", help="The public or server-side data set to search on.")
    ] = "cifar100",
    root: Annotated[str, typer.Option("--root", metavar="DIR", help="Where it lies.")] = "",
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", metavar="N", help="Instead of the authors' 240 (RepVGG) or 600 (RepGhost)."),
    ] = None,
    per_class: Annotated[
        int, typer.Option("--per-class", metavar="N", help="Learn only so many random samples of each class.")
    ] = 0,
    client: Annotated[
        int | None,
        typer.Option("--client", metavar="K", help="Learn only this client's part of the partition that --set says."),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        str, typer.Option("--out", metavar="NAME", help="Writes NAME.safetensors and NAME.json; the run is NAME.run.")
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search the scales of a re-parameterisable network, for an experiment to name in model.scales.

    Trains the network with its scales (mode "hs") on one data set and keeps the scales. Stop the command and give it
    again, and it goes on. Grey or larger images are brought to three channels and 32 pixels.

    Example: fullrank search-scales repvgg-a0 --root data --set engine.device=cuda --out scales/a0

    Example: fullrank search-scales repghost-0.5 --client 0 --set data.partition=dirichlet --set data.alpha=0.1
    --set data.variant=plain --set data.clients=10 --root data
    """
    short = nested({"data.name": data, "data.root": root})
    if epochs is not None:
        if epochs < 1:
            raise Refusal(f"--epochs {epochs}: must be at least 1")
        short = merged(short, nested({"train.rounds": epochs}))
    values = merged(short, parse_overrides(overrides or []))
    name = out or f"scales/{model.rpartition(':')[2]}-{searched(model, values).data_label}"
    try:
        with display.choose(quiet, as_json) as watcher:
            found = search_scales(model, name, values=values, per_class=per_class, client=client, watcher=watcher)
    except Interrupted as stop:
        fail(str(stop), 130)
    if as_json:
        print(json.dumps({"scales": str(found.scales), "facts": str(found.facts)}))
    elif not quiet:
        print(f"scales in {found.scales}, where they come from in {found.facts}")
        keys = {"method.name": "fedrepopt", "model.name": model, "model.mode": "repopt", "model.scales": found.scales}
        print("use them:", *(f"--set {key}={value}" for key, value in keys.items()))
