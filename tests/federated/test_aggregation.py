"""How uploads are combined: the running mean by hand, and an aggregator of a user's."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from fullrank import Mean, Sum
from fullrank.errors import InputError
from fullrank.federated.aggregation import RunningMean

# The running mean


def reduced(uploads):
    aggregator = RunningMean({})
    for client, upload in enumerate(uploads):
        aggregator.add(client, upload)
    return aggregator.result()


def model(values, weight, counter=0):
    return {"": {"w": Mean({"v": torch.tensor(values), "n": torch.tensor(counter)}, weight)}}


def test_sums_and_means_by_hand():
    result = reduced(
        [
            {"": {"w": Mean({"v": torch.tensor([1.0, 10.0])}, 3)}, "m": {"c": Sum({"s": torch.tensor([1.0, 2.0])})}},
            {"": {"w": Mean({"v": torch.tensor([5.0, -2.0])}, 1)}, "m": {"c": Sum({"s": torch.tensor([0.5, -4.0])})}},
        ]
    )
    assert result[""]["w"]["v"].tolist() == [2.0, 7.0]
    assert result["m"]["c"]["s"].tolist() == [1.5, -2.0]
    assert result[""]["w"]["v"].dtype == torch.float32


def test_each_mean_has_its_own_weight():
    result = reduced(
        [
            {"a": {"x": Mean({"v": torch.tensor(0.0)}, 1), "y": Mean({"v": torch.tensor(0.0)}, 3)}},
            {"a": {"x": Mean({"v": torch.tensor(4.0)}, 3), "y": Mean({"v": torch.tensor(4.0)}, 1)}},
        ]
    )
    assert result["a"]["x"]["v"].item() == 3.0
    assert result["a"]["y"]["v"].item() == 1.0


def test_a_client_of_weight_0_counts_for_nothing():
    result = reduced([model([4.0], 2.0), model([1e9], 0.0)])
    assert result[""]["w"]["v"].item() == 4.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_identical_clients_average_to_themselves_to_the_bit(dtype):
    rng = np.random.default_rng(1)
    size = torch.tensor(rng.normal(size=4000) * 10.0 ** rng.uniform(-4, 3, 4000)).to(dtype)
    weights = [*rng.uniform(0.001, 977.7, 300), 1 / 3, 1e-9, 123_457]
    result = reduced([{"": {"w": Mean({"v": size}, weight)}} for weight in weights])
    assert result[""]["w"]["v"].dtype == dtype
    assert torch.equal(result[""]["w"]["v"], size)


def test_identical_float64_clients_average_to_themselves_to_an_ulp():
    rng = np.random.default_rng(2)
    value = torch.tensor(rng.normal(size=2000))
    result = reduced([{"": {"w": Mean({"v": value}, weight)}} for weight in (7, 13, 1, 1 / 3, 29)])
    mean = result[""]["w"]["v"].numpy()
    assert np.all(np.abs(mean - value.numpy()) <= 4 * np.spacing(np.abs(value.numpy())))
    # sample counts are powers of two times small numbers: their sums lose nothing
    exact = reduced([{"": {"w": Mean({"v": value}, weight)}} for weight in (8, 16, 8)])
    assert torch.equal(exact[""]["w"]["v"], value)


def test_means_of_float32_are_the_exact_mean_rounded_once():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(40, 50)).astype(np.float32)
    weights = [int(n) for n in rng.integers(1, 5000, 40)]
    result = reduced([{"": {"w": Mean({"v": torch.from_numpy(v)}, n)}} for v, n in zip(values, weights, strict=True)])
    for column in range(50):
        exact = sum(Fraction(float(v)) * n for v, n in zip(values[:, column], weights, strict=True)) / sum(weights)
        assert result[""]["w"]["v"][column].item() == np.float32(float(exact))


def test_a_sum_keeps_what_float32_would_lose():
    ones = [{"m": {"s": Sum({"v": torch.tensor([1.0])})}} for _ in range(64)]
    result = reduced([{"m": {"s": Sum({"v": torch.tensor([2.0**24])})}}, *ones])
    assert result["m"]["s"]["v"].item() == 2.0**24 + 64


def test_counters_of_a_mean_take_the_maximum():
    assert reduced([model([0.0], 5, 3), model([0.0], 1, 9), model([0.0], 3, 4)])[""]["w"]["n"].item() == 9
    assert reduced([model([0.0], 5, -3), model([0.0], 1, -2)])[""]["w"]["n"].item() == -2


def test_integers_of_a_sum_add_exactly_and_never_wrap():
    big = 2**60 + 1
    upload = {"m": {"s": Sum({"n": torch.tensor([big]), "byte": torch.tensor([200], dtype=torch.uint8)})}}
    result = reduced([upload] * 3)
    assert result["m"]["s"]["n"].tolist() == [3 * big]
    assert result["m"]["s"]["byte"].tolist() == [600]


def test_a_sum_of_masks_counts_them():
    masks = [[True, False, True], [True, False, False]]
    result = reduced([{"m": {"s": Sum({"has": torch.tensor(mask)})}} for mask in masks])
    assert result["m"]["s"]["has"].tolist() == [2, 0, 1]


def test_nested_and_empty_trees_are_reduced():
    upload = {"m": {"s": Sum({"a": {"b": torch.ones(2)}, "nothing": {}}), "none": Sum({})}}
    result = reduced([upload, upload])
    assert result["m"]["s"]["a"]["b"].tolist() == [2.0, 2.0]
    assert result["m"]["s"]["nothing"] == {}
    assert result["m"]["none"] == {}


def test_the_running_mean_owns_its_sums():
    value = torch.ones(2)
    counter = torch.tensor(4)
    aggregator = RunningMean({})
    aggregator.add(0, {"": {"w": Mean({"v": value, "n": counter}, 2)}})
    value.fill_(50)
    counter.fill_(50)
    result = aggregator.result()[""]["w"]
    assert result["v"].tolist() == [1.0, 1.0]
    assert result["n"].item() == 4
    assert aggregator.result()[""]["w"]["v"].tolist() == [1.0, 1.0]  # asking twice changes nothing


def test_a_mean_of_weights_that_are_all_0_does_not_exist():
    aggregator = RunningMean({})
    aggregator.add(0, model([1.0], 0.0))
    with pytest.raises(InputError, match="the weights of all clients' w are 0"):
        aggregator.result()


def test_sparse_uploads_are_summed():
    upload = {"m": {"c": Sum({"a": torch.eye(2).to_sparse()})}}
    assert reduced([upload] * 2)["m"]["c"]["a"].tolist() == [[2, 0], [0, 2]]
