"""Office-Caltech10 and DomainNet in their official files."""

from __future__ import annotations

import os
import runpy
from collections import Counter
from pathlib import Path

import pytest
import torch

from commands import fullrank
from fullrank.config.experiment import Experiment
from fullrank.data import load_dataset
from fullrank.data.sources.domains import list_domainnet, list_office_caltech10
from fullrank.errors import InputError

image = pytest.importorskip("PIL.Image")

OFFICE = [
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
]
TEN = ["bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra"]
SIX = ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]
SHARED = Path(os.environ.get("FULLRANK_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for name in ("FULLRANK_DATA", "FULLRANK_CACHE"):
        monkeypatch.delenv(name, raising=False)


def rejected(name, root, *words, **keys):
    with pytest.raises(InputError) as caught:
        load_dataset(name, root, **keys)
    sentence = str(caught.value)
    assert [word for word in words if str(word) not in sentence] == [], sentence
    assert "\n" not in sentence


def write_image(path, grey=100, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, (grey, grey, grey)).save(path)


# Office-Caltech10


def write_office(root, count=10, domains=("amazon", "caltech", "dslr", "webcam"), classes=OFFICE, size=(6, 4)):
    for domain in domains:
        for name in classes:
            for number in range(1, count + 1):
                write_image(root / domain / name / f"frame_{number:04}.jpg", number, size)


def test_thirty_per_cent_of_each_domain_and_class_are_for_the_test(tmp_path):
    write_office(tmp_path / "office_caltech_10", classes=OFFICE[:6])
    data = load_dataset("office-caltech10", tmp_path)
    assert data.domains == ("amazon", "caltech", "dslr", "webcam")
    assert list(data.classes) == OFFICE
    for split, each in ((data.train, 7), (data.test, 3)):
        assert Counter(zip(split.domain.tolist(), split.y.tolist(), strict=True)) == {
            (domain, label): each for domain in range(4) for label in range(6)
        }
    assert (data.mean, data.augment) == (None, ("flip", "rotate:30"))
    assert data.train.x.shape == (168, 3, 4, 6)


def test_the_seed_draws_the_test_images(tmp_path):
    write_office(tmp_path, classes=OFFICE[4:])
    first, again, other = (list_office_caltech10(tmp_path, seed) for seed in (0, 0, 1))
    assert first == again
    assert first.test != other.test
    assert sorted([*first.train, *first.test]) == sorted([*other.train, *other.test])
    prints = {load_dataset("office-caltech10", tmp_path, seed=seed).fingerprint() for seed in (0, 1, 0)}
    assert len(prints) == 2


def test_the_folders_of_a_split_are_taken_as_they_are(tmp_path):
    for domain in ("Amazon", "caltech10", "dslr", "webcam"):
        for number in range(3):
            write_image(tmp_path / domain / "train" / "bike" / f"{number}.png", number)
        write_image(tmp_path / domain / "test" / "mug" / "0.png", 77)
    data = load_dataset("office-caltech10", tmp_path)
    assert data.train.y.tolist() == [1] * 12
    assert data.train.domain.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 1, 2] * 4
    assert (data.test.y.tolist(), data.test.domain.tolist()) == ([8] * 4, [0, 1, 2, 3])
    assert data.fingerprint() == load_dataset("office-caltech10", tmp_path, seed=5).fingerprint()


def test_other_names_of_the_same_classes(tmp_path):
    write_office(tmp_path, 4, domains=("amazon", "dslr", "webcam"))
    caltech256 = "003.backpack 224.touring-bike 027.calculator 101.head-phones 045.computer-keyboard 127.laptop-101"
    caltech256 = f"{caltech256} 046.computer-monitor 047.computer-mouse 041.coffee-mug 238.video-projector".split()
    for number, name in enumerate(caltech256):
        for copy in range(4):
            write_image(tmp_path / "caltech" / name / f"{copy}.jpg", number)
    listing = list_office_caltech10(tmp_path)
    of_caltech = [file for file in (*listing.train, *listing.test) if file.domain == "caltech"]
    assert {(file.path.parent.name, file.label) for file in of_caltech} == set(zip(caltech256, range(10), strict=True))


def test_what_is_not_office_caltech10_is_rejected(tmp_path):
    write_office(tmp_path, 2, domains=("amazon", "caltech", "dslr"))
    rejected("office-caltech10", tmp_path, "is not in", "amazon/, caltech/, dslr/, webcam/", "back_pack")
    write_office(tmp_path, 2, domains=("webcam",), classes=["bike", "desk_lamp"])
    rejected("office-caltech10", tmp_path, tmp_path / "webcam" / "desk_lamp", "unknown class", "projector")
    for path in (tmp_path / "webcam").rglob("*.jpg"):
        path.unlink()
    (tmp_path / "webcam" / "desk_lamp").rmdir()
    rejected("office-caltech10", tmp_path, tmp_path / "webcam", "no images for the training split")


def test_images_of_different_shapes_need_a_size(tmp_path):
    write_office(tmp_path, 4)
    write_image(tmp_path / "dslr" / "mug" / "frame_0002.jpg", 9, (8, 8))
    rejected("office-caltech10", tmp_path, "different shapes", "data.size")
    assert load_dataset("office-caltech10", tmp_path, size=[5, 5]).input_shape == (3, 5, 5)


def test_hidden_files_are_no_images_and_other_files_are_named(tmp_path):
    write_office(tmp_path, 4)
    (tmp_path / "dslr" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "dslr" / "mug" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "dslr" / "mug" / "Thumbs.db").write_bytes(b"x")
    assert len(load_dataset("office-caltech10", tmp_path).train) == 4 * 10 * 4 - 4 * 12
    (tmp_path / "dslr" / "mug" / "notes.txt").write_text("no image")
    rejected("office-caltech10", tmp_path, "notes.txt", 'data.unreadable = "skip"')
    data = load_dataset("office-caltech10", tmp_path, unreadable="skip")
    assert len(data.train) + len(data.test) == 160


def test_links_out_of_the_folder_are_rejected(tmp_path):
    write_office(tmp_path / "root", 4)
    write_image(tmp_path / "outside.jpg")
    (tmp_path / "root" / "dslr" / "mug" / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    rejected("office-caltech10", tmp_path / "root", "link.jpg", "leads out")


def test_the_shared_copy_has_the_counts_that_are_published(tmp_path):
    packed = SHARED / "office-caltech10-64px.npz"
    if not packed.is_file():
        pytest.skip(f"{packed} is not here")
    runpy.run_path(str(SHARED / "unpack.py"))["UNPACK"]["office-caltech10"](tmp_path)
    data = load_dataset("office-caltech10", tmp_path)
    both = torch.cat([data.train.domain, data.test.domain])
    assert dict(zip(data.domains, both.bincount().tolist(), strict=True)) == {
        "amazon": 958,
        "caltech": 1123,
        "dslr": 157,
        "webcam": 295,
    }
    assert data.input_shape == (3, 64, 64)


@pytest.mark.parametrize("method", ["fedbn", "fedbn+feddecorr"])
def test_fedbn_trains_on_half_the_smallest_domain_of_each(tmp_path, capsys, method):
    write_office(tmp_path / "data", 10, classes=OFFICE[:6], size=(8, 8))
    sets = ["data.name=office-caltech10", "data.root=data", "data.partition=domain", "data.equal=0.5"]
    sets += ["data.validation=0.4", f"method.name={method}", "model.name=resnet20", "train.rounds=1"]
    sets += ["train.epochs=1", "train.batch_size=32", "data.normalise=none"]
    words = [word for value in sets for word in ("--set", value)]
    status, out, err = fullrank("run", *words, "--out", "out", capsys=capsys)
    assert (status, err) == (0, "")
    assert "on office-caltech10: clients by domain, 4 per round, 1 round of 1 epoch" in out
    assert '"sizes": [\n  21,\n  21,\n  21,\n  21\n ]' in (tmp_path / "out" / "partition.json").read_text()


def test_the_experiment_has_the_settings_of_the_paper():
    path = Path(__file__).parents[2] / "experiments" / "office-caltech10.toml"
    experiment = Experiment.from_toml(path)
    data, train = experiment.data, experiment.train
    assert (data.name, data.partition, data.equal, data.validation) == ("office-caltech10", "domain", 0.5, 0.4)
    assert (data.size, data.normalise, data.augment) == ([256, 256], "none", ["flip", "rotate:30"])
    assert (experiment.model.name, train.rounds, train.epochs) == ("alexnet-bn", 300, 1)
    assert (train.batch_size, train.lr, train.momentum, train.weight_decay) == (64, 0.01, 0.9, 1e-5)


# DomainNet


def write_domainnet(root, names=("bird", "zebra", "axe"), labels=None, count=2, **changed):
    """Write the lists, one line for each domain, class and number, and the images that they name."""
    labels = labels or dict(zip(names, (29, 344, 12), strict=False))
    root.mkdir(parents=True, exist_ok=True)
    for number, domain in enumerate(SIX):
        for part, copies in (("train", range(count)), ("test", range(count, count + 1))):
            lines = []
            for name in names:
                for copy in copies:
                    file = f"{domain}/{name}/{domain}_{labels[name]:03}_{copy:06}.jpg"
                    write_image(root / file, number)
                    lines.append(f"{file} {labels[name]}")
            (root / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")


def test_ten_classes_in_the_order_of_fedbn(tmp_path):
    write_domainnet(tmp_path / "DomainNet")
    data = load_dataset("domainnet", tmp_path)
    assert list(data.classes) == TEN
    assert list(data.domains) == SIX
    assert data.train.y.tolist() == [0, 0, 9, 9] * 6
    assert data.train.domain.tolist() == [k for k in range(6) for _ in range(4)]
    assert data.train.x[:, 0, 0, 0].tolist() == data.train.domain.tolist()
    assert (data.test.y.tolist(), data.test.domain.tolist()) == ([0, 9] * 6, [k for k in range(6) for _ in range(2)])
    assert (data.mean, data.augment) == (None, ("flip", "rotate:30"))


def test_all_classes_in_the_order_of_their_labels(tmp_path):
    write_domainnet(tmp_path, ("zebra", "axe", "The_Eiffel_Tower"), {"zebra": 2, "axe": 0, "The_Eiffel_Tower": 1})
    data = load_dataset("domainnet-345", tmp_path)
    assert data.classes == ("axe", "The_Eiffel_Tower", "zebra")
    assert data.train.y.tolist() == [2, 2, 0, 0, 1, 1] * 6
    (tmp_path / "sketch_test.txt").write_text("sketch/zebra/sketch_002_000000.jpg 3\n")
    rejected("domainnet-345", tmp_path, "sketch_test.txt, line 1", "label 3 to zebra")


def test_only_images_of_the_chosen_classes_need_to_be_there(tmp_path):
    write_domainnet(tmp_path)
    for path in tmp_path.rglob("axe/*.jpg"):
        path.unlink()
    assert len(load_dataset("domainnet", tmp_path).train) == 24
    (tmp_path / "real" / "bird" / "real_029_000001.jpg").unlink()
    rejected("domainnet", tmp_path, "1 of 36 image files", "real_029_000001.jpg")


def test_line_ends_and_marks_of_other_systems_are_read(tmp_path):
    write_domainnet(tmp_path)
    plain = list_domainnet(tmp_path)
    for path in tmp_path.glob("*.txt"):
        lines = path.read_text().splitlines()
        path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(["", *lines, "", ""]).replace(" ", "\t").encode())
    assert list_domainnet(tmp_path) == plain


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sketch/bird/x.jpg", ("line 2", "must be as in")),
        ("sketch/bird/x.jpg,29", ("line 2", "must be as in")),
        ("sketch/bird/x.jpg -1", ("line 2", "must be as in")),
        ("sketch/x.jpg 29", ("line 2", "must be as in")),
        ("real/bird/x.jpg 29", ("line 2", '"real"', "must be of sketch")),
        ("sketch/bird/x.jpg 345", ("line 2", "label 345", "0..344")),
        ("sketch/bird/x.jpg 30", ("line 2", "label 30 to bird")),
        ("sketch/hawk/x.jpg 29", ("line 2", "label 29 to hawk")),
        ("sketch/bird/sketch_029_000002.jpg 29", ("line 2", "a second time")),
        ("sketch/bird/sketch_029_000000.jpg 29", ("line 2", "a second time")),
        ("sketch/bird/.. 29", ("line 2", "must be a path below")),
        ("sketch/bird/..\\x.jpg 29", ("line 2", "must be a path below")),
        ("sketch/bird/absent.jpg 29", ("absent.jpg", "cannot be read")),
    ],
)
def test_other_lines_are_rejected(tmp_path, line, words):
    write_domainnet(tmp_path)
    path = tmp_path / "sketch_test.txt"
    path.write_text(f"sketch/bird/sketch_029_000002.jpg 29\n{line}\n")
    rejected("domainnet", tmp_path, "sketch", *words)


def test_incomplete_lists_are_rejected(tmp_path):
    rejected("domainnet", tmp_path, "clipart_train.txt", "https://ai.bu.edu/M3SDA/")
    write_domainnet(tmp_path)
    (tmp_path / "real_train.txt").write_text("\n")
    rejected("domainnet", tmp_path, "real_train.txt names no images")
    (tmp_path / "real_train.txt").write_bytes(b"\xff\xfe\x00")
    rejected("domainnet", tmp_path, "real_train.txt is not text in UTF-8")
    (tmp_path / "real_train.txt").unlink()
    rejected("domainnet", tmp_path, "lacks real_train.txt")
    write_domainnet(tmp_path / "gap", labels={"bird": 0, "zebra": 1, "axe": 3})
    rejected("domainnet-345", tmp_path / "gap", "no image with the label 2")
    write_domainnet(tmp_path / "none", ("axe",), {"axe": 0})
    rejected("domainnet", tmp_path / "none", "no training images")
