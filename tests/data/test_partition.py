"""Partitions give the numbers of the papers' released code, keep their guarantees, reject the impossible."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.data import partition
from fullrank.data.heterogeneity import counts, label_entropy, partition_hash
from fullrank.data.partition import Partition
from fullrank.errors import InputError

CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)
TINY = np.repeat(np.arange(200), 500)
DIRICHLET_VARIANTS = ["balanced", "plain", "fedetf", "fedrepopt"]
PATHOLOGICAL_VARIANTS = ["balanced", "niid-bench", "shards"]

modest = settings(max_examples=40, deadline=None)


def sizes(parts: Partition) -> list[int]:
    return [len(part) for part in parts]


def table(labels: np.ndarray, parts: Partition) -> np.ndarray:
    return counts(labels, parts, int(np.max(labels)) + 1)


def assert_complete(parts: Partition, samples: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


def assert_disjoint_subset(parts: Partition, samples: int) -> None:
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert len(together) == 0 or (together.min() >= 0 and together.max() < samples)


def assert_same(one: Partition, other: Partition) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@st.composite
def labelled(draw: st.DrawFn, classes_at_most: int = 8) -> np.ndarray:
    """Labels of 1 to 8 classes in random order, with at least twelve samples of each class."""
    per_class = draw(st.lists(st.integers(12, 60), min_size=1, max_size=classes_at_most))
    y = np.repeat(np.arange(len(per_class)), per_class)
    return np.random.RandomState(draw(st.integers(0, 1000))).permutation(y)


seeds = st.integers(0, 2**32 - 1)

EVERY_SCHEME: dict[str, Callable[[object, int], Partition]] = {
    "iid": lambda y, seed: partition.iid(y, 5, seed),
    **{f"dirichlet {v}": lambda y, seed, v=v: partition.dirichlet(y, 5, 0.5, seed, v) for v in DIRICHLET_VARIANTS},
    **{
        f"pathological {v}": lambda y, seed, v=v: partition.pathological(y, 5, 2, seed, v)
        for v in PATHOLOGICAL_VARIANTS
    },
    "class-disjoint": lambda y, seed: partition.class_disjoint(y, 5, 3, seed),
    "class-disjoint twice": lambda y, seed: partition.class_disjoint(y, 5, 3, seed, passes=2),
    "domain": lambda y, seed: partition.by_domain(y, 0.5, 0.25, seed),
}


@pytest.mark.parametrize("scheme", EVERY_SCHEME)
class TestEveryScheme:
    labels = np.tile(np.arange(5), 40)

    def test_equal_seeds_give_equal_arrays_and_others_do_not(self, scheme: str) -> None:
        split = EVERY_SCHEME[scheme]
        assert_same(split(self.labels, 3), split(self.labels, 3))
        assert partition_hash(split(self.labels, 3)) != partition_hash(split(self.labels, 4))

    def test_tensors_arrays_and_lists_are_alike(self, scheme: str) -> None:
        split = EVERY_SCHEME[scheme]
        expected = split(self.labels, 0)
        assert_same(split(torch.from_numpy(self.labels), 0), expected)
        assert_same(split(self.labels.tolist(), 0), expected)
        assert_same(split(self.labels.astype(np.uint8), 0), expected)

    def test_gives_one_int64_array_per_client(self, scheme: str) -> None:
        parts = EVERY_SCHEME[scheme](self.labels, 0)
        assert isinstance(parts, list)
        assert len(parts) == 5
        assert all(isinstance(part, np.ndarray) and part.dtype == np.int64 for part in parts)

    def test_does_not_change_the_global_generators(self, scheme: str) -> None:
        np.random.seed(1)
        before = np.random.get_state()[1].copy()
        EVERY_SCHEME[scheme](self.labels, 0)
        np.testing.assert_array_equal(np.random.get_state()[1], before)


class TestIID:
    @modest
    @given(labelled(), st.integers(1, 12), seeds)
    def test_is_complete_with_sizes_that_differ_by_one_at_most(self, y, clients, seed):
        parts = partition.iid(y, clients, seed)
        assert_complete(parts, len(y))
        assert max(sizes(parts)) - min(sizes(parts)) <= 1

    def test_is_the_permutation_of_the_legacy_generator(self):
        np.testing.assert_array_equal(
            np.concatenate(partition.iid(CIFAR10, 10, 7)), np.random.RandomState(7).permutation(50000)
        )

    def test_needs_no_class_labels(self):
        assert sizes(partition.iid(torch.zeros(7, 3), 2, 0)) == [4, 3]


def as_released(labels, clients, alpha, seed):
    """Divide labels as the authors of FedDecorr and MOON do, statement by statement."""
    rng, samples = np.random.RandomState(seed), len(labels)
    smallest = 0
    while smallest < 10:
        held = [[] for _ in range(clients)]
        for one in range(labels.max() + 1):
            of_class = np.where(labels == one)[0]
            rng.shuffle(of_class)
            shares = rng.dirichlet(np.repeat(alpha, clients))
            shares = np.array([p * (len(of) < samples / clients) for p, of in zip(shares, held, strict=True)])
            shares = shares / shares.sum()
            cuts = (np.cumsum(shares) * len(of_class)).astype(int)[:-1]
            held = [of + piece.tolist() for of, piece in zip(held, np.split(of_class, cuts), strict=True)]
            smallest = min(len(of) for of in held)
    for of in held:
        rng.shuffle(of)
    return held


class TestBalancedDirichlet:
    @pytest.mark.parametrize(
        ("alpha", "expected"),
        [
            (0.05, [9079, 51, 7168, 4600, 1178, 7038, 8741, 8075, 2324, 1746]),
            (0.1, [7615, 5142, 7498, 865, 2731, 6130, 6415, 3034, 6091, 4479]),
            (0.5, [5307, 3688, 4435, 5047, 5189, 3803, 5202, 4325, 8078, 4926]),
        ],
    )
    def test_seed_zero_sizes_on_cifar10(self, alpha, expected):
        assert sizes(partition.dirichlet(CIFAR10, 10, alpha, 0)) == expected

    @pytest.mark.parametrize(("clients", "low", "high"), [(50, 1286, 2412), (100, 562, 1271)])
    def test_seed_zero_range_on_tiny_imagenet(self, clients, low, high):
        found = sizes(partition.dirichlet(TINY, clients, 0.05, 0))
        assert (min(found), max(found)) == (low, high)

    # The released code hands a sample to a full last client where a cumulative sum rounds to less than one.
    def test_the_last_client_gets_what_rounding_leaves_over_even_if_it_is_full(self):
        assert sizes(partition.dirichlet(CIFAR10, 30, 0.1, 4))[-2:] == [706, 4390]

    @pytest.mark.parametrize(("labels", "alpha"), [(CIFAR10, 0.05), (CIFAR100, 0.1), (TINY, 0.05), (TINY, 0.5)])
    @pytest.mark.parametrize(("clients", "seed"), [(10, 1), (50, 3)])
    def test_is_the_split_of_the_released_code(self, labels, alpha, clients, seed):
        found = partition.dirichlet(labels, clients, alpha, seed)
        expected = as_released(labels, clients, alpha, seed)
        assert all(np.array_equal(one, two) for one, two in zip(found, expected, strict=True))

    @pytest.mark.parametrize(
        ("labels", "expected", "tolerance"),
        [
            (CIFAR10, (4.7, 5.8, 9.0), 0.05),
            (CIFAR100, (36.6, 52.4, 89.8), 0.25),
            (TINY, (74.2, 104, 179), 0.5),
        ],
    )
    def test_mean_classes_per_client(self, labels, expected, tolerance):
        for alpha, classes in zip((0.05, 0.1, 0.5), expected, strict=True):
            found = (table(labels, partition.dirichlet(labels, 10, alpha, 0)) > 0).sum(axis=1).mean()
            assert found == pytest.approx(classes, abs=tolerance)

    @modest
    @given(labelled(), st.integers(1, 6), st.sampled_from([0.3, 1.0, 10.0]), seeds)
    def test_guarantees(self, y, clients, alpha, seed):
        if clients > len(y) // 30:
            clients = max(1, len(y) // 30)
        parts = partition.dirichlet(y, clients, alpha, seed)
        assert_complete(parts, len(y))
        assert min(sizes(parts)) >= 10
        assert max(sizes(parts)) < len(y) / clients + np.bincount(y).max() + len(np.unique(y))
        self.assert_capped(y, parts)

    @pytest.mark.parametrize("alpha", [0.05, 0.1, 0.5])
    @pytest.mark.parametrize("labels", [CIFAR10, CIFAR100])
    def test_who_has_an_even_share_gets_nothing_of_later_classes(self, labels, alpha):
        for seed in range(4):
            self.assert_capped(labels, partition.dirichlet(labels, 10, alpha, seed))

    @staticmethod
    def assert_capped(y, parts):
        of_class = table(y, parts)
        full = np.cumsum(of_class, axis=1) - of_class >= len(y) / len(parts)
        assert not of_class[:-1][full[:-1]].any()
        assert (of_class[-1][full[-1]] <= 1).all()

    def test_large_alpha_evens_the_sizes_out(self):
        found = sizes(partition.dirichlet(CIFAR10, 10, 1e6, 0))
        assert max(found) / min(found) < 1.01

    def test_entropy_grows_with_alpha(self):
        means = [
            np.mean([label_entropy(table(CIFAR10, partition.dirichlet(CIFAR10, 10, a, s))) for s in range(3)])
            for a in (0.05, 0.1, 0.5, 5.0)
        ]
        assert means == sorted(means)
        assert means[-1] < math.log(10)

    def test_small_data_with_many_clients_succeed_by_trying_again(self):
        y = np.arange(1437) % 10
        assert min(sizes(partition.dirichlet(y, 20, 0.05, 0))) >= 10

    def test_more_clients_than_a_tenth_of_the_samples_are_rejected_without_a_try(self, monkeypatch):
        monkeypatch.setattr(partition, "_dirichlet_pass", lambda *a: pytest.fail("tried"))
        with pytest.raises(InputError, match="take 10 clients at most"):
            partition.dirichlet(np.arange(100) % 10, 11, 0.5, 0)

    def test_gives_up_after_a_thousand_tries(self, monkeypatch):
        tried = []
        real = partition._dirichlet_pass
        monkeypatch.setattr(partition, "_dirichlet_pass", lambda *a: tried.append(1) or real(*a))
        with pytest.raises(InputError, match=r"N=100 .*K=10 .*alpha=0\.05.*largest minimum reached was \d"):
            partition.dirichlet(np.arange(100) % 10, 10, 0.05, 0)
        assert len(tried) == 1000

    @pytest.mark.parametrize("variant", DIRICHLET_VARIANTS)
    @pytest.mark.parametrize("alpha", [1e-300, 1e308])
    def test_draws_that_vanish_in_floating_point_are_rejected(self, variant, alpha):
        with pytest.raises(InputError, match="1000"):
            partition.dirichlet(np.arange(200) % 10, 10, alpha, 0, variant)

    @pytest.mark.parametrize("variant", DIRICHLET_VARIANTS)
    def test_draws_that_vanish_now_and_then_are_drawn_again(self, variant):
        y = np.arange(2000) % 10
        for seed in range(10):
            assert_disjoint_subset(partition.dirichlet(y, 2, 0.002, seed, variant), len(y))


class TestPlainDirichlet:
    def test_seed_zero_sizes_on_cifar10(self):
        assert sizes(partition.dirichlet(CIFAR10, 10, 0.05, 0, "plain")) == [
            9034, 39, 15330, 1599, 56, 12175, 590, 7775, 1668, 1734,
        ]  # fmt: skip

    @modest
    @given(labelled(), st.integers(1, 12), st.sampled_from([0.05, 0.5, 5.0]), seeds)
    def test_is_complete(self, y, clients, alpha, seed):
        assert_complete(partition.dirichlet(y, clients, alpha, seed, "plain"), len(y))


class TestFedETFDirichlet:
    @pytest.mark.parametrize(
        ("clients", "alpha", "low", "high"),
        [(20, 0.05, 2, 7546), (20, 0.1, 607, 8116), (50, 0.1, 18, None), (100, 0.1, 7, None)],
    )
    def test_seed_ten_range_on_cifar10(self, clients, alpha, low, high):
        found = sizes(partition.dirichlet(CIFAR10, clients, alpha, 10, "fedetf"))
        assert min(found) == low
        assert high is None or max(found) == high

    def test_one_client_of_seed_ten_has_one_class(self):
        classes = (table(CIFAR10, partition.dirichlet(CIFAR10, 20, 0.05, 10, "fedetf")) > 0).sum(axis=1)
        assert classes.min() == 1

    def test_seed_two_leaves_an_empty_client(self):
        parts = partition.dirichlet(CIFAR10, 20, 0.05, 2, "fedetf")
        assert min(sizes(parts)) == 0
        assert_complete(parts, 50000)

    @pytest.mark.parametrize(("labels", "low"), [(CIFAR100, 1102), (TINY, 2402)])
    def test_many_classes_leave_no_small_client(self, labels, low):
        assert min(sizes(partition.dirichlet(labels, 20, 0.05, 10, "fedetf"))) >= low

    @modest
    @given(labelled(), st.integers(1, 12), st.sampled_from([0.05, 0.5, 5.0]), seeds)
    def test_is_complete(self, y, clients, alpha, seed):
        assert_complete(partition.dirichlet(y, clients, alpha, seed, "fedetf"), len(y))


class TestFedRepOptDirichlet:
    @pytest.mark.parametrize(
        ("clients", "alpha", "total", "low", "high"),
        [
            (10, 0.1, 99414, 7793, 11880),
            (10, 1e5, 98986, 9889, 9908),
            (100, 0.1, 95870, 473, 1569),
            (100, 1e5, 90016, 881, 917),
        ],
    )
    def test_seed_fifteen_on_tiny_imagenet(self, clients, alpha, total, low, high):
        parts = partition.dirichlet(TINY, clients, alpha, 15, "fedrepopt")
        found = sizes(parts)
        assert (sum(found), min(found), max(found)) == (total, low, high)
        assert_disjoint_subset(parts, 100_000)

    def test_slices_of_a_class_are_consecutive(self):
        for part in partition.dirichlet(TINY, 10, 0.1, 15, "fedrepopt"):
            for label in range(0, 200, 40):
                mine = part[TINY[part] == label]
                np.testing.assert_array_equal(np.diff(mine), 1)

    @modest
    @given(labelled(), st.integers(1, 12), st.sampled_from([0.05, 0.5, 5.0]), seeds)
    def test_gives_no_more_of_a_class_than_there_is(self, y, clients, alpha, seed):
        parts = partition.dirichlet(y, clients, alpha, seed, "fedrepopt")
        assert_disjoint_subset(parts, len(y))
        left_over = np.bincount(y) - table(y, parts).sum(axis=0)
        assert (left_over >= 0).all()
        assert (left_over <= clients).all()


class TestBalancedPathological:
    @pytest.mark.parametrize(
        ("labels", "classes", "owners"),
        [(CIFAR10, 3, 3), (CIFAR100, 20, 2), (TINY, 80, 4)],
    )
    def test_owners_per_class_of_the_settings_in_the_paper(self, labels, classes, owners):
        held = table(labels, partition.pathological(labels, 10, classes, 0)) > 0
        np.testing.assert_array_equal(held.sum(axis=1), classes)
        np.testing.assert_array_equal(held.sum(axis=0), owners)

    @modest
    @given(st.data(), labelled(), seeds)
    def test_guarantees(self, data, y, seed):
        total = len(np.unique(y))
        classes = data.draw(st.integers(1, total))
        clients = data.draw(st.integers(math.ceil(total / classes), 12))
        parts = partition.pathological(y, clients, classes, seed)
        assert_complete(parts, len(y))
        of_class = table(y, parts)
        np.testing.assert_array_equal((of_class > 0).sum(axis=1), classes)
        owners = (of_class > 0).sum(axis=0)
        assert owners.max() - owners.min() <= 1
        for column in of_class.T:
            assert np.ptp(column[column > 0]) <= 1

    def test_ends_where_a_careless_deal_would_often_run_into_a_dead_end(self):
        y = np.repeat(np.arange(40), 40)
        for seed in range(20):
            held = table(y, partition.pathological(y, 39, 39, seed)) > 0
            np.testing.assert_array_equal(held.sum(axis=1), 39)

    def test_deals_differ_and_favour_nobody(self):
        y = np.repeat(np.arange(4), 40)
        together = np.zeros((4, 4))
        for seed in range(300):
            held = table(y, partition.pathological(y, 4, 2, seed)) > 0
            together += held
        # Every client holds every class half of the time; 300 deals have a standard deviation of 8.7.
        assert np.abs(together - 150).max() < 45

    def test_entropy_grows_with_the_classes(self):
        means = [label_entropy(table(CIFAR10, partition.pathological(CIFAR10, 10, m, 0))).mean() for m in (2, 3, 4, 5)]
        assert means == sorted(means)

    def test_rejects_fewer_slots_than_classes(self):
        with pytest.raises(InputError, match="must be at least 10"):
            partition.pathological(CIFAR10, 3, 3, 0)

    def test_rejects_more_owners_than_samples_of_a_class(self):
        with pytest.raises(InputError, match="class of 2 samples cannot be divided among its 4 owners"):
            partition.pathological([0, 0, 1, 1, 1, 1, 1], 4, 2, 0)


class TestNIIDBench:
    @modest
    @given(st.data(), labelled(), st.integers(1, 12), seeds)
    def test_exactly_as_many_classes_one_of_them_the_clients_own(self, data, y, clients, seed):
        total = len(np.unique(y))
        classes = data.draw(st.integers(1, total))
        parts = partition.pathological(y, clients, classes, seed, "niid-bench")
        assert_disjoint_subset(parts, len(y))
        of_class = table(y, parts)
        np.testing.assert_array_equal((of_class > 0).sum(axis=1), classes)
        assert all(of_class[k, k % total] > 0 for k in range(clients))
        for column, all_of_it in zip(of_class.T, np.bincount(y), strict=True):
            assert column.sum() in (0, all_of_it)
            assert column.sum() == 0 or np.ptp(column[column > 0]) <= 1

    @pytest.mark.parametrize(("classes", "expected"), [(20, 10.7), (30, 2.8), (40, 0.6)])
    def test_number_of_classes_without_an_owner(self, classes, expected):
        y = np.repeat(np.arange(100), 10)
        unowned = [
            (table(y, partition.pathological(y, 10, classes, s, "niid-bench")).sum(axis=0) == 0).sum()
            for s in range(150)
        ]
        assert np.mean(unowned) == pytest.approx(expected, abs=0.8)


class TestShards:
    def test_each_client_gets_whole_shards_of_the_sorted_samples(self):
        y = np.array([2, 0, 1, 0, 2, 1, 0, 1, 2, 2, 1, 0])
        by_label = [1, 3, 6, 11, 2, 5, 7, 10, 0, 4, 8, 9]
        shards = {tuple(by_label[i : i + 2]) for i in range(0, 12, 2)}
        dealt = [tuple(part[i : i + 2]) for part in partition.pathological(y, 3, 2, 0, "shards") for i in (0, 2)]
        assert set(dealt) == shards
        assert len(dealt) == len(shards)

    @modest
    @given(st.data(), labelled(), st.integers(1, 12), seeds)
    def test_is_complete_and_nearly_equal(self, data, y, clients, seed):
        classes = data.draw(st.integers(1, len(np.unique(y))))
        parts = partition.pathological(y, clients, classes, seed, "shards")
        assert_complete(parts, len(y))
        assert max(sizes(parts)) - min(sizes(parts)) <= classes


class TestClassDisjoint:
    def owned(self, labels, clients, classes):
        parts = partition.class_disjoint(labels, clients, classes, 0)
        return [set(labels[part].tolist()) for part in parts]

    def test_p10c2_owners_of_seed_zero(self):
        expected = [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {6, 0}, {4, 8}, {7, 6}, {4, 7}, {5, 9}]
        assert self.owned(CIFAR10, 10, 2) == expected
        found = sizes(partition.class_disjoint(CIFAR10, 10, 2, 0))
        assert (min(found), max(found)) == (3332, 10000)

    def test_p10c3_owner_counts_of_seed_zero(self):
        held = table(CIFAR10, partition.class_disjoint(CIFAR10, 10, 3, 0)) > 0
        assert held.sum(axis=0).tolist() == [2, 2, 3, 2, 5, 2, 3, 3, 4, 4]

    @pytest.mark.parametrize(("labels", "clients", "classes"), [(CIFAR10, 5, 2), (CIFAR100, 10, 10)])
    def test_exactly_enough_slots_make_disjoint_blocks(self, labels, clients, classes):
        expected = [set(range(k * classes, (k + 1) * classes)) for k in range(clients)]
        assert self.owned(labels, clients, classes) == expected

    @pytest.mark.parametrize(
        ("clients", "classes", "duplicates"),
        [(5, 2, 50000), (10, 2, 30049), (10, 3, 18570), (10, 5, 10791), (50, 3, 3509), (100, 3, 1698)],
    )
    def test_two_passes_repeat_samples_as_the_released_code_does(self, clients, classes, duplicates):
        parts = partition.class_disjoint(CIFAR10, clients, classes, 0, passes=2)
        assert sum(sizes(parts)) == 100_000
        assert len(np.unique(np.concatenate(parts))) == 50000
        assert sum(len(part) - len(np.unique(part)) for part in parts) == duplicates

    @modest
    @given(st.data(), labelled(), st.integers(1, 12), seeds)
    def test_guarantees(self, data, y, clients, seed):
        total = len(np.unique(y))
        if total == 1:
            return
        classes = data.draw(st.integers(1, total - 1))
        parts = partition.class_disjoint(y, clients, classes, seed)
        of_class = table(y, parts)
        np.testing.assert_array_equal((of_class > 0).sum(axis=1), classes)
        assert (of_class > 0).sum() == clients * classes
        for column in of_class.T:
            assert column.sum() == 0 or np.ptp(column[column > 0]) <= 1
        if clients * classes >= total:
            assert_complete(parts, len(y))
        else:
            assert_disjoint_subset(parts, len(y))

    def test_all_classes_are_the_iid_split(self):
        assert_same(partition.class_disjoint(CIFAR10, 10, 10, 3), partition.iid(CIFAR10, 10, 3))

    def test_entropy_grows_with_the_classes(self):
        means = [
            label_entropy(table(CIFAR10, partition.class_disjoint(CIFAR10, 10, c, 0))).mean() for c in (2, 3, 5, 10)
        ]
        assert means == sorted(means)


class TestByDomain:
    domains = ["webcam"] * 6 + ["amazon"] * 8 + ["dslr"] * 4

    def test_equal_sizes(self):
        parts = partition.by_domain(self.domains, equal=0.5, validation=0.25)
        assert sizes(parts) == [2, 2, 2]
        assert sizes(parts.validation) == [1, 1, 1]

    def test_all_of_each_domain_in_sorted_order(self):
        parts = partition.by_domain(self.domains, validation=0.25)
        assert sizes(parts) == [6, 3, 5]
        assert sizes(parts.validation) == [2, 1, 1]
        for name, training, kept in zip(["amazon", "dslr", "webcam"], parts, parts.validation, strict=True):
            assert {self.domains[i] for i in [*training, *kept]} == {name}
        assert_complete([*parts, *parts.validation], 18)

    def test_true_is_all_of_the_smallest_domain(self):
        parts = partition.by_domain(self.domains, equal=True)
        assert sizes(parts) == [4, 4, 4]
        assert sizes(parts.validation) == [0, 0, 0]

    def test_shares_are_of_the_number_as_written(self):
        parts = partition.by_domain([0] * 100, equal=0.29, validation=0.71)
        assert (sizes(parts), sizes(parts.validation)) == ([29], [71])

    @modest
    @given(
        st.lists(st.integers(0, 4), min_size=1, max_size=80),
        st.sampled_from([False, 0.3, 0.5, 0.75, True]),
        st.sampled_from([0.0, 0.1, 0.25]),
        seeds,
    )
    def test_training_and_validation_never_meet(self, domains, equal, validation, seed):
        per_domain = np.unique(domains, return_counts=True)[1]
        if float(equal) + validation > 1 or (equal and math.floor(equal * per_domain.min()) == 0):
            with pytest.raises(InputError):
                partition.by_domain(domains, equal, validation, seed)
            return
        parts = partition.by_domain(domains, equal, validation, seed)
        base = np.full_like(per_domain, per_domain.min()) if equal else per_domain
        kept = np.floor(validation * base)
        assert sizes(parts.validation) == kept.tolist()
        assert sizes(parts) == (np.floor(equal * base) if equal else per_domain - kept).tolist()
        assert_disjoint_subset([*parts, *parts.validation], len(domains))

    @pytest.mark.parametrize(
        ("equal", "validation", "words"),
        [
            (0.7, 0.4, "together must not exceed 1"),
            (True, 0.1, "together must not exceed 1"),
            (1.5, 0.0, "equal=1.5"),
            (-0.1, 0.0, "equal=-0.1"),
            (math.nan, 0.0, "equal=nan"),
            (False, 1.0, "validation=1.0"),
            (False, -0.5, "validation=-0.5"),
            (0.2, 0.0, "at least 1/4"),
        ],
    )
    def test_rejects_impossible_shares(self, equal, validation, words):
        with pytest.raises(InputError, match=words):
            partition.by_domain(self.domains, equal, validation)

    def test_the_validation_part_survives_pickling(self):
        parts = partition.by_domain(self.domains, 0.5, 0.25)
        again = pickle.loads(pickle.dumps(parts))
        assert_same(again, parts)
        assert_same(again.validation, parts.validation)


class TestHoldOut:
    def test_fedetf_holds_out_thirty_percent_of_every_client(self):
        parts = partition.dirichlet(CIFAR10, 20, 0.05, 2, "fedetf")
        training, held_out = partition.hold_out(parts, 0.3, 0)
        for part, train, held in zip(parts, training, held_out, strict=True):
            assert len(held) == 3 * len(part) // 10
            np.testing.assert_array_equal(np.sort(np.concatenate([train, held])), np.sort(part))

    def test_is_random(self):
        training, held_out = partition.hold_out([np.arange(1000)], 0.3, 0)
        assert abs(held_out[0].mean() - training[0].mean()) < 100

    def test_keeps_the_validation_part(self):
        parts = partition.by_domain([0] * 10 + [1] * 10, validation=0.2)
        training, _ = partition.hold_out(parts, 0.5, 0)
        assert_same(training.validation, parts.validation)

    def test_rejects_clients_that_hold_samples_twice(self):
        with pytest.raises(InputError, match="client 0 holds samples twice"):
            partition.hold_out(partition.class_disjoint(CIFAR10, 5, 2, 0, passes=2), 0.3, 0)

    @pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
    def test_rejects_impossible_shares(self, share):
        with pytest.raises(InputError, match="hold-out share"):
            partition.hold_out([np.arange(5)], share, 0)


class TestRefusals:
    labels = np.arange(60) % 3

    @pytest.mark.parametrize("variant", DIRICHLET_VARIANTS)
    def test_infinite_alpha_is_iid(self, variant):
        assert_same(partition.dirichlet(self.labels, 7, math.inf, 5, variant), partition.iid(self.labels, 7, 5))

    @pytest.mark.parametrize("variant", DIRICHLET_VARIANTS)
    @pytest.mark.parametrize("alpha", [0, 0.0, -1.0, math.nan, -math.inf])
    def test_alpha_must_be_above_zero(self, alpha, variant):
        with pytest.raises(InputError, match="above 0"):
            partition.dirichlet(self.labels, 3, alpha, 0, variant)

    @pytest.mark.parametrize("scheme", ["iid", "dirichlet", "pathological", "class_disjoint"])
    @pytest.mark.parametrize("clients", [0, -1, 2.0, True])
    def test_clients_must_be_a_whole_number_of_at_least_one(self, scheme, clients):
        extra = () if scheme == "iid" else (2,)
        with pytest.raises(InputError, match="clients"):
            getattr(partition, scheme)(self.labels, clients, *extra, 0)

    @pytest.mark.parametrize("variant", DIRICHLET_VARIANTS)
    def test_more_clients_than_samples(self, variant):
        with pytest.raises(InputError, match="61 clients cannot share 60 samples"):
            partition.dirichlet(self.labels, 61, 1.0, 0, variant)
        with pytest.raises(InputError, match="61 clients cannot share 60 samples"):
            partition.iid(self.labels, 61, 0)

    @pytest.mark.parametrize("variant", PATHOLOGICAL_VARIANTS)
    @pytest.mark.parametrize(("classes", "words"), [(0, "at least 1"), (4, "the labels have 3"), (1.5, "whole")])
    def test_classes_per_client(self, variant, classes, words):
        with pytest.raises(InputError, match=words):
            partition.pathological(self.labels, 5, classes, 0, variant)
        with pytest.raises(InputError, match=words):
            partition.class_disjoint(self.labels, 5, classes, 0)

    def test_passes(self):
        with pytest.raises(InputError, match="passes"):
            partition.class_disjoint(self.labels, 5, 2, 0, passes=0)

    def test_a_misspelt_variant_is_answered_with_the_nearest(self):
        with pytest.raises(InputError, match='did you mean "balanced"'):
            partition.dirichlet(self.labels, 5, 1.0, 0, "balance")
        with pytest.raises(InputError, match='did you mean "niid-bench"'):
            partition.pathological(self.labels, 5, 2, 0, "niidbench")
        with pytest.raises(InputError, match="unknown"):
            partition.dirichlet(self.labels, 5, math.inf, 0, "nothing like it")

    @pytest.mark.parametrize("seed", [-1, 2**32, 0.5, None])
    def test_seeds(self, seed):
        with pytest.raises(InputError, match="seed"):
            partition.iid(self.labels, 5, seed)
        with pytest.raises(InputError, match="seed"):
            partition.class_disjoint(self.labels, 5, 2, seed)

    def test_labels_must_be_one_whole_number_per_sample(self):
        with pytest.raises(InputError, match="one whole number per sample"):
            partition.dirichlet([0.5, 1.5], 1, 1.0, 0)
        with pytest.raises(InputError, match="one value per sample"):
            partition.dirichlet(np.zeros((4, 2), dtype=int), 1, 1.0, 0)
        with pytest.raises(InputError, match="one value per sample"):
            partition.by_domain([])
