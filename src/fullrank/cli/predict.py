"""The command `fullrank predict`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from fullrank.cli.options import AsJson, Client, Root, StageName, Trust
from fullrank.runs.terminal import say

if TYPE_CHECKING:
    from fullrank.deploy.predict import Predictions
    from fullrank.federated.site import Stage

SHOWN = 10
"""The largest number of classes whose counts are printed."""


def predict_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA…",
            help="Image files and folders of images, or one .npz file with an array x, or a table (.csv, .parquet).",
        ),
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.csv", help="File for the table. By default it is printed.")
    ] = None,
    client: Client = None,
    stage: StageName = None,
    unreadable: Annotated[
        str,
        typer.Option("--unreadable", metavar="stop|skip", help="Whether unreadable images are an error or left out."),
    ] = "stop",
    root: Root = "",
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of images, arrays or tables with a model.

    The table has a row for each sample: path (or index in the array), predicted label, its probability, and the
    probability of each class in columns p_CLASS. Samples are prepared as in the run, from which the directory suffices;
    only a client's own model may need the data of the run.

    Folders are searched at any depth. Images of another size are resized to that of the run, and grey and colour images
    are converted; notes say how many. An array must have the shape and the dtype of the samples of the run.

    A table of predictions in FILE.csv is replaced; any other file is left as it is.

    Example: fullrank predict runs/demo photos --out predictions.csv
    """
    from fullrank.deploy.predict import predict, reject_others
    from fullrank.runs.display import counted

    if out is not None:
        reject_others(Path(out))
    found = predict(
        run,
        data,
        client=client,
        stage=cast("Stage | None", stage),
        unreadable=cast(Literal["stop", "skip"], unreadable),
        trust=trust,
        root=root,
    )
    if out is not None:
        found.write(out)
    if as_json:
        print(json.dumps(_facts(found, out), indent=1))
        return
    for note in found.notes:
        say(f"note: {note}", file=sys.stderr)
    if out is None:
        print(found.as_csv(), end="")
        return
    shown = [f"{name}: {number}" for name, number in list(found.counts.items())[:SHOWN]]
    more = ", …" if len(found.counts) > SHOWN else ""
    say(f"{counted(len(found.names), 'sample')}, by predicted class: {', '.join(shown)}{more}")
    say(f"written to {out}")


def _facts(found: Predictions, out: str | None) -> dict[str, Any]:
    """Return the predictions for a program; those that a file holds are not repeated."""
    facts: dict[str, Any] = {"samples": len(found.names), "classes": list(found.classes), "counts": found.counts}
    facts |= {"unreadable": found.unreadable, "notes": list(found.notes), "out": out}
    if out is None:
        rows = zip(found.names, found.labels, found.probabilities.tolist(), strict=True)
        facts["predictions"] = [{found.kind: name, "label": label, "probabilities": row} for name, label, row in rows]
    return facts
