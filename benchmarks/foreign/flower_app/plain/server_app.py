"""Flower's own FedAvg at the server; the seconds of each round go into a file."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fullrank.models import build

app = ServerApp()


class Timed(FedAvg):
    """FedAvg that notes when each round began and ended."""

    seconds: list

    def configure_train(self, server_round, arrays, config, grid):
        self.start = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        self.seconds.append(time.perf_counter() - self.start)
        return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(fraction_evaluate=0.0)
    strategy.seconds = []
    start = ArrayRecord(build("cnn", num_classes=10, in_channels=1).state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=int(context.run_config["rounds"]))
    Path(context.run_config["out"]).write_text(json.dumps(strategy.seconds))
