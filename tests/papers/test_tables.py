"""The published tables: they print what the papers print, and every cell is a complete experiment."""

import os
import random
import re
from pathlib import Path

import pytest

from fullrank import papers
from fullrank.errors import InputError

TEXTS = Path(os.environ.get("FULLRANK_PAPERS", Path(__file__).parents[2].parent / "shared" / "papers" / "text"))
"""The folder of the papers' texts, which are not part of the project."""
TEXT_OF = {
    "feddecorr-tpami": "feddecorr-tpami.txt",
    "feddecorr-iclr": "feddecorr-iclr.txt",
}
SAMPLED = 10


def beginning(text: str, table: str) -> int:
    """Return where the caption of a table stands in a text."""
    found = re.search(rf"table {table}[:.]", text, re.IGNORECASE)
    assert found is not None
    return found.start()


def test_all_tables_are_found_in_the_order_of_their_numbers():
    names = papers.available()
    assert names == sorted(names, key=lambda name: (name.split("/")[0], int(name.rpartition("-")[2])))
    assert {name.split("/")[0] for name in names} == set(TEXT_OF)


@pytest.mark.parametrize("name", papers.available())
def test_printed_values_stand_in_the_text_of_the_paper(name):
    paper, _, table = name.partition("/table-")
    if not (TEXTS / TEXT_OF[paper]).is_file():
        pytest.skip("the papers' texts are not here")
    text = (TEXTS / TEXT_OF[paper]).read_text()
    at = beginning(text, table)
    near = re.sub(r"\\pm|\$|</?b>|\*|\s", "", text[max(0, at - 4000) : at + 4000]).replace("±", "")
    cells = [cell for cell in papers.load_table(name).cells if cell.printed is not None]
    for cell in random.Random(0).sample(cells, min(SAMPLED, len(cells))):
        std = "" if cell.printed.std is None else f"{cell.printed.std:.2f}"
        assert f"{cell.printed.mean:.2f}{std}" in near, cell.name


def test_a_row_has_the_values_of_its_columns_in_the_order_of_the_paper():
    table = papers.load_table("feddecorr-tpami/table-1")
    row = [str(cell.printed) for cell in table.select(["method=fedavg,data=cifar100"])]
    assert row == ["59.87 ± 0.25", "66.46 ± 0.16", "71.69 ± 0.15", "74.54 ± 0.15"]
    assert [cell.at["alpha"] for cell in table.select(["method=fedavg,data=cifar10"])] == ["0.05", "0.1", "0.5", "inf"]


@pytest.mark.parametrize("name", papers.available())
def test_every_cell_is_an_experiment_of_its_coordinates(name):
    for cell in papers.load_table(name).cells:
        for experiment in cell.experiments(seed=3):
            assert experiment.seed == 3
            assert experiment.method.name == cell.at.get("method", experiment.method.name)
            assert experiment.data.name == cell.at.get("data", experiment.data.name)
            assert str(experiment.data.alpha) == cell.at.get("alpha", str(experiment.data.alpha))
            tables = set(experiment.method.tables)
            assert tables <= set(experiment.method.name.split("+"))


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
    alone, mean = table.cells
    assert alone.printed is None
    assert mean.printed == papers.Printed(50.1)
    assert [experiment.train.lr for experiment in mean.experiments(0)] == [0.1, 0.2]
    (tmp_path / "table-1.toml").write_text(OWN.replace('"50.1"', '"50,1"'))
    with pytest.raises(InputError, match='"50,1" is not a printed value'):
        papers.load_table(tmp_path / "table-1.toml")
