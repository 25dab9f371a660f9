"""A partition function from outside the library: named in an experiment, called, checked, listed and recorded."""

import json
import sys

import numpy as np
import pytest

import fullrank as fr
from commands import fullrank
from fullrank.config.experiment import Experiment
from fullrank.data import load_dataset, partition
from fullrank.data.registry import PARTITIONS
from fullrank.data.split import split_by_class
from fullrank.errors import InputError
from fullrank.runs.assemble import federate

MODULE = """
import numpy as np

CALLS = []


def sorted_by_label(labels, clients, seed, first=0):
    CALLS.append(dict(samples=len(labels), clients=clients, seed=seed, first=first))
    order = np.argsort(labels, kind="stable")
    return np.array_split(order[first:], clients)


def anything(labels, clients, **options):
    return sorted_by_label(labels, clients, 0, options["first"])


def by_half(domains, clients):
    return [np.flatnonzero(domains == k % 2)[k // 2 :: clients // 2] for k in range(clients)]


def by_group(groups, clients):
    return [np.flatnonzero(groups % clients == k).tolist() for k in range(clients)]


def torn(groups, clients):
    return np.array_split(np.arange(len(groups)), clients)


def keeps_back(labels, clients, validation):
    from fullrank.data.partition import Partition
    cut = int(len(labels) * validation)
    return Partition(np.array_split(np.arange(cut, len(labels)), clients), [np.arange(cut)])


def forgets(labels, clients, validation):
    return np.array_split(np.arange(len(labels)), clients)


def needs(labels, clients, weight):
    return np.array_split(np.arange(len(labels)), clients)


def number(labels):
    return 7


def too_few(labels, clients):
    return [[0], [1]]


def set_by_itself(labels):
    return [[0], [1]]


def floats(labels, clients):
    return [[0.5]] + [[]] * (clients - 1)


def matrix(labels, clients):
    return [[[0, 1]]] + [[]] * (clients - 1)


def ragged(labels, clients):
    return [[[0, 1], [2]]] + [[]] * (clients - 1)


def beyond(labels, clients):
    return [[len(labels)]] + [[]] * (clients - 1)


def below(labels, clients):
    return [[-1]] + [[]] * (clients - 1)


def twice(labels, clients):
    return [[5, 6]] * clients


def nothing(labels, clients):
    return [[] for _ in range(clients)]


def wrong(labels, clients):
    raise KeyError("no such label")
"""
SMALL = {"model.name": "mlp", "model.width": 4, "train.rounds": 1, "data.clients": 4}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "ownsplit.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("ownsplit", None)


def divided(function, **table):
    return federate(Experiment.of({"data": {"partition": f"ownsplit:{function}", "clients": 4, **table}}))


def test_a_run_uses_it_with_its_options_and_records_its_source(mine, tmp_path, capsys):
    name = {"data.partition": "ownsplit:sorted_by_label", "data.partition_options.first": 7, "data.seed": 3}
    run = fr.run({**SMALL, **name}, tmp_path / "run")
    calls = sys.modules["ownsplit"].CALLS
    assert calls[-1] == {"samples": 1437, "clients": 4, "seed": 3, "first": 7}
    labels = load_dataset("digits").train.y.numpy()
    want = np.array_split(np.argsort(labels, kind="stable")[7:], 4)
    federation = federate(run.experiment)
    assert all(map(np.array_equal, federation.parts, want))
    recorded = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert recorded["hash"] == federation.hash
    assert recorded["unassigned"] == 7
    assert "ownsplit" in json.loads((tmp_path / "run" / "environment.json").read_text())["sources"]
    assert fr.load_run(tmp_path / "run", trust=True).experiment.opened() == run.experiment
    words = [word for key, value in {**SMALL, **name}.items() for word in ("--set", f"{key}={value}")]
    status, out, _ = fullrank("partition", *words, "--json", capsys=capsys)
    assert (status, json.loads(out)["hash"]) == (0, federation.hash)
    other = [word.replace("first=7", "first=8") for word in words]
    status, _, err = fullrank("run", *other, "--out", "run", capsys=capsys)
    assert status == 2
    assert "data.partition_options.first" in err


def test_the_validation_share_is_drawn_beforehand_or_kept_back_by_the_function(mine):
    labels = load_dataset("digits").train.y.numpy()
    keep, taken = split_by_class(labels, 0.2, 0)
    federation = divided("sorted_by_label", validation=0.2)
    assert np.array_equal(federation.validation, taken)
    order = keep[np.argsort(labels[keep], kind="stable")]
    assert all(map(np.array_equal, federation.parts, np.array_split(order, 4)))
    federation = divided("keeps_back", validation=0.2)
    assert federation.validation.tolist() == list(range(287))
    assert federation.parts[0][0] == 287
    with pytest.raises(InputError, match=r"takes validation, so it must return a fullrank.data.partition.Partition"):
        divided("forgets", validation=0.2)


def test_options_of_any_name_go_to_a_function_that_takes_them(mine):
    assert divided("anything", partition_options={"first": 9}).unassigned == 9


