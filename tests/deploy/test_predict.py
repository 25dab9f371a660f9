"""Predictions for image files and arrays: the table, the preparation of images, and what is rejected."""

import csv
import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank.deploy.predict import predict
from fullrank.errors import InputError

Image = pytest.importorskip("PIL.Image")
SIDE = 12
CLASSES = ["red", "green, dark", "blue"]
onnx = pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs fullrank[onnx]")


def images(number, side=SIDE, seed=0):
    """Images of three classes, each with more of one colour."""
    rng = np.random.default_rng(seed)
    y = np.arange(number) % 3
    x = rng.integers(0, 120, (number, side, side, 3))
    x[np.arange(number), :, :, y] += 120
    return x.astype(np.uint8), y


def trained(path, **settings):
    x, y = images(90)
    np.savez(path / "colours.npz", x=x, y=y, classes=CLASSES)
    base = {
        "data.name": str(path / "colours.npz"),
        "data.normalise": {"mean": [0.5, 0.4, 0.3], "std": [0.3, 0.2, 0.1]},
        "data.augment": "none",
        "data.clients": 2,
        "data.alpha": 10.0,
        "model": {"name": "cnn", "width": 8},
        "train.rounds": 2,
        "engine.name": "serial",
    }
    run = fullrank.run({**base, **settings}, path / "run")
    (path / "colours.npz").unlink()  # the directory of the run suffices
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("trained")).path


@pytest.fixture
def photos(tmp_path):
    """Image files in a folder with folders, and what else lies in such folders."""
    folder = tmp_path / "photos"
    x, _ = images(7, seed=1)
    for k, image in enumerate(x):
        place = folder / ("a" if k % 2 else "b/deep")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{k}.png")
    (folder / "notes.txt").write_text("not an image")
    (folder / ".hidden.png").write_text("not an image either")
    return folder


def rows_of(file):
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def pixels_of(photos, row):
    with Image.open(photos / row["path"]) as image:
        return np.asarray(image)


def test_the_table_has_the_probabilities_of_the_model(run, photos, tmp_path, capsys):
    status, out, err = command("predict", run, photos, "--out", tmp_path / "p.csv", capsys=capsys)
    assert (status, err) == (0, "note: 1 file left out, not an image by its name: notes.txt\n")
    assert "7 samples, by predicted class" in out
    rows = rows_of(tmp_path / "p.csv")
    assert list(rows[0]) == ["path", "label", "probability", "p_red", "p_green, dark", "p_blue"]
    assert [row["path"] for row in rows] == [
        *("a/1.png", "a/3.png", "a/5.png"),
        *("b/deep/0.png", "b/deep/2.png", "b/deep/4.png", "b/deep/6.png"),
    ]
    module = fullrank.load_run(run).model()
    for row in rows:
        x = (pixels_of(photos, row) / 255 - [0.5, 0.4, 0.3]) / [0.3, 0.2, 0.1]
        with torch.no_grad():
            expected = module(torch.from_numpy(x.transpose(2, 0, 1)[None]).float()).softmax(1)[0].numpy()
        found = [float(row[f"p_{name}"]) for name in CLASSES]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert row["label"] == CLASSES[expected.argmax()]
        assert float(row["probability"]) == max(found)


@onnx
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("settings", [{}, {"data.augment": ["random-crop:10", "flip"]}], ids=["whole", "cropped"])
def test_the_run_and_its_exports_agree_on_raw_image_files(settings, photos, tmp_path):
    import onnxruntime

    path = trained(tmp_path, **settings).path
    found = predict(path, photos)
    folder = fullrank.export(path, formats=["onnx", "torch", "safetensors"]).path
    raw = np.stack([np.asarray(Image.open(photos / name)).transpose(2, 0, 1) for name in found.names])
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    program = torch.export.load(folder / "model.pt2").module()
    loaded = fullrank.load_export(folder)
    with torch.no_grad():
        for scores in (
            torch.from_numpy(session.run(None, {"x": raw})[0]),
            program(torch.from_numpy(raw)),
            loaded(torch.from_numpy(raw)),
        ):
            torch.testing.assert_close(scores.softmax(1), found.probabilities, rtol=0, atol=1e-5)


def test_images_of_another_size_and_grey_ones_are_converted_with_a_note(run, tmp_path):
    x, _ = images(1)
    Image.fromarray(x[0]).resize((30, 20), Image.Resampling.BILINEAR).save(tmp_path / "large.png")
    Image.fromarray(x[0, :, :, 0]).save(tmp_path / "grey.png")
    found = predict(run, [tmp_path / "large.png", tmp_path / "grey.png"])
    assert found.notes == ("resized to 12×12: 1 of 2 images", "converted from grey to colour: 1 of 2 images")
    with Image.open(tmp_path / "large.png") as image:
        again = image.resize((SIDE, 20), Image.Resampling.BILINEAR).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    grey = np.repeat(x[0, :, :, :1], 3, axis=2)
    expected = fullrank.load_run(run).predict(np.stack([np.asarray(again), grey]))
    torch.testing.assert_close(found.probabilities, expected)


def test_images_are_resized_by_the_rule_of_the_run(tmp_path):
    path = trained(tmp_path, **{"data.size": 8}).path
    x, _ = images(1, side=24)
    Image.fromarray(x[0, :, :12]).save(tmp_path / "tall.png")  # 24 high, 12 wide: 16 by 8, of which the middle is kept
    with Image.open(tmp_path / "tall.png") as image:
        small = image.resize((8, 24), Image.Resampling.BILINEAR).resize((8, 16), Image.Resampling.BILINEAR)
    found = predict(path, tmp_path / "tall.png")
    assert found.notes == ()
    expected = fullrank.load_run(path).predict(np.asarray(small)[None, 4:12])
    torch.testing.assert_close(found.probabilities, expected)


