"""A deployment gives the weights of a simulation, survives what happens to sites, and says what went wrong."""

import json
import time

import pytest

import fullrank
from deployments import VALUES, deploy, experiment, host, network, node, same_weights, shared_metrics
from fullrank import methods
from fullrank.config.experiment import Experiment
from fullrank.deploy.sites import Message
from fullrank.deploy.sites.channel import InMemory
from fullrank.errors import ClientFailed, InputError, RunFailed, TooFewClients
from fullrank.federated.codec import unpack
from fullrank.files import read_json, read_lines
from fullrank.runs.callbacks import Callback
from small import on_its_network

METHODS = ["fedavg", "fedprox+feddecorr", "scaffold", "fedmr", "fedbn", "ccvr"]
SLOWER = [name for name in methods.available() if name not in METHODS]


def once(answer, **changes):
    """A node whose first answer to a job is changed, or lost."""
    seen = []

    def answered(content):
        request = Message.from_bytes(content)
        if request.kind == "job" and not seen:
            seen.append(True)
            return changes["instead"](content)
        return answer(content)

    return answered


@pytest.mark.parametrize("method", [*METHODS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOWER)])
def test_weights_and_metrics_are_those_of_a_simulation_to_the_bit(tmp_path, method):
    values = {**VALUES, "evaluate.personal": "every", "train.participation": 2, "train.rounds": 3}
    what = Experiment.of(on_its_network(values, method) if method in SLOWER else {**values, "method.name": method})
    simulated = fullrank.run(what, tmp_path / "simulated")
    channel = network(tmp_path)
    deployed = deploy(tmp_path, what, channel)
    assert same_weights(tmp_path / "simulated", tmp_path / "deployed")
    for one, other in zip(simulated.metrics, deployed.metrics, strict=True):
        assert shared_metrics(one) == shared_metrics(other)
    assert read_rows(tmp_path / "simulated") == read_rows(tmp_path / "deployed")


def read_rows(path):
    """The evaluations of the clients' own models; the global model is evaluated only where there is a test set."""
    return [row for row in read_lines(path / "clients.jsonl") if row["client"] is not None]


def test_a_test_set_at_the_server_is_evaluated_there(tmp_path):
    what = experiment()
    simulated = fullrank.run(what, tmp_path / "simulated")
    test = fullrank.data.load_dataset("digits").test
    deployed = deploy(tmp_path, what, network(tmp_path), test=test)
    for key in ("accuracy", "loss"):
        assert [row[key] for row in simulated.metrics] == [row[key] for row in deployed.metrics]
    assert "cautions" not in deployed.metrics[0]


def test_the_run_directory_is_that_of_any_run(tmp_path):
    deploy(tmp_path, experiment(), network(tmp_path))
    loaded = fullrank.load_run(tmp_path / "deployed")
    assert len(loaded.metrics) == 2
    assert loaded.model() is not None
    facts = read_json(tmp_path / "deployed" / "partition.json")
    assert facts["sizes"] == [read_json(tmp_path / "deployed" / "sites.json")["sites"][k]["samples"] for k in "012"]
    assert "entropy" not in facts, "sites tell nothing about classes unless they allow it"
    with pytest.raises(InputError, match=r"the samples of this run are at the sites"):
        loaded._assembled()


class Killed(Callback):
    """Ends the process after a round, as a kill would."""

    def __init__(self, after):
        self.after = after

    def round_done(self, row):
        if row["round"] == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["scaffold", "fedbn"])
def test_a_run_continues_at_its_checkpoint_with_the_states_at_the_sites(tmp_path, method):
    what = experiment(method__name=method, train__rounds=4, train__participation=2, run__checkpoint_every=2)
    fullrank.run(what, tmp_path / "simulated")
    with pytest.raises((KeyboardInterrupt, RunFailed)):  # after three rounds, of which two are in the checkpoint
        deploy(tmp_path, what, network(tmp_path), callbacks=[Killed(3)])
    started_again = network(tmp_path)  # the sites, too
    deploy(tmp_path, what, started_again)
    assert same_weights(tmp_path / "simulated", tmp_path / "deployed")


