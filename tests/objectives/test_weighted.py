"""`train.criterion = "focal"` and `"weighted"`: their numbers, and how class counts are exchanged."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

import fullrank
from engines import check_same
from fullrank import Method, Sum
from fullrank.cli.methods import leaving
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.cuda.engine import Cuda
from fullrank.engine.serial import Serial
from fullrank.engine.vectorised import Vectorised
from fullrank.errors import ClientFailed, Conflict, InputError
from fullrank.objectives.criteria import focal, inverse_frequencies, weighted
from fullrank.runs.assemble import assemble
from fullrank.testing import check
from small import assert_same_bits, blobs, plain, trained_alone

SMALL = {"model.name": "mlp", "model.width": 8, "data.clients": 4, "train.rounds": 2, "train.lr": 0.05}
SMALL |= {"train.steps": 5, "train.criterion": "weighted"}


def test_focal_by_hand():
    """Probabilities .75 and .5 of the label: (.25² · −ln .75 + .5² · −ln .5) / 2."""
    logits = torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=torch.float64).log()
    labels = torch.tensor([0, 1])
    assert focal(logits, labels).item() == pytest.approx((0.0625 * 0.2876820724518 + 0.25 * 0.6931471805599) / 2)
    assert focal(logits, labels, 0.0).item() == pytest.approx((0.2876820724518 + 0.6931471805599) / 2)
    assert focal(logits, labels, 1.0).item() == pytest.approx((0.25 * 0.2876820724518 + 0.5 * 0.6931471805599) / 2)


def test_weights_are_those_of_scikit_learn_and_0_for_a_class_without_samples():
    y = np.array([0] * 6 + [1] * 3 + [3] * 1)
    found = inverse_frequencies(torch.tensor([6, 3, 0, 1])).tolist()
    want = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=y)
    assert [found[c] for c in (0, 1, 3)] == pytest.approx(want.tolist())
    assert found[2] == 0
    assert np.mean([found[c] for c in y]) == pytest.approx(1)


def test_weighted_by_hand_also_where_a_batch_has_one_class():
    """Probabilities .75 and .5: (2 · −ln .75 + .5 · −ln .5) / 2; and 2 · −ln .75 for the first sample."""
    logits = torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=torch.float64).log()
    weights = torch.tensor([2.0, 0.5])
    assert weighted(logits, torch.tensor([0, 1]), weights).item() == pytest.approx((0.5753641449 + 0.34657359028) / 2)
    assert weighted(logits[:1], torch.tensor([0]), weights).item() == pytest.approx(0.5753641449)


def test_steps_are_those_of_torch_with_the_weights_of_all_clients():
    clients = blobs(sizes=(12, 9))
    samples = np.bincount(torch.cat([y for _, y in clients]).numpy(), minlength=3)
    weights = torch.tensor(21 / (3 * samples))

    def loss(model, x, y):
        return torch.nn.functional.cross_entropy(model(x), y, weight=weights, reduction="sum") / len(y)

    settings = {"train": {"criterion": "weighted", "steps": 3}, "data.normalise": "none"}
    run = fullrank.fit(plain(), clients, "fedavg", rounds=1, batch_size=12, lr=0.1, set=settings)
    trained = [trained_alone(plain(), [data] * 3, lr=0.1, momentum=0.9, loss=loss).state_dict() for data in clients]
    for name, value in run.model().state_dict().items():
        want = (12 * trained[0][name] + 9 * trained[1][name]) / 21
        torch.testing.assert_close(value, want, rtol=1e-9, atol=1e-12)


def test_counts_are_exchanged_once_before_the_first_round_and_counted_in_bytes():
    """Of every client, also of those that do not take part: 10 whole numbers up; nothing down. Then 10 weights down."""
    runs = {}
    for name in ("", "weighted"):
        values = {**SMALL, "data.clients": 6, "train.participation": 0.5, "train.criterion": name}
        runs[name] = fullrank.run(values).metrics
    further = [
        {key: runs["weighted"][t][key] - runs[""][t][key] for key in ("elements_up", "bytes_up", "elements_down")}
        for t in range(2)
    ]
    assert further == [
        {"elements_up": 60, "bytes_up": 480, "elements_down": 30},
        {"elements_up": 0, "bytes_up": 0, "elements_down": 30},
    ]


def test_weights_are_those_of_all_clients_that_train():
    parts = assemble(Experiment.of({**SMALL, "data.clients": 6, "data.unseen": 0.34, "data.holdout": 0.2}))
    parts.server.run_round(Serial(parts.site))
    federation = parts.federation
    counts = federation.class_counts[federation.seen].sum(0)
    want = counts.sum() / ((counts > 0).sum() * np.maximum(counts, 1)) * (counts > 0)
    assert parts.server.own["criterion"]["weights"].tolist() == pytest.approx(want.tolist())


def rerun(step, pool):
    step()
    step()
    return step


ENGINES = {
    "vectorised": lambda site: Vectorised(site, EngineOptions(clients=4)),
    "captured": lambda site: Cuda(
        site, EngineOptions(slots=2, clients=6), record=rerun, devices=(torch.device("cpu"),)
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("criterion", ["weighted", "focal"])
def test_engines_that_trace_or_record_the_step_agree_with_serial(engine, criterion):
    values = {**SMALL, "engine.precision": "float64", "train.criterion": criterion, "method.name": "scaffold"}
    assert not check_same(values, ENGINES[engine]).reasons


def test_worker_processes_and_a_resumed_run_have_the_same_bits(tmp_path):
    want = fullrank.run(SMALL, tmp_path / "serial").model().state_dict()
    other = fullrank.run({**SMALL, "engine.name": "processes", "engine.workers": 1}, tmp_path / "processes")
    assert_same_bits(other.model().state_dict(), want)
    fullrank.run({**SMALL, "train.rounds": 1}, tmp_path / "half")
    resumed = fullrank.run(SMALL, tmp_path / "half")
    assert_same_bits(resumed.model().state_dict(), want)
    assert [row["bytes_up"] for row in resumed.metrics] == [row["bytes_up"] for row in other.metrics]


@pytest.mark.parametrize("method", ["fedlc", "fedprox+fedetf"])
@pytest.mark.parametrize("criterion", ["weighted", "focal"])
def test_a_method_with_its_own_criterion_conflicts(method, criterion):
    with pytest.raises(Conflict, match=rf'^train\.criterion = "{criterion}" cannot be combined with the method "fed'):
        Experiment.of({"method.name": method, "train.criterion": criterion})


# The hook that exchanges them, for any method


@dataclass(frozen=True)
class Census(Method):
    """Asks the clients for their sizes before the first round."""

    uploads = {"sizes": "the number of samples"}
    broadcast = ("sizes",)
    looks = False

    def server_state(self, server):
        return {"sizes": torch.zeros(2)}

    def client_state(self, client):
        return {"seen": client.sent["sizes"] + 0}  # which a client has not received when it is asked

    def begin(self, server):
        assert server.round == 0
        server.own = {"sizes": server.ask(self.sizes)["sizes"]["n"]}

    def sizes(self, client):
        return {"sizes": Sum({"n": torch.tensor([client.n, 1.0])})}


@dataclass(frozen=True)
class Broken(Census):
    """Fails after its question."""

    def begin(self, server):
        super().begin(server)
        raise ValueError("no census today")


def test_a_method_asks_before_the_first_round_and_its_clients_know_the_answer_in_it():
    parts = assemble(Experiment.of({**SMALL, "train.criterion": ""}), method=Census())
    parts.server.run_round(Serial(parts.site))
    total = float(sum(map(parts.federation.size, range(4))))
    assert parts.server.own["census"]["sizes"].tolist() == [total, 4]
    assert parts.server.store.get(0)["census"]["seen"].tolist() == [total, 4]


def test_a_hook_that_fails_leaves_nothing_behind():
    parts = assemble(Experiment.of({**SMALL, "train.criterion": ""}), method=Broken())
    with pytest.raises(Exception, match=r'the method "broken": its hook begin raised ValueError: no census today'):
        parts.server.run_round(Serial(parts.site))
    assert parts.server.own["broken"]["sizes"].tolist() == [0, 0]


@dataclass(frozen=True)
class Late(Census):
    """Asks where nobody answers."""

    def server_state(self, server):
        return {"sizes": server.ask(self.sizes)["sizes"]["n"]}


def test_other_hooks_still_cannot_ask():
    with pytest.raises(InputError, match="in the hooks begin, aggregate and finish only"):
        assemble(Experiment.of({**SMALL, "train.criterion": ""}), method=Late())


def test_checks_and_the_description_of_a_method_know_the_hook():
    found = leaving(Census())
    assert found["start"] == {"census/sizes": "Sum of n (2)"}
    assert "census/sizes" not in found["round"]
    assert check(Census(), only=["uploads", "exchange", "resume"])


def test_a_client_that_cannot_answer_stops_the_run_or_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "censuses.py").write_text(
        "from dataclasses import dataclass\nimport torch\nfrom fullrank import Method, Sum\n\n"
        "@dataclass(frozen=True)\nclass Shy(Method):\n"
        "    uploads = {'sizes': 'its size'}\n\n"
        "    def begin(self, server):\n        server.own = {'n': server.ask(self.sizes)['sizes']['n']}\n\n"
        "    def sizes(self, client):\n        if client.id == 1:\n            raise OSError('locked')\n"
        "        return {'sizes': Sum({'n': torch.tensor(client.n)})}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    values = {**SMALL, "train.criterion": "", "method.name": "censuses:Shy"}
    with pytest.raises(ClientFailed, match=r"client 1.*locked"):
        fullrank.run(values, "stops")
    run = fullrank.run({**values, "run.on_client_error": "skip"}, "skips")
    assert run.metrics[0]["skipped"] == {"1": "OSError: locked"}
    assert "skipped" not in run.metrics[1]
