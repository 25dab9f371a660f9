"""The displays in terminals of 60, 80 and 120 columns: no line is too long, and no number is cut."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from fullrank import Experiment
from fullrank.comparison.board import LiveBoard
from fullrank.comparison.parallel import Task
from fullrank.runs.client_tables import by_class, by_site
from fullrank.runs.display import Live, personal_table
from fullrank.runs.terminal import fitting, wrapped

WIDTHS = [60, 80, 120]
ROW = {
    "round": 999,
    "accuracy": 0.98765,
    "loss": 12.34567,
    "mean_accuracy": 0.87654,
    "validation_accuracy": 0.76543,
    "clients": [],
    "seconds": 1.0,
}
NUMBERS = ("999/1000", "98.77 %", "12.3457", "87.65 %", "76.54 %")


def terminal(width):
    """A terminal of a width, and what it shows."""
    console = Console(width=width, height=40, force_terminal=True, file=io.StringIO(), color_system=None)
    return console, console.file


def lines(file):
    """Every line that was shown, also those that were replaced."""
    pieces = re.split(r"\x1b\[2K|\x1b\[1A|\r\n|\r|\n", file.getvalue())
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", piece) for piece in pieces]


def whole(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_progress_of_a_run(width):
    console, file = terminal(width)
    experiment = Experiment.of({"train.rounds": 1000, "data.clients": 1000, "method.name": "fedavg+feddecorr"})
    with Live(console) as live:
        live.started(experiment, Path("runs/name"), 998, 1000)
        live.round_done(ROW)
        live.progress.refresh()
        live.warned("round 999: the weights of client 3 moved by 18.9123, those of the next client by 7.4321 " * 2)
        live.phase_started("clients' own models", 123, 1000)
        live.progress.refresh()
    shown = lines(file)
    assert max(map(len, shown)) <= width
    text = whole("\n".join(shown))
    for number in (*NUMBERS, "123/1000"):
        assert number in text
    assert "…" not in text
    assert "18.9123" in text
    assert "rounds " in text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_progress_of_a_comparison(width):
    console, file = terminal(width)
    experiment = Experiment.of({"train.rounds": 1000})
    names = ["fedavg seed 0", "feddecorr (feddecorr.beta=0.5) seed 12", "fedmr (fedmr.mu1=0.1, fedmr.mu2=0.2) seed 3"]
    tasks = [Task(name, experiment, Path("runs/compare") / name) for name in names]
    with LiveBoard(console) as board:
        board.planned(tasks, tasks)
        for task in tasks:
            board.started(task)
            board.round_done(task, {**ROW, "cautions": ["something is odd, which takes a long sentence to say " * 2]})
        board.progress.refresh()
        board.ended(tasks[0], {"rounds": 1000, "seconds": 12345.6, "accuracy": {"last": 0.98765}})
    shown = lines(file)
    assert max(map(len, shown)) <= width
    text = "\n".join(shown)
    assert "…" not in text
    for number in ("999/1000  accuracy 98.77 %", "0/3 complete", "12345.6 s"):
        assert number in whole(text)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_the_clients_models(width):
    numbers = {"mean": 0.98765, "weighted": 0.87654, "std": 0.76543, "worst_decile": 0.65432, "clients": 10000}
    console, file = terminal(width)
    console.print(personal_table({"personal": {"personalised": numbers}}, width=width))
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert all(number in text for number in ("98.77 %", "76.54 %", "10000"))


def client(number, stage):
    return {
        "client": number,
        "site": None,
        "set": "holdout",
        "stage": stage,
        "samples": 12345,
        "metrics": {"accuracy": 0.123, "balanced_accuracy": 0.456},
        "intervals": {"accuracy": (0.111, 0.222)},
        "recall": [0.333, None],
        "recall_intervals": [(0.300, 0.444), (None, None)],
        "confusion": [(0, 0, 100)],
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tables", [by_site, lambda rows: by_class(rows, ["cat", "dog"])])
def test_no_interval_is_cut_in_the_tables_of_clients(width, tables):
    rows = [client(number, stage) for stage in ("received", "local", "personalised") for number in range(6)]
    console, file = terminal(width)
    cells = 0
    for _, table in tables(rows):
        for part in fitting(table, console):
            console.print(part)
        cells += sum(str(cell).count("–0.") for column in table.columns for cell in column.cells)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert len(re.findall(r"\(0\.\d{3}–0\.\d{3}\)", text)) == cells == 18


def test_a_table_that_fits_is_one_part():
    table = Table(box=None, pad_edge=False)
    for name in ("name", "value", "other"):
        table.add_column(name, no_wrap=True)
    table.add_row("a", "1.2345", "6.789")
    console, _ = terminal(20)
    assert fitting(table, console) == [table]  # 4 + 2 + 6 + 2 + 5 columns of characters
    console, file = terminal(18)
    for part in fitting(table, console):
        console.print(part)
    assert [line.split() for line in file.getvalue().splitlines()] == [
        *(["name", "value"], ["a", "1.2345"]),
        *(["name", "other"], ["a", "6.789"]),
    ]


def test_a_text_is_broken_at_spaces_and_a_path_is_not():
    text = "results in /a/path/that/is/longer/than/the/line of a terminal"
    assert wrapped(text, 20).split("\n") == ["results in", "/a/path/that/is/longer/than/the/line", "of a terminal"]
    assert wrapped("one\n\ntwo", 20) == "one\n\ntwo"
