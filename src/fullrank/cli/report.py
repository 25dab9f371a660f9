"""The command `fullrank report`."""

from __future__ import annotations

from typing import Annotated

import typer


def report_command(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run directories, or folders of runs, as compare and sweep write them."),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="FILE",
            help="HTML file. By default report.html in RUN; of several, in the innermost folder that contains all.",
        ),
    ] = "",
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Also write everything on the page as JSON.")
    ] = "",
    csv_folder: Annotated[
        str, typer.Option("--csv", metavar="DIR", help="Also write the values of each chart and table as CSV.")
    ] = "",
) -> None:
    """Write a page about one or more runs.

    The page is one HTML file that needs no network. It shows what was run, what came out and whether to believe it:
    accuracy and loss over rounds, local training, clients and sites, predictions, costs, and, if the runs have probes,
    spectra, neural collapse and how far clients agree. Runs that differ only in the seed are one line with a band, and
    runs on different data have separate charts. Runs may still be running or have failed.

    Example: fullrank report runs/demo

    Example: fullrank report runs/a runs/b --out both.html --csv tables
    """
    from fullrank.report.page.build import write_report

    print(f"written to {write_report(inputs, out, json_file=json_file, csv_folder=csv_folder)}")