def test_a_site_keeps_few_states(tmp_path):
    what = experiment(method__name="scaffold", train__rounds=6)
    deploy(tmp_path, what, network(tmp_path))
    for k in range(3):
        assert 1 <= len(list((tmp_path / f"site{k}").rglob("*.safetensors"))) <= 3


def test_a_lost_state_is_said(tmp_path):
    what = experiment(method__name="scaffold", train__rounds=3)
    channel = network(tmp_path)

    class Loses(Callback):
        def round_done(self, row):
            for file in (tmp_path / "site1").rglob("*.safetensors"):
                file.unlink()

    with pytest.raises(ClientFailed, match=r"client 1: .*state of round 1 is not in its folder any more"):
        deploy(tmp_path, what, channel, callbacks=[Loses()])


def test_frozen_entries_are_sent_once_and_again_if_a_site_has_lost_them(tmp_path):
    what = experiment(method__name="fedetf", train__rounds=4, evaluate__personal="never")
    fullrank.run(what, tmp_path / "simulated")
    channel, sent = network(tmp_path), []
    whole = channel.connected[101]

    def recorded(content):
        request = Message.from_bytes(content)
        if request.kind == "job":
            job = unpack(request.values["job"], request.tensors)
            sent.append((job.round, bool(job.frozen)))
        return whole(content)

    channel.connected[101] = recorded

    class Loses(Callback):
        def round_done(self, row):
            if row["round"] == 2:
                for file in (tmp_path / "site1").rglob("frozen.*"):
                    file.unlink()

    deploy(tmp_path, what, channel, callbacks=[Loses()])
    assert sent == [(0, True), (1, False), (2, False), (2, True), (3, False)]
    assert same_weights(tmp_path / "simulated", tmp_path / "deployed")


# Faults


def test_a_site_that_is_lost_in_a_round_is_left_out_and_comes_back(tmp_path):
    what = experiment(run__on_client_error="skip", run__min_clients=2, train__rounds=3)
    channel = network(tmp_path)
    whole = channel.connected[101]

    class Returns(Callback):
        def round_done(self, row):
            channel.connected[201] = whole  # under another number, as a node that was started again

    def dies(content):
        del channel.connected[101]
        raise ConnectionError

    channel.connected[101] = once(whole, instead=dies)
    run = deploy(tmp_path, what, channel, callbacks=[Returns()])
    reason = run.metrics[0]["skipped"]["1"]
    assert "node 101" in reason
    assert "was lost" in reason
    assert "skipped" not in run.metrics[1]
    assert [len(row["clients"]) for row in run.metrics] == [2, 3, 3]


def test_a_site_that_is_back_within_the_patience_does_its_job(tmp_path):
    what = experiment(method__name="scaffold")
    fullrank.run(what, tmp_path / "simulated")
    channel = network(tmp_path)
    whole = channel.connected[102]

    def dies(content):
        del channel.connected[102]
        channel.connected[302] = whole
        raise ConnectionError

    channel.connected[102] = once(whole, instead=dies)
    deploy(tmp_path, what, channel, patience=5.0)
    assert same_weights(tmp_path / "simulated", tmp_path / "deployed")


def test_a_site_that_never_answers_has_a_deadline(tmp_path):
    what = experiment(run__client_timeout=0.3)
    channel = network(tmp_path)
    channel.connected[100] = once(channel.connected[100], instead=lambda content: None)
    with pytest.raises(ClientFailed, match=r"client 0: the node 100 did not answer within 0.3 s"):
        deploy(tmp_path, what, channel)
    rest = experiment(run__client_timeout=0.3, run__on_client_error="skip")
    channel.connected[100] = once(node(host(tmp_path, 0)), instead=lambda content: None)
    run = deploy(tmp_path, rest, channel, out="skipping")
    assert list(run.metrics[0]["skipped"]) == ["0"]
    assert "skipped" not in run.metrics[1]


