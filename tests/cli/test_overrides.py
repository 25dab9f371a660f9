"""Overrides of an experiment file on the command line."""

import pytest

from commands import fullrank
from fullrank import load_run

FILE = """
[model]
name = "mlp"
width = 32

[train]
rounds = 1
epochs = 1
lr = 0.05
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(FILE)
    return path


def run(capsys, file, *changes):
    arguments = [piece for change in changes for piece in ("--set", change)]
    return fullrank("run", file, *arguments, "--quiet", "--out", file.parent / "run", capsys=capsys)


def test_a_key_without_a_value_is_removed(file, capsys):
    assert run(capsys, file, "model.width=", "train.lr=") == (0, "", "")
    experiment = load_run(file.parent / "run").experiment
    assert experiment.train.lr == 0.1
    assert "width" not in experiment.model.options


def test_options_of_another_network_are_left_out_by_name(file, capsys):
    status, _, said = run(capsys, file, "model.name=cnn")
    assert (status, said) == (0, "")  # cnn has a width, too
    assert load_run(file.parent / "run").experiment.model.options == {"width": 32}
    status, _, said = run(capsys, file, "model.name=resnet20", "train.steps=1", "data.size=8", "data.clients=2")
    assert said.startswith('fullrank: model.width of the file is left out, because "resnet20" has no such option\n')


def test_an_unknown_option_on_the_command_line_is_still_an_error(file, capsys):
    status, _, said = run(capsys, file, "model.name=lenet", "model.width=3")
    assert status == 2
    assert 'model.width: the network "lenet" has no such option' in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "data.augment=crop,flip",
            """must be a list, as in ["crop", "flip"]; on the command line, --set 'data.augment=""",
        ),
        ("train.decay_on=head,neck", 'several patterns are written as a list: ["head", "neck"]'),
    ],
)
def test_text_with_commas_gets_the_notation_of_a_list(change, says, file, capsys):
    status, _, said = run(capsys, file, change)
    assert status == 2
    assert says in said
