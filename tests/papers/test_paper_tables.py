"""The published tables: they print what the papers print, and every cell is a complete experiment."""

import inspect
import os
import random
import re
from pathlib import Path

import pytest

from fullrank import papers
from fullrank.comparison.measured import check_measure, with_terms
from fullrank.errors import InputError
from fullrank.report.figures import KINDS

TEXTS = Path(os.environ.get("FULLRANK_PAPERS", Path(__file__).parents[2].parent / "shared" / "papers" / "text"))
"""The folder of the papers' texts, which are not part of the project."""
TEXT_OF = {
    "feddecorr-tpami": "feddecorr-tpami.txt",
    "feddecorr-iclr": "feddecorr-iclr.txt",
    "fedetf": "fedetf-slides.txt",
    "fedmr": "fedmr-tmlr.txt",
    "fedrepopt": "fedrepopt-accv.txt",
}
TABLES = {"feddecorr-iclr": 10, "feddecorr-tpami": 8, "fedetf": 2, "fedmr": 8, "fedrepopt": 8}
WITHOUT_CAPTION = "fedrepopt/table-5"
"""A table whose cells are not in the text; what is printed of it stands in the prose."""
SAMPLED = 10
NEAR = 6000
"""How far from its caption a table may stand in a text, in characters."""


def lines_near(text: str, table: str | None) -> list[str]:
    """Return the lines around the caption of a table, or all lines, without markup between numbers."""
    if table is not None:
        at = re.search(rf"^(?:<[^>]*>)*\W*table {table}[:.]", text, re.IGNORECASE | re.MULTILINE)
        assert at is not None
        text = text[max(0, at.start() - NEAR) : at.start() + NEAR]
    plain = re.sub(r"[{}±|]", " ", re.sub(r"\\[a-z]+\{?|</?[a-z]+>|[$*]", "", text))
    return re.sub(r"(\.\d\d)(?=\d{1,2}\.\d\d)", r"\1 ", plain).splitlines()


def stand_in_order(numbers: list[str], line: str) -> bool:
    """Return whether a line has these numbers, one after the other, perhaps with others between them."""
    at = 0
    for number in numbers:
        found = re.compile(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)").search(line, at)
        if found is None:
            return False
        at = found.end()
    return True


def test_all_tables_are_found_in_the_order_of_their_numbers():
    assert papers.available() == [f"{paper}/table-{n + 1}" for paper, number in TABLES.items() for n in range(number)]
    assert not set(papers.figures()) & set(papers.available())


@pytest.mark.parametrize("name", papers.available())
def test_rows_stand_in_the_text_of_the_paper_in_their_order(name):
    paper, _, number = name.partition("/table-")
    if not (TEXTS / TEXT_OF[paper]).is_file():
        pytest.skip("the papers' texts are not here")
    lines = lines_near((TEXTS / TEXT_OF[paper]).read_text(), None if name == WITHOUT_CAPTION else number)
    table = papers.load_table(name)
    columns = len(table.columns)
    places = [place for place, cell in enumerate(table.cells) if cell.printed is not None]
    for place in sorted(random.Random(0).sample(places, min(SAMPLED, len(places)))):
        row = table.cells[place - place % columns :][:columns]
        numbers = [number for cell in row if cell.printed for number in str(cell.printed).split(" ± ")]
        while lines and not stand_in_order(numbers, lines[0]):
            lines.pop(0)  # rows come in the order of the text
        assert lines, (table.cells[place].name, numbers)


def test_numbers_are_only_found_whole_and_in_their_order():
    assert stand_in_order(["6.7", "25.4"], "FedAvg 6.7 6.9 25.4")
    assert not stand_in_order(["25.4", "6.7"], "FedAvg 6.7 6.9 25.4")
    assert not stand_in_order(["6.7"], "16.7 6.71 6.7.1")
    assert lines_near(r"$37.27 \pm 0.3466.37 \pm 0.0942.15$|<b>3</b>", None) == ["37.27  0.34 66.37  0.09 42.15 3"]


