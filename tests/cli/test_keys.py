"""The list of an experiment's keys: nothing is missing from it, and nothing in it is stale."""

import json

import pytest

from commands import fullrank
from fullrank.config.experiment import Experiment, dotted
from fullrank.data.augment.registry import AUGMENTATIONS
from fullrank.data.registry import PARTITIONS, VARIANTS
from fullrank.data.sources.registry import DATA_SETS
from fullrank.federated.registry import AGGREGATORS


def listed(capsys, *words):
    status, out, _ = fullrank("keys", *words, "--json", capsys=capsys)
    assert status == 0
    return json.loads(out)


def test_every_key_is_there_with_its_default_and_what_it_means(capsys):
    found = listed(capsys)
    empty = {"data.partition_options": {}}  # a table without keys has no dotted ones
    assert {key: known["default"] for key, known in found.items()} == dotted(Experiment().model_dump()) | empty
    assert all(known["what"].endswith(".") for known in found.values())


def test_what_may_be_named_is_named(capsys):
    found = listed(capsys)
    variants = [name for variants in VARIANTS.values() for name in variants]
    assert [name for name in variants if name not in found["data.variant"]["what"]] == []
    for registry in (DATA_SETS, PARTITIONS, AGGREGATORS):
        assert found[registry.key]["values"] == list(registry.names())
    assert found["data.augment"]["values"] == ["auto", "none", *AUGMENTATIONS.names()]
    assert found["train.optimizer"]["values"] == ["sgd", "adam", "adamw"]
    assert found["evaluate.metrics"]["values"][:2] == ["accuracy", "loss"]
    assert found["train.lr"]["values"] == []


def test_types_and_bounds_are_those_of_the_schema(capsys):
    found = listed(capsys)
    for key, words in {
        "train.lr": "float, > 0",
        "train.rounds": "integer, >= 1",
        "data.holdout": "float, >= 0, < 1",
        "train.participation": "integer or float",
        "data.name": f'{", ".join(DATA_SETS.own)} or "package.module:function"',
        "data.partition_options": "table",
        "data.normalise": "auto, none, half or table",
        "model.freeze": "list of strings",
        "run.keep_personal": "true or false",
    }.items():
        assert found[key]["type"] == words, key
    assert found["evaluate.metrics"]["type"].startswith("any of accuracy, loss, ")


@pytest.mark.parametrize("width", [60, 80])
def test_the_list_fits_the_terminal_and_names_every_table(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, _ = fullrank("keys", capsys=capsys)
    assert status == 0
    assert [line for line in out.splitlines() if len(line) > width or line != line.rstrip()] == []
    lines = out.splitlines()
    for table in {key.partition(".")[0] for key in listed(capsys) if "." in key}:
        sentence = lines[lines.index(f"[{table}]") + 1]
        assert sentence[0].isupper(), table


def test_a_word_chooses(capsys):
    assert set(listed(capsys, "probe")) == {"probe.every", "probe.clients", "probe.embed"}
    assert set(listed(capsys, "LR")) == {"train.lr", "train.lr_schedule", "train.lr_schedule_by"}
    status, out, _ = fullrank("keys", "last_batch", capsys=capsys)
    assert status == 0
    assert out.splitlines()[0] == "[train]"
    assert '  train.last_batch = "auto"  (auto, keep, drop or wrap)' in out.splitlines()
    for word, hint in {"roundz": 'did you mean "rounds"?', "xyz": '"fullrank keys" lists them all'}.items():
        status, _, err = fullrank("keys", word, capsys=capsys)
        assert status == 2
        assert err == f'fullrank: no key of an experiment has "{word}" in its name; {hint}\n'
