"""Data sets that the library `datasets` reads, here from local files."""

import io

import numpy as np
import pytest
import torch

from fullrank.data import load_dataset
from fullrank.data.columns import Column
from fullrank.errors import InputError

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Nothing is downloaded, and nothing is kept outside the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def grey(level, side=4):
    content = io.BytesIO()
    Image.fromarray(np.full((side, side), level, np.uint8)).save(content, "png")
    return content.getvalue()


def table(**more):
    columns = {"age": [float(k) for k in range(20)], "sex": list("fm") * 10, "stage": [0, 1, 1, 0] * 5}
    stage = datasets.ClassLabel(names=["well", "ill"])
    kinds = {"age": datasets.Value("float32"), "sex": datasets.Value("string"), "stage": stage}
    return datasets.Dataset.from_dict({**columns, **more}, features=datasets.Features(kinds) if not more else None)


def stored(folder, **parts):
    for name, part in parts.items():
        (folder / "hf").mkdir(exist_ok=True)
        part.to_parquet(folder / "hf" / f"{name}.parquet")


def test_a_table_with_names_of_classes(tmp_path):
    stored(tmp_path, train=table(), test=table().select([3, 4]))
    data = load_dataset("hub:hf")
    assert (data.classes, data.columns) == (("well", "ill"), (Column("age"), Column("sex", ("f", "m"))))
    assert (len(data.train), data.train.y[:4].tolist()) == (20, [0, 1, 1, 0])
    assert data.test.x.tolist() == [[3, 0, 1], [4, 1, 0]]
    assert load_dataset("hub:hf", tmp_path).fingerprint() == data.fingerprint()
    assert load_dataset("hub:hf", label="sex").classes == ("f", "m")


def test_without_a_test_part_a_fifth_is_split_off(tmp_path):
    stored(tmp_path, train=table())
    data = load_dataset("hub:hf", client="sex")
    assert (len(data.train), len(data.test), data.clients) == (16, 4, ("f", "m"))


def test_images_in_parquet_files(tmp_path):
    kinds = {"scan": datasets.Image(), "kind": datasets.ClassLabel(names=["z", "a"])}
    rows = {"scan": [{"bytes": grey(k), "path": None} for k in range(20)], "kind": [0, 1] * 10}
    part = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    stored(tmp_path, train=part, test=part.select([5, 6]))
    data = load_dataset("hub:hf")
    assert (data.input_shape, data.classes) == ((1, 4, 4), ("z", "a"))
    assert data.train.x[:, 0, 0, 0].tolist() == list(range(20))
    assert (data.test.x[:, 0, 0, 0].tolist(), data.test.y.tolist()) == ([5, 6], [1, 0])
    assert load_dataset("hub:hf", size=2).input_shape == (1, 2, 2)


def test_files_elsewhere_and_broken_images_are_not_read(tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(grey(9))
    features = datasets.Features({"scan": datasets.Image(), "label": datasets.Value("string")})
    images = [{"bytes": grey(k), "path": None} for k in range(20)]
    images[3], images[8] = {"bytes": None, "path": str(secret)}, {"bytes": b"no image", "path": None}
    scans = {"scan": images, "label": list("ab") * 10}
    encoded = datasets.Dataset.from_dict(scans, features=features).cast_column("scan", datasets.Image(decode=False))
    rows = encoded.with_format("arrow")[:]
    (tmp_path / "hf").mkdir()
    datasets.Dataset(rows, info=datasets.DatasetInfo(features=features)).to_parquet(tmp_path / "hf" / "train.parquet")
    changed = datasets.load_dataset(str(tmp_path / "hf"))["train"].cast_column("scan", datasets.Image(decode=False))
    unread = 2 if changed[3]["scan"]["bytes"] is None else 1  # some versions of datasets embed the file
    with pytest.raises(InputError, match=rf"{unread} of 20 images cannot be read \(row .*not an image"):
        load_dataset("hub:hf")
    data = load_dataset("hub:hf", unreadable="skip")
    assert (len(data.train) + len(data.test), len(data.unreadable)) == (20 - unread, unread)


def test_a_folder_of_images(tmp_path):
    for side, count in (("train", 6), ("test", 2)):
        for level, kind in enumerate(("cat", "dog")):
            (tmp_path / "pets" / side / kind).mkdir(parents=True)
            for k in range(count):
                (tmp_path / "pets" / side / kind / f"{k}.png").write_bytes(grey(level * 100 + k))
    data = load_dataset("hub:pets")
    assert (data.classes, len(data.train), len(data.test)) == (("cat", "dog"), 12, 4)
    assert torch.equal(data.train.x[:, 0, 0, 0] >= 100, data.train.y == 1)


def test_code_that_a_data_set_brings_is_not_run(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "hf.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    with pytest.raises(InputError, match=r'data\.name = "hub:hf": the library datasets cannot read it'):
        load_dataset("hub:hf")
    assert not (tmp_path / "executed").exists()


def test_what_cannot_be_read_is_named(tmp_path):
    stored(tmp_path, train=table())
    (tmp_path / "empty").mkdir()
    for source, keys, words in (
        ("hub:", {}, "the name of a data set must follow"),
        ("hub:./nothing", {}, "there is no folder nothing"),
        ("hub:empty", {}, "the folder empty is empty"),
        ("hub:hf", {"label": "grade"}, 'data.label = "grade": there is no such column; the columns are'),
        ("hub:hf", {"image": "age"}, "no such column of images; there are none"),
        ("hub:hf", {"unreadable": "skip"}, "applies to images"),
        ("hub:hf", {"num_classes": 3}, "num_classes is 3"),
    ):
        with pytest.raises(InputError, match=words):
            load_dataset(source, **keys)
    stored(tmp_path, train=table(stage=[0, -1, 1, 0] * 5).cast_column("stage", datasets.ClassLabel(names=["a", "b"])))
    with pytest.raises(InputError, match=r'"stage" has no class|cannot read it'):
        load_dataset("hub:hf")


def test_an_old_library_is_rejected(tmp_path, monkeypatch):
    stored(tmp_path, train=table())
    monkeypatch.setattr(datasets, "__version__", "2.14.0")
    with pytest.raises(InputError, match="may run code that a data set brings; install version 4 or newer"):
        load_dataset("hub:hf")
