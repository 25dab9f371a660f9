"""A task run by Flower's simulation on Ray, two actors: `python flwr_round.py TASK`, inside Flower's environment.

As many nodes are registered as there are clients. Flower's own sampling could not follow the plan, so the server takes
any nodes and tells each which client it is this time.
"""

import os
import sys
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr_client import app as client_app
from task import RaceTask, mark

server_app = ServerApp()


class Planned(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        nodes = list(grid.get_node_ids())
        cohort = task.cohorts[server_round - 1]
        return [
            Message(
                content=RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})}),
                message_type="train",
                dst_node_id=node,
            )
            for node, client in zip(nodes, cohort, strict=False)
        ]

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        assert not failed, failed[0]
        assert len(replies) == len(task.cohorts[0])
        arrays, metrics = super().aggregate_train(server_round, replies)
        steps = sum(int(reply.content["metrics"]["steps"]) for reply in replies)
        mark(round=server_round, steps=steps)
        return arrays, metrics


@server_app.main()
def play(grid, context):
    network = task.network()
    strategy = Planned(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=len(task.cohorts[0]),
        min_available_nodes=task.clients,
    )
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(network.state_dict()), num_rounds=task.rounds)
    network.load_state_dict(result.arrays.to_torch_state_dict())
    mark(loss=task.loss(network), versions={name: version(name) for name in ("flwr", "ray", "torch")})


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["FULLRANK_BENCH_TASK"] = sys.argv[1]  # for the actors
    task = RaceTask(sys.argv[1])
    run_simulation(
        server_app,
        client_app,
        num_supernodes=task.clients,
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
