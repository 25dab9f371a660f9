"""HAM10000 and ISIC 2019 in their official files, and the tables that they come with."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fullrank.data import load_dataset
from fullrank.data.sources.skin_lesions import list_ham10000, list_isic2019
from fullrank.errors import InputError

image = pytest.importorskip("PIL.Image")

HAM_HEADER = "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"
ISIC_HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"
DX = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]
SHARED = Path(os.environ.get("FULLRANK_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for name in ("FULLRANK_DATA", "FULLRANK_CACHE"):
        monkeypatch.delenv(name, raising=False)


def rejected(action, *words):
    with pytest.raises(InputError) as caught:
        action()
    sentence = str(caught.value)
    assert [word for word in words if str(word) not in sentence] == [], sentence
    assert "\n" not in sentence


def write_image(path, level=100, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, (level, level, level)).save(path)


# HAM10000

HAM = [
    # image, lesion, class, site; lesions of one and of two images
    *((f"ISIC_00243{k:02}", f"HAM_00000{k // 2:02}", DX[k // 2 % 7], "rosendahl") for k in range(20)),
    *((f"ISIC_00244{k:02}", f"HAM_00001{k:02}", "nv", "vidir_modern") for k in range(6)),
    *((f"ISIC_00245{k:02}", f"HAM_00002{k:02}", "mel", "vidir_molemax") for k in range(5)),
    ("ISIC_0024600", "HAM_0000300", "df", "vienna_dias"),
]


def write_ham(root, rows=HAM, name="HAM10000_metadata.csv", separator=",", end="\n", mark="", images=True):
    root.mkdir(parents=True, exist_ok=True)
    lines = [
        HAM_HEADER,
        *(f"{lesion},{image_id},{dx},histo,40.0,male,back,{site}" for image_id, lesion, dx, site in rows),
    ]
    text = mark + end.join(line.replace(",", separator) for line in lines) + end
    (root / name).write_bytes(text.encode())
    if images:
        for number, (image_id, *_) in enumerate(rows):
            write_image(root / f"HAM10000_images_part_{1 + number % 2}" / f"{image_id}.jpg", number)


def test_classes_sites_and_lesions_are_those_of_the_table(tmp_path):
    write_ham(tmp_path / "ham10000")
    data = load_dataset("ham10000", tmp_path)
    assert list(data.classes) == DX
    assert data.domains == ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
    both = [(split, k) for split in (data.train, data.test) for k in range(len(split))]
    by_level = {int(split.x[k, 0, 0, 0]): (int(split.y[k]), int(split.domain[k])) for split, k in both}
    expected = [(DX.index(dx), data.domains.index(site)) for _, _, dx, site in HAM]
    assert by_level == dict(enumerate(expected))


def test_a_fifth_of_the_lesions_of_each_site_are_for_the_test(tmp_path):
    write_ham(tmp_path)
    listing = list_ham10000(tmp_path)
    lesions = {
        part: Counter(site for _, site in {(file.group, file.domain) for file in files})
        for part, files in (("train", listing.train), ("test", listing.test))
    }
    # of 10, 6, 5 and 1 lesions, a fifth rounded up; the only lesion of a site is for training
    assert lesions["test"] == {"rosendahl": 2, "vidir_modern": 2, "vidir_molemax": 1}
    assert lesions["train"] == {"rosendahl": 8, "vidir_modern": 4, "vidir_molemax": 4, "vienna_dias": 1}
    assert {file.group for file in listing.train}.isdisjoint(file.group for file in listing.test)
    assert len(listing.train) + len(listing.test) == len(HAM)
    assert listing == list_ham10000(tmp_path)
    other = list_ham10000(tmp_path, seed=1)
    assert listing.test != other.test
    assert listing.variant != other.variant  # so that neither replaces the other in the cache


def test_images_of_one_lesion_have_one_group(tmp_path):
    write_ham(tmp_path)
    data = load_dataset("ham10000", tmp_path)
    groups = [{}, {}]
    for split, found in ((data.train, groups[0]), (data.test, groups[1])):
        for level, group in zip(split.x[:, 0, 0, 0].tolist(), split.group.tolist(), strict=True):
            found.setdefault(group, set()).add(HAM[level][1])
    assert all(len(lesions) == 1 for found in groups for lesions in found.values())
    assert groups[0].keys().isdisjoint(groups[1])
    assert sum(map(len, groups)) == len({lesion for _, lesion, *_ in HAM})


@pytest.mark.parametrize(
    "how",
    [
        {"name": "HAM10000_metadata"},
        {"name": "HAM10000_metadata.tab", "separator": "\t"},
        {"separator": ";"},
        {"mark": "\ufeff"},
        {"end": "\r\n"},
        {"end": "\n\n"},
    ],
)
def test_forms_of_the_table(tmp_path, how):
    write_ham(tmp_path / "plain")
    write_ham(tmp_path / "other", **how)
    plain, other = (list_ham10000(tmp_path / name) for name in ("plain", "other"))
    assert [file[1:] for file in plain.train] == [file[1:] for file in other.train]


def test_a_second_copy_of_an_image_does_not_matter_unless_it_differs(tmp_path):
    write_ham(tmp_path)
    first = tmp_path / "HAM10000_images_part_1" / f"{HAM[0][0]}.jpg"
    again = tmp_path / "ham10000_images_part_1" / first.name
    again.parent.mkdir()
    again.write_bytes(first.read_bytes())
    assert len(list_ham10000(tmp_path).train)
    write_image(again, 5, (60, 60))
    rejected(lambda: list_ham10000(tmp_path), first, again, "which one to read")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("ISIC_1", "HAM_9", "melanoma", "rosendahl"), ("ISIC_1", 'dx "melanoma"', "akiec, bcc")),
        (("ISIC_1", "HAM_9", "mel", "bologna"), ("ISIC_1", 'dataset "bologna"', "vienna_dias")),
        (("ISIC_1", "", "mel", "rosendahl"), ("ISIC_1", "no lesion_id")),
        (("", "HAM_9", "mel", "rosendahl"), ("row 34 has no image_id",)),
        ((HAM[3][0], "HAM_9", "mel", "rosendahl"), ("row 34", HAM[3][0], "a second time")),
        (("ISIC_1", "HAM_9", "mel,x", "rosendahl"), ("row 34 has 9 cells, and the header 8")),
    ],
)
def test_other_rows_are_rejected(tmp_path, row, words):
    write_ham(tmp_path, [*HAM, row], images=False)
    for image_id in (*(image_id for image_id, *_ in HAM), "ISIC_1"):
        (tmp_path / f"{image_id}.jpg").touch()
    rejected(lambda: list_ham10000(tmp_path), tmp_path / "HAM10000_metadata.csv", *words)


def test_absent_images_and_paths_that_lead_elsewhere(tmp_path):
    write_ham(tmp_path / "root")
    write_image(tmp_path / "outside.jpg")
    (tmp_path / "root" / "HAM10000_images_part_1" / f"{HAM[0][0]}.jpg").unlink()
    (tmp_path / "root" / "HAM10000_images_part_1" / f"{HAM[2][0]}.jpg").unlink()
    rejected(lambda: load_dataset("ham10000", tmp_path / "root"), "names 2 images that are not in", f"{HAM[0][0]}.jpg")
    write_ham(tmp_path / "root", [*HAM, ("../outside", "HAM_9", "mel", "rosendahl")])
    rejected(lambda: load_dataset("ham10000", tmp_path / "root"), "../outside.jpg, which is not in")
    write_ham(tmp_path / "root", [*HAM, ("link", "HAM_9", "mel", "rosendahl")], images=False)
    (tmp_path / "root" / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    rejected(lambda: load_dataset("ham10000", tmp_path / "root"), "link.jpg", "leads out")


def test_a_copy_of_the_table_without_sites_is_told_from_the_official_one(tmp_path):
    write_ham(tmp_path)
    path = tmp_path / "HAM10000_metadata.csv"
    path.write_text("".join(line.rpartition(",")[0] + "\n" for line in path.read_text().splitlines()))
    rejected(lambda: list_ham10000(tmp_path), path, "no column dataset", "sex, localization", "DBW86T")


def test_absent_files_are_named_with_the_official_page(tmp_path):
    rejected(lambda: load_dataset("ham10000", tmp_path), "HAM10000_metadata.csv", "DBW86T", '"folder"')
    rejected(lambda: load_dataset("isic2019", tmp_path), "ISIC_2019_Training_GroundTruth.csv", "isic-archive.com")


def test_the_shared_copy_has_the_counts_that_are_published(tmp_path):
    """The labels, sites and lesions of all 10,015 images, written as the official table; the images stay empty."""
    packed = SHARED / "ham10000-sites-32px.npz"
    if not packed.is_file():
        pytest.skip(f"{packed} is not here")
    with np.load(packed) as stored:
        y, site, lesion = (stored[name] for name in ("y", "site", "lesion"))
        classes, sites = (stored[name].tolist() for name in ("classes", "sites"))
    rows = [(f"ISIC_{k:07}", f"HAM_{lesion[k]:07}", classes[y[k]], sites[site[k]]) for k in range(len(y))]
    write_ham(tmp_path, rows, images=False)
    for image_id, *_ in rows:
        (tmp_path / f"{image_id}.jpg").touch()
    listing = list_ham10000(tmp_path)
    files = [*listing.train, *listing.test]
    assert [Counter(file.label for file in files)[label] for label in range(7)] == [
        327,
        514,
        1099,
        115,
        1113,
        6705,
        142,
    ]
    assert Counter(file.domain for file in files) == {
        "rosendahl": 2259,
        "vidir_modern": 3363,
        "vidir_molemax": 3954,
        "vienna_dias": 439,
    }
    assert {file.group for file in listing.train}.isdisjoint(file.group for file in listing.test)


# ISIC 2019

ISIC_CLASSES = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"]
CENTRES = ("BCN", "vidir_molemax", "vidir_modern", "rosendahl", "MSK", "vienna_dias")
ISIC = [
    # image, lesion, class, site of HAM10000
    *((f"ISIC_00531{k:02}", f"BCN_00000{k // 2:02}", ISIC_CLASSES[k % 8], "") for k in range(20)),
    *((f"ISIC_00132{k:02}_downsampled", f"MSK4_00114{k:02}", "NV", "") for k in range(5)),
    *((f"ISIC_00250{k:02}", f"HAM_00010{k:02}", "MEL", site) for k, site in enumerate([*CENTRES[1:4], CENTRES[5]] * 5)),
    ("ISIC_0000001", "", "SCC", ""),
    ("ISIC_0000002", "", "UNK", ""),
]


def write_isic(root, rows=ISIC, split=None, images=True):
    root.mkdir(parents=True, exist_ok=True)
    names = [*ISIC_CLASSES, "UNK"]
    truth = [f"{image_id},{','.join(str(float(name == found)) for name in names)}" for image_id, _, found, _ in rows]
    (root / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join([ISIC_HEADER, *truth]) + "\n")
    lesions = [f"{image_id},55.0,anterior torso,{lesion},female" for image_id, lesion, *_ in rows]
    header = "image,age_approx,anatom_site_general,lesion_id,sex"
    (root / "ISIC_2019_Training_Metadata.csv").write_text("\n".join([header, *lesions]) + "\n")
    ham = [(image_id, lesion, "mel", site) for image_id, lesion, _, site in rows if site]
    write_ham(root, ham, name="HAM10000_metadata", images=False)
    if images:
        for number, (image_id, *_) in enumerate(rows):
            write_image(root / "ISIC_2019_Training_Input" / f"{image_id}.jpg", number)
    if split:
        (root / "train_test_split").write_text("\n".join(split) + "\n")


def centre_of(lesion, site):
    return site or {"BCN": "BCN", "MSK": "MSK"}[lesion[:3]]


def flamby_split(rows=ISIC):
    """The lines of FLamby's file, with every fourth image in the test part, whatever its lesion."""
    lines = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    for number, (image_id, lesion, name, site) in enumerate(row for row in rows if row[1]):
        hot = ",".join(str(float(other == name)) for other in [*ISIC_CLASSES, "UNK"])
        centre, fold = CENTRES.index(centre_of(lesion, site)), "test" if number % 4 == 0 else "train"
        lines.append(f"{image_id},{hot},{ISIC_CLASSES.index(name)},{centre},{fold},{fold}_{centre}")
    return lines