def test_a_row_has_the_values_of_its_columns_in_the_order_of_the_paper():
    table = papers.load_table("feddecorr-tpami/table-1")
    row = [str(cell.printed) for cell in table.select(["method=fedavg,data=cifar100"])]
    assert row == ["59.87 ± 0.25", "66.46 ± 0.16", "71.69 ± 0.15", "74.54 ± 0.15"]
    assert [cell.at["alpha"] for cell in table.select(["method=fedavg,data=cifar10"])] == ["0.05", "0.1", "0.5", "inf"]


SIZES = {
    "feddecorr-iclr": [(8, 8), (8, 4), (10, 3), (8, 4), (4, 3), (3, 4), (2, 3), (10, 8), (10, 4), (2, 2)],
    "feddecorr-tpami": [(10, 12), (10, 9), (10, 12), (10, 4), (8, 4), (4, 3), (3, 4), (4, 3)],
    "fedetf": [(10, 12), (5, 8)],
    "fedmr": [(24, 8), (7, 8), (2, 5), (8, 3), (6, 4), (4, 4), (9, 5), (2, 6)],
    "fedrepopt": [(8, 6), (8, 4), (8, 5), (8, 3), (2, 3), (4, 3), (14, 2), (0, 0)],
}


@pytest.mark.parametrize("paper", SIZES)
def test_tables_have_the_size_of_the_paper(paper):
    tables = [papers.load_table(f"{paper}/table-{n + 1}") for n in range(TABLES[paper])]
    assert [(len(table.rows), len(table.columns)) for table in tables] == SIZES[paper]
    assert all(len(table.cells) == len(table.rows) * len(table.columns) for table in tables)
    assert all(len({cell.name for cell in table.cells}) == len(table.cells) for table in tables)


@pytest.mark.parametrize("name", [*papers.available(), *papers.figures()])
def test_every_cell_is_an_experiment_of_its_coordinates(name):
    for cell in papers.load_table(name).cells:
        for experiment in cell.experiments(seed=3):
            assert experiment.seed == 3
            assert experiment.data.name == cell.at.get("data", experiment.data.name)
            assert experiment.data.alpha == float(cell.at.get("alpha", experiment.data.alpha))
            assert experiment.model.name == cell.at.get("model", experiment.model.name)
            used = set(experiment.method.name.split("+"))
            assert set(cell.at.get("method", experiment.method.name).split("+")) <= used
            assert set(experiment.method.tables) <= used
            check_measure(cell.measure, experiment, with_terms([experiment.method.name]))


def test_settings_of_the_paper_reach_the_experiment():
    [cell] = papers.load_table("feddecorr-tpami/table-4").select(["clients=100,data=cifar100,alpha=0.1,method=fedavg"])
    [experiment] = cell.experiments(seed=0)
    assert (experiment.data.clients, experiment.train.participation, experiment.train.rounds) == (100, 0.2, 100)
    assert (experiment.train.epochs, experiment.train.lr, experiment.train.weight_decay) == (10, 0.01, 1e-4)
    [cell] = papers.load_table("feddecorr-iclr/table-10").select(["classes=3,method=fedavg+feddecorr"])
    [experiment] = cell.experiments(seed=0, changes={"train.rounds": 2})
    assert (experiment.data.partition, experiment.data.classes, experiment.train.rounds) == ("pathological", 3, 2)
    assert [note.kind for note in cell.notes] == ["choice", "slip"]


def test_wrong_names_and_coordinates_get_one_sentence():
    with pytest.raises(InputError, match='there is no table "feddecorr-tpami/table-11"; did you mean'):
        papers.load_table("feddecorr-tpami/table-11")
    table = papers.load_table("feddecorr-tpami/table-1")
    with pytest.raises(InputError, match='has no coordinate "alph"; did you mean "alpha"'):
        table.select(["alph=0.05"])
    with pytest.raises(InputError, match=r'alpha has no value "0\.2"'):
        table.select(["alpha=0.2"])
    with pytest.raises(InputError, match="coordinates are written as NAME=VALUE"):
        table.select(["fedavg"])


