"""The commands `fullrank methods` and `fullrank methods show`."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from fullrank import methods
from fullrank.cli.options import AsJson, Command, command_group
from fullrank.config.experiment import Experiment
from fullrank.errors import kind_of, message_of

if TYPE_CHECKING:
    from fullrank.methods import Method
    from fullrank.runs.assemble import Assembly

CLASSES, SAMPLES, INPUT = 7, 29, (1, 8, 8)
"""Sizes of the small federation. No layer has them, so that a shape shows its origin."""
NETWORK = {"name": "cnn", "norm": "batch", "width": 4, "features": 19}
MEASUREMENTS = (
    "Every result also contains the numbers of samples, steps and skipped batches and, for each local epoch, the terms "
    "of the loss, the norm of the gradient and the drift. They are written to metrics.jsonl for each client.",
    "With held-out samples (data.holdout), results also contain their metrics; with per-class in evaluate.metrics "
    "these include the recall of each class, which reveals the classes that a client lacks.",
    "The server process receives the upload of each client; methods see sums and means. Hiding single uploads from "
    "the server is secure aggregation, which fullrank does not implement.",
)
"""Sentences about what a result contains in addition to uploads, and who sees it."""
SIMULATION = (
    "In a simulation, checkpoints contain what a client keeps between rounds; in a deployment with Flower "
    "it stays at the site."
)

app = command_group(
    """List the federated methods, or explain one of them.

    For each method, the list has a description, the data that leave a site, the state that a client keeps, the
    hyper-parameters and the paper. Methods are combined with +, as in fedprox+feddecorr.
    """,
    invoke_without_command=True,
)


@app.callback()
def list_methods(context: typer.Context, as_json: AsJson = False) -> None:
    """List the methods."""
    if context.invoked_subcommand is not None:
        return
    found = methods.available()
    if as_json:
        print(json.dumps({name: facts(cls) for name, cls in found.items()}, indent=1))
        return
    console = Console(highlight=False)
    for name, cls in found.items():
        known = facts(cls)
        console.print(f"[bold]{name}[/bold]  {escape(known['paper'])}")
        fields = _fields(known).replace("\n", ", ") or "none"
        lines = {"": known["what"], "leaves a site: ": known["sends"], "a client keeps: ": known["keeps"]}
        for label, text in {**lines, "hyper-parameters: ": fields}.items():
            console.print(Padding(f"[dim]{label}[/dim]{escape(text)}", (0, 0, 0, 4)))
    print("\nTo explain a method: fullrank methods show NAME.")
    print('To use your own: --set method.name="package.module:Class", a subclass of fullrank.Method.')


@app.command(cls=Command)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Method, several joined by +, or package.module:Class.")],
    as_json: AsJson = False,
) -> None:
    """Explain a method: equation, hyper-parameters, communication.

    Methods joined by + are explained one after the other; with --json, the output is then a list.

    Example: fullrank methods show scaffold
    """
    method = methods.build(name)
    leaves = leaving(method)
    found = [{**facts(type(part)), "leaves": leaves} for part in method.parts]
    if as_json:
        print(json.dumps(found if len(found) > 1 else found[0], indent=1))
        return
    console = Console(soft_wrap=False, highlight=False)
    for number, known in enumerate(found):
        if number:
            console.print()
        _explain(known, console)
    _say_what_leaves(leaves, console)


def _explain(known: dict[str, Any], console: Console) -> None:
    console.print(f"{known['name']}  {known['paper']}\n", style="bold", markup=False)
    console.print(known["explanation"], markup=False)
    console.print(f"\nA client sends (as declared): {known['sends']}.", markup=False)
    down = [
        "the shared weights and statistics",
        "frozen entries, at the first contact and when they change",
        *([known["receives"]] if known["receives"] else (f"its {entry}" for entry in known["broadcast"])),
    ]
    console.print(f"A client receives: {', '.join(down)}.", markup=False)
    console.print(f"A client keeps between rounds: {known['keeps']}.", markup=False)
    if known["personal"]:
        console.print(f"Entries that never leave the client: {', '.join(known['personal'])}.", markup=False)
    if known["hyper_parameters"]:
        console.print(f"\nHyper-parameters, with their defaults ([method.{known['name']}] in a file):", markup=False)
        for line in _fields(known).splitlines():
            console.print(f"  {line}", markup=False)


def _say_what_leaves(leaves: dict[str, Any], console: Console) -> None:
    """Print what was sent on the small federation, and what every result contains."""
    console.print()
    if leaves["problem"]:
        console.print(
            f"The method cannot run on the small federation of this command ({leaves['problem']}), so what leaves a "
            "site is known only from its declaration.",
            markup=False,
        )
    else:
        console.print(
            "What leaves a site, measured in a run on a small federation (C classes, d features, n samples of the "
            "client; a Mean includes its weight, which is n unless the method sets another):",
            markup=False,
        )
        times = {"start": "before the first round", "round": "after each round", "end": "after the last round"}
        for time, when in times.items():
            for what, words in leaves[time].items():
                console.print(f"  {what} ({when}): {words}", markup=False)
    for text in (*MEASUREMENTS, SIMULATION):
        console.print(text, markup=False)


def leaving(method: Method) -> dict[str, Any]:
    """Run a method on a small federation and describe the kinds and shapes of what its clients send, by name."""
    from fullrank.engine.recording import RecordingEngine

    found: dict[str, dict[str, str]] = {"start": {}, "round": {}, "end": {}}
    try:
        parts = small_federation(method)
        engine = RecordingEngine(parts.site)
        parts.server.run_round(engine)
        found["start"], found["round"] = _worded(engine.asked, parts), _worded(engine.seen, parts)
        engine.seen.clear()
        parts.server.finished(engine)
        found["end"] = _worded(engine.seen, parts)
    except Exception as error:
        return {
            **found,
            "problem": f"{kind_of(error)}: {message_of(error)}",
            "measurements": [*MEASUREMENTS, SIMULATION],
        }
    return {**found, "problem": "", "measurements": [*MEASUREMENTS, SIMULATION]}


def small_federation(method: Method) -> Assembly:
    """Assemble two clients with random images and a small network with BatchNorm, or the network the method needs."""
    import torch

    from fullrank.data import DataSet, Pipeline, Split
    from fullrank.data.federation import divide_by_sizes
    from fullrank.randomness import generator
    from fullrank.runs.assemble import assemble
    from fullrank.runs.fit import method_table

    rng = generator(0, "small federation")
    y = torch.arange(2 * SAMPLES) % CLASSES
    x = torch.from_numpy(rng.standard_normal((2 * SAMPLES, *INPUT))).float()
    data = DataSet("random", Split(x, y), None, tuple(map(str, range(CLASSES))))
    model = next((dict(part.tried_on) for part in method.parts if part.tried_on), NETWORK)
    table = {"rounds": 1, "steps": 1, "batch_size": SAMPLES}
    experiment = Experiment(model=model, train=table, data={"clients": 2}, method=method_table(method))
    return assemble(experiment, federation=divide_by_sizes(data, Pipeline(), [SAMPLES, SAMPLES]), method=method)


def _worded(seen: dict[str, dict[str, Any]], parts: Assembly) -> dict[str, str]:
    """Describe each upload: Sum or Mean, and the shapes of its entries, with symbols for sizes of data and model."""
    names = {
        frozenset(parts.entries.shared): "shared weights",
        frozenset(parts.entries.buffers): "BatchNorm statistics",
    }
    worded = {}
    for what, form in seen.items():
        entries = form["entries"]
        like = names.get(frozenset(entries))
        listed = [f"{path} {_symbols(entry['shape'], parts)}" for path, entry in entries.items()]
        if like and what in ("w", "buffers"):
            kinds = {entry["dtype"] for entry in entries.values()} - {str(parts.network.dtype).removeprefix("torch.")}
            words = f"{like} in {kinds.pop()}" if what == "w" and kinds else like
        else:
            words = f"as many numbers as the {like}" if like else ", ".join(listed)
        if entries:
            worded[what] = f"{form['kind']} of {words}"
    return worded


def _symbols(shape: list[int], parts: Assembly) -> str:
    size = len(INPUT)
    if tuple(shape[-size:]) == INPUT:
        front = [*map(str, shape[:-size]), "an input's shape"]
        return f"({', '.join(front)}: as large as samples themselves)"
    known = {CLASSES: "C", parts.network.feature_dim: "d", SAMPLES: "n"}
    return f"({', '.join(known.get(number, str(number)) for number in shape)})" if shape else "(one number)"


def facts(cls: type[Method]) -> dict[str, Any]:
    """Return the declarations of a method's class."""
    text = inspect.getdoc(cls) or ""
    return {
        "name": cls.name,
        "what": text.split("\n\n")[0].replace("\n", " "),
        "explanation": "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n")),
        "paper": cls.paper,
        "sends": "; ".join([cls.sends, *cls.uploads.values()]),
        "uploads": dict(cls.uploads),
        "keeps": cls.keeps,
        "broadcast": list(cls.broadcast),
        "receives": cls.receives,
        "personal": list(cls.personal),
        "hyper_parameters": methods.check_fields(cls, {}),
    }


def _fields(known: dict[str, Any]) -> str:
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in known["hyper_parameters"].items())
