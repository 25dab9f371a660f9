"""The command `fullrank inspect`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fullrank.cli.options import AsJson, Overrides, Root, StageName, Trust, picture
from fullrank.config.experiment import parse_overrides
from fullrank.errors import InputError, nearest
from fullrank.files import writable
from fullrank.runs.terminal import say

if TYPE_CHECKING:
    from fullrank.federated.site import Stage
    from fullrank.report.inspect import Inspected
    from fullrank.runs.result import Run

SHOWN = {
    "effective_rank": "effective rank",
    "singular_variance": "singular variance",
    "eigenvalue_variance": "eigenvalue variance",
    "nc1": "NC1 within/between",
    "nc2": "NC2 from a simplex",
    "nc3": "NC3 from duality",
    "nc4": "NC4 not nearest mean",
    "classifier_cv": "classifier norms",
    "classifier_bias": "norms against counts",
}
WORDS = {
    "effective_rank": "of {features}: exponential of the entropy of the singular values",
    "singular_variance": "variance of the singular values of the covariance",
    "eigenvalue_variance": "of correlations within classes, mean over mini-batches (Table 7 of FedMR)",
    "nc1": "variation within classes over variation between class means",
    "nc2": "distance of the class means from a simplex ETF (norms {nc2_norm}, angles {nc2_angle})",
    "nc3": "distance of the classifier from the class means, 0 to 2",
    "nc4": "fraction of samples not predicted as the class of the nearest mean",
    "classifier_cv": "standard deviation over mean of the norms of the rows",
    "classifier_bias": "correlation of the norms with the class counts in training",
}
CLASSES_SHOWN = 20
FILE = ".safetensors"
KEPT = ("site", "class", "confusion")
"""The values of --by."""


def inspect_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL",
            help=f"Run directory, package.module:function that returns a module, or {FILE} file with --model.",
        ),
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Data set whose test split is used. By default that of the run.")
    ] = "",
    client: Annotated[int | None, typer.Option("--client", metavar="K", help="Own model of client K of a run.")] = None,
    stage: StageName = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help=f"Network whose weights a {FILE} file contains.")
    ] = "",
    root: Root = "",
    trust: Trust = False,
    overrides: Overrides = None,
    png: Annotated[
        str | None, typer.Option("--png", metavar="FILE", help="Also draw the spectrum in this file, with Matplotlib.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="Only print the results that a run recorded for its models: site (accuracy of each client or site), "
            "class (recalls) or confusion (matrices). --client, --stage and --on select.",
        ),
    ] = "",
    on: Annotated[
        str,
        typer.Option("--on", metavar="SET", help="With --by: only the clients' holdout, or their sites' test parts."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Measure the representation of a trained model.

    Prints the singular values of the covariance of the features, neural collapse, the norms of the rows of the
    classifier and the accuracy of each class, measured on a test set in eval mode. For a model that is not a run,
    --set sets options of the model and the normalisation, as in --set model.norm=batch --set data.normalise=none.

    For a run, the accuracy of the clients' own models follows, by client or site and by stage, as it was when the run
    ended. With --by, nothing is measured: the results that the run recorded for its models are shown, also for a run
    whose method has no global model.

    Example: fullrank inspect runs/digits-fedavg-12345678 --png spectrum.png

    Example: fullrank inspect runs/digits-fedavg-12345678 --by class

    Example: fullrank inspect mine:trained cifar10
    """
    from fullrank.report.inspect import inspect_run, is_run
    from fullrank.runs.result import run_at

    picture(png)
    if by or on:
        _show_kept(what, by or "site", client, stage, on, as_json)
        return
    if is_run(what):
        if model or overrides:
            raise InputError(f'"{what}" is a run, which contains its model; omit --model and --set')
        run = run_at(what, trust, "" if data else root)
        if _has_only_clients(run, client, stage, data, png) and not as_json:
            return
        found = inspect_run(run, client, data, root, cast("Stage | None", stage))
    else:
        found = _inspect(what, data, client, model, root, overrides)
    if png is not None:
        from fullrank.report.spectra import draw_one_spectrum

        draw_one_spectrum(found.arrays["spectrum"], found.numbers, png)
    if as_json:
        print(json.dumps(writable(found.facts()), indent=1))
        return
    _show(found)
    if png is not None:
        say(f"drawn in              {png}")
    if is_run(what) and client is None and not data:
        _show_sites(run)


def _has_only_clients(run: Run, client: int | None, stage: str | None, data: str, png: str | None) -> bool:
    """Show the table of the clients of a run that has no global model to measure, and return whether it was shown."""
    if client is not None or stage is not None or data or png is not None:
        return False
    lacking = run._without_data().no_global_model
    if not lacking or not _show_sites(run):
        return False
    say(f"\nno complete global model: {lacking}; --client K measures the representation of client K's model")
    return True


