"""The command `fullrank sweep`."""

import json

import pytest

from commands import fullrank as command

SETS = ["train.rounds=1", "train.steps=1", "data.clients=2", "model.name=mlp", "model.width=8", "data.validation=0.2"]
ARGUMENTS = ["sweep", *(piece for text in SETS for piece in ("--set", text)), "-j", "1"]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_table_has_validation_scores_and_the_winner_its_test_score(tmp_path, capsys):
    grid = ["--over", "train.lr=0.01,0.1", "--sampler", "grid", "--seeds", "0,1", "--out", "s"]
    status, out, err = command(*ARGUMENTS, *grid, capsys=capsys)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "trial 0 seed 0: starts" in lines
    assert sum("accuracy" in line and "validation accuracy" not in line.lower() for line in lines) == 1
    title = lines.index("Validation accuracy in percent, best over rounds, over 2 seeds:")
    assert lines[title + 2].split() == ["trial", "train.lr", "mean", "±", "std", "state"]
    record = json.loads((tmp_path / "s" / "sweep.json").read_text())
    best = record["trials"][record["best"]]
    rate, mean = f"{best['settings']['train.lr']:g}", f"{100 * best['mean']:.2f}"
    assert lines[title + 3].split()[:3] == [str(best["number"]), rate, mean]
    assert f"best: trial {best['number']}, train.lr={rate}" in lines
    test = f"its test accuracy: {100 * record['test']['accuracy']['mean']:.2f} ± "
    assert any(line.startswith(test) for line in lines)
    _, text, _ = command(*ARGUMENTS, *grid, "--json", capsys=capsys)
    assert json.loads(text)["best"] == record["best"]
    assert (
        command("compare", "--runs", "s", "--measure", "validation_accuracy", "--value", "best", capsys=capsys)[0] == 0
    )
    assert command("run", "s/best.toml", "--out", "again", "--quiet", capsys=capsys)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--over", "train.lr=0.1,1"], "name the folder of the sweep"),
        (["--out", "s"], "a sweep needs keys to search"),
        (["--over", "train.lr", "--out", "s"], "not of the form KEY=LOW:HIGH or KEY=VALUE,VALUE"),
        (["--over", "train.lr=1,2", "--over", "train.lr=3,4", "--out", "s"], "train.lr is searched twice"),
        (["--over", "train.lr=1,2", "--set", "train.lr=3", "--out", "s"], "--set train.lr has no effect"),
        (["--over", "train.lr=1,2", "--set", "seed=3", "--out", "s"], "use --seeds"),
        (["--over", "train.lr=1,,2", "--out", "s"], "a value to search is missing"),
        (["--over", "train.lr=1,2", "--out", "s?"], "question mark"),
    ],
)
def test_wrong_input_gives_one_sentence(arguments, words, capsys):
    status, _, err = command(*ARGUMENTS, *arguments, capsys=capsys)
    assert status == 2
    assert words in err
    assert err.count("\n") == 1
