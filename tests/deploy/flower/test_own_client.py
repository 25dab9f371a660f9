"""The example of somebody's own Flower client gives the numbers of fullrank's own methods."""

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fullrank import fit

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower_client"
SITES = 3


class Direct(Grid):
    """Flower's grid without a network: messages go to the ClientApp in this process."""

    def __init__(self, app, config):
        self.app, self.config, self.waiting = app, config, {}

    def set_run(self, run):
        raise NotImplementedError

    run = None

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return list(range(1, SITES + 1))

    def push_messages(self, messages):
        tickets = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = ticket = f"{len(self.waiting)}-{node}"
            context = Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - 1},
                state=RecordDict(),
                run_config=self.config,
            )
            self.waiting[ticket] = self.app(message, context)
            tickets.append(ticket)
        return tickets

    def pull_messages(self, message_ids):
        return [self.waiting.pop(ticket) for ticket in list(message_ids)]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in ("_task_id", "_run_id", "_node_id"):  # which Flower sets in the process of an app
        monkeypatch.setattr(TaskIdentity, name, 1)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
        del sys.modules[name]


@pytest.mark.parametrize("method", ["fedavg", "feddecorr", "fedmr"])
def test_the_example_trains_as_the_method_does(example, method):
    from own import client_app, server_app, task

    config = {"rounds": 3, "method": method}
    state = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    server_app.app(Direct(client_app.app, config), state)
    clients = [task.load_data(site) for site in range(SITES)]
    run = fit(
        task.initial_net(),
        clients,
        f"fedavg+{method}" if method != "fedavg" else method,
        rounds=3,
        epochs=client_app.EPOCHS,
        batch_size=1000,
        lr=client_app.LR,
        momentum=0.0,
        engine="serial",
    )
    expected = run.model().state_dict()
    assert server_app.app.result.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(server_app.app.result[name], value, rtol=0, atol=1e-6)
    start = task.initial_net().state_dict()
    assert max(float((expected[name] - start[name]).abs().max()) for name in start) > 0.1, "it has trained"
