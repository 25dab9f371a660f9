"""The commands of the page about Ray are what the command line takes, and those for one machine run."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from commands import fullrank as command
from fullrank.cli.options import experiment_values
from fullrank.config.experiment import Experiment
from help_pages import help_of

PAGE = Path(__file__).parents[1] / "docs" / "ray.md"


def commands():
    return [shlex.split(line)[1:] for line in re.findall(r"^    (fullrank .*)$", PAGE.read_text(), re.MULTILINE)]


def test_the_commands_are_those_of_the_command_line(capsys):
    """The experiments of the runs are valid, and the other commands have every option that the page gives them."""
    names = [arguments[0] for arguments in commands()]
    assert names == ["run", "run", "run", "compare", "sweep", "reproduce"]
    for name, *arguments in commands():
        if name == "run":
            keys = [value for option, value in pairwise(arguments) if option == "--set"]
            found = Experiment.of(experiment_values(str(PAGE.parents[1] / arguments[0]), keys))
            assert found.engine.name == "ray"
        else:
            text = help_of(name, 100, capsys)
            assert all(option in text for option in arguments if option.startswith("--"))


@pytest.mark.slow
def test_the_command_for_one_machine_runs(tmp_path, capsys):
    pytest.importorskip("ray")
    name, file, *arguments = commands()[0]
    arguments = [*arguments[:-1], str(tmp_path / "run"), "--set", "train.rounds=1"]
    status, out, err = command(name, str(PAGE.parents[1] / file), *arguments, capsys=capsys)
    assert status == 0, err
    assert "round 1/1" in out
