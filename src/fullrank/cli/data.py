"""The commands `fullrank data get` and `fullrank data check`."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from fullrank.cli.options import AsJson, Command, command_group
from fullrank.data.sources.registry import DATA_SETS
from fullrank.data.sources.registry import stored as stored_sets
from fullrank.errors import InputError, nearest, printable
from fullrank.runs.terminal import print_table, say

if TYPE_CHECKING:
    from fullrank.data import DataSet
    from fullrank.data.sources.download import Watch
    from fullrank.data.sources.stored import FileFacts, Stored

EMBEDDED = "digits"
SIDE = 32
"""The side of the images when files are only checked, since images of different shapes are no problem then."""

app = command_group("Download data sets and check them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"Data set: {', '.join(DATA_SETS.own)}.")]
Root = Annotated[
    str,
    typer.Option("--root", metavar="DIR", help="Folder of data sets. By default $FULLRANK_DATA, ./data or the cache."),
]


@app.command(cls=Command)
def get(name: Name, root: Root = "") -> None:
    """Download a data set from its official source.

    Files are verified by their checksums and unpacked. An interrupted download continues where it stopped. Existing
    files are verified and reused.

    Example: fullrank data get cifar10 --root data
    """
    from fullrank.data.sources.download import get as get_data

    if name == EMBEDDED:
        say(f"{name} is part of fullrank: there is nothing to download")
        return
    with _progress() as watch:
        said = get_data(_known(name), root, watch)
    say(said)


@app.command(cls=Command)
def check(
    name: Name,
    root: Root = "",
    as_json: AsJson = False,
) -> None:
    """Check that a data set is complete, official and readable.

    Prints the folder of the data set and the state of each file, or, of a data set of image files, the number of images
    of each class and the files that cannot be read. The exit status is not 0 if the data set is missing or damaged, if
    files cannot be read, or if a file has the official size but different content.

    Example: fullrank data check cifar10
    """
    from fullrank.runs import display

    facts = _facts(name, root)
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        _print(facts)
    altered = [file["name"] for file in facts["files"] if file["state"] == "altered"]
    if altered:
        say(f"fullrank: in {facts['folder']}, {', '.join(altered)} is not the official file", file=sys.stderr)
        raise typer.Exit(1)
    if facts["unreadable"]:
        say(f"fullrank: {display.counted(len(facts['unreadable']), 'file')} cannot be read", file=sys.stderr)
        raise typer.Exit(1)


def _known(name: str) -> Stored:
    if name not in stored_sets():
        if name in DATA_SETS.own:
            raise InputError(
                f'"{name}" cannot be downloaded by fullrank; "fullrank data check {name}" shows its folders'
            )
        raise InputError(f'unknown data set "{name}": {nearest(name, DATA_SETS.own)}')
    return stored_sets()[name]


def _facts(name: str, root: str) -> dict[str, Any]:
    from fullrank.data import load_dataset

    if name not in DATA_SETS.own:
        raise InputError(f'unknown data set "{name}": {nearest(name, DATA_SETS.own)}')
    of_images = "unreadable" in inspect.signature(DATA_SETS.own[name]).parameters
    stored = stored_sets().get(name)
    place = stored.find(root) if stored else None
    files = stored.inspect(place) if stored and place else []
    how: dict[str, Any] = {"unreadable": "skip", "size": (SIDE, SIDE)} if of_images else {}
    data = load_dataset(name, root, **how)
    return {
        "name": data.name,
        "title": stored.title if stored else data.name,
        "folder": str(place.folder) if place else root or None,
        "form": place.layout.form if place else _form(name, of_images),
        "files": [_file(fact) for fact in files],
        "official": all(fact.state == "official" for fact in files) if files else None,
        "train": len(data.train),
        "test": len(data.test) if data.test else 0,
        "shape": None if of_images else list(data.input_shape),
        "classes": list(data.classes),
        "images": _images(data) if of_images else None,
        "unreadable": list(data.unreadable),
        "remarks": list(data.remarks),
        "fingerprint": None if of_images else data.fingerprint(),
    }


def _form(name: str, of_images: bool) -> str:
    return "part of fullrank" if name == EMBEDDED else "image files" if of_images else "files"


def _images(data: DataSet) -> dict[str, dict[str, list[int]]]:
    """Return the numbers of images in training and test by domain and class."""
    import torch

    found: dict[str, dict[str, list[int]]] = {}
    for number, domain in enumerate(data.domains or ("",)):
        counts = [
            torch.bincount(
                split.y if split.domain is None else split.y[split.domain == number], minlength=data.num_classes
            ).tolist()
            for split in (data.train, data.test)
            if split is not None
        ]
        found[domain] = {name: [*both] for name, *both in zip(data.classes, *counts, strict=True)}
    return found


def _file(fact: FileFacts) -> dict[str, Any]:
    return {
        "name": fact.path.name,
        "bytes": fact.path.stat().st_size,
        "records": fact.records,
        "official_records": fact.official.records,
        "state": fact.state,
    }


def _print(facts: dict[str, Any]) -> None:
    from fullrank.runs import display

    where = f" in {facts['folder']}" if facts["folder"] else ""
    say(f"{facts['title']} ({facts['form']}){where}")
    table = Table(box=None, pad_edge=False, show_header=False)
    for file in facts["files"]:
        of = "" if file["state"] != "another size" else f" (officially {file['official_records']})"
        row = (file["name"], f"{file['records']} records", display.size(file["bytes"]), file["state"] + of)
        table.add_row(*row)
    if facts["files"]:
        print_table(table)
    say(f"training samples  {facts['train']}")
    say(f"test samples      {facts['test']}")
    if facts["shape"]:
        say(f"sample            {'×'.join(map(str, facts['shape']))}")
    say(f"classes           {len(facts['classes'])}: {printable(_shortened(facts['classes']))}")
    if facts["fingerprint"]:
        say(f"fingerprint       {facts['fingerprint']}")
    if facts["images"]:
        _print_images(facts)


def _print_images(facts: dict[str, Any]) -> None:
    """Print the numbers of images, one line per class, and the files that cannot be read."""
    from fullrank.runs.client_tables import shown_name

    say("images of each class, in training and test:")
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for domain in facts["images"]:
        table.add_column(shown_name(domain), justify="right")
    for name in facts["classes"]:
        counts = (of_class[name] for of_class in facts["images"].values())
        table.add_row(shown_name(name), *(f"{train} + {test}" for train, test in counts))
    print_table(table)
    for text in facts["remarks"]:
        say(text)
    for text in facts["unreadable"]:
        say(f"unreadable        {printable(text)}")


def _shortened(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show a progress bar per file in a terminal, and print a line per file elsewhere."""
    if not sys.stdout.isatty():
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console()) as progress:
        tasks: dict[str, Any] = {}

        def watch(url: str, done: int, total: int | None) -> None:
            if url not in tasks:
                tasks[url] = progress.add_task(url.rpartition("/")[2])
            progress.update(tasks[url], completed=done, total=total)

        yield watch


def _lines() -> Watch:
    from fullrank.runs import display

    seen: set[str] = set()

    def watch(url: str, done: int, total: int | None) -> None:
        if url not in seen:
            seen.add(url)
            print(f"downloading {url}" + (f", {display.size(total)}" if total else ""), flush=True)

    return watch
