"""The client half of the Flower contestant, in a separate module because Ray's actors import it."""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import RaceTask
from torch.nn.functional import cross_entropy

app = ClientApp()


@cache
def parts():
    """Load the parts once per actor, as a careful user would."""
    torch.set_num_threads(1)
    task = RaceTask(os.environ["FULLRANK_BENCH_TASK"])
    return task, task.network()


@app.train()
def train(message, context):
    task, network = parts()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    network.train()
    x, y = task.client(message.content["config"]["client"])
    optimizer = torch.optim.SGD(network.parameters(), lr=task.lr)
    steps = 0
    for _ in range(task.epochs):
        for rows in torch.randperm(len(y)).split(task.batch_size):
            optimizer.zero_grad()
            cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            steps += 1
    content = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y), "steps": steps}),
    }
    return Message(content=RecordDict(content), reply_to=message)
