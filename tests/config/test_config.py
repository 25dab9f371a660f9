"""The experiment: what it accepts, what it rejects and in which words, what it writes."""

import math

import pytest

import fullrank
from fullrank import Experiment
from fullrank.config.experiment import dotted, nested, parse_overrides
from fullrank.errors import Conflict, InputError


def error(values: dict) -> str:
    with pytest.raises(InputError) as caught:
        Experiment.of(values)
    return str(caught.value)


def test_defaults_are_those_of_the_documentation():
    flat = dotted(Experiment().model_dump())
    assert flat["data.name"] == "digits"
    assert flat["data.alpha"] == 0.1
    assert flat["train.rounds"] == 10
    assert flat["train.momentum"] == 0.9
    assert flat["engine.threads"] == 1
    assert flat["run.on_client_error"] == "stop"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": 0.5}, ["lr: there is no such key", 'did you mean "train.lr"?']),
        ({"epoch": 5}, ["epoch: there is no such key", 'did you mean "train.epochs"?']),
        ({"trainlr": 0.5}, ["trainlr: there is no such key", 'did you mean "train.lr"?']),
        ({"feddecorr.beta": 0.5}, ["feddecorr: there is no such key", 'did you mean "method.feddecorr.beta"?']),
        ({"feddecor.beta": 0.5}, ["feddecor: there is no such key"]),
        ({"data.lr": 0.5}, ["data.lr: there is no such key", 'did you mean "train.lr"?']),
        ({"train.seed": 2}, ['did you mean "seed" or "data.seed"?']),
        ({"every": 2}, ['did you mean "evaluate.every" or "probe.every"?']),
        (
            {"evaluate.metrics": "accuracy, loss"},
            ['must be a list, as in ["accuracy", "loss"]', '--set \'evaluate.metrics=["accuracy", "loss"]\''],
        ),
        ({"data.alhpa": 1}, ["data.alhpa", 'did you mean "alpha"']),
        ({"dat.alpha": 1}, ["dat", 'did you mean "data"']),
        ({"train.batch-size": 3}, ["train.batch-size:", 'did you mean "batch_size"']),
        ({"data.normalise": {"mean": [0.5], "std": [1.0], "sdt": 1}}, ["data.normalise.sdt", 'did you mean "std"']),
        ({"data.normalise": {"mean": [0.5]}}, ["data.normalise.std: must be given"]),
        ({"data.normalise": {"mean": [0.5, "x"], "std": [1.0]}}, ['data.normalise.mean = "x"', "number"]),
        ({"data.normalise": "hlaf"}, ['data.normalise = "hlaf"', '"auto", "none" or "half"']),
        ({"data.alpha": -1}, ["data.alpha = -1", "greater than 0"]),
        ({"data.alpha": math.nan}, ["data.alpha = nan"]),
        ({"train.rounds": "ten"}, ['train.rounds = "ten"', "whole number"]),
        ({"train.rounds": 2.0}, ["train.rounds = 2.0", "whole number"]),
        ({"train.participation": 1.5}, ["train.participation = 1.5", "share"]),
        ({"train.participation": 0}, ["train.participation = 0"]),
        ({"train.participation": True}, ["train.participation = true"]),
        ({"train.last_batch": "kepe"}, ['train.last_batch = "kepe"', '"auto", "keep", "drop" or "wrap"']),
        ({"data.partition": "dirichlte"}, ["data.partition", 'did you mean "dirichlet"']),
        ({"data.variant": "plian"}, ["data.variant", 'did you mean "plain"']),
        ({"data.holdout": 1.0}, ["data.holdout = 1.0", "less than 1"]),
        ({"data": 3}, ["data = 3", "must be a table"]),
        ({"model.name": "cnnn"}, ["model.name", 'did you mean "cnn"']),
        ({"model.widht": 3}, ["model.widht", 'did you mean "width"']),
        ({"model.width": "wide"}, ['model.width = "wide"', "whole number"]),
        ({"model.width": -1}, ["model.width = -1", "at least 1"]),
        ({"model.dropout": 2}, ["model.dropout = 2", "less than 1"]),
        ({"model": {"name": "mlp", "depth": 0}}, ["model.depth = 0", "at least 1"]),
        ({"model.name": "torch.nn:ReLU"}, ["model.name", "num_classes=, in_channels=", "unexpected"]),
        ({"method.name": "fedavgg"}, ["method.name", 'did you mean "fedavg"']),
        ({"method.feddecorr.betta": 0.1}, ["method.feddecorr.betta", 'did you mean "beta"']),
        ({"method.feddecorr.beta": "x"}, ['method.feddecorr.beta = "x"', "number"]),
        ({"method.feddecorr.beta": -0.1}, ["method.feddecorr.beta = -0.1", "at least 0"]),
        ({"method.feddecorr.scale": "cod"}, ["method.feddecorr.scale", '"code", "paper" or "algorithm"']),
        ({"method.fedprox": 0.1}, ["method.fedprox = 0.1", "must be a table", "[method.fedprox]"]),
        ({"method": {"name": "fedprox", "fedprox": 0.1}}, ["method.fedprox = 0.1", "must be a table"]),
        ({"method.fedavgx.lr": 1}, ["method.fedavgx", 'did you mean "fedavg"']),
        ({"method.name": "fedavg+fedavg"}, ["occurs twice"]),
        ({"method.name": "nowhere.at.all:Method"}, ["nowhere"]),
        ({"seed": -1}, ["seed = -1", "at least 0"]),
    ],
)
def test_wrong_values_are_rejected_in_one_sentence(values, words):
    sentence = error(values)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("key", ["train.uneven", "privacy.level", "privacy.noise"])