def test_an_array_is_predicted_by_index(run, tmp_path, capsys):
    x, _ = images(5, seed=2)
    np.savez(tmp_path / "new.npz", x_test=x, further=np.zeros(3))
    status, out, _ = command("predict", run, tmp_path / "new.npz", capsys=capsys)
    assert status == 0
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["index"] for row in rows] == list("01234")
    expected = fullrank.load_run(run).predict(x)
    np.testing.assert_allclose([float(row["p_blue"]) for row in rows], expected[:, 2], atol=1e-6)


def test_json_has_the_predictions_unless_a_file_has_them(run, photos, tmp_path, capsys):
    facts = json.loads(command("predict", run, photos, "--json", capsys=capsys)[1])
    assert facts["samples"] == len(facts["predictions"]) == sum(facts["counts"].values()) == 7
    assert sum(facts["predictions"][0]["probabilities"]) == pytest.approx(1)
    written = ("predict", run, photos, "--json", "--out", tmp_path / "p.csv")
    assert "predictions" not in json.loads(command(*written, capsys=capsys)[1])


def test_unreadable_images_are_listed_and_left_out_if_asked(run, photos, tmp_path, capsys):
    whole = (photos / "a/1.png").read_bytes()
    (photos / "a/1.png").write_bytes(whole[:60])
    (photos / "a/empty.jpg").touch()
    to = tmp_path / "p.csv"
    status, out, err = command("predict", run, photos, "--out", to, capsys=capsys)
    assert (status, out, to.exists()) == (2, "", False)
    assert '2 of 8 image files cannot be read: "a/1.png" (' in err
    assert '"a/empty.jpg" (it is empty); repair them, or leave them out with --unreadable skip' in err
    status, out, err = command("predict", run, photos, "--unreadable", "skip", "--out", to, capsys=capsys)
    assert status == 0
    assert '2 unreadable images left out: "a/1.png"' in err
    assert len(rows_of(to)) == 6


def test_many_files_are_decoded_in_order(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fullrank.data.sources.unlabelled.AT_ONCE", 3)
    monkeypatch.setattr("fullrank.data.sources.unlabelled.FEW_FILES", 5)
    x, _ = images(11, seed=3)
    (tmp_path / "many").mkdir()
    for k, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / "many" / f"{k:02d}.png")
    found = predict(run, tmp_path / "many")
    torch.testing.assert_close(found.probabilities, fullrank.load_run(run).predict(x))


def test_only_a_table_of_predictions_is_replaced(run, photos, tmp_path, capsys):
    to = tmp_path / "p.csv"
    for _ in range(2):
        assert command("predict", run, photos, "--out", to, capsys=capsys)[0] == 0
    to.write_text("path,label\na.png,cat\n")
    status, _, err = command("predict", run, photos, "--out", to, capsys=capsys)
    assert status == 2
    assert "exists and is not a table of predictions; choose another --out" in err
    assert to.read_text() == "path,label\na.png,cat\n"


def test_errors_are_one_sentence(run, photos, tmp_path, capsys):
    x, _ = images(2)
    np.savez(tmp_path / "float.npz", x=x.astype(np.float32))
    np.savez(tmp_path / "small.npz", x=x[:, :6])
    np.savez(tmp_path / "other.npz", pictures=x)
    np.savez(tmp_path / "object.npz", x=np.array([{}, {}], dtype=object))
    (tmp_path / "none").mkdir()
    for arguments, words in (
        ((run, tmp_path / "nowhere"), "there is no file or folder"),
        ((run, tmp_path / "none"), "has no images at any depth"),
        ((run, tmp_path / "float.npz"), "x is float32, but the run was trained on samples of uint8"),
        ((run, tmp_path / "small.npz"), "but the run was trained on samples of shape 3×12×12"),
        ((run, tmp_path / "other.npz"), "has the arrays pictures; name the array of the samples x"),
        ((run, tmp_path / "object.npz"), "holds Python objects"),
        ((run, tmp_path / "float.npz", photos), "cannot be predicted together with other files"),
        ((run, photos, "--client", 7), "clients are 0 to 1"),
        ((run, photos, "--unreadable", "ignore"), 'must be "stop" or "skip"'),
        ((run, photos, "--out", tmp_path), "is a folder; name a file"),
        ((run, photos, "--out", tmp_path / "no" / "p.csv"), "there is no folder"),
        ((tmp_path / "none", photos), "is not a run directory"),
    ):
        status, out, err = command("predict", *arguments, capsys=capsys)
        assert (status, out) == (2, ""), words
        assert words in err
        assert err.count("\n") == 1


def test_a_run_on_tables_says_that_it_takes_no_images(photos, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "table.npz", x=rng.normal(size=(40, 5)), y=np.arange(40) % 2)
    table = {"data.name": str(tmp_path / "table.npz"), "data.clients": 2, "model.name": "mlp", "train.rounds": 1}
    path = fullrank.run(table, tmp_path / "run").path
    with pytest.raises(InputError, match="samples of float64 of shape 5, which image files do not hold"):
        predict(path, photos)
    assert predict(path, tmp_path / "table.npz").probabilities.shape == (40, 2)


def test_a_missing_pillow_is_named(run, photos, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "PIL" else find(name, *more))
    with pytest.raises(InputError, match=r"pip install 'fullrank\[images\]'"):
        predict(run, photos)


def test_the_run_may_have_lost_its_checkpoints(run, photos, tmp_path):
    shutil.copytree(run, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "checkpoints")
    assert torch.equal(predict(tmp_path / "bare", photos).probabilities, predict(run, photos).probabilities)
