"""The commands `fullrank methods` and `fullrank methods show`."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from . import methods
from .cliparts import AsJson
from .methods import Method

app = typer.Typer(
    help="List the methods, or explain one of them: `fullrank methods show NAME`.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def list_methods(context: typer.Context, as_json: AsJson = False) -> None:
    """List the methods: what each does, what leaves a site, what a client keeps, its hyper-parameters, its paper.

    Compose them with +, as in fedprox+feddecorr; `fullrank methods show NAME` explains one.
    """
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
    print("\nExplain one: fullrank methods show NAME.")
    print('Yours: --set method.name="package.module:Class", a subclass of fullrank.Method.')


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A method, several as fedprox+feddecorr, or package.module:Class.")
    ],
    as_json: AsJson = False,
) -> None:
    """Explain a method: its equation, its hyper-parameters, and in plain words what leaves a site.

    Of several, joined by +, one is explained after the other; JSON is then a list.

    Example: fullrank methods show scaffold
    """
    found = [facts(type(part)) for part in methods.build(name).parts]
    if as_json:
        print(json.dumps(found if len(found) > 1 else found[0], indent=1))
        return
    console = Console(soft_wrap=False, highlight=False)
    for number, known in enumerate(found):
        if number:
            console.print()
        _explain(known, console)


def _explain(known: dict[str, Any], console: Console) -> None:
    console.print(f"{known['name']}  {known['paper']}\n", style="bold", markup=False)
    console.print(known["explanation"], markup=False)
    console.print(f"\nLeaves a site, after every round in which it takes part: {known['sends']}.", markup=False)
    down = [
        "the shared weights and statistics",
        "what is frozen at its first contact and when it changes",
        *([known["receives"]] if known["receives"] else (f"its {entry}" for entry in known["broadcast"])),
    ]
    console.print(f"Comes to a site: {', '.join(down)}.", markup=False)
    console.print(f"A client keeps between rounds: {known['keeps']}.", markup=False)
    if known["personal"]:
        console.print(f"Never leaves a site: {', '.join(known['personal'])}.", markup=False)
    if known["hyper_parameters"]:
        console.print(f"\nHyper-parameters, with their defaults ([method.{known['name']}] in a file):", markup=False)
        for line in _fields(known).splitlines():
            console.print(f"  {line}", markup=False)


def facts(cls: type[Method]) -> dict[str, Any]:
    """What is known of a method from its class."""
    text = inspect.getdoc(cls) or ""
    return {
        "name": cls.name,
        "what": text.split("\n\n")[0].replace("\n", " "),
        "explanation": "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n")),
        "paper": cls.paper,
        "sends": cls.sends,
        "keeps": cls.keeps,
        "broadcast": list(cls.broadcast),
        "receives": cls.receives,
        "personal": list(cls.personal),
        "hyper_parameters": methods.check_fields(cls, {}),
    }


def _fields(known: dict[str, Any]) -> str:
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in known["hyper_parameters"].items())