def test_keys_that_nothing_serves_yet_are_rejected(key):
    assert "there is no such key" in error({key: 1})


def test_a_table_without_its_keys_is_told_all_of_them():
    lines = error({"data.normalise.foo": 1}).splitlines()
    assert lines == [
        "data.normalise.mean: must be given",
        "data.normalise.std: must be given",
        "data.normalise.foo: there is no such key; known: mean, std",
    ]


def test_several_mistakes_are_all_named():
    lines = error({"data.alpha": -1, "train.lr": 0}).splitlines()
    assert len(lines) == 2
    assert "data.alpha" in lines[0]
    assert "train.lr" in lines[1]


def test_composition_conflicts_are_conflicts():
    from fullrank import methods

    with pytest.raises(Conflict, match="occurs twice"):
        methods.build("fedprox+fedprox")


def test_toml_round_trip(tmp_path):
    experiment = Experiment.of(
        {
            "seed": 3,
            "data": {"alpha": math.inf, "augment": ["crop", "flip"], "normalise": {"mean": [0.5], "std": [0.25]}},
            "method.name": "fedprox+feddecorr",
            "method.feddecorr.scale": "paper",
            "model.width": 8,
            "train.participation": 3,
        }
    )
    experiment.to_toml(tmp_path / "e.toml")
    again = Experiment.from_toml(tmp_path / "e.toml")
    assert again == experiment
    assert again.hash() == experiment.hash()
    assert isinstance(again.train.participation, int)


def test_overrides_are_read_as_toml_else_as_text():
    values = parse_overrides(
        [
            "data.alpha=.5",
            "train.lr=1.",
            "train.participation=1",
            "data.name=5",
            "method.feddecorr.scale=paper",
            'data.augment=["crop"]',
            "data.alpha=inf",
        ]
    )
    assert values["data"] == {"alpha": math.inf, "name": "5", "augment": ["crop"]}
    assert values["train"] == {"lr": 1.0, "participation": 1}
    assert isinstance(values["train"]["participation"], int)
    assert values["method"]["feddecorr"]["scale"] == "paper"
    assert isinstance(parse_overrides(["train.participation=1.0"])["train"]["participation"], float)
    assert parse_overrides(["model.mode=inf"]) == {"model": {"mode": "inf"}}
    assert parse_overrides(["data.alpha=inf"]) == {"data": {"alpha": math.inf}}


@pytest.mark.parametrize("text", ["alpha", "=3", ""])
def test_override_without_key_or_value(text):
    with pytest.raises(InputError, match="key=value"):
        parse_overrides([text])


def test_nested_and_dotted_are_inverse():
    values = {"a.b.c": 1, "a.d": 2, "e": 3}
    assert dotted(nested(values)) == values


def test_hash_leaves_out_what_does_not_decide_the_result():
    base = Experiment()
    same = [
        {"train.rounds": 99},
        {"engine.threads": 2},
        {"run.keep": 3},
        {"data.root": "elsewhere"},
        {"data.alpha": 0.1},
        {"method.feddecorr.beta": 0.5},  # a method that the name does not mention
    ]
    for values in same:
        assert Experiment.of(values).hash() == base.hash(), values
    for values in [{"seed": 1}, {"data.alpha": 0.2}, {"method.name": "fedprox"}, {"model.width": 8}]:
        assert Experiment.of(values).hash() != base.hash(), values
    assert base.directory().name.startswith("digits-fedavg-")


def test_spaces_around_plus_make_no_difference():
    one, two = (Experiment.of({"method.name": name}) for name in ("fedprox+feddecorr", " fedprox + feddecorr"))
    assert two.method.name == "fedprox+feddecorr"
    assert (one.hash(), one.directory()) == (two.hash(), two.directory())


def test_resolved_writes_every_hyper_parameter():
    resolved = Experiment.of({"method.name": "fedprox+feddecorr", "method.feddecorr.beta": 0.2}).resolved()
    assert resolved.method.tables == {"fedprox": {"mu": 0.001}, "feddecorr": {"beta": 0.2, "scale": "code"}}


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        Experiment.from_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[data\nalpha = 1")
    with pytest.raises(InputError, match=r"not valid TOML.*line 1"):
        Experiment.from_toml(tmp_path / "broken.toml")


def test_a_run_with_the_defaults_learns(tmp_path):
    assert fullrank.run({}, tmp_path / "run").metrics[-1]["accuracy"] > 0.85