def test_domains_and_groups(mine, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    np.savez("sites.npz", x_train=x, y_train=y, x_test=x, y_test=y, domain_train=np.arange(60) // 30)
    np.savez("patients.npz", x_train=x, y_train=y, x_test=x, y_test=y, group_train=np.arange(60) // 3)
    assert divided("by_half", name="sites.npz").parts[3].tolist() == list(range(31, 60, 2))
    federation = divided("by_group", name="patients.npz")
    assert federation.parts[1].tolist() == [i for i in range(60) if i // 3 % 4 == 1]
    assert federation.shared_groups() == 0
    with pytest.raises(InputError, match=r'"ownsplit:torn": samples of group 2 are at client 0 and at client 1'):
        divided("torn", name="patients.npz", clients=8)
    with pytest.raises(InputError, match=r'data.partition = "ownsplit:sorted_by_label" would put samples of one group'):
        divided("sorted_by_label", name="patients.npz")
    federation = divided("by_group", name="patients.npz", holdout=0.2, validation=0.2)
    assert sum(map(len, federation.parts)) + sum(map(len, federation.holdouts)) + len(federation.validation) == 60
    sides = [federation.data.train.group[s].tolist() for s in (*federation.parts, *federation.holdouts)]
    assert sum(len(set(side)) for side in sides) == len({group for side in sides for group in side})
    for name, column in {"by_half": "domains", "by_group": "groups"}.items():
        with pytest.raises(InputError, match=f'"ownsplit:{name}": the data set has no {column}'):
            divided(name)


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("sorted_by_label", {"partition_options": {"frist": 1}}, 'partition_options.frist: .* did you mean "first"'),
        ("sorted_by_label", {"partition_options": {"alpha": 1}}, "partition_options.alpha: .* set data.alpha instead"),
        ("needs", {}, "data.partition_options.weight must be given"),
        ("number", {}, "its result is of type int; it must be a list of index arrays"),
        (
            "too_few",
            {},
            "data.clients = 4: ownsplit:too_few divides the data among 2 clients; it must return one array",
        ),
        ("set_by_itself", {}, "data.clients = 4: ownsplit:set_by_itself .* set data.clients = 2"),
        ("floats", {}, r"for client 0 it returned float64 of shape \(1,\)"),
        ("matrix", {}, r"for client 0 it returned int64 of shape \(1, 2\)"),
        ("ragged", {}, "for client 0 it returned object"),
        ("beyond", {}, "for client 0 it returned the index 1437; the data have 1437 samples"),
        ("below", {}, "for client 0 it returned the index -1"),
        ("twice", {}, "sample 5 occurs 4 times"),
        ("nothing", {}, "no client has any sample"),
        ("sorted_by_labels", {}, 'has no function "sorted_by_labels"; did you mean "sorted_by_label"'),
    ],
)
def test_what_is_wrong_is_one_sentence(name, table, words, mine):
    with pytest.raises(InputError, match=words) as caught:
        divided(name, **table)
    assert "\n" not in str(caught.value)


def test_what_it_raises_names_the_key(mine):
    with pytest.raises(fr.FullrankError, match=r'data.partition = "ownsplit:wrong": it raised KeyError') as caught:
        divided("wrong")
    assert "ownsplit.py" in caught.value.traceback


def test_options_are_for_functions_of_ones_own():
    for name, words in {
        "iid": '"iid" has no such option',
        "mine.safetensors": "takes no options",
        "dirichlet": '"dirichlet" has no such option',
    }.items():
        with pytest.raises(InputError, match=f"data.partition_options.*{words}"):
            Experiment.of({"data": {"partition": name, "partition_options": {"first": 1}}})
    with pytest.raises(InputError, match=r"data.partition_options = 5: must be a table"):
        Experiment.of({"data.partition_options": 5})


def test_a_name_in_the_registry_is_known_everywhere(monkeypatch, tmp_path, capsys):
    def stripes(labels, clients, alpha):
        assert alpha == 0.5
        return [np.arange(k, len(labels), clients) for k in range(clients)]

    with pytest.raises(InputError, match=r'data.partition = "stripes" is not known; known: class-disjoint, '):
        Experiment.of({"data.partition": "stripes"})
    monkeypatch.setitem(PARTITIONS.own, "stripes", stripes)
    status, out, _ = fullrank("keys", "data.partition", "--json", capsys=capsys)
    known = json.loads(out)["data.partition"]
    assert status == 0
    assert known["type"].endswith('domain, natural, stripes or "package.module:function"')
    assert known["values"][-1] == "stripes"
    with pytest.raises(InputError, match='did you mean "stripes"'):
        Experiment.of({"data.partition": "stirpes"})
    run = fr.run({**SMALL, "data.partition": "stripes", "data.alpha": 0.5}, tmp_path / "run")
    assert federate(run.experiment).parts[3][:2].tolist() == [3, 7]


def test_the_librarys_own_functions_get_the_same_arguments_as_before():
    labels = load_dataset("digits").train.y.numpy()
    keep, _ = split_by_class(labels, 0.1, 5)
    own = {
        "iid": partition.iid(labels[keep], 10, 5),
        "dirichlet": partition.dirichlet(labels[keep], 10, 0.3, 5, "plain"),
        "pathological": partition.pathological(labels[keep], 10, 3, 5, "balanced"),
        "class-disjoint": partition.class_disjoint(labels[keep], 10, 3, 5, 1),
    }
    for name, want in own.items():
        table = {"partition": name, "alpha": 0.3, "variant": "plain" if name == "dirichlet" else "balanced"}
        table |= {"classes": 3, "seed": 5, "validation": 0.1}
        parts = federate(Experiment.of({"data": table})).parts
        assert all(np.array_equal(a, keep[b]) for a, b in zip(parts, want, strict=True)), name
