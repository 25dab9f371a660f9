"""A site has the data of the clients that it hosts, and does their jobs like the site that hosts all."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import finding
from fullrank import methods
from fullrank.config.experiment import Experiment
from fullrank.data import Pipeline, Split
from fullrank.data.hosted import HostedData
from fullrank.engine.serial import Serial
from fullrank.errors import InputError
from fullrank.federated.codec import decode, encode
from fullrank.runs.assemble import assemble, assemble_site, hosted_data
from fullrank.runs.recorded import federation_facts
from small import on_its_network
from sweeps import METHODS

VALUES = {
    "data.clients": 6,
    "data.share": 0.3,
    "data.holdout": 0.2,
    "data.unseen": 0.2,
    "data.augment": ["crop", "flip"],
    "model": {"name": "cnn", "norm": "batch", "width": 4, "features": 16},
    "train.steps": 4,
    "train.batch_size": 16,
    "train.optimizer_state": "keep",
}
SCRIPT = Path(__file__).parent.parent / "support" / "one_client.py"


def experiment_of(method, **changes):
    table = Experiment.of({**on_its_network(VALUES, method), **changes}).model_dump()
    return Experiment(**{**table, "data": {**table["data"], "augment": list(table["data"]["augment"])}})


class Noting(Serial):
    """The serial engine; what one client is sent and sends is noted as bytes."""

    def __init__(self, site, client):
        super().__init__(site)
        self.client, self.jobs, self.results = client, [], []

    def run(self, jobs):
        for job in jobs:
            note = job.client == self.client
            if note:
                self.jobs.append(encode(job))
            result = self.site.do(job)
            if note:
                self.results.append(encode(result))
            yield result


def prepare(folder, method, **changes):
    """Two rounds and an evaluation of all clients by the site that hosts all; one client's part goes into a folder."""
    parts = assemble(experiment_of(method, **changes))
    client = int(parts.federation.seen[1])
    engine = Noting(parts.site, client)
    for _ in range(2):
        parts.server.run_round(engine, evaluate=True)
    parts.server.finished(engine)
    parts.server.evaluate_clients(engine)
    assert len(engine.jobs) >= 3
    folder.mkdir()
    (folder / "experiment.toml").write_text(parts.experiment.as_toml())
    (folder / "facts.json").write_text(json.dumps(federation_facts(parts.federation)))
    train, federation = parts.federation.data.train, parts.federation
    arrays = {"client": np.array(client)}
    for name, part in (("", federation.parts[client]), ("holdout_", federation.holdouts[client])):
        arrays |= {f"{name}x": train.x.numpy()[part], f"{name}y": train.y.numpy()[part]}
    np.savez(folder / "client.npz", **arrays)
    for number, job in enumerate(engine.jobs):
        (folder / f"{number}.job").write_bytes(job)
    return engine.results


@pytest.mark.parametrize(
    "names",
    [pytest.param(METHODS, id="some"), pytest.param(tuple(methods.available()), id="all", marks=pytest.mark.slow)],
)
def test_methods_train_alike_where_only_the_data_of_one_client_are(names, tmp_path):
    wanted = {method: prepare(tmp_path / method, method) for method in names}
    wanted["weighted"] = prepare(tmp_path / "weighted", "fedprox", **{"train.criterion": "weighted"})
    subprocess.run([sys.executable, SCRIPT, tmp_path], check=True, cwd=tmp_path, env=finding())
    for method, results in wanted.items():
        for number, result in enumerate(results):
            got = (tmp_path / method / f"{number}.result").read_bytes()
            assert decode(got).error is None, method
            assert got == result, f"{method}: job {number}"


def test_data_of_one_client_are_that_clients_and_no_more():
    federation = assemble(experiment_of("fedavg")).federation
    everything, one = federation.hosted(), federation.hosted([2])
    assert everything.x is federation.data.train.x
    assert everything.clients == tuple(range(6))
    assert one.clients == (2,)
    assert len(one.x) == len(one.y) == len(federation.parts[2]) + len(federation.holdouts[2])
    assert one.x.untyped_storage().nbytes() == one.x.numel() * one.x.element_size()
    assert one.peers.tolist() == everything.peers.tolist() == federation.seen.tolist()
    for name in ("training", "holdouts"):
        mine, theirs = getattr(one, name)[2], getattr(everything, name)[2]
        assert torch.equal(one.x[mine], everything.x[theirs])
        assert torch.equal(one.y[mine], everything.y[theirs])
    assert one.size(2) == federation.size(2)


def test_a_site_says_which_clients_it_hosts():
    parts = assemble(experiment_of("fedavg"))
    site = assemble_site(parts.experiment, federation_facts(parts.federation), parts.federation.hosted([1, 4]))
    first, other = (parts.server.job("train", client) for client in (1, 2))
    assert site.do(first).error is None
    error = site.do(other).error
    assert isinstance(error, InputError)
    assert str(error) == "this site has no data of client 2; it hosts the clients 1, 4"


def test_how_inputs_are_prepared_follows_from_the_experiment_and_the_facts():
    parts = assemble(Experiment.of({**VALUES, "data.augment": "auto", "data.name": "digits"}))
    facts = json.loads(json.dumps(federation_facts(parts.federation)))
    split = parts.federation.data.train.take(torch.arange(3))
    data = hosted_data(parts.experiment, facts, {0: (split, None)})
    assert data.pipeline == parts.federation.pipeline
    assert data.num_classes == 10
    assert data.of_client(0)[1].tolist() == []


def test_a_client_without_any_sample_is_hosted_where_others_have_some():
    split = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    data = HostedData.of({1: (None, None), 3: (split, None)}, Pipeline(), 2, np.arange(4))
    assert (data.size(1), data.size(3), data.largest) == (0, 2, 2)
    with pytest.raises(InputError, match="at least one client with samples"):
        HostedData.of({1: (None, None)}, Pipeline(), 2, np.arange(4))
