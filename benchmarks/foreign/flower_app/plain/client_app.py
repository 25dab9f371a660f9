"""Flower's own FedAvg at a site: an ordinary training loop."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fullrank.data import load_dataset
from fullrank.models import build

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net = build("cnn", num_classes=10, in_channels=1)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    site, data = int(context.node_config["partition-id"]), load_dataset("digits").train
    x, y = data.x[site::2].float() / 255, data.y[site::2]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(int(context.run_config["steps"])):
        rows = torch.randint(0, len(y), (int(context.run_config["batch"]),))
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