def _show_sites(run: Run) -> bool:
    """Show the accuracy of the clients' own models by client or site, if the run kept it, and return whether it did."""
    from fullrank.runs import client_tables

    rows = run.kept() or []
    client_tables.show_sites(rows)
    return any(row["client"] is not None for row in rows)


def _show_kept(what: str, by: str, client: int | None, stage: str | None, on: str, as_json: bool) -> None:
    """Print the results that a run recorded for its models."""
    from fullrank.report.inspect import is_run
    from fullrank.runs import client_tables
    from fullrank.runs.result import run_at

    if not is_run(what):
        raise InputError(f'--by and --on show recorded results of a run, and "{what}" is not a run directory')
    run = run_at(what)
    flat = run.clients({"site": "metric"}.get(by, by)) if by in KEPT else None
    if flat is None:
        raise InputError(f"--by {by}: {nearest(by, KEPT)}")
    if on and on not in client_tables.SETS:
        raise InputError(f"--on {on}: {nearest(on, list(client_tables.SETS))}")
    wanted = {"client": client, "stage": stage, "set": on or None}
    asked = {key: value for key, value in wanted.items() if value is not None}
    if as_json:
        print(json.dumps(flat.where(**asked), indent=1))
        return
    rows: list[Any] = [row for row in run.kept() or [] if all(row.get(key) == value for key, value in asked.items())]
    if not rows:
        named = ", ".join(f"{key} {value}" for key, value in asked.items())
        raise InputError(f'the run in "{what}" has no results of its models' + (f" ({named})" if named else ""))
    shown = {"class": client_tables.by_class, "confusion": client_tables.by_confusion}
    if by == "site":
        if line := client_tables.whole_test(rows):
            say(line)
        if all(row["client"] is None and row["site"] is None for row in rows):
            say(
                "the run has no results by client or site; a run with data.holdout records them, as in data.holdout=0.2"
            )
        tables = client_tables.by_site(rows)
    else:
        tables = shown[by](rows if stage or client is not None else _last_stage(rows), run.classes)
    client_tables.show(tables)


def _last_stage(rows: list[Any]) -> list[Any]:
    """Return the rows of the global model, and those of the last stage of the clients' own models."""
    from fullrank.runs import client_tables

    last = [stage for stage in client_tables.STAGES if any(row["stage"] == stage for row in rows)][-1]
    return [row for row in rows if row["stage"] in ("global", last)]


def _inspect(what: str, data: str, client: int | None, model: str, root: str, overrides: list[str] | None) -> Inspected:
    from fullrank.report.inspect import inspect_model

    if not (what.endswith(FILE) or ":" in what):
        there = "is not a run directory: it has no experiment.toml" if Path(what).exists() else "does not exist"
        raise InputError(f'"{what}" {there}; give a run, a package.module:function, or a {FILE} file')
    if client is not None:
        raise InputError("--client is for runs: other models have no clients")
    if not data:
        raise InputError("name a data set, as in: fullrank inspect MODEL digits")
    return inspect_model(what, data, kind=model, root=root, settings=parse_overrides(overrides or []))


def _show(found: Inspected) -> None:
    from fullrank.collapse.spectra import THRESHOLD
    from fullrank.runs.display import STAGES

    numbers = found.numbers
    say(f"model                 {found.model}")
    if found.stage:
        say(f"stage                 {found.stage}, {STAGES[found.stage]}")
    say(f"data                  {found.data}, {found.samples} samples, {len(found.classes)} classes")
    say(f"accuracy              {100 * numbers['accuracy']:.2f} %")
    significant = f"{numbers['significant']} of {found.features} singular values above {THRESHOLD:.3f}"
    say(f"significant           {significant}")
    words: dict[str, Any] = {"features": found.features}
    words |= {name: _number(numbers[name]) for name in ("nc2_norm", "nc2_angle")}
    for name, title in SHOWN.items():
        if name in numbers and not (name == "classifier_bias" and numbers[name] is None):
            say(f"{title:<21} {_number(numbers[name]):<9} {WORDS[name].format(**words)}", hang=32)
    if "classifier_cv" not in numbers:
        say("classifier norms      none: the classifier is not linear")
    largest = ", ".join(_number(float(value)) for value in found.arrays["spectrum"][:5])
    say(f"largest values        {largest}{', …' if found.features > 5 else ''}")
    _show_classes(found)


def _show_classes(found: Inspected) -> None:
    from fullrank.collapse import recall

    accuracy = recall(found.arrays["confusion"])
    by_class = list(zip(found.classes, accuracy, strict=False))
    if len(by_class) > CLASSES_SHOWN:
        by_class = sorted(by_class, key=lambda pair: pair[1])[:CLASSES_SHOWN]
        print(f"accuracy by class     the {CLASSES_SHOWN} worst; --json has all")
    else:
        say("accuracy by class")
    width = max(len(name) for name, _ in by_class)
    for name, share in by_class:
        say(f"  {name:<{width}}  {_number(float(share)) if math.isnan(share) else f'{share:.3f}'}")


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "undefined"
    return f"{value:.4g}"
