"""The commands `fullrank flower`."""

from __future__ import annotations

from typing import Annotated

import typer

from fullrank.cli.options import Command, command_group

app = command_group(
    "Run an experiment at sites that keep their data, on Flower.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Print the commands with --help."""


@app.command(cls=Command)
def new(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the app, which must be empty or not exist.")],
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="Method, or several joined by +.")] = "fedavg",
    clients: Annotated[int, typer.Option("--clients", metavar="K", help="Number of sites.")] = 2,
) -> None:
    """Write a Flower app that trains with fullrank.

    The app runs in Flower's simulation and on a SuperLink with SuperNodes. Its README.md has the commands for both,
    with certificates and the authentication of sites. Writing the app needs no Flower; running it needs Flower,
    which the extra "flower" installs.

    Example: fullrank flower new hospitals --method scaffold --clients 3
    """
    from fullrank.deploy.flower.new import write_app

    written = write_app(folder, method, clients)
    width = max(len(path.name) for path in written)
    what = {
        "pyproject.toml": "the Flower app, with the run directory",
        "experiment.toml": "what is trained, and how",
        "site.toml": "a site's data and what it allows, to be copied to each site",
        "README.md": "the commands",
        "data.py": "loads the samples of a site",
    }
    for path in written:
        if path.name in what:
            print(f"{path.name:<{width}}  {what[path.name]}")
    print(
        f"\nThe app is in {written[0].parent}. Try it there, in Flower's simulation:\n"
        f"flwr run . --stream --federation-config 'num-supernodes={clients}'"
    )
