"""Folders of images in every layout, and what is wrong with others."""

import contextlib
import csv
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fullrank as fr
from commands import fullrank
from folders import levels, picture, tree, write
from fullrank.data import load_dataset
from fullrank.data.sources.folder import list_folder
from fullrank.errors import InputError
from fullrank.runs.assemble import federate

SHARED = Path(os.environ.get("FULLRANK_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "cache"))


def rejected(root, *words, **how):
    with pytest.raises(InputError) as error:
        load_dataset("folder", root, **how)
    for word in words:
        assert word in str(error.value)


def paths(files, root):
    return [Path(file.path).relative_to(root).as_posix() for file in files]


# Layouts


def test_folders_of_classes_are_split_by_the_seed(tmp_path):
    tree(tmp_path, [f"{name}/{k:02d}.png" for name in ("cat", "ant") for k in range(10)])
    listing = list_folder(tmp_path, seed=3)
    assert listing.classes == ("ant", "cat")
    assert Counter(file.label for file in listing.test) == {0: 3, 1: 3}
    whole = sorted(paths([*listing.train, *listing.test], tmp_path))
    assert whole == sorted(f"{name}/{k:02d}.png" for name in ("cat", "ant") for k in range(10))
    assert paths(listing.train, tmp_path) == sorted(paths(listing.train, tmp_path))
    assert list_folder(tmp_path, seed=3) == listing
    assert list_folder(tmp_path, seed=4).test != listing.test
    assert load_dataset("folder", tmp_path).domains == ()


def test_parts_and_classes(tmp_path):
    known = tree(tmp_path, ["train/b/2.png", "train/b/10.png", "train/a/1.png", "test/a/1.png", "test/c/1.png"])
    write(tmp_path / "train/c/x.png", picture((250, 0, 0)))
    data = load_dataset("folder", tmp_path)
    assert data.classes == ("a", "b", "c")
    assert data.train.y.tolist() == [0, 1, 1, 2]
    assert levels(data.train) == [known["train/a/1.png"], known["train/b/10.png"], known["train/b/2.png"], 250]
    assert levels(data.test) == [known["test/a/1.png"], known["test/c/1.png"]]
    assert data.train.domain is None
    assert data.name == tmp_path.name


def test_domains_with_parts_have_the_union_of_their_classes(tmp_path):
    known = tree(tmp_path, ["north/train/b/1.png", "north/test/b/1.png", "south/train/a/1.png", "south/train/c/1.png"])
    data = load_dataset("folder", tmp_path)
    assert data.classes == ("a", "b", "c")
    assert data.domains == ("north", "south")
    assert (data.train.y.tolist(), data.train.domain.tolist()) == ([1, 0, 2], [0, 1, 1])
    assert (data.test.y.tolist(), data.test.domain.tolist()) == ([1], [0])
    assert levels(data.train) == [known[name] for name in known if "train" in name]


def test_domains_without_parts_are_split_within_domain_and_class(tmp_path):
    sizes = {("north", "a"): 10, ("north", "b"): 20, ("south", "a"): 30}
    tree(tmp_path, [f"{d}/{c}/{k:02d}.png" for (d, c), size in sizes.items() for k in range(size)])
    listing = list_folder(tmp_path)
    found = Counter((file.domain, listing.classes[file.label]) for file in listing.test)
    assert found == {place: 0.3 * size for place, size in sizes.items()}


def test_both_layouts_of_domains_give_the_same_arrays(tmp_path):
    names = [f"{d}/{c}/{k}.png" for d in ("north", "south") for c in ("a", "b") for k in range(10)]
    known = tree(tmp_path / "plain", names)
    listing = list_folder(tmp_path / "plain", seed=1)
    for split in ("train", "test"):
        for name in paths(getattr(listing, split), tmp_path / "plain"):
            domain, label, file = name.split("/")
            write(tmp_path / "parts" / domain / split / label / file, picture((known[name], 0, 0)))
    one, other = load_dataset("folder", tmp_path / "plain", seed=1), load_dataset("folder", tmp_path / "parts")
    assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize("name", ["val", "validation", "Validation"])
def test_a_validation_part_is_the_test_part_where_there_is_none(name, tmp_path):
    tree(tmp_path, ["Train/a/1.png", "Train/b/1.png", f"{name}/b/1.png"])
    listing = list_folder(tmp_path)
    assert paths(listing.test, tmp_path) == [f"{name}/b/1.png"]
    assert not listing.remarks


def test_a_validation_part_next_to_a_test_part_is_left_out_with_a_warning(tmp_path):
    sites = ["north/train/a/1.png", "north/test/a/1.png", "north/val/a/1.png", "north/val/b/2.png"]
    tree(tmp_path, [*sites, "south/train/a/1.png", "south/val/a/1.png"])
    data = load_dataset("folder", tmp_path)
    assert (len(data.train), len(data.test)) == (2, 2)
    assert data.test.domain.tolist() == [0, 1]
    assert data.classes == ("a", "b")
    [remark] = data.remarks
    assert remark.startswith(f"the 2 images of the validation part in {tmp_path} are not used")


def test_a_training_part_without_a_test_part_is_split_by_the_seed(tmp_path):
    tree(tmp_path, [f"train/a/{k}.png" for k in range(10)])
    listing = list_folder(tmp_path)
    assert (len(listing.train), len(listing.test)) == (7, 3)


def test_hidden_files_and_those_of_systems_are_ignored(tmp_path):
    tree(tmp_path, [f"a/{k}.png" for k in range(4)])
    for name in ("a/.hidden.png", "a/.DS_Store", "a/Thumbs.db", "a/desktop.ini", ".git/x/y.png", "__MACOSX/a/._1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / "README.txt").write_text("what this is")
    listing = list_folder(tmp_path)
    assert sorted(paths([*listing.train, *listing.test], tmp_path)) == [f"a/{k}.png" for k in range(4)]


def test_other_files_among_the_images_cannot_be_read(tmp_path):
    tree(tmp_path, [f"a/{k}.png" for k in range(4)])
    (tmp_path / "a" / "notes.txt").write_text("hello")
    rejected(tmp_path, "1 of 5 image files", f"{tmp_path}/a/notes.txt (it is not an image of a known format)", "skip")
    assert load_dataset("folder", tmp_path, unreadable="skip").unreadable == (
        "a/notes.txt: it is not an image of a known format",
    )


def test_an_empty_folder_of_a_class_keeps_its_number(tmp_path):
    tree(tmp_path, [f"{name}/{k}.png" for name in ("a", "c") for k in range(4)])
    (tmp_path / "b").mkdir()
    data = load_dataset("folder", tmp_path)
    assert data.classes == ("a", "b", "c")
    assert sorted(set(data.train.y.tolist())) == [0, 2]


# What is wrong with a tree


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], ["has no images", "class/*, split/class/*, domain/class/* or domain/split/class/*"]),
        (["1.png"], ["has images such as 1.png"]),
        (["a/b/c/d/1.png"], ["has images such as a/b/c/d/1.png"]),
        (["loose.png", "a/1.png"], ["different depths: loose.png and a/1.png"]),
        (["north/a/1.png", "south/train/a/1.png"], ["different depths: north/a/1.png and south/train/a/1.png"]),
        (["train/1.png", "test/1.png"], ["the images in", "test have no classes"]),
        (["train/a/1.png", "north/a/1.png"], ["train is the name of a part of the data and north is not"]),
        (["train/north/a/1.png", "test/north/a/1.png"], ["below north, which is not the name of a part"]),
        (["north/train/a/1.png", "north/b/a/1.png"], ["train is the name of a part of the data and b is not"]),
        (["test/a/1.png"], ["has a test part and no training part"]),
        (["a/1.png"], ["too few images to split a test part off"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else None,
)
def test_trees_that_can_be_read_in_two_ways_or_none_are_rejected(files, words, tmp_path):
    tree(tmp_path, files)
    rejected(tmp_path, str(tmp_path), *words)


def test_folders_that_are_not_there_are_named(tmp_path):
    rejected(tmp_path / "gone", f"there is no folder {tmp_path}/gone")
    rejected("", 'data.name = "folder" needs data.root')
    file = write(tmp_path / "a.png")
    rejected(file, f"the folder {file} cannot be read: Not a directory")


def test_an_empty_site_is_rejected(tmp_path):
    tree(tmp_path, ["north/a/1.png", "north/a/2.png"])
    (tmp_path / "south" / "a").mkdir(parents=True)
    rejected(tmp_path, f"{tmp_path}/south has no images")


# Groups


def grouped(root, groups, separator=",", header=("path", "group")):
    tree(root, groups)
    with (root / "groups.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header, *groups.items()])


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_groups_are_read_by_path(separator, tmp_path):
    files = {"train/a/1.png": "anna", "train/a/2.png": "", "train/b/1.png": "anna", "test/a/1.png": "bert"}
    grouped(tmp_path, files, separator)
    data = load_dataset("folder", tmp_path)
    anna, none, same = data.train.group.tolist()
    assert anna == same
    assert len({anna, none, data.test.group.item()}) == 3


@given(
    st.lists(st.tuples(st.sampled_from("nsw"), st.sampled_from("abc"), st.integers(0, 12)), min_size=4, max_size=40),
    st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_groups_stay_together_when_a_test_part_is_split_off(rows, seed):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with (root / "groups.csv").open("w") as file:
            print("path,group", file=file)
            for k, (domain, label, group) in enumerate(rows):
                path = root / domain / label / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                print(f"{domain}/{label}/{k}.png,{group or ''}", file=file)
        try:
            listing = list_folder(root, seed)
        except InputError as error:
            assert "too few" in str(error)  # noqa: PT017 - few rows may have too few groups
            return
        assert len(listing.train) + len(listing.test) == len(rows)
        assert not {file.group for file in listing.train if file.group} & {f.group for f in listing.test if f.group}
        assert listing.test


def test_a_group_on_both_sides_is_named(tmp_path):
    grouped(tmp_path, {"train/a/1.png": "anna", "train/a/2.png": "bert", "test/a/1.png": "anna"})
    rejected(tmp_path, "group anna is in both training and test, with train/a/1.png and test/a/1.png")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,patient\na/1.png,x\n", ["has no column path; its columns are file, patient"]),
        ("", ["is empty"]),
        ("path,group\na/1.png,x\n", ["lacks 3 of 4 images, such as a/2.png, a/3.png, a/4.png"]),
        ("path,group\n", ["lacks 4 of 4 images"]),
        ("path,group\na/1.png\n", ["row 2 has 1 cells, and the header 2"]),
        ("path,group\na/1.png,x\na/1.png,y\n", ["row 3 gives a/1.png another group"]),
    ],
)
def test_a_file_of_groups_that_is_wrong_is_rejected(text, words, tmp_path):
    tree(tmp_path, [f"a/{k}.png" for k in (1, 2, 3, 4)])
    (tmp_path / "groups.csv").write_text(text)
    rejected(tmp_path, str(tmp_path / "groups.csv"), *words)


def test_a_file_of_groups_may_name_more_and_in_other_ways(tmp_path):
    tree(tmp_path, ["train/a/1.png", "test/a/1.png"])
    (tmp_path / "groups.csv").write_bytes(
        b"\xef\xbb\xbfage,group,path\r\n3, anna ,train\\a\\1.png\r\n\r\n4,bert,./test/a/1.png\r\n5,anna,gone.png\r\n"
    )
    data = load_dataset("folder", tmp_path)
    assert data.train.group.tolist() != data.test.group.tolist()
    assert data.remarks == (
        f"1 path is in {tmp_path / 'groups.csv'} and no image of the folder; fullrank ignores that",
    )


def test_a_file_of_groups_in_another_encoding_is_rejected(tmp_path):
    tree(tmp_path, ["train/a/1.png", "test/a/1.png"])
    (tmp_path / "groups.csv").write_bytes("path,group\na,ä\n".encode("latin-1"))
    rejected(tmp_path, "groups.csv: row 2 is not UTF-8")


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=60) | st.text('apthgroup,;"\n\r\t/\0', max_size=60).map(str.encode), head=st.booleans())
def test_any_file_of_groups_is_read_or_rejected(text, head, tmp_path):
    tree(tmp_path, [f"a/{k}.png" for k in (1, 2, 3, 4)])
    (tmp_path / "groups.csv").write_bytes(b"path,group\n" * head + text)
    with contextlib.suppress(InputError):
        list_folder(tmp_path)