def test_a_site_may_join_late(tmp_path):
    what = experiment(run__on_client_error="skip", run__min_clients=2, train__rounds=3, method__name="scaffold")
    channel = network(tmp_path)
    late = channel.connected.pop(102)

    class Joins(Callback):
        def round_done(self, row):
            channel.connected[102] = late

    run = deploy(tmp_path, what, channel, callbacks=[Joins()])
    assert "is not connected" in run.metrics[0]["skipped"]["2"]
    assert [len(row["clients"]) for row in run.metrics] == [2, 3, 3]
    assert len(read_json(tmp_path / "deployed" / "sites.json")["sites"]) == 3


def test_too_few_sites_at_the_start_are_named(tmp_path):
    channel = network(tmp_path, 2)
    with pytest.raises(RunFailed, match=r"2 of 3 clients have joined within 0.3 s.*client 2 has not"):
        deploy(tmp_path, experiment(), channel, wait=0.3)
    assert not (tmp_path / "deployed").exists()


def test_the_server_does_not_wait_for_sites_that_cannot_take_part(tmp_path):
    what = experiment(run__on_client_error="skip", method__name="scaffold")
    told = []
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r'0 of 3 clients have joined.*does not allow the method "scaffold"'):
        deploy(tmp_path, what, network(tmp_path, methods=["fedavg"]), wait=60.0, say=told.append)
    assert time.monotonic() - started < 30
    assert len(told) == 3


def test_no_round_succeeds_with_fewer_clients_than_asked_for(tmp_path):
    what = experiment(run__on_client_error="skip", run__min_clients=3, train__rounds=3)
    channel = network(tmp_path)

    class Leaves(Callback):
        def round_done(self, row):
            channel.connected.pop(101, None)

    with pytest.raises(TooFewClients, match=r"round 2: 2 of 3 clients sent something, and run.min_clients = 3 .*101"):
        deploy(tmp_path, what, channel, callbacks=[Leaves()])
    assert [row["round"] for row in read_lines(tmp_path / "deployed" / "metrics.jsonl")] == [1]
    run = deploy(tmp_path, what, network(tmp_path))  # nothing is lost
    assert len(run.metrics) == 3


def test_a_run_in_which_every_site_fails_is_no_success(tmp_path):
    what = experiment(run__on_client_error="skip")
    channel = InMemory({100 + k: once(node(host(tmp_path, k)), instead=lambda content: b"junk") for k in range(3)})
    with pytest.raises(InputError, match=r"round 1: no client sent anything .*client 0: .*no usable answer"):
        deploy(tmp_path, what, channel)


def test_sites_with_other_data_than_before_cannot_continue(tmp_path):
    what = experiment(train__rounds=3)
    with pytest.raises((KeyboardInterrupt, RunFailed)):
        deploy(tmp_path, what, network(tmp_path), callbacks=[Killed(1)])
    sites = read_json(tmp_path / "deployed" / "sites.json")
    sites["sites"]["1"]["samples"] += 1
    (tmp_path / "deployed" / "sites.json").write_text(json.dumps(sites))
    with pytest.raises(InputError, match=r"of client 1, and had .* when the run started"):
        deploy(tmp_path, what, network(tmp_path))


def test_two_sites_cannot_have_the_same_client(tmp_path):
    channel = network(tmp_path)
    channel.connected[103] = node(host(tmp_path, 1))
    del channel.connected[102]
    with pytest.raises(InputError, match=r"the node 103 has client 1, which the node 101 has already"):
        deploy(tmp_path, experiment(), channel)


def test_a_validation_share_cannot_be_kept_back(tmp_path):
    with pytest.raises(InputError, match=r"data.validation: the samples are at the sites"):
        deploy(tmp_path, experiment(data__validation=0.1), network(tmp_path))