def test_what_a_cell_shows_and_with_what_its_time_is_compared():
    table = papers.load_table("feddecorr-tpami/table-3")
    shown = [(cell.measure, cell.value) for cell in table.select(["method=fedbn,data=office-caltech10"])][:2]
    assert shown == [("site_accuracy", "validated"), ("accuracy_by_site.amazon", "validated")]
    table = papers.load_table("fedrepopt/table-1")
    [cell] = table.select(["model=repvgg-b1,mode=repopt,metric=time"])
    assert (cell.measure, cell.unit, table.reference(cell).printed.mean) == ("time_ratio", "s", 46.0)
    assert papers.load_table("fedmr/table-1").reference(cell) is None
    [cell] = papers.load_table("fedmr/table-4").select(["method=fedmr,split=P50C10"])
    assert (cell.measure, str(cell.printed), cell.printed.mean) == ("rounds_to.49.84", "293", 293.0)


def test_an_average_over_splits_is_several_experiments():
    table = papers.load_table("fedmr/table-1")
    [cell] = table.select(["method=fedmr,data=cifar10,split=P5C2 P10C2 P10C3 P10C5 IID"])
    found = [(e.data.clients, e.data.classes, e.data.partition) for e in cell.experiments(seed=0)]
    assert found[:3] == [(5, 2, "class-disjoint"), (10, 2, "class-disjoint"), (10, 3, "class-disjoint")]
    assert found[4][2] == "iid"


def test_baselines_with_prototypes_have_only_the_inter_class_loss_of_fedmr():
    table = papers.load_table("fedmr/table-8")
    names = {at: [] for at in ("no", "yes")}
    for cell in table.cells:
        names[cell.at["prototypes"]].append(cell.experiments(seed=0)[0].method.name)
    assert names["no"] == ["fedprox", "fednova", "moon", "feddyn", "feddc", "fedmr"]
    assert names["yes"] == ["fedprox+fedmr", "fednova+fedmr", "moon+fedmr", "feddyn+fedmr", "feddc+fedmr", "fedmr"]
    losses = {cell.name: cell.experiments(seed=0)[0].method.tables.get("fedmr") for cell in table.select([])}
    found = {name: (table["mu1"], table["mu2"]) for name, table in losses.items() if table}
    assert set(found.values()) == {(0.01, 0.0), (0.0, 0.1), (0.01, 0.1)}


def test_notes_hold_for_the_methods_that_experiments_use():
    [cell] = papers.load_table("fedmr/table-8").select(["method=moon,prototypes=yes"])
    assert any("μ1 = 0.01" in note.text for note in cell.notes)
    [cell] = papers.load_table("fedmr/table-8").select(["method=moon,prototypes=no"])
    assert not any("μ1 = 0.01" in note.text for note in cell.notes)


def test_cells_that_cannot_be_run_say_why():
    table = papers.load_table("fedetf/table-1")
    assert {cell.at["data"] for cell in table.cells if cell.impossible} == {"cifar100"}
    assert {cell.at["method"] for cell in table.cells if cell.impossible} == {"fednh"}
    assert papers.load_table("fedrepopt/table-8").unavailable.startswith("Values not available")


@pytest.mark.parametrize("name", papers.figures())
def test_figures_say_how_they_are_drawn(name):
    figure = papers.load_table(name)
    assert figure.drawings
    assert figure.cells
    assert all(cell.printed is None for cell in figure.cells)
    assert len({drawing.name for drawing in figure.drawings}) == len(figure.drawings)
    for drawing in figure.drawings:
        assert set(drawing.panels) <= set(figure.coordinates)
        assert set(drawing.options) <= set(inspect.signature(KINDS[drawing.kind]).parameters)
        one_round = drawing.kind not in ("spectrum", "losses")
        assert len(drawing.options.get("rounds", ())) <= 1 if one_round else True


OWN = """
title = "Two rates"
columns = [{ rate = 0.1 }, { rate = [0.1, 0.2] }]
settings = "digits"

[axes]
rate = "train.lr"

[[rows]]
at = { method = "fedavg" }
printed = ["", "50.1"]
"""


