"""Federated averaging with FedDecorr, written out as one plain PyTorch loop over the parts of the library.

    python examples/fedavg_by_hand.py

trains a small network with BatchNorm on handwritten digits that are divided among ten clients, five of which take part
in each round. It uses neither the server nor the engines nor the training loop of the library, but it draws the same
random numbers (partition, first weights, clients of a round, their batches), so it prints the accuracies of

    fullrank run examples/fedavg_by_hand.toml

and ends with the same weights: no value differs by more than 1e-8. Both train in float64: FedDecorr divides by the
standard deviation of each feature, which may be close to 0, so rounding errors of float32 grow visible within rounds.
"""

import copy

import torch
from torch.nn.functional import cross_entropy

from fullrank import models
from fullrank.data import Pipeline, load_dataset, partition
from fullrank.local.plan import make_plan
from fullrank.local.settings import Settings
from fullrank.objectives import decorrelation
from fullrank.randomness import generator, seeded

SEED = 0
ROUNDS, CLIENTS, PARTICIPATION = 5, 10, 5
LOCAL = Settings(epochs=1, batch_size=32, lr=0.02, momentum=0.9)
BETA = 0.1  # the weight of FedDecorr's term


def main():
    # The data: clients[k] holds the positions of client k's samples in the training set.
    data = load_dataset("digits")
    clients = partition.dirichlet(data.train.y, CLIENTS, alpha=0.5, seed=SEED)
    prepare = Pipeline.build(data)  # scales and normalises images; the digits are not augmented
    x, x_test = (prepare(split.x, None, torch.float64) for split in (data.train, data.test))
    y, y_test = data.train.y, data.test.y

    with seeded(SEED, "model"):  # torch's global generator follows this key inside
        model = models.build("cnn", data.num_classes, data.in_channels, norm="batch").double()

    for round in range(ROUNDS):
        chosen = generator(SEED, "clients", round).choice(CLIENTS, PARTICIPATION, replace=False)
        states, sizes = [], []
        for client in chosen:
            own = torch.from_numpy(clients[client])
            batches = draw_batches(len(own), round, client)
            states.append(train_locally(copy.deepcopy(model), x[own], y[own], batches))
            sizes.append(len(own))
        model.load_state_dict(weighted_mean(states, sizes))
        print(f"round {round + 1}/{ROUNDS}  accuracy {100 * accuracy(model, x_test, y_test):.2f} %")
    return model


def draw_batches(samples, round, client):
    """Shuffle a client's samples and cut them into batches, as the library does for this client in this round."""
    rng = generator(SEED, "batches", round, client, "fit-0")
    plan = make_plan(samples, LOCAL, rng, batch_norm=True)  # a last batch too small for BatchNorm is left out
    return torch.from_numpy(plan.index).split(plan.sizes)


def train_locally(model, x, y, batches):
    """Minimise cross-entropy plus FedDecorr's term, which decorrelates the features z that enter the classifier."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LOCAL.lr, momentum=LOCAL.momentum)
    for batch in batches:
        logits, z, _ = model.represent(x[batch])
        loss = cross_entropy(logits, y[batch]) + BETA * decorrelation(z, scale="paper")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


def weighted_mean(states, sizes):
    """Average weights and BatchNorm statistics by number of samples; BatchNorm's counters take the maximum."""
    weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    mean = {}
    for name, first in states[0].items():
        values = torch.stack([state[name] for state in states])
        mean[name] = torch.tensordot(weights, values, dims=1) if first.is_floating_point() else values.amax(0)
    return mean


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).double().mean().item()


if __name__ == "__main__":
    main()
