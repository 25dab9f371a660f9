"""Data sets: what is loaded, how it is split, and what is rejected."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fullrank.data import DataSet, Split, as_split, load_dataset
from fullrank.data.split import split_by_class
from fullrank.errors import CallFailed, InputError

# digits


def test_digits_are_those_of_scikit_learn():
    digits = load_dataset("digits")
    theirs = load_digits()
    # v·255/16 by hand; the half at 8 goes to the even 128
    scaled = np.array([0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255], np.uint8)
    keep, taken = split_by_class(theirs.target, 0.2, 0)
    pixels = scaled[theirs.images.astype(int)][:, None]
    assert np.array_equal(digits.train.x.numpy(), pixels[keep])
    assert np.array_equal(digits.test.x.numpy(), pixels[taken])
    assert np.array_equal(digits.train.y.numpy(), theirs.target[keep])
    assert np.array_equal(digits.test.y.numpy(), theirs.target[taken])
    assert digits.train.x.dtype == torch.uint8
    assert digits.train.y.dtype == torch.int64


def test_digits_split_and_description():
    digits = load_dataset(seed=5)
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    # 0.2 · (178 182 177 183 181 182 181 179 174 180): floors sum to 355; the five that are missing go to the
    # remainders .8 (classes 7, 8), .6 (0, 3) and the lowest class of those with .4 (1)
    assert digits.test.y.bincount().tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert digits.classes == tuple("0123456789")
    assert digits.num_classes == 10
    assert digits.in_channels == 1
    assert digits.input_shape == (1, 8, 8)
    assert digits.images
    assert digits.augment == ()
    scaled = digits.train.x.numpy() / 255
    assert digits.mean == (round(scaled.mean(), 4),)
    assert digits.std == (round(scaled.std(), 4),)


def test_digits_split_is_the_same_for_every_seed_and_pinned():
    first, second = load_dataset("digits", seed=0), load_dataset("digits", seed=1)
    assert first.fingerprint() == second.fingerprint()
    # published results name this split: it may not move
    assert first.fingerprint() == "b71d7ec4e94b6f76ef8ae4426f7a6893995dd5333fa076b61b0b48ff977b3ff5"


# splitting


def test_split_by_class_counts_by_hand():
    y = torch.tensor([0] * 7 + [1] * 5 + [2] * 3)
    keep, taken = split_by_class(y, 0.3, seed=3)
    # ceil(.3 · 15) = 5; quotas 2.1 1.5 .9 -> floors 2 1 0, the two missing go to remainders .9 and .5
    assert np.bincount(y[taken]).tolist() == [2, 2, 1]
    assert np.array_equal(np.sort(np.concatenate([keep, taken])), np.arange(15))
    assert (np.diff(keep) > 0).all()
    assert (np.diff(taken) > 0).all()


def test_split_by_class_ties_go_to_the_lower_class():
    y = np.repeat([0, 1, 2, 3], 3)
    # ceil(.5 · 12) = 6, quotas 1.5 each: the two missing go to classes 0 and 1
    assert np.bincount(y[split_by_class(y, 0.5, 0)[1]]).tolist() == [2, 2, 1, 1]


def test_split_by_class_counts_in_decimals():
    # 0.07 · 100 is above 7 in binary floating point
    assert len(split_by_class(np.zeros(100, int), 0.07, 0)[1]) == 7


def test_split_by_class_never_takes_the_last_sample():
    y = np.array([0, 0, 1, 2, 2, 2])
    # quotas 1.8 .9 2.7 -> floors 1 0 2, two more of ceil(5.4) = 6 to give, but every class is down to one
    keep, taken = split_by_class(y, 0.9, 0)
    assert np.bincount(y[keep]).tolist() == [1, 1, 1]
    assert len(taken) == 3
    # a class of one sample passes its turn on: 0.2 · (5, 1) is 1 and 0.2, of 2 in all
    y = np.array([0, 0, 0, 0, 0, 1])
    assert np.bincount(y[split_by_class(y, 0.2, 0)[1]], minlength=2).tolist() == [2, 0]


def test_split_by_class_depends_on_the_seed_only():
    y = torch.arange(200) % 4
    again = [split_by_class(y, 0.25, seed) for seed in (0, 0, 1)]
    assert np.array_equal(again[0][1], again[1][1])
    assert not np.array_equal(again[0][1], again[2][1])
    assert len(split_by_class(y, 0.0, 0)[1]) == 0
    assert len(split_by_class(y, 0.0, 0)[0]) == 200


def test_split_by_class_is_uniform():
    y = np.zeros(20, int)
    taken = np.bincount(np.concatenate([split_by_class(y, 0.25, seed)[1] for seed in range(400)]))
    # each sample is taken 100 times of 400; the standard deviation of that count is 8.7
    assert taken.min() > 60
    assert taken.max() < 140


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_split_by_class_rejects_shares(share):
    with pytest.raises(InputError, match="at least 0 and below 1"):
        split_by_class(np.zeros(4, int), share, 0)


def test_split_by_class_rejects_two_dimensional_labels():
    with pytest.raises(InputError, match="one per sample"):
        split_by_class(np.zeros((4, 1), int), 0.5, 0)


# splits and data sets


def small(**changes):
    train = Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    test = Split(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]))
    return DataSet(**{"name": "small", "train": train, "test": test, "classes": ("a", "b"), **changes})


def test_split_brings_labels_to_int64():
    split = Split(torch.zeros(2, 3), torch.tensor([1, 0], dtype=torch.uint8), group=torch.tensor([3, 4]).int())
    assert split.y.dtype == torch.int64
    assert split.group.dtype == torch.int64
    assert len(split) == 2


def test_split_take():
    split = Split(torch.arange(4.0)[:, None], torch.arange(4), domain=torch.tensor([5, 6, 7, 8]))
    part = split.take(torch.tensor([3, 1]))
    assert part.x.tolist() == [[3.0], [1.0]]
    assert part.y.tolist() == [3, 1]
    assert part.domain.tolist() == [8, 6]
    assert part.group is None


@pytest.mark.parametrize(
    ("x", "y", "more", "words"),
    [
        (torch.zeros(0, 2), torch.zeros(0).long(), {}, "no sample"),
        (torch.tensor(1.0), torch.tensor([0]), {}, "no sample"),
        (torch.zeros(2, 2), torch.tensor([0, 1, 1]), {}, "x has 2 samples, but y has 3"),
        (torch.zeros(2, 2), torch.tensor([0.0, 1.0]), {}, "y is torch.float32"),
        (torch.zeros(2, 2), torch.tensor([True, False]), {}, "y is torch.bool"),
        (torch.zeros(2, 2), torch.tensor([[0], [1]]), {}, r"y is torch.int64 of shape \(2, 1\)"),
        (torch.zeros(2, 2), torch.tensor([0, 1]), {"domain": torch.zeros(3).long()}, "domain has 3"),
        (torch.zeros(2, 2), torch.tensor([0, 1]), {"group": torch.zeros(2)}, "group is torch.float32"),
        (torch.tensor([[0.0], [1.0], [torch.nan], [torch.inf]]), torch.zeros(4).long(), {}, "sample 2 of x"),
        (torch.tensor([0.0, -torch.inf]), torch.zeros(2).long(), {}, "sample 1 of x"),
    ],
)
def test_split_rejects(x, y, more, words):
    with pytest.raises(InputError, match=words):
        Split(x, y, **more)


def test_not_finite_is_found_in_a_later_chunk(monkeypatch):
    monkeypatch.setattr("fullrank.data.dataset._CHUNK_BYTES", 8)
    x = torch.zeros(9, 2)
    x[7, 1] = torch.nan
    with pytest.raises(InputError, match="sample 7 of x"):
        Split(x, torch.zeros(9).long())


def test_dataset_of_features_and_without_test():
    data = DataSet("rows", Split(torch.zeros(2, 5), torch.tensor([0, 1])), None, ("a", "b"))
    assert (data.in_channels, data.input_shape, data.images) == (1, (5,), False)
    assert len(data.fingerprint()) == 64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ("a",)}, "sample 1 of the train split has label 1; with 1 classes"),
        ({"classes": ()}, "no classes"),
        (
            {"test": Split(torch.zeros(2, 1, 2, 2).byte(), torch.tensor([1, -1]))},
            "sample 1 of the test split has label -1; with 2 classes it must lie in 0..1",
        ),
        ({"test": Split(torch.zeros(2, 1, 2, 2), torch.tensor([0, 1]))}, "both must be equal"),
        ({"test": Split(torch.zeros(2, 1, 2, 3).byte(), torch.tensor([0, 1]))}, r"\(1, 2, 3\)"),
        ({"mean": (0.5,)}, "only one of mean and std"),
        (
            {
                "domains": ("here",),
                "train": Split(torch.zeros(1, 1, 2, 2).byte(), torch.tensor([0]), domain=torch.tensor([1])),
            },
            "sample 0 of the train split has domain 1; with 1 domains",
        ),
    ],
)
def test_dataset_rejects(changes, words):
    with pytest.raises(InputError, match=words):
        small(**changes)


# fingerprints


def pictures(x=None, y=None, classes=("a", "b"), **columns):
    x = torch.arange(48, dtype=torch.uint8).reshape(4, 3, 2, 2) if x is None else x
    y = torch.tensor([0, 1, 0, 1]) if y is None else y
    return DataSet("pictures", Split(x, y, **columns), Split(x[:2].clone(), y[:2].clone()), classes)


def test_fingerprint_is_of_the_content_not_of_its_layout(monkeypatch):
    plain = pictures().fingerprint()
    x = torch.arange(48, dtype=torch.uint8).reshape(4, 3, 2, 2)
    assert pictures(x.to(memory_format=torch.channels_last)).fingerprint() == plain
    twice = torch.stack([x, x], dim=1)[:, 1]
    assert not twice.is_contiguous()
    assert pictures(twice, torch.tensor([0, 9, 1, 9, 0, 9, 1, 9])[::2]).fingerprint() == plain
    monkeypatch.setattr("fullrank.data.dataset._CHUNK_BYTES", 7)
    assert pictures().fingerprint() == plain


def test_fingerprint_changes_with_anything_in_it():
    x = torch.arange(48, dtype=torch.uint8).reshape(4, 3, 2, 2)
    one_byte = x.clone()
    one_byte[3, 2, 1, 1] += 1
    ids = torch.tensor([0, 0, 1, 1])
    every = [
        pictures(),
        pictures(one_byte),
        pictures(x.reshape(4, 2, 3, 2)),
        pictures(x.to(torch.int8)),
        pictures(y=torch.tensor([0, 1, 1, 1])),
        pictures(classes=("a", "c")),
        pictures(classes=("a", "b", "c")),
        pictures(domain=ids),
        pictures(group=ids),
        DataSet("pictures", pictures().train, None, ("a", "b")),
    ]
    assert len({data.fingerprint() for data in every}) == len(every)


def test_fingerprint_ignores_the_name_and_is_computed_once(monkeypatch):
    data = small()
    first = data.fingerprint()
    assert small(name="other").fingerprint() == first
    monkeypatch.setattr("fullrank.data.dataset._chunks", None)
    assert data.fingerprint() == first


def test_fingerprint_of_dtypes_without_numpy():
    rows = Split(torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor([0, 1]))
    assert len(DataSet("rows", rows, None, ("a", "b")).fingerprint()) == 64


# data in memory


def test_pair_of_tensors_is_split():
    x = torch.arange(20.0, dtype=torch.float64)[:, None]
    y = torch.arange(20) % 2
    data = load_dataset((x, y), seed=7)
    keep, taken = split_by_class(y, 0.2, 7)
    assert torch.equal(data.train.x, x[keep])
    assert torch.equal(data.test.x, x[taken])
    assert data.train.x.dtype == torch.float64
    assert data.classes == ("0", "1")
    assert len(data.test) == 4


def test_pair_of_arrays_and_num_classes():
    data = load_dataset((np.zeros((10, 3), np.int32), np.arange(10) % 2), num_classes=5)
    assert data.classes == ("0", "1", "2", "3", "4")
    assert data.train.x.dtype == torch.int32
    assert data.mean is None


def test_pair_of_pairs():
    data = load_dataset(((np.zeros((3, 2)), np.array([0, 1, 0])), [torch.ones(2, 2).double(), torch.tensor([0, 3])]))
    assert (len(data.train), len(data.test), data.num_classes) == (3, 2, 4)
    assert data.train.x.dtype == torch.float64


def test_a_data_set_is_returned_as_it_is():
    data = small()
    assert load_dataset(data) is data
    assert load_dataset(data, num_classes=2) is data
    with pytest.raises(InputError, match="num_classes is 3, but small has 2 classes"):
        load_dataset(data, num_classes=3)


class Squares(Dataset):
    """Items (i², i mod 2); `spoilt` takes the place of item 3."""

    def __init__(self, spoilt=None, count=10):
        self.spoilt, self.count = spoilt, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i == 3 and self.spoilt is not None:
            return self.spoilt
        return torch.tensor([float(i * i)]), [i % 2, np.int64(i % 2), torch.tensor(i % 2)][i % 3]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_torch_datasets():
    squares = as_split(Squares())
    assert squares.x.tolist() == [[float(i * i)] for i in range(10)]
    assert squares.y.tolist() == [0, 1] * 5
    assert len(load_dataset(Squares()).test) == 2
    pair = load_dataset((Squares(), Squares(count=4)))
    assert (len(pair.train), len(pair.test)) == (10, 4)
    assert as_split(Subset(Squares(), [2, 5])).x.tolist() == [[4.0], [25.0]]


def test_tensor_datasets_are_not_copied():
    x, y = torch.randn(6, 2), torch.arange(6)
    assert as_split(TensorDataset(x, y)).x.data_ptr() == x.data_ptr()
    nested = as_split(Subset(Subset(TensorDataset(x, y), [5, 3, 1]), [2, 0]))
    assert nested.y.tolist() == [1, 5]
    assert torch.equal(nested.x, x[[1, 5]])


def test_arrays_of_any_layout():
    backwards = np.arange(6.0).reshape(3, 2)[::-1]
    locked = np.array([0, 1, 2], dtype=">i4")
    locked.flags.writeable = False
    split = as_split((backwards, locked))
    assert split.x.tolist() == [[4.0, 5.0], [2.0, 3.0], [0.0, 1.0]]
    assert split.y.tolist() == [0, 1, 2]


def test_tensors_that_require_gradients_are_detached():
    assert not as_split((torch.zeros(2, 2, requires_grad=True), torch.tensor([0, 1]))).x.requires_grad


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Squares(spoilt=torch.zeros(1)), "item 3 is a Tensor, not a pair"),
        (Squares(spoilt={"x": 0}), "item 3 is a dict, not a pair"),
        (Squares(spoilt=(torch.zeros(1), 0, 1)), "item 3 is a tuple, not a pair"),
        (Squares(spoilt=(torch.zeros(1), 0.5)), "y of item 3 is 0.5"),
        (Squares(spoilt=("text", 0)), "x of item 3 is a str"),
        (Squares(spoilt=(torch.zeros(2), 0)), r"item 3 is torch.float32 of shape \(2,\) and item 0"),
        (Squares(spoilt=(torch.zeros(1).int(), 0)), "item 3 is torch.int32"),
        (Squares(count=0), "Squares is empty"),
        (TensorDataset(torch.zeros(2)), "TensorDataset of 1 tensors"),
        ((torch.zeros(2, 2), [0, 1]), "y is a list"),
        ((torch.zeros(2, 2), np.array(["a", "b"])), "y is an array of <U1; it must hold numbers"),
        ((np.array([None, 1]), np.array([0, 1])), "x is an array of object"),
        ((np.zeros((2, 2), np.longdouble), np.array([0, 1])), "which torch does not have"),
        ((torch.zeros(2), torch.zeros(2).long(), torch.zeros(2)), "tuple cannot be used as data"),
        (torch.zeros(2), "Tensor cannot be used as data"),
        (Stream(), "Stream cannot be used"),
        (7, "int cannot be used as data"),
        ({"x": 1}, "dict cannot be used as data"),
    ],
)
def test_as_split_rejects(data, words):
    with pytest.raises(InputError, match=words):
        as_split(data)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ((torch.zeros(3, 1), torch.arange(3)), "no class has two samples"),
        ((torch.zeros(4, 1), torch.tensor([0, 0, 0, 2**40])), "largest label is 1099511627776"),
        ((torch.zeros(4, 1), torch.tensor([-1, -1, -1, -1])), "has label -1"),
        (
            ((torch.zeros(2), torch.zeros(2).long()), (torch.zeros(2), torch.zeros(3).long())),
            "^test split: x has 2",
        ),
        ((Squares(), 3), "^test split: int cannot be used"),
    ],
)
def test_load_dataset_rejects_data_in_memory(source, words):
    with pytest.raises(InputError, match=words):
        load_dataset(source)


def test_load_dataset_rejects_num_classes():
    pair = (torch.zeros(8, 1), torch.arange(8) % 4)
    with pytest.raises(InputError, match="of the train split has label 3; with 3 classes"):
        load_dataset(pair, num_classes=3)
    with pytest.raises(InputError, match="at least one class"):
        load_dataset(pair, num_classes=0)
    with pytest.raises(InputError, match="digits has 10 classes"):
        load_dataset("digits", num_classes=12)


# images


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [
        ((5, 7), (1, 5, 7)),
        ((5, 7, 3), (3, 5, 7)),
        ((5, 7, 1), (1, 5, 7)),
        ((3, 5, 7), (3, 5, 7)),
        ((1, 5, 7), (1, 5, 7)),
        ((3, 5, 3), (3, 5, 3)),  # could be either: taken as it comes
        ((4, 5, 7), (4, 5, 7)),
        ((7,), (7,)),
    ],
)
def test_image_layouts(stored, loaded):
    values = np.random.default_rng(0).integers(0, 256, (10, *stored), dtype=np.uint8)
    data = load_dataset(((values, np.arange(10) % 2), (values, np.arange(10) % 2)))
    assert data.input_shape == loaded
    moved = len(stored) == 3 and stored != loaded
    expected = np.moveaxis(values, 3, 1) if moved else values.reshape(10, *loaded)
    assert np.array_equal(data.train.x.numpy(), expected)
    assert data.train.x.is_contiguous()


def test_only_8_bit_images_are_rearranged():
    x = np.zeros((10, 5, 7, 3), np.float32)
    assert load_dataset((x, np.arange(10) % 2)).input_shape == (5, 7, 3)
    assert as_split((x.astype(np.uint8), np.arange(10))).x.shape == (10, 5, 7, 3)


# .npz files


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_in_four_arrays(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
    path = save(
        tmp_path / "four.npz",
        x_train=x[:4],
        y_train=np.array([0, 1, 2, 0], np.uint8),
        x_test=x[4:],
        y_test=np.array([1, 2]),
        domain_train=np.array(["sketch", "clip", "sketch", "art"]),
        domain_test=np.array(["clip", "photo"]),
        group_train=np.array([b"p9", b"p1", b"p9", b"p1"]),
        classes=np.array(["cat", "dog", "emu", "fox"]),
        unrelated=np.zeros(3),
    )
    data = load_dataset(path)
    assert np.array_equal(data.train.x.numpy(), np.moveaxis(x[:4], 3, 1))
    assert data.test.y.tolist() == [1, 2]
    assert data.classes == ("cat", "dog", "emu", "fox")
    assert data.domains == ("art", "clip", "photo", "sketch")
    assert data.train.domain.tolist() == [3, 1, 3, 0]
    assert data.test.domain.tolist() == [1, 2]
    assert data.train.group.tolist() == [1, 0, 1, 0]
    assert data.test.group is None
    assert data.name == "four"
    prints = [load_dataset(*how).fingerprint() for how in ((str(path),), ("npz", path), ("four.npz", tmp_path))]
    assert set(prints) == {data.fingerprint()}


def test_npz_in_two_arrays_is_split_by_class_and_seed(tmp_path):
    x, y = np.arange(40, dtype=np.float64).reshape(20, 2), np.arange(20) % 2
    path = save(tmp_path / "two.npz", x=x, y=y, domain=np.array([10, 30])[y])
    data = load_dataset("npz", path, seed=4)
    keep, taken = split_by_class(y, 0.2, 4)
    assert np.array_equal(data.train.x.numpy(), x[keep])
    assert np.array_equal(data.test.x.numpy(), x[taken])
    assert data.train.x.dtype == torch.float64
    assert data.domains == ("10", "30")
    assert torch.equal(data.test.domain, data.test.y)


def test_npz_fingerprint_does_not_depend_on_path_or_compression(tmp_path):
    arrays = {"x": np.arange(40, dtype=np.float32).reshape(20, 2), "y": np.arange(20) % 2}
    (tmp_path / "deep").mkdir()
    np.savez_compressed(tmp_path / "deep" / "packed.npz", **arrays)
    plain = load_dataset(save(tmp_path / "plain.npz", **arrays))
    assert plain.fingerprint() == load_dataset(tmp_path / "deep" / "packed.npz").fingerprint()


GOOD = {
    "x_train": np.zeros((2, 3)),
    "y_train": np.array([0, 1]),
    "x_test": np.zeros((2, 3)),
    "y_test": np.array([0, 1]),
}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"x_train": np.zeros(2), "y_train": np.zeros(2)},
            "has the arrays x_train, y_train; it must have x_train, y_",
        ),
        ({}, r"has the arrays \(none\); .* or x and y"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4, int), "group": np.zeros(4, int)}, "no class has two groups"),
        ({**GOOD, "x_train": np.array([None, 1])}, "the array x_train holds Python objects"),
        ({**GOOD, "y_train": np.array(["a", "b"])}, "y_train and y_test are numbers and text"),
        ({**GOOD, "y_test": np.array([0.0, 1.0])}, "test split: y is torch.float64"),
        ({**GOOD, "x_train": np.full((2, 3), np.nan)}, "train split: sample 0 of x holds NaN"),
        ({**GOOD, "x_test": np.zeros((2, 4))}, "both must be equal"),
        ({**GOOD, "domain_train": np.array([0.5, 1.5])}, "domain_train is float64"),
        ({**GOOD, "domain_train": np.array(["a"])}, "x has 2 samples, but domain has 1"),
        ({**GOOD, "classes": np.array(["a"])}, "sample 1 of the train split has label 1"),
        ({**GOOD, "classes": np.array("a")}, "classes has shape"),
    ],
)
def test_npz_rejects(tmp_path, arrays, words):
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=words) as error:
        load_dataset(path)
    assert "bad.npz" in str(error.value)
    assert str(error.value).count("\n") == 0


def test_npz_classes_and_num_classes_must_agree(tmp_path):
    path = save(tmp_path / "named.npz", **GOOD, classes=np.array(["a", "b"]))
    assert load_dataset(path, num_classes=2).classes == ("a", "b")
    with pytest.raises(InputError, match="num_classes is 3, but named has 2 classes"):
        load_dataset(path, num_classes=3)


def test_npz_rejects_files(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*nowhere\.npz"):
        load_dataset(tmp_path / "nowhere.npz")
    with pytest.raises(InputError, match="there is no file"):
        load_dataset("npz", tmp_path)
    with pytest.raises(InputError, match="needs root"):
        load_dataset("npz")
    text = tmp_path / "text.npz"
    text.write_text("x, y\n")
    with pytest.raises(InputError, match=r"is not an \.npz file"):
        load_dataset(text)
    with zipfile.ZipFile(tmp_path / "zipped.npz", "w") as file:
        file.writestr("x", "no array")
        file.writestr("y", "no array")
    with pytest.raises(InputError, match="the entry x is not an array"):
        load_dataset(tmp_path / "zipped.npz")


def test_npz_rejects_damaged_files(tmp_path):
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((50, 20)), y=np.arange(50) % 2)
    raw = bytearray(path.read_bytes())
    raw[500:700] = bytes(200)
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"the array x cannot be read .* damaged"):
        load_dataset(path)


# functions and names


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's module, importable as `mine.hospital`."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "hospital.py").write_text(
        "import torch\n"
        "from fullrank.data import load_dataset\n"
        "def scans(root, seed, scale=1.0):\n"
        "    return torch.full((10, 2), scale + seed), torch.arange(10) % 2\n"
        "def ready(**options): return load_dataset('digits')\n"
        "def where(root, seed): return 'npz'\n"
        "def loop(root, seed): return 'mine.hospital:loop'\n"
        "def broken(root, seed): raise KeyError('inside')\n"
        "LIMIT = 3\n"
    )
    (tmp_path / "mine" / "lacking.py").write_text("import something_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.mark.usefixtures("module")
def test_functions(tmp_path):
    data = load_dataset("mine.hospital:scans", seed=2, scale=0.5)
    assert data.train.x.unique().tolist() == [2.5]
    assert data.name == "mine.hospital:scans"
    assert load_dataset("mine.hospital:scans", num_classes=4).num_classes == 4
    assert load_dataset("mine.hospital:ready", anything=1).name == "digits"
    assert len(load_dataset("mine.hospital:where", save(tmp_path / "f.npz", **GOOD)).train) == 2
    with pytest.raises(CallFailed, match=r'data.name = "mine.hospital:broken": it raised KeyError: .inside.') as caught:
        load_dataset("mine.hospital:broken")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ModuleNotFoundError, match="something_that_is_not_there"):
        load_dataset("mine.lacking:scans")


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("mine.hospitl:scans", {}, 'no module "mine.hospitl"; did you mean "hospital"'),
        ("mime.hospital:scans", {}, 'there is no module "mime"'),
        ("mine.hospital.ward:scans", {}, 'no module "mine.hospital.ward" on the import path'),
        ("mine.hospital:scan", {}, 'has no function "scan"; did you mean "scans"'),
        ("mine.hospital:LIMIT", {}, 'has no function "LIMIT"'),
        ("mine.hospital:scans", {"scael": 2}, "cannot be called with root, scael, seed"),
        ("mine.hospital:loop", {}, 'returned "mine.hospital:loop"'),
        (":scans", {}, "not of the form"),
        ("mine.hospital:", {}, "not of the form"),
        (".hospital:scans", {}, "not of the form"),
        ("digts", {}, 'data.name = "digts" is not known; did you mean "digits"'),
        ("holiday-photos", {}, "known: .*digits, .*mnist, .*the path of an .npz, .csv or .parquet file"),
        ("digits", {"shuffle": True}, 'unknown option "shuffle"'),
    ],
)
def test_names_that_are_rejected(source, options, words):
    with pytest.raises(InputError, match=words):
        load_dataset(source, **options)