def test_a_table_of_ones_own_is_read_from_a_file(tmp_path):
    (tmp_path / "paper.toml").write_text('title = "Mine"')
    (tmp_path / "digits.toml").write_text('[data]\nname = "digits"')
    (tmp_path / "table-1.toml").write_text(OWN)
    table = papers.load_table(tmp_path / "table-1.toml")
    single, mean = table.cells
    assert single.printed is None
    assert mean.printed == papers.Printed(50.1)
    assert [experiment.train.lr for experiment in mean.experiments(0)] == [0.1, 0.2]
    (tmp_path / "table-1.toml").write_text(OWN.replace('"50.1"', '"50,1"'))
    with pytest.raises(InputError, match='"50,1" is not a printed value'):
        papers.load_table(tmp_path / "table-1.toml")


def test_mistakes_in_a_table_of_ones_own_get_one_sentence(tmp_path):
    (tmp_path / "paper.toml").write_text('title = "Mine"\n[values.rate]\nslow = { "train.lr" = 0.1 }')
    (tmp_path / "digits.toml").write_text('[data]\nname = "digits"')
    file = tmp_path / "table-1.toml"
    head, rest = 'title = "Rates"\nsettings = "digits"\n', '[[rows]]\nat = { rate = "slow" }\nprinted = ["1.5"]\n'
    file.write_text(f"{head}columns = [{{}}]\n{rest}")
    [cell] = papers.load_table(file).cells
    assert (cell.experiments(0)[0].train.lr, str(cell.printed)) == (0.1, "1.5")
    file.write_text(f'{head}measure = "loss.{{rat}}"\ncolumns = [{{}}]\n{rest}')
    with pytest.raises(InputError, match='no coordinate of the cell is "rat"; did you mean "rate"'):
        papers.load_table(file)
    file.write_text(f'{head}unit = "GB"\ncolumns = [{{}}]\n{rest}')
    with pytest.raises(InputError, match='there is no unit "GB"'):
        papers.load_table(file)
    file.write_text(f"{head}columns = [{{}}]\n{rest}".replace("slow", "quick"))
    with pytest.raises(InputError, match="does not say what rate = quick sets"):
        papers.load_table(file)
    file.write_text(f"{head}columns = [{{ a = 1 }}, {{ a = 2 }}]\n{rest}")
    with pytest.raises(InputError, match="has 1 values for 2 columns"):
        papers.load_table(file)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('measure = "acuracy"', 'there is no measure "acuracy"; did you mean "accuracy"'),
        ('measure = "accuracy_by_sites.amazon"', "there is no measure"),
        ('measure = "loss_by_site.amazon"', "there is no measure"),
        ('measure = "accuracy_by_site"', "needs the name of a site, as in accuracy_by_site.NAME"),
        ('measure = "feddecorr"', 'there is no measure "feddecorr"'),  # fedavg adds no such term
        ('measure = "rounds_to.x"', "takes a test accuracy in per cent"),
        ('value = "last6"', 'there is no value "last6" of a measure'),
        ('measure = "time_ratio"', "time_ratio needs reference"),
        ("seeds = 3", "seeds: there is no such key"),
        ('panels = "rate"', 'panels = "rate": must be a list'),
    ],
)
def test_a_table_whose_cells_cannot_be_measured_is_rejected(line, says, tmp_path):
    (tmp_path / "paper.toml").write_text('title = "Mine"')
    (tmp_path / "digits.toml").write_text('[data]\nname = "digits"')
    file = tmp_path / "table-1.toml"
    file.write_text(OWN.replace("\n[axes]", f"{line}\n[axes]"))
    with pytest.raises(InputError, match=re.escape(says)):
        papers.load_table(file)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "Two rates"', "", "title: must be given"),
        ('at = { method = "fedavg" }', "", "rows.0.at: must be given"),
        ("printed", "printd", 'rows.0.printd: there is no such key; did you mean "printed"'),
        ('settings = "digits"', "", 'does not name the file of settings of a cell; add settings = "NAME"'),
    ],
)
def test_a_table_of_another_form_is_rejected(old, new, says, tmp_path):
    (tmp_path / "paper.toml").write_text('title = "Mine"')
    (tmp_path / "digits.toml").write_text('[data]\nname = "digits"')
    file = tmp_path / "table-1.toml"
    file.write_text(OWN.replace(old, new))
    with pytest.raises(InputError, match=re.escape(says)):
        papers.load_table(file)
