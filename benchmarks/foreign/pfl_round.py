"""A task run by pfl-research's simulator, in one process: `python pfl_round.py TASK`, inside pfl's environment."""

import sys
import types
from importlib.metadata import version

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from task import RaceTask, mark
from torch.nn.functional import cross_entropy

made = 0


def loss(self, x, y, eval=False):
    global made
    self.eval() if eval else self.train()
    made += not eval
    return cross_entropy(self(x), y)


def metrics(self, x, y, eval=True):
    return {}


class Marks(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        global made
        mark(round=central_iteration + 1, steps=made)
        made = 0
        return False, Metrics()


def main(path):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    task = RaceTask(path)
    network = task.network()
    network.loss = types.MethodType(loss, network)
    network.metrics = types.MethodType(metrics, network)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    turns = iter([client for cohort in task.cohorts for client in cohort])

    def dataset(client):
        return Dataset(raw_data=list(task.client(client)), user_id=str(client))

    data = FederatedDataset(dataset, lambda: next(turns))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser()])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,  # only the first round, where `metrics` has nothing to do
            train_cohort_size=len(task.cohorts[0]),
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=task.lr, local_num_epochs=task.epochs, local_batch_size=task.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=task.batch_size),
        callbacks=[Marks()],
    )
    assert next(turns, None) is None, "pfl did not train the clients of the plan"
    mark(loss=task.loss(model.pytorch_model), versions={name: version(name) for name in ("pfl", "torch")})


if __name__ == "__main__":
    main(sys.argv[1])
