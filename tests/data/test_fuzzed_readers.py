"""Readers of files that people write by hand: any content gives data or an error of the library."""

import io
import math
import time
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fullrank.data import Pipeline, load_dataset
from fullrank.errors import FullrankError

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[*HealthCheck])
SECONDS = 60

CELLS = st.one_of(
    st.sampled_from(
        ["", "NA", "nan", "inf", "-inf", "1e999", "1,5", "1.5", "0", "-3", "a", "b", "2020-01-01", "?", '"']
    ),
    st.text(max_size=4),
    st.floats().map(repr),
    st.integers(-3, 3).map(str),
)
NAMES = st.one_of(st.sampled_from(["label", "y", "client", "group", "split", "x", "age", "", "1"]), st.text(max_size=3))


@st.composite
def csv_bytes(draw):
    """A text that is often a table."""
    delimiter, end = draw(st.sampled_from(",;\t|")), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    header = draw(st.lists(NAMES, min_size=1, max_size=5))
    width = st.just(len(header)) if draw(st.booleans()) else st.integers(0, 6)
    rows = draw(st.lists(width.flatmap(lambda n: st.lists(CELLS, min_size=n, max_size=n)), max_size=25))
    content = end.join(delimiter.join(row) for row in [header, *rows]).encode(errors="surrogatepass")
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf", b"\xff", b"\x00"])) + content


@st.composite
def tables(draw):
    """A well-formed table: cells of numbers, cells of categories, labels, with missing values in both."""
    number = st.one_of(st.none(), st.floats(-1e6, 1e6))
    row = st.tuples(number, st.sampled_from([None, "p", "q", "r"]), st.sampled_from(["no", "yes"]))
    return [(1.0, "p", "no"), (2.0, "q", "no"), (1.0, "p", "yes"), (0.5, "q", "yes"), *draw(st.lists(row, max_size=30))]


ARRAYS = st.one_of(
    st.builds(
        lambda shape, dtype, fill: np.full(shape, fill).astype(dtype),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
        st.sampled_from(["u1", "u2", "u8", "i1", "i8", "f2", "f4", "f8", ">f4", "?", "c8", "U3", "S2", "M8[s]"]),
        st.integers(0, 3),
    ),
    st.builds(lambda n: np.arange(n) % 2, st.integers(0, 6)),
    st.builds(lambda n: np.full((n, 3), math.nan), st.integers(0, 6)),
)
KEYS = st.sampled_from(
    ["x", "y", "x_train", "y_train", "x_test", "y_test", "group", "group_train", "client", "client_train", "classes"]
)


@st.composite
def npz_bytes(draw):
    """An .npz file, sometimes with other bytes in it."""
    content = io.BytesIO()
    arrays = draw(st.dictionaries(KEYS, ARRAYS, max_size=8))
    np.savez(content, **arrays)
    damaged = bytearray(content.getvalue())
    for place, value in draw(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=2)):
        damaged[place % len(damaged)] = value
    return bytes(damaged)


def loads_or_is_rejected(path, content):
    path.write_bytes(content)
    try:
        data = load_dataset(str(path))
    except FullrankError:
        return
    prepared = Pipeline.build(data)(data.train.x)
    assert len(prepared) == len(data.train.y) > 0
    if data.columns:
        assert bool(prepared.isfinite().all())
        assert data.train.x.shape[1] == sum(column.width for column in data.columns)


def is_read_exactly(path, rows):
    shown = ["" if value is None else repr(value) for value, _, _ in rows]
    cells = [f"{value},{kind or ''},{label}" for value, (_, kind, label) in zip(shown, rows, strict=True)]
    path.write_text("value,kind,label\n" + "\n".join(cells) + "\n")
    data = load_dataset(str(path))
    found = np.concatenate([data.train.x.numpy(), data.test.x.numpy()])
    number = np.array([math.nan if value is None else value for value, _, _ in rows])
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(number))
    labels = np.concatenate([data.train.y.numpy(), data.test.y.numpy()])
    assert data.classes == ("no", "yes")
    assert labels.sum() == sum(label == "yes" for *_, label in rows)
    kinds = next(column for column in data.columns if column.name == "kind")
    first = next(column for column in data.columns if column.name == "value").width
    for k, name in enumerate(kinds.categories):
        assert found[:, first + k].sum() == sum(kind == name for _, kind, _ in rows)


def for_a_while(strategy, check):
    """Try new examples of a strategy until a third of the time is over."""
    end = time.monotonic() + SECONDS / 3
    while time.monotonic() < end:
        settings(QUICK, max_examples=300, database=None)(given(strategy)(lambda example: check(example)))()


@QUICK
@given(content=st.one_of(csv_bytes(), st.binary(max_size=60)))
def test_any_csv_file_gives_data_or_an_error_of_the_library(content, tmp_path_factory):
    loads_or_is_rejected(tmp_path_factory.getbasetemp() / "t.csv", content)


@QUICK
@given(content=npz_bytes())
def test_any_npz_file_gives_data_or_an_error_of_the_library(content, tmp_path_factory):
    loads_or_is_rejected(tmp_path_factory.getbasetemp() / "t.npz", content)


@settings(QUICK, max_examples=60)
@given(rows=tables())
def test_a_table_is_read_exactly(rows, tmp_path_factory):
    is_read_exactly(tmp_path_factory.getbasetemp() / "exact.csv", rows)


@pytest.mark.slow
def test_readers_for_a_minute(tmp_path):
    for_a_while(
        st.one_of(csv_bytes(), st.binary(max_size=200)), lambda given: loads_or_is_rejected(tmp_path / "t.csv", given)
    )
    for_a_while(npz_bytes(), lambda given: loads_or_is_rejected(tmp_path / "t.npz", given))
    for_a_while(tables(), lambda rows: is_read_exactly(tmp_path / "exact.csv", rows))


def test_an_entry_that_is_no_array_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as file:
        for name in ("x", "y"):
            file.writestr(name, b"text")
    with pytest.raises(FullrankError, match="the entry x is not an array"):
        load_dataset(str(tmp_path / "t.npz"))
