"""Damaged files in official formats end in our own error, or in data; nothing else happens."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fullrank.data import load_dataset
from fullrank.data.sources.domains import list_domainnet
from fullrank.data.sources.skin_lesions import list_isic2019
from fullrank.errors import InputError

pytestmark = pytest.mark.slow

SIX = ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]
fuzzed = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def damages(draw):
    """How bytes are damaged: cut off, some replaced, some inserted, or all of them arbitrary."""
    start, stop = sorted((draw(st.floats(0, 1)), draw(st.floats(0, 1))))
    return draw(st.sampled_from(["cut", "replace", "insert", "all"])), start, stop, draw(st.binary(max_size=40))


def damaged(content, damage):
    how, start, stop, new = damage
    first, last = int(start * len(content)), int(stop * len(content))
    if how == "cut":
        return content[:first] + content[last:]
    if how == "insert":
        return content[:first] + new + content[first:]
    return new if how == "all" else content[:first] + new + content[first + len(new) :]


def read(action):
    with contextlib.suppress(InputError):
        action()


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@fuzzed
@given(damage=damages(), compressed=st.booleans())
def test_matlab_files(tmp_path, damage, compressed):
    scipy_io = pytest.importorskip("scipy.io")
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 2), dtype=np.uint8)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        variables = {"X": x, "y": np.array([[1], [10]], np.uint8)}
        scipy_io.savemat(tmp_path / name, variables, do_compression=compressed)
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(damaged(path.read_bytes(), damage))
    read(lambda: load_dataset("svhn", tmp_path))


@fuzzed
@given(damage=damages())
def test_json_files(tmp_path, damage):
    user = {"x": [[0.5] * 784, [1.0] * 784], "y": [3, 61]}
    content = json.dumps({"users": ["a"], "num_samples": [2], "user_data": {"a": user}}).encode()
    for part in ("train", "test"):
        (tmp_path / part).mkdir(exist_ok=True)
        (tmp_path / part / "0.json").write_bytes(content)
    (tmp_path / "train" / "0.json").write_bytes(damaged(content, damage))
    read(lambda: load_dataset("femnist", tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("xyab"), inner, max_size=3),
    max_leaves=8,
)


@fuzzed
@given(users=st.just(["a"]) | JSON, data=st.fixed_dictionaries({"a": JSON}) | JSON)
def test_other_json(tmp_path, users, data):
    for part in ("train", "test"):
        (tmp_path / part).mkdir(exist_ok=True)
        (tmp_path / part / "0.json").write_text(json.dumps({"users": users, "user_data": data}))
    read(lambda: load_dataset("femnist", tmp_path))


@fuzzed
@given(damage=damages())
def test_lists(tmp_path, damage):
    for domain in SIX:
        for part in ("train", "test"):
            lines = (f"{domain}/bird/{part}.jpg 29", f"{domain}/zebra/{part}.jpg 344", f"{domain}/axe/{part}.jpg 12")
            (tmp_path / f"{domain}_{part}.txt").write_text("\n".join(lines))
    path = tmp_path / "real_test.txt"
    path.write_bytes(damaged(path.read_bytes(), damage))
    read(lambda: list_domainnet(tmp_path))
    read(lambda: list_domainnet(tmp_path, ()))


@fuzzed
@given(damage=damages(), which=st.integers(0, 3))
def test_tables(tmp_path, damage, which):
    tables = {
        "ISIC_2019_Training_GroundTruth.csv": "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK\na,1.0,0,0,0,0,0,0,0,0\n"
        "b,0,1.0,0,0,0,0,0,0,0\n",
        "ISIC_2019_Training_Metadata.csv": 'image,age_approx,lesion_id,sex\na,5,BCN_1,"male"\nb,,HAM_0000001,\n',
        "HAM10000_metadata": "lesion_id,image_id,dataset\nHAM_0000001,b,rosendahl\n",
        "train_test_split": "image,center,fold\na,0,train\nb,3,test\n",
    }
    for name in "ab":
        (tmp_path / f"{name}.jpg").touch()
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    path = tmp_path / list(tables)[which]
    path.write_bytes(damaged(path.read_bytes(), damage))
    read(lambda: list_isic2019(tmp_path))