def test_the_six_centres_of_flamby(tmp_path):
    write_isic(tmp_path)
    data = load_dataset("isic2019", tmp_path)
    assert list(data.classes) == ISIC_CLASSES
    assert data.domains == CENTRES
    both = [(split, k) for split in (data.train, data.test) for k in range(len(split))]
    by_level = {int(split.x[k, 0, 0, 0]): (int(split.y[k]), int(split.domain[k])) for split, k in both}
    assert by_level == {
        number: (ISIC_CLASSES.index(name), CENTRES.index(centre_of(lesion, site)))
        for number, (_, lesion, name, site) in enumerate(ISIC)
        if lesion
    }


def test_a_fifth_of_the_lesions_of_each_centre_are_for_the_test(tmp_path):
    write_isic(tmp_path)
    listing = list_isic2019(tmp_path)
    lesions = Counter(site for _, site in {(file.group, file.domain) for file in listing.test})
    assert lesions == {"BCN": 2, "MSK": 1, **dict.fromkeys([*CENTRES[1:4], CENTRES[5]], 1)}
    assert {file.group for file in listing.train}.isdisjoint(file.group for file in listing.test)
    assert load_dataset("isic2019", tmp_path).train.group is not None


def test_flambys_split_is_used_and_has_no_groups(tmp_path):
    write_isic(tmp_path, split=flamby_split())
    data = load_dataset("isic2019", tmp_path)
    assert sorted(data.test.x[:, 0, 0, 0].tolist()) == list(range(0, 45, 4))
    assert sorted(data.train.x[:, 0, 0, 0].tolist()) == [number for number in range(45) if number % 4]
    assert (data.train.group, data.test.group) == (None, None)
    assert "groups are left out" in list_isic2019(tmp_path).remarks[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-1], ("lacks the image ISIC_0025019",)),
        (lambda lines: [line.replace(",train,", ",val,") for line in lines], ('fold "val"',)),
        (lambda lines: [line.replace("3,train,train_3", "2,train,train_2") for line in lines], ("center 2", "it is 3")),
        (lambda lines: [lines[0].replace("fold,", "part,"), *lines[1:]], ("no column fold", "part")),
        (lambda lines: [], ("is empty",)),
    ],
)
def test_another_split_is_rejected(tmp_path, change, words):
    write_isic(tmp_path, split=["\n".join(change(flamby_split()))])
    rejected(lambda: list_isic2019(tmp_path), tmp_path / "train_test_split", *words)