# Runs


def two_sites(root):
    for site, shift in (("north", 0), ("south", 60)):
        for split, count in (("train", 6), ("test", 3)):
            for number, name in enumerate("ab"):
                for k in range(count):
                    level = 20 + 100 * number + shift
                    write(root / site / split / name / f"{k}.png", picture((level, 5, k), 12, 16, spread=k + 1))


def test_a_folder_of_sites_trains_by_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_sites(tmp_path / "sites")
    (tmp_path / "sites" / "north" / "train" / "a" / "broken.png").write_bytes(b"\x89PNG")
    write(tmp_path / "sites" / "north" / "test" / "c" / "1.png", picture(9, 12, 16))
    words = [f"data.root={tmp_path}/sites", "data.name=folder", "data.partition=domain", "train.rounds=1"]
    words += ["data.size=[8,10]", "model.name=mlp", 'data.augment=["random-crop:8","flip"]']
    sets = [piece for word in words for piece in ("--set", word)]
    status, _, err = fullrank("run", *sets, "--out", "run", capsys=capsys)
    assert status == 2
    assert f"{tmp_path}/sites/north/train/a/broken.png" in err
    status, out, err = fullrank("run", *sets, "--set", "data.unreadable=skip", "--out", "run", capsys=capsys)
    assert status == 0, err
    assert '1 files of "sites" cannot be read and were left out (partition.json lists all of them): north/train' in out
    assert "1 of 3 classes have test samples and no training samples: c" in out
    facts = fr.load_run("run")._data_facts()
    assert facts["unreadable"] == ["north/train/a/broken.png: it is not an image of a known format"]
    assert (facts["input_shape"], facts["crop"]) == ([3, 8, 10], [8, 8])


