"""The numbers and the pictures that say how different clients are."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fullrank.data import heterogeneity, partition
from fullrank.errors import InputError

LABELS = np.array([0, 0, 0, 1, 1, 2, 0, 0])
PARTS = [np.array([0, 1, 3, 4]), np.array([2, 6, 7, 2]), np.array([], dtype=np.int64)]
COUNTS = np.array([[2, 2, 0], [4, 0, 0], [0, 0, 0]])

tables = arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 50))
modest = settings(max_examples=50, deadline=None)


class TestNumbers:
    def test_counts(self):
        for labels in (LABELS, LABELS.tolist(), torch.from_numpy(LABELS)):
            found = heterogeneity.counts(labels, PARTS, 3)
            np.testing.assert_array_equal(found, COUNTS)
            assert found.dtype == np.int64

    def test_counts_has_a_column_for_a_class_that_nobody_has(self):
        assert heterogeneity.counts([0, 0], [np.array([0, 1])], 4).tolist() == [[2, 0, 0, 0]]

    @pytest.mark.parametrize(
        ("labels", "parts", "words"),
        [
            ([0, 3], [np.array([0])], r"0\.\.2"),
            ([0, -1], [np.array([0])], r"0\.\.2"),
            ([0, 1], [np.array([0]), np.array([2])], r"client 1 .*0\.\.1"),
            ([0, 1], [np.array([-1])], "client 0"),
            ([0, 1], [], "no clients"),
        ],
    )
    def test_counts_rejects_what_is_out_of_range(self, labels, parts, words):
        with pytest.raises(InputError, match=words):
            heterogeneity.counts(labels, parts, 3)

    def test_entropy_by_hand(self):
        expected = [math.log(2), 0.0, 0.0]
        np.testing.assert_allclose(heterogeneity.label_entropy(COUNTS), expected, atol=1e-15)
        assert not np.signbit(heterogeneity.label_entropy(COUNTS)).any()

    def test_distance_by_hand(self):
        # All clients together: 6/8 and 2/8. Client 0: |1/2 − 3/4| + |1/2 − 1/4|; client 1: |1 − 3/4| + 1/4.
        np.testing.assert_allclose(heterogeneity.earth_movers_distance(COUNTS), [0.5, 0.5, 0.0], atol=1e-15)

    def test_distance_of_clients_with_a_class_each(self):
        # One class of K = 10: |1 − .1| + 9·.1
        np.testing.assert_allclose(heterogeneity.earth_movers_distance(5 * np.eye(10, dtype=int)), 1.8)

    @modest
    @given(tables)
    def test_ranges(self, table):
        entropy = heterogeneity.label_entropy(table)
        assert (entropy >= 0).all()
        assert (entropy <= math.log(table.shape[1]) + 1e-12).all()
        distance = heterogeneity.earth_movers_distance(table)
        assert (distance >= 0).all()
        assert (distance <= 2).all()

    @modest
    @given(tables, st.integers(2, 5))
    def test_more_samples_in_equal_proportion_change_nothing(self, table, times):
        for measure in (heterogeneity.label_entropy, heterogeneity.earth_movers_distance):
            np.testing.assert_allclose(measure(times * table), measure(table), atol=1e-12)

    def test_equal_clients_have_no_distance_and_full_entropy(self):
        table = np.full((4, 8), 3)
        np.testing.assert_allclose(heterogeneity.label_entropy(table), math.log(8))
        np.testing.assert_allclose(heterogeneity.earth_movers_distance(table), 0, atol=1e-15)


class TestHash:
    def test_is_the_documented_sha256(self):
        expected = hashlib.sha256(struct.pack("<6q", 3, 1, 5, 6, 7, 2)).hexdigest()
        assert heterogeneity.partition_hash([np.array([5, 6, 7]), np.array([2])]) == expected

    @pytest.mark.parametrize(
        "other", [[[5, 6], [7, 2]], [[2], [5, 6, 7]], [[6, 5, 7], [2]], [[5, 6, 7], [2], []], [[5, 6, 7, 2]]]
    )
    def test_tells_partitions_apart(self, other):
        one = heterogeneity.partition_hash([np.array([5, 6, 7]), np.array([2])])
        assert heterogeneity.partition_hash([np.array(part, dtype=np.int64) for part in other]) != one

    def test_the_type_of_the_integers_makes_no_difference(self):
        one = [np.array([1, 2], dtype=np.int32)]
        assert heterogeneity.partition_hash(one) == heterogeneity.partition_hash([np.array([1, 2])])


class TestDescribe:
    def test_by_hand(self):
        found = heterogeneity.describe(LABELS, PARTS, 3)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert found["hash"] == heterogeneity.partition_hash(PARTS)
        assert (found["clients"], found["samples"], found["unique_samples"]) == (3, 8, 7)
        assert found["size"] == {"min": 0, "median": 4.0, "max": 4}
        assert found["sizes"] == [4, 4, 0]
        assert found["entropy"]["per_client"] == pytest.approx([math.log(2), 0, 0])
        assert found["entropy"]["mean"] == pytest.approx(math.log(2) / 2)
        assert found["emd"]["per_client"] == pytest.approx([0.5, 0.5, 0])
        assert found["emd"]["mean"] == pytest.approx(0.5)
        assert found["classes_per_client"] == 1.5

    def test_clients_without_any_sample_at_all(self):
        found = heterogeneity.describe([0, 1], [np.array([], dtype=np.int64)], 2)
        assert (found["samples"], found["entropy"]["mean"], found["emd"]["mean"]) == (0, 0.0, 0.0)


class TestDrawText:
    def test_by_hand(self):
        picture = heterogeneity.draw_text(np.array([[50, 50, 0], [0, 0, 7], [0, 0, 0], [1, 99, 0]]))
        assert picture.splitlines() == [
            "client  size  0  1  2",
            "     0   100  ▒▒ ▒▒",
            "     1     7        ██",
            "     2     0",
            "     3   100  ·· ██",
            "share of its samples: ·≤20% ░≤40% ▒≤60% ▓≤80% █≤100%, blank none",
        ]

    def test_names_stand_over_their_cells(self):
        lines = heterogeneity.draw_text(np.eye(2, dtype=int), ["cat", "horse"]).splitlines()
        assert lines[0].endswith("cat   horse")
        assert lines[2].index("█") == lines[0].index("horse")

    def test_names_without_room_give_way_to_numbers(self):
        picture = heterogeneity.draw_text(np.ones((2, 30), dtype=int), [f"name {i}" for i in range(30)])
        assert "name" not in picture
        assert "10" in picture.splitlines()[0]

    @pytest.mark.parametrize("names", [False, True])
    @pytest.mark.parametrize("width", [30, 80, 120])
    @pytest.mark.parametrize("classes", [1, 2, 10, 64, 65, 100, 345, 1000])
    def test_lines_fit(self, classes, width, names):
        table = np.random.RandomState(0).randint(0, 9000, (5, classes))
        picture = heterogeneity.draw_text(table, ["a long name"] * classes if names else None, width)
        assert max(map(len, picture.splitlines())) <= width

    def test_neighbouring_classes_are_added_up(self):
        table = np.zeros((1, 100), dtype=int)
        table[0, 98:] = 1
        first = heterogeneity.draw_text(table).splitlines()
        assert first[1].count("█") == 1
        assert "2 neighbouring classes" in " ".join(first[2:])

    def test_forty_clients_at_most(self):
        lines = heterogeneity.draw_text(np.ones((45, 3), dtype=int)).splitlines()
        assert sum(line.strip()[:1].isdigit() for line in lines) == 40
        assert "and 5 more clients" in lines
        assert "more" not in heterogeneity.draw_text(np.ones((40, 3), dtype=int))

    @modest
    @given(tables, st.integers(20, 100))
    def test_every_client_that_has_a_class_shows_it(self, table, width):
        rows = heterogeneity.draw_text(table, width=width).splitlines()[1 : len(table) + 1]
        for row, line in zip(table, rows, strict=True):
            assert row.any() == any(shade in line for shade in heterogeneity.RAMP[1:])

    def test_rejects_a_wrong_number_of_names(self):
        with pytest.raises(InputError, match="2 class names for 30 classes"):
            heterogeneity.draw_text(np.ones((2, 30), dtype=int), ["a", "b"])


class TestDrawPartition:
    @pytest.mark.parametrize(("clients", "classes"), [(10, 10), (100, 10), (10, 100), (1, 1)])
    def test_draws_a_picture_that_can_be_read(self, tmp_path, clients, classes):
        image = pytest.importorskip("matplotlib.image")
        from fullrank.report.partition import draw_partition

        y = np.repeat(np.arange(classes), 1000 // classes)
        table = heterogeneity.counts(y, partition.dirichlet(y, clients, 1.0, 0, "plain"), classes)
        target = tmp_path / "figures" / "partition.png"
        draw_partition(table, target)
        pixels = image.imread(target)
        assert all(300 <= side <= 2000 for side in pixels.shape[:2])
        assert pixels[..., :3].std() > 0.05

    def test_an_empty_partition_can_be_drawn(self, tmp_path):
        pytest.importorskip("matplotlib")
        from fullrank.report.partition import draw_partition

        draw_partition(np.zeros((3, 2), dtype=np.int64), tmp_path / "nothing.png", ["cat", "dog"])
        assert (tmp_path / "nothing.png").stat().st_size > 1000

    def test_labels_do_not_overlap(self, tmp_path, monkeypatch):
        figure_module = pytest.importorskip("matplotlib.figure")
        from fullrank.report.partition import draw_partition

        drawn = []
        monkeypatch.setattr(figure_module.Figure, "savefig", lambda self, path, **options: drawn.append(self))
        for clients, classes, names in [(10, 10, True), (100, 10, False), (10, 100, False), (60, 100, True)]:
            labels = [f"long name {i}" for i in range(classes)] if names else None
            draw_partition(np.ones((clients, classes), dtype=np.int64), tmp_path / "p.png", labels)
        for figure in drawn:
            figure.draw_without_rendering()
            for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
                boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
                assert len(boxes) >= 5
                assert not any(a.overlaps(b) for a, b in pairwise(boxes))

    def test_needs_matplotlib(self, tmp_path, monkeypatch):
        from fullrank.report.partition import draw_partition

        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(InputError, match=r"pip install 'fullrank\[report\]'"):
            draw_partition(np.eye(2, dtype=np.int64), tmp_path / "p.png")

    def test_draws_what_figures_are_drawn_in(self, tmp_path):
        pytest.importorskip("matplotlib")
        from fullrank.report.partition import draw_partition

        draw_partition(np.eye(2, dtype=np.int64), tmp_path / "p.pdf")
        assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")
        with pytest.raises(InputError, match=r"must end in \.pdf, \.png or \.svg"):
            draw_partition(np.eye(2, dtype=np.int64), tmp_path / "p.jpg")
