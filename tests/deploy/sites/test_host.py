"""What a site does with requests of a server that asks for what it should not, and what it tells of its own errors."""

import dataclasses

import numpy as np
import pytest
import tomli_w
import torch

import fullrank
from deployments import VALUES, deploy, experiment, host, network, node
from fullrank.config.experiment import Experiment
from fullrank.deploy.sites import Message, SiteSettings
from fullrank.deploy.sites.channel import InMemory
from fullrank.deploy.sites.host import LOG, Host
from fullrank.deploy.sites.message import PROTOCOL
from fullrank.errors import ClientFailed, InputError
from fullrank.federated.codec import pack, unpack
from fullrank.files import read_lines
from fullrank.trees import elements

RUN = "0123456789abcdef"


class Tapped:
    """A site and all requests that it got, so that a test can change and send them again."""

    def __init__(self, folder, what, **allow):
        self.host, self.requests = host(folder, 0, **allow), []
        self.others = network(folder)
        channel = InMemory({**self.others.connected, 100: self.answer})
        deploy(folder, what, channel)

    def answer(self, content):
        request = Message.from_bytes(content)
        self.requests.append(request)
        return self.host.answer(request).to_bytes()

    def first(self, kind="train"):
        return next(request for request in self.requests if request.values.get("job", {}).get("kind") == kind)


@pytest.fixture(scope="module")
def tapped(tmp_path_factory):
    return Tapped(tmp_path_factory.mktemp("tapped"), experiment(method__name="scaffold", train__rounds=1))


def changed(request, **fields):
    """A request whose job has other fields."""
    job = dataclasses.replace(unpack(request.values["job"], request.tensors), **fields)
    packed = pack(job)
    return Message({**request.values, "job": packed.form}, packed.tensors)


def reason(answer):
    assert answer.kind in ("rejected", "failed")
    return answer.values["reason"]


def test_an_honest_job_can_be_done_again(tapped):
    assert tapped.host.answer(tapped.first()).kind == "result"


@pytest.mark.parametrize("query", [("scaffold", "__init__"), ("scaffold", "after"), ("scaffold", "name"), ("os", "x")])
def test_a_query_for_anything_but_a_question_is_rejected(tapped, query):
    answer = tapped.host.answer(changed(tapped.first(), kind="query", query=query))
    assert "which no method asks" in reason(answer)


def test_a_clients_own_model_is_given_only_if_allowed(tapped, tmp_path):
    for fields in ({"show": True}, {"kind": "personal", "evaluate": False}):
        assert "does not give the client's own model" in reason(tapped.host.answer(changed(tapped.first(), **fields)))
    willing = host(tmp_path, 0, models=True)
    assert willing.answer(changed(tapped.first(), show=True)).kind == "result"


def test_a_client_that_is_elsewhere_is_said(tapped):
    assert "no data of client 2" in reason(tapped.host.answer(changed(tapped.first(), client=2)))


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"w": {}, "buffers": {}, "sent": {}}, "its code raised"),
        ({"w": {"other": torch.ones(3)}, "buffers": {}, "sent": {}}, 'the model has no entry "other"'),
        ({}, "cannot take part"),
    ],
)
def test_a_model_of_other_names_is_rejected(tapped, tree, words):
    assert words in reason(tapped.host.answer(changed(tapped.first(), broadcast=tree)))


def test_damaged_requests_are_rejected(tapped):
    good = tapped.first()
    for values in (
        {"kind": "shell"},
        {**good.values, "protocol": PROTOCOL + 1},
        {**good.values, "job": {"type": "job"}},
        {**good.values, "job": 3},
        {**good.values, "facts": []},
        {**good.values, "run": "../../etc"},
        {**good.values, "receipt": [1, "x"]},
        {**good.values, "receipt": [10**6, 5]},
        {**good.values, "oldest": "0"},
        {**good.values, "experiment": "not [toml"},
        {**good.values, "experiment": "[train]\nrounds = 0"},
        {**good.values, "experiment": 'seed = "x"'},
    ):
        assert tapped.host.answer(Message(values, good.tensors)).kind == "rejected", values