def test_data_check_counts_images_and_names_unreadable_files(tmp_path, capsys):
    two_sites(tmp_path / "sites")
    status, out, _ = fullrank("data", "check", "folder", "--root", tmp_path / "sites", capsys=capsys)
    assert status == 0
    assert out.splitlines()[-3:] == ["class  north  south", "a      6 + 3  6 + 3", "b      6 + 3  6 + 3"]
    (tmp_path / "sites" / "south" / "train" / "a" / "0.png").write_bytes(b"")
    status, out, err = fullrank("data", "check", "folder", "--root", tmp_path / "sites", capsys=capsys)
    assert status == 1
    assert "unreadable        south/train/a/0.png: it is empty" in out
    assert err == "fullrank: 1 file cannot be read\n"


def test_names_of_sites_and_classes_are_shown_as_they_are_and_control_no_terminal(tmp_path, capsys):
    for part in ("train", "test"):
        write(tmp_path / "x" / "[red]north\x1b[31m" / part / "[bold]a\x1b" / "0.png", picture(9, 12, 16))
    status, out, _ = fullrank("data", "check", "folder", "--root", tmp_path / "x", capsys=capsys)
    assert status == 0
    assert "[red]north?[31m" in out
    assert "[bold]a?" in out
    assert "\x1b" not in out
    (tmp_path / "x" / "[red]north\x1b[31m" / "train" / "[bold]a\x1b" / "1.png").write_bytes(b"")
    sets = ("--set", "data.name=folder", "--set", f"data.root={tmp_path}/x")
    status, _, err = fullrank("run", *sets, "--out", tmp_path / "run", capsys=capsys)
    assert status == 2
    assert "[bold]a?/1.png (it is empty)" in err
    assert "\x1b" not in err


