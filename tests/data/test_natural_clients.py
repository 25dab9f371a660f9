"""Clients that the data name: writers, hospitals."""

import numpy as np
import pytest
import torch

from fullrank import Experiment
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import divide
from fullrank.errors import InputError


def data_set():
    y = torch.tensor([0, 1, 0, 1, 1])
    train = Split(torch.arange(10.0).view(5, 2), y, client=torch.tensor([2, 0, 2, 0, 2]))
    test = Split(torch.ones(3, 2), y[:3], client=torch.tensor([0, 2, 2]))
    return DataSet("mine", train, test, ("a", "b"), clients=("x", "y", "z"))


def divided(clients=0, **keys):
    experiment = Experiment(data={"partition": "natural", "clients": clients, **keys})
    return divide(data_set(), Pipeline(), "natural", {**experiment.data.model_dump(), "seed": 0})


def test_each_natural_client_is_a_client_with_its_own_test_samples():
    federation = divided()
    assert [part.tolist() for part in federation.parts] == [[1, 3], [0, 2, 4]]
    assert [part.tolist() for part in federation.tests] == [[0], [1, 2]]
    assert federation.names == ("x", "z")


def test_their_number_follows_from_the_data_unless_it_is_given():
    assert Experiment(data={"partition": "natural"}).data.clients == 0
    assert Experiment(data={"partition": "natural", "clients": 2}).data.clients == 2
    assert Experiment().data.clients == 10
    assert divided(clients=2).clients == 2
    with pytest.raises(InputError, match=r"data\.clients = 3: natural divides the data among 2 clients"):
        divided(clients=3)


def test_data_without_natural_clients_are_rejected():
    data = data_set()
    bare = DataSet("mine", data.train.take(torch.from_numpy(np.arange(5))), None, ("a", "b"))
    object.__setattr__(bare.train, "client", None)
    with pytest.raises(InputError, match="the data set has no natural"):
        divide(bare, Pipeline(), "natural", {**Experiment(data={"partition": "natural"}).data.model_dump(), "seed": 0})