def test_code_is_not_imported_unless_the_site_lists_it(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = host(tmp_path, 0)
    for table in (
        {"method": {"name": "evil:Method"}},
        {"method": {"name": "fedprox+evil:Method"}},
        {"model": {"name": "evil:network"}},
        {"train": {"criterion": "evil:loss"}},
        {"evaluate": {"metrics": ["accuracy", "evil:metric"]}},
        {"data": {"name": "evil:data"}},
        {"data": {"partition": "evil:partition"}},
        {"data": {"augment": ["flip", "evil:Cut"]}},
    ):
        answer = own.answer(asked(table))
        assert "does not allow the code" in reason(answer), table
    # What only the server runs is neither imported nor an obstacle.
    of_server = {"run": {"track": ["evil:Callback"]}, "train": {"aggregator": "evil:Mean"}}
    assert own.answer(asked(of_server)).kind == "joined"


def asked(table):
    """A request to join an experiment with changed tables, as a server may send it unchecked."""
    values = Experiment.of(VALUES).model_dump()
    for name, keys in table.items():
        values[name] = {**values[name], **keys}
    text = tomli_w.dumps({name: value for name, value in values.items() if value is not None})
    return Message({"kind": "join", "protocol": PROTOCOL, "run": RUN, "experiment": text})


@pytest.mark.parametrize(
    ("allow", "table", "words"),
    [
        ({"methods": ["fedavg"]}, {"method": {"name": "scaffold"}}, 'does not allow the method "scaffold"'),
        ({"methods": ["fedprox"]}, {"method": {"name": "fedprox+feddecorr"}}, 'not allow the method "feddecorr"'),
        ({"uploads": ["w", "buffers"]}, {"method": {"name": "scaffold"}}, 'not allow the upload "scaffold/change"'),
        ({"min_count": 5}, {"method": {"name": "fedmr"}}, "needs method.fedmr.min_count of at least 5"),
        ({"largest_model": 1000}, {"model": {"name": "cnn"}}, "allows models of at most 1000 parameters"),
        ({"largest_model": 10**6}, {"model": {"name": "cnn", "width": 50_000}}, "allows models of at most"),
    ],
)
def test_what_the_site_does_not_allow_is_rejected_when_it_joins(tmp_path, allow, table, words):
    assert words in reason(host(tmp_path, 0, **allow).answer(asked(table)))


def test_frozen_entries_count_for_the_largest_model(tmp_path):
    found = Tapped(tmp_path, experiment(method__name="fedetf", train__rounds=1))
    request = found.first()
    job = unpack(request.values["job"], request.tensors)
    sizes = [elements(tree) for tree in (job.broadcast["w"], job.broadcast["buffers"], job.frozen)]
    assert sizes[2] > 0
    # A server that sends more frozen entries than the model of its experiment has, at a site that allows that model.
    many = dict.fromkeys(job.frozen, torch.zeros(10**6))
    limited = host(tmp_path / "limited", 0, largest_model=sum(sizes) + 10**5)
    answer = limited.answer(changed(request, frozen=many))
    assert f"this one has {sum(sizes[:2]) + 10**6}" in reason(answer)
    assert not list((tmp_path / "limited").rglob("frozen.*")), "what is not allowed is not kept"
    assert host(tmp_path / "exact", 0, largest_model=sum(sizes)).answer(request).kind == "result"


def test_a_site_takes_part_in_as_many_rounds_as_it_allows(tmp_path):
    what = experiment(train__rounds=3)
    with pytest.raises(ClientFailed, match=r"client \d: .*takes part in 2 rounds of a run"):
        deploy(tmp_path, what, network(tmp_path, rounds=2))


def test_uploads_are_checked_when_they_are_made(tmp_path):
    what = experiment(method__name="fedavg", train__criterion="weighted")
    with pytest.raises(ClientFailed, match=r'withholds "criterion/counts": .*fewer than 1000'):
        deploy(tmp_path, what, network(tmp_path, min_count=1000))
    deploy(tmp_path, what, network(tmp_path, min_count=2), out="allowed")


def test_a_control_variate_is_no_statistic_of_classes(tmp_path):
    deploy(tmp_path, experiment(method__name="scaffold"), network(tmp_path, min_count=1000))


def test_recalls_and_confusions_of_few_samples_stay_at_the_site(tmp_path):
    run = deploy(tmp_path, experiment(), network(tmp_path, min_count=1000))
    rows = [row for row in run.kept() if row["client"] is not None]
    assert rows
    assert all(row["confusion"] == [] and set(row["recall"]) == {None} for row in rows)
    assert all(row["metrics"]["accuracy"] is not None for row in rows)


class Secretive(Exception):
    pass


@pytest.mark.parametrize("told", [False, True])
def test_an_exception_of_the_clients_code_says_no_more_than_allowed(tmp_path, told):
    found = host(tmp_path, 0, tracebacks=told)
    site = {}

    def broken(job):
        raise Secretive("John Doe, born 1970")

    channel = network(tmp_path)
    whole = node(found)

    def answered(content):
        request = Message.from_bytes(content)
        if request.kind == "job":
            found.answer(request)
            for site["made"] in found._sites.values():
                site["made"]._train = broken
        return whole(content)

    channel.connected[100] = answered
    with pytest.raises(ClientFailed) as raised:
        deploy(tmp_path, experiment(), channel)
    assert ("John Doe" in str(raised.value)) == told
    assert "Secretive" in str(raised.value)
    logged = [line["exception"] for line in read_lines(tmp_path / "site0" / "state" / LOG) if "exception" in line]
    assert "John Doe" in logged[0]


def test_the_log_of_a_site_has_every_job_and_what_was_sent(tmp_path):
    deploy(tmp_path, experiment(method__name="scaffold"), network(tmp_path))
    lines = list(read_lines(tmp_path / "site1" / "state" / LOG))
    assert [line.get("job", line["request"]) for line in lines] == ["join", "train", "train", "personal"]
    assert list(lines[1]["uploads"]) == ["w", "buffers", "scaffold/change"]
    assert lines[3]["uploads"] == {}
    assert {line["client"] for line in lines[1:]} == {1}


def test_class_counts_are_told_only_if_allowed(tmp_path):
    assert "classes" not in str(host(tmp_path, 0).answer(asked({})).values["clients"])
    (told,) = host(tmp_path, 0, class_counts=True, min_count=15).answer(asked({})).values["clients"]
    whole = host(tmp_path, 0, class_counts=True).answer(asked({})).values["clients"][0]["classes"]
    assert told["classes"] == [count if count >= 15 else 0 for count in whole]
    assert 0 in told["classes"]


def test_a_site_of_its_own_data(tmp_path):
    digits = fullrank.data.load_dataset("digits")
    for k in range(2):
        x, y = (getattr(digits.train, name)[k::2][:60].numpy() for name in "xy")
        np.savez(tmp_path / f"{k}.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
        (tmp_path / f"{k}.toml").write_text(
            f'[site]\nname = "ward {k}"\nclient = {k}\nfolder = "state{k}"\n[data]\npath = "{k}.npz"\n'
            f"classes = {[str(c) for c in range(10)]}\n"
        )
    hosts = {7 + k: node(Host(SiteSettings.from_toml(tmp_path / f"{k}.toml"))) for k in range(2)}
    what = experiment(data__clients=2, evaluate__personal="every")
    run = deploy(tmp_path, what, InMemory(hosts))
    assert run.experiment.data.name == "sites"
    assert {row["site"] for row in run.clients()} == {"ward 0", "ward 1"}
    assert {row["set"] for row in run.clients()} == {"holdout", "test"}
    assert run.summary()["sites"]["test"]["local"]["samples_by_site"] == {"ward 0": 10, "ward 1": 10}
    with pytest.raises(InputError, match=r'"sites" stands for samples that the sites of a deployment have'):
        fullrank.run(run.experiment, tmp_path / "again")


def test_a_site_has_the_name_of_its_settings_in_trials_too(tmp_path):
    (tmp_path / "site.toml").write_text('[site]\nname = "ward"\nclient = 1\n')
    (told,) = Host(SiteSettings.from_toml(tmp_path / "site.toml")).answer(asked({})).values["clients"]
    assert (told["client"], told["name"]) == (1, "ward")


def test_a_site_reads_no_files_for_a_server(tmp_path):
    np.savez(tmp_path / "secret.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    (tmp_path / "site.toml").write_text("[site]\nclient = 0\n")
    careful = Host(SiteSettings.from_toml(tmp_path / "site.toml"))
    for name in (str(tmp_path / "secret.npz"), "npz", "folder", "hub:x"):
        answer = careful.answer(asked({"data": {"name": name, "root": str(tmp_path / "secret.npz")}}))
        assert "does not read" in reason(answer), name


def test_sites_whose_classes_differ_are_named(tmp_path):
    rng = np.random.default_rng(0)
    for k, names in enumerate((["benign", "malignant"], ["malignant"])):
        y = np.array(names)[rng.integers(0, len(names), 40)]
        np.savez(tmp_path / f"{k}.npz", x=rng.integers(0, 255, (40, 8, 8, 1), dtype=np.uint8), y=y)
        (tmp_path / f"{k}.toml").write_text(f'[site]\nname = "s{k}"\nclient = {k}\n[data]\npath = "{k}.npz"\n')
    hosts = {7 + k: node(Host(SiteSettings.from_toml(tmp_path / f"{k}.toml"))) for k in range(2)}
    with pytest.raises(InputError, match=r'the site "s1" \(node 8\) has data of another form: classes is malignant'):
        deploy(tmp_path, experiment(data__clients=2), InMemory(hosts))


def described(request, **form):
    """A request that describes the samples in another way."""
    facts = request.values["facts"]
    return Message({**request.values, "facts": {**facts, "data": {**facts["data"], **form}}}, request.tensors)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ({"augment": ["os:system"]}, "augment"),
        ({"classes": [str(k) for k in range(11)]}, "classes"),
        ({"input_shape": [10**6] * 4}, "input_shape"),
        ({"dtype": "load"}, "dtype"),
    ],
)
def test_data_that_a_server_describes_in_another_way_are_not_used(tapped, form, word):
    assert f"{word} differs" in reason(tapped.host.answer(described(tapped.first(), **form)))


def test_a_server_names_no_more_clients_than_the_experiment(tapped):
    request = tapped.first()
    facts = {**request.values["facts"], "clients": 10**12}
    answer = tapped.host.answer(Message({**request.values, "facts": facts}, request.tensors))
    assert "another number of clients" in reason(answer)


def test_arguments_of_the_librarys_augmentations_are_no_code(tmp_path):
    what = experiment(data__augment=["crop:1", "flip"], train__rounds=1)
    assert deploy(tmp_path, what, network(tmp_path)).complete


def test_metrics_by_class_are_withheld_of_classes_with_few_samples(tmp_path):
    what = experiment(train__rounds=1, evaluate__metrics=["per-class"], evaluate__personal="every")
    found = Tapped(tmp_path, what)
    few, enough = host(tmp_path, 0, min_count=1000), host(tmp_path, 0, min_count=1)
    for kind in ("train", "personal"):
        scores = [
            unpack(answer.values["result"], answer.tensors).metrics["personal"]["local"]
            for answer in (site.answer(found.first(kind)) for site in (few, enough))
        ]
        assert scores[0]["per_class"] == [None] * 10
        assert any(value is not None for value in scores[1]["per_class"])
        assert scores[0]["accuracy"] == scores[1]["accuracy"]