# The folders that are at hand


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """The folder into which the data sets at hand are unpacked."""
    if not (SHARED / "unpack.py").is_file():
        pytest.skip("there are no shared data")
    to = tmp_path_factory.mktemp("unpacked")
    for name in ("office-caltech10", "ham10000"):
        subprocess.run([sys.executable, SHARED / "unpack.py", name, "--to", to], check=True, capture_output=True)
    return to


def per_site(data):
    """The number of images of each domain."""
    counted = [torch.bincount(split.domain, minlength=len(data.domains)) for split in (data.train, data.test)]
    return dict(zip(data.domains, sum(counted).tolist(), strict=True))


@pytest.mark.slow
def test_office_caltech10_has_its_images_per_domain(unpacked):
    data = load_dataset("folder", unpacked / "office-caltech10")
    assert per_site(data) == {"amazon": 958, "caltech10": 1123, "dslr": 157, "webcam": 295}
    assert len(data.classes) == 10
    assert data.input_shape == (3, 64, 64)


@pytest.mark.slow
def test_ham10000_has_its_images_per_site_and_class_and_no_lesion_on_two_sides(unpacked):
    data = load_dataset("folder", unpacked / "ham10000")
    assert per_site(data) == {"rosendahl": 2259, "vidir_modern": 3363, "vidir_molemax": 3954, "vienna_dias": 439}
    assert data.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    whole = torch.bincount(data.train.y, minlength=7) + torch.bincount(data.test.y, minlength=7)
    assert whole.tolist() == [327, 514, 1099, 115, 1113, 6705, 142]
    assert not np.intersect1d(data.train.group, data.test.group).size
    federation = federate(
        fr.Experiment(data={"name": "folder", "root": str(unpacked / "ham10000"), "partition": "domain"})
    )
    assert federation.names == data.domains
    assert [len(part) + len(test) for part, test in zip(federation.parts, federation.tests, strict=True)] == [
        2259,
        3363,
        3954,
        439,
    ]