def changed_line(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_other_tables_of_isic_are_rejected(tmp_path):
    labels, lesions = (tmp_path / f"ISIC_2019_Training_{name}.csv" for name in ("GroundTruth", "Metadata"))

    def says(*words):
        rejected(lambda: list_isic2019(tmp_path), *words)
        write_isic(tmp_path, images=False)

    write_isic(tmp_path)
    changed_line(labels, "ISIC_0053100,1.0", "ISIC_0053100,0.0")
    says(labels, "ISIC_0053100", "must have 1 in one of MEL")
    changed_line(labels, "ISIC_0053100,1.0,0.0", "ISIC_0053100,1.0,1.0")
    says(labels, "ISIC_0053100", "must have 1 in one of MEL")
    changed_line(labels, "ISIC_0053100,1.0", "ISIC_0053100,yes")
    says(labels, "ISIC_0053100", "must have 1 in one of MEL")
    changed_line(labels, "ISIC_0053100,", "ISIC_0053199,")
    says(labels, "lacks the image ISIC_0053100")
    changed_line(lesions, "BCN_0000000", "XYZ_0000000")
    says(lesions, "ISIC_0053100", "BCN_, HAM_ or MSK4")
    changed_line(lesions, "lesion_id", "lesion")
    says(lesions, "no column lesion_id", "image, age_approx, anatom_site_general, lesion, sex")
    changed_line(tmp_path / "HAM10000_metadata", "ISIC_0025000", "ISIC_0025099")
    says("HAM10000_metadata lacks the image ISIC_0025000")
    (tmp_path / "HAM10000_metadata").unlink()
    says("lacks HAM10000_metadata.csv", "DBW86T")
    lesions.unlink()
    says(f"lacks {lesions.name}")
    write_isic(tmp_path, [row for row in ISIC if not row[1]], images=False)
    says(lesions, "no image with a lesion_id")


def test_unknown_class_and_absent_image_of_isic(tmp_path):
    write_isic(tmp_path, [*ISIC, ("ISIC_0053199", "BCN_0000099", "UNK", "")])
    rejected(lambda: list_isic2019(tmp_path), "ISIC_0053199", "must have 1 in one of MEL")
    write_isic(tmp_path, [*ISIC, ("ISIC_0053198", "BCN_0000099", "NV", "")], images=False)
    rejected(lambda: list_isic2019(tmp_path), "ISIC_0053198.jpg, which is not in")
