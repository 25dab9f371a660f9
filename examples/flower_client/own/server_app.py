"""Flower's own FedAvg; for FedMR, with class prototypes in addition to the weights."""

import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from own.task import CLASSES, FEATURES, initial_net

app = ServerApp()


class FedMR(FedAvg):
    """FedAvg that also sends the mean feature of each class, over the samples of all clients."""

    def __init__(self, **keys):
        super().__init__(**keys)
        self.prototypes = torch.zeros(CLASSES, FEATURES)
        self.available = torch.zeros(CLASSES, dtype=torch.bool)

    def configure_train(self, server_round, arrays, config, grid):
        known = ArrayRecord({"prototypes": self.prototypes, "available": self.available})
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:  # all messages of a round share one content: each gets its own
            message.content = RecordDict({**message.content, "prototypes": known})
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        # FedAvg accepts exactly one ArrayRecord per reply, so the classes are taken out before it sees the replies.
        classes = [reply.content.pop("classes").to_torch_state_dict() for reply in replies if reply.has_content()]
        sums, counts = (sum(table[name].double() for table in classes) for name in ("sums", "counts"))
        means = (sums / counts.clamp(min=1)[:, None]).float()
        self.prototypes = torch.where((counts > 0)[:, None], means, self.prototypes)
        self.available = self.available | (counts > 0)
        return super().aggregate_train(server_round, replies)


@app.main()
def main(grid: Grid, context: Context) -> None:
    kind = FedMR if context.run_config["method"] == "fedmr" else FedAvg
    strategy = kind(fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(initial_net().state_dict()), num_rounds=int(context.run_config["rounds"])
    )
    app.result = result.arrays.to_torch_state_dict()
