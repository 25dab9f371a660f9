"""An ordinary Flower client. What FedDecorr and FedMR add to it is marked."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fullrank.objectives import class_prototypes, decorrelation, intra_class_decorrelation, prototype_margin
from own.task import CLASSES, Net, load_data

EPOCHS, LR = 5, 0.1
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(int(context.node_config["partition-id"]))
    method = str(context.run_config["method"])
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(EPOCHS):
        z = net.body(x)
        loss = F.cross_entropy(net.head(z), y)
        if method == "feddecorr":
            loss = loss + 0.1 * decorrelation(z)  # FedDecorr: this line
        if method == "fedmr":
            known = message.content["prototypes"].to_torch_state_dict()  # FedMR: what the server knows of the classes
            loss = loss + 0.01 * intra_class_decorrelation(z, y, CLASSES)  # its first loss
            loss = loss + 0.1 * prototype_margin(z, y, known["prototypes"], known["available"])  # its second loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})})
    if method == "fedmr":
        with torch.no_grad():
            sums, counts = class_prototypes(net.body(x), y, CLASSES)  # FedMR: sums over the samples of each class
        reply["classes"] = ArrayRecord({"sums": sums, "counts": counts})
    return Message(content=reply, reply_to=message)
