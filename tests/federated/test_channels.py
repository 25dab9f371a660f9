from fractions import Fraction

import numpy as np
import pytest
import torch

from fullrank import Mean, Sum
from fullrank.channels import Reduction, Traffic, Unusable
from fullrank.errors import InputError
from fullrank.trees import flatten

NAN, INF = float("nan"), float("inf")


def reduced(uploads):
    reduction = Reduction()
    for upload in uploads:
        reduction.add(upload)
    return reduction.result()


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


def test_the_reduction_owns_its_sums():
    value = torch.ones(2)
    counter = torch.tensor(4)
    reduction = Reduction()
    reduction.add({"": {"w": Mean({"v": value, "n": counter}, 2)}})
    value.fill_(50)
    counter.fill_(50)
    result = reduction.result()[""]["w"]
    assert result["v"].tolist() == [1.0, 1.0]
    assert result["n"].item() == 4
    assert reduction.result()[""]["w"]["v"].tolist() == [1.0, 1.0]  # asking twice changes nothing


def upload(v=(1.0, 2.0), n=3, weight=2.0, s=1.0):
    """What a well-behaved client sends."""
    return {
        "": {"w": Mean({"v": torch.tensor(v), "n": torch.tensor(n)}, weight)},
        "m": {"s": Sum({"x": torch.tensor(s)}), "t": Mean({"y": torch.tensor(s)}, 1.0)},
    }


def changed(space, name, part):
    other = upload()
    other[space] = {**other[space], name: part}
    return other


BAD = {
    "not finite": (changed("m", "t", Mean({"y": torch.tensor(NAN)}, 1.0)), "in its m/t, y is not finite"),
    "infinite": (upload(v=(INF, 1.0)), "in its w, v is not finite"),
    "a space is missing": ({"": upload()[""]}, "differ from the other clients' in m/s, m/t"),
    "a name is missing": ({**upload(), "m": {"s": upload()["m"]["s"]}}, "differ from the other clients' in m/t"),
    "a name too many": (changed("m", "u", Sum({"x": torch.tensor(1.0)})), "differ from the other clients' in m/u"),
    "an entry is missing": (changed("", "w", Mean({"v": torch.ones(2)}, 2.0)), "in its w, n is missing"),
    "an entry too many": (
        changed("m", "s", Sum({"x": torch.tensor(1.0), "z": torch.tensor(1.0)})),
        "in its m/s, z is not expected",
    ),
    "a shape": (changed("m", "t", Mean({"y": torch.ones(1)}, 1.0)), r"in its m/t, y has shape \(1,\) instead of \(\)"),
    "a kind of upload": (changed("m", "t", Sum({"y": torch.tensor(1.0)})), "m/t is a Sum, other clients' a Mean"),
    "no kind of upload": (changed("m", "t", {"y": torch.tensor(1.0)}), "m/t is a dict; uploads are a Sum or a Mean"),
    "a kind of number": (changed("m", "t", Mean({"y": torch.tensor(1)}, 1.0)), "y is not of the expected kind"),
    "a counter with a fraction": (upload(n=3.5), "in its w, n is not of the expected kind"),
    "a negative weight": (upload(weight=-1.0), "the weight of its w is -1"),
    "a weight that is no number": (upload(weight=NAN), "the weight of its w is nan"),
    "an infinite weight": (changed("m", "t", Mean({"y": torch.tensor(1.0)}, INF)), "the weight of its m/t is inf"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_rejected_upload_leaves_the_sums_untouched(what):
    bad, sentence = BAD[what]
    reduction = Reduction()
    reduction.add(upload())
    with pytest.raises(Unusable, match=sentence):
        reduction.add(bad)
    assert reduction.clients == 1
    reduction.add(upload(v=(3.0, 4.0), n=1, weight=6.0, s=5.0))
    result = reduction.result()
    assert reduction.clients == 2
    assert {path: value.tolist() for path, value in flatten(result).items()} == {
        "/w/v": [2.5, 3.5],
        "/w/n": 3,
        "m/s/x": 6.0,
        "m/t/y": 3.0,
    }


@pytest.mark.parametrize("what", ["not finite", "infinite", "no kind of upload", "a negative weight"])
def test_the_first_upload_is_rejected_as_well(what):
    reduction = Reduction()
    with pytest.raises(Unusable):
        reduction.add(BAD[what][0])
    assert reduction.clients == 0
    assert reduction.result() == {}


def test_the_models_own_part_must_look_like_the_model_from_the_first_client_on():
    expected = {"w": {"v": torch.zeros(2), "n": torch.tensor(0)}}
    reduction = Reduction()
    reduction.add(upload(), expected)
    for wrong in ({"v": torch.zeros(3), "n": torch.tensor(0)}, {"v": torch.zeros(2), "m": torch.tensor(0)}):
        with pytest.raises(Unusable, match="in its w"):
            Reduction().add(upload(), {"w": wrong})


def test_a_mean_of_weights_that_are_all_0_does_not_exist():
    reduction = Reduction()
    reduction.add(model([1.0], 0.0))
    with pytest.raises(Unusable, match="the weights of all clients' w are 0"):
        reduction.result()
    assert issubclass(Unusable, InputError)  # so that the command line prints the sentence alone


def test_elements_and_bytes_are_counted_as_sent():
    traffic = Traffic()
    traffic.count_down({"w": {"a": torch.zeros(3, 4)}, "sent": {"m": {"c": torch.zeros(5, dtype=torch.float64)}}})
    traffic.count_down({"w": {"a": torch.zeros(3, 4)}, "frozen": {}})
    assert (traffic.elements_down, traffic.bytes_down) == (12 + 5 + 12, 48 + 40 + 48)
    traffic.count_up(
        {
            "": {
                "w": Mean({"a": torch.zeros(3, 4, dtype=torch.bfloat16)}, 1e9),  # a weight is not counted
                "buffers": Mean({"n": torch.tensor(0)}, 1),
            },
            "m": {"mask": Sum({"has": torch.zeros(10, dtype=torch.bool)})},
        }
    )
    assert (traffic.elements_up, traffic.bytes_up) == (12 + 1 + 10, 24 + 8 + 10)


def test_a_rejected_upload_is_no_example_for_others():
    sums = Reduction()
    with pytest.raises(Unusable, match="not finite"):
        sums.add({"m": {"c": Sum({"a": torch.tensor([torch.nan])})}})
    sums.add({"m": {"c": Sum({"a": torch.arange(4.0)})}})
    with pytest.raises(Unusable, match=r"a has shape \(1,\) instead of \(4,\)"):
        sums.add({"m": {"c": Sum({"a": torch.tensor([5.0])})}})
    assert sums.result()["m"]["c"]["a"].tolist() == [0, 1, 2, 3]


def test_sparse_uploads_are_summed():
    sums = Reduction()
    for _ in range(2):
        sums.add({"m": {"c": Sum({"a": torch.eye(2).to_sparse()})}})
    assert sums.result()["m"]["c"]["a"].tolist() == [[2, 0], [0, 2]]
