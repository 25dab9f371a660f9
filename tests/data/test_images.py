"""Image files of every kind become the right pixels, once."""

import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from folders import picture, write
from fullrank.cli.options import bars_while_reading
from fullrank.data import load_dataset
from fullrank.data.augment.resize import resize
from fullrank.data.sources import cache, decoders, images
from fullrank.data.sources.decode import decode
from fullrank.data.sources.images import load_listing
from fullrank.data.sources.listing import ImageFile, Listing
from fullrank.data.sources.progress import watching
from fullrank.errors import InputError

ORIENTATION = 0x0112


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "cache"))


def listing(root, train, test, **more):
    def files(names):
        return [ImageFile(root / name, 0) for name in names]

    return lambda: Listing(files(train), files(test), ("only",), **more)


def loaded(root, train, test=None, **how):
    """The data set of some files, the first of which is also the test part if there is no other."""
    return load_listing("some", listing(root, train, test or train[:1]), root=root, **how)


def message(action, *words, **more):
    with pytest.raises(InputError) as error:
        action(*words, **more)
    return str(error.value)


# Pixels


def gradient(dtype=np.uint8, top=255):
    return np.linspace(0, top, 48).reshape(6, 8).astype(dtype)


def colours():
    return np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def grey(name):
    return np.asarray(Image.fromarray(gradient()).convert(name).convert("L"))


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("grey.png", Image.fromarray(gradient()), gradient()[None]),
        ("colour.png", Image.fromarray(colours()), colours().transpose(2, 0, 1)),
        ("alpha.png", Image.fromarray(np.dstack([colours(), gradient()])), colours().transpose(2, 0, 1)),
        ("grey-alpha.png", Image.fromarray(np.dstack([gradient(), gradient()[::-1]])), gradient()[None]),
        ("bits.png", Image.fromarray(gradient()).convert("1"), grey("1")[None]),
        ("palette.gif", picture((250, 3, 7)).convert("P"), None),
        (
            "cmyk.tif",
            Image.merge(
                "CMYK", [Image.fromarray(part) for part in colours().transpose(2, 0, 1)] + [Image.new("L", (8, 6), 0)]
            ),
            (255 - colours()).transpose(2, 0, 1),
        ),
        ("deep.png", Image.fromarray(gradient(np.uint16, 65535)), np.round(gradient(np.uint16, 65535) / 257)[None]),
        ("deep.tif", Image.fromarray(gradient(np.uint16, 65535)), np.round(gradient(np.uint16, 65535) / 257)[None]),
        ("dark.png", Image.fromarray(gradient(np.uint16, 4095)), np.round(gradient(np.uint16, 4095) / 257)[None]),
        ("portable.pgm", Image.fromarray(gradient(np.uint16, 65535)), np.round(gradient(np.uint16, 65535) / 257)[None]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_mode_becomes_grey_or_colour_of_eight_bits(name, image, expected, tmp_path):
    found = decode(str(write(tmp_path / name, image)), 0)
    if expected is None:
        expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, expected)


def test_a_palette_of_greys_is_grey(tmp_path):
    image = Image.fromarray(gradient()).quantize(256)
    found = decode(str(write(tmp_path / "grey.png", image)), 0)
    np.testing.assert_array_equal(found, np.asarray(image.convert("L"))[None])


def test_numbers_of_32_bits_are_no_pixels(tmp_path):
    for name, dtype in (("float.tif", np.float32), ("long.tif", np.int32)):
        why = decode(str(write(tmp_path / name, Image.fromarray(gradient(dtype)))), 0)
        assert "32 bits" in why


@pytest.mark.parametrize("name", ["turned.jpg", "turned.png", "turned.tif", "turned.webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_exif_says(orientation, name, tmp_path):
    stored = np.zeros((16, 24, 3), np.uint8)
    stored[:8, :8] = 255  # the upper left corner as stored
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(stored).save(tmp_path / name, exif=exif)
    # where row 0 and column 0 are, by the standard
    upright = {
        1: stored,
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.transpose(1, 0, 2),
        6: stored.transpose(1, 0, 2)[:, ::-1],
        7: stored.transpose(1, 0, 2)[::-1, ::-1],
        8: stored.transpose(1, 0, 2)[::-1],
    }[orientation]
    found = decode(str(tmp_path / name), 0)
    assert found.shape[1:] == upright.shape[:2]
    # JPEG and WebP do not keep levels exactly
    assert np.abs(found.mean(0) - upright.mean(2)).max() < 40


def test_damaged_exif_data_are_no_reason_to_reject_an_image(tmp_path):
    picture((1, 2, 3)).save(tmp_path / "a.png", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert decode(str(tmp_path / "a.png"), 0)[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("shape", [(9, 7), (40, 30), (23, 23), (5, 90)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [11, [16, 8], [30, 40]])
def test_resizing_is_that_of_the_library_for_tensors(shape, channels, size, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    pixels = pixels[:, :, 0] if channels == 1 else pixels
    path = write(tmp_path / "a.png", Image.fromarray(pixels))
    x = torch.from_numpy(pixels.reshape(*shape, channels)).permute(2, 0, 1)[None].contiguous()
    short = min(shape)
    height, width = size if isinstance(size, list) else (11 * shape[0] // short, 11 * shape[1] // short)
    np.testing.assert_array_equal(decode(str(path), size), resize(x, height, width)[0].numpy())


def test_of_an_animation_the_first_frame_is_read(tmp_path):
    frames = [picture(level) for level in ((255, 0, 0), (0, 255, 0))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert decode(str(tmp_path / "a.gif"), 0)[:, 0, 0].tolist() == [255, 0, 0]


def encoded(kind):
    """The bytes of a small image in some format."""
    file = io.BytesIO()
    picture((200, 90, 30), 24, 32, spread=1).save(file, kind)
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=8), end=st.integers(0, 2**16))
def test_damaged_files_give_pixels_or_a_reason(kind, changes, end, tmp_path):
    raw = bytearray(encoded(kind))
    for place, value in changes:
        raw[place % len(raw)] = value
    (tmp_path / "a").write_bytes(raw[: end % (2 * len(raw))])
    found = decode(str(tmp_path / "a"), 8)
    if isinstance(found, str):
        assert found
        assert "\n" not in found
    else:
        assert found.dtype == np.uint8
        assert found.shape[0] in (1, 3)
        assert min(found.shape[1:]) == 8


# Shapes and channels of a data set


def test_grey_images_have_one_channel_until_one_has_colour(tmp_path):
    names = [f"{k}.png" for k in range(4)]
    for k, name in enumerate(names):
        write(tmp_path / name, Image.new("L", (4, 4), 10 * k))
    assert loaded(tmp_path, names).train.x.shape == (4, 1, 4, 4)
    assert loaded(tmp_path, names, colour=True).train.x.shape == (4, 3, 4, 4)
    write(tmp_path / "2.png", Image.new("RGB", (4, 4), (7, 8, 9)))
    x = loaded(tmp_path, names).train.x
    assert x[:, :, 0, 0].tolist() == [[0] * 3, [10] * 3, [7, 8, 9], [30] * 3]


def test_images_of_one_shape_after_resizing_keep_it(tmp_path):
    write(tmp_path / "a.png", picture(1, 20, 30))
    write(tmp_path / "b.png", picture(2, 40, 60))
    assert loaded(tmp_path, ["a.png", "b.png"], size=10).input_shape[1:] == (10, 15)


@pytest.mark.parametrize("first", ["wide.png", "tall.png", "square.png"])
def test_images_of_several_proportions_are_cut_to_the_square_in_the_middle(first, tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"wide.png": (10, 25), "tall.png": (16, 10), "square.png": (10, 10)}
    pixels = {name: rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for name, shape in shapes.items()}
    for name, stored in pixels.items():
        write(tmp_path / name, Image.fromarray(stored))
    names = [first, *(name for name in shapes if name != first)]
    x = loaded(tmp_path, names, size=10).train.x
    middle = {
        "wide.png": pixels["wide.png"][:, 7:17],
        "tall.png": pixels["tall.png"][3:13],
        "square.png": pixels["square.png"],
    }
    for name, image in zip(names, x, strict=True):
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), middle[name])


def test_images_as_stored_must_have_one_shape(tmp_path):
    write(tmp_path / "a.png", picture(1, 8, 8))
    write(tmp_path / "b.png", picture(1, 8, 9))
    text = message(loaded, tmp_path, ["a.png", "b.png"])
    assert "b.png has 8×9 pixels and a.png 8×8" in text
    assert "set data.size, as in data.size = 8" in text
    assert loaded(tmp_path, ["a.png", "b.png"], size=[4, 6]).input_shape[1:] == (4, 6)


def test_what_does_not_fit_into_memory_is_rejected_before_it_is_allocated(tmp_path, monkeypatch):
    write(tmp_path / "a.png", picture(1))
    monkeypatch.setattr("fullrank.data.memory_limit.memory_limit", lambda: 1000)
    text = message(loaded, tmp_path, ["a.png"], size=500)
    assert text.startswith("2 images of 3×500×500 would take")
    assert "data.size" in text


# Files that cannot be read


def damaged(root):
    """Files that cannot be read, each with what must be said of it."""
    whole = write(root / "whole.jpg", picture(9, 64, 64, spread=1)).read_bytes()
    (root / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "empty.png").write_bytes(b"")
    (root / "notes.txt").write_text("not an image")
    (root / "noise.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(200)))
    (root / "vector.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    os.mkfifo(root / "pipe.png")
    (root / "nowhere.png").symlink_to(root / "gone.png")
    return {
        "cut.jpg": "truncated",
        "empty.png": "it is empty",
        "notes.txt": "it is not an image of a known format",
        "noise.png": "",
        "vector.eps": "it is not an image of a known format",
        "pipe.png": "it is not a regular file",
        "nowhere.png": "there is no such file",
        "missing.png": "there is no such file",
    }


def test_files_that_cannot_be_read_are_told_by_name(tmp_path):
    reasons = damaged(tmp_path)
    for name, why in reasons.items():
        found = decode(str(tmp_path / name), 0)
        assert isinstance(found, str)
        assert why in found.lower()
        assert "\n" not in found
    names = ["whole.jpg", *reasons]
    text = message(loaded, tmp_path, names)
    assert text.startswith("8 of 10 image files of some cannot be read: ")
    assert f"{tmp_path / 'empty.png'} (it is empty)" in text
    assert ', …; repair or remove them, or set data.unreadable = "skip"' in text
    data = loaded(tmp_path, names, unreadable="skip")
    assert len(data.train) == len(data.test) == 1
    assert [line.partition(":")[0] for line in data.unreadable] == [*reasons]
    assert loaded(tmp_path, names, ["whole.jpg"], unreadable="skip").unreadable == data.unreadable


def test_samples_that_are_left_keep_what_belongs_to_them(tmp_path):
    (tmp_path / "b.png").write_bytes(b"")
    files = []
    for k, name in enumerate("abcde"):
        if name != "b":
            write(tmp_path / f"{name}.png", picture((k, k, k)))
        files.append(ImageFile(tmp_path / f"{name}.png", k % 3, "north" if k < 2 else "south", f"patient {k}"))
    data = load_listing(
        "some", lambda: Listing(files[:3], files[3:], ("x", "y", "z")), root=tmp_path, unreadable="skip"
    )
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 2]
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([0, 2], [0, 1])
    assert data.domains == ("north", "south")
    assert (data.train.domain.tolist(), data.test.domain.tolist()) == ([0, 1], [1, 1])
    assert (data.train.group.tolist(), data.test.group.tolist()) == ([0, 2], [3, 4])


def test_a_part_without_a_readable_image_is_an_error(tmp_path):
    write(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"bad")
    for train, test, part in ((["bad.png"], ["good.png"], "training"), (["good.png"], ["bad.png"], "test")):
        assert f"no {part} image of some can be read" in message(loaded, tmp_path, train, test, unreadable="skip")
    with pytest.raises(InputError, match="has no test images"):
        load_listing("some", listing(tmp_path, ["good.png"], []), root=tmp_path)


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path, monkeypatch):
    write(tmp_path / "large.png", Image.new("L", (40, 30)))
    write(tmp_path / "long.png", Image.new("L", (1, 90)))
    for most in (1000, 500):  # Pillow warns up to twice its limit, and raises an error above
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        why = decode(str(tmp_path / "large.png"), 0)
        assert str(most) in why
        assert "Pillow's limit" in why
    assert "resized it would have 8×720 pixels" in decode(str(tmp_path / "long.png"), 8)


def test_links_may_not_lead_out_of_the_folder(tmp_path):
    outside = write(tmp_path / "elsewhere" / "secret.png")
    root = tmp_path / "data"
    write(root / "a.png")
    (root / "link.png").symlink_to(outside)
    (root / "folder").symlink_to(outside.parent)
    (root / "inside.png").symlink_to(root / "a.png")
    for name in ("link.png", "folder/secret.png", "../elsewhere/secret.png"):
        text = message(loaded, root, ["a.png", name])
        assert "leads out of the data set's folder" in text
    assert len(loaded(root, ["a.png", "inside.png"]).train) == 2
    (tmp_path / "other").symlink_to(root)
    assert len(loaded(tmp_path / "other", ["a.png", "inside.png"]).train) == 2


def test_without_pillow_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'fullrank[images]'" in message(loaded, tmp_path, ["a.png"])


# Processes


def test_processes_give_what_this_process_gives(tmp_path):
    reasons = damaged(tmp_path)
    for k in range(30):
        write(tmp_path / f"{k}.png", picture((k, 2, 3), 8 + k % 3, 9, spread=k + 1))
    paths = [str(tmp_path / name) for name in [*(f"{k}.png" for k in range(30)), *reasons]]
    chunks = [paths[start : start + 7] for start in range(0, len(paths), 7)]
    for size in (0, 6, [4, 5]):
        single, together = ([*decoders.decoded(chunks, size, processes)] for processes in (1, 3))
        for one, other in zip(single, together, strict=True):
            for image, same in zip(one, other, strict=True):
                np.testing.assert_array_equal(image, same)


def test_names_of_any_characters_reach_the_processes(tmp_path):
    names = [write(tmp_path / name) for name in ("a b.png", "ä\n.png", os.fsdecode(b"\xff.png"))]
    [found] = decoders.decoded([[str(name) for name in names]], 0, 2)
    assert [image.shape for image in found] == [(3, 8, 8)] * 3


def test_a_process_that_ends_is_told_with_the_files_it_had(tmp_path, monkeypatch):
    monkeypatch.setattr(decoders, "START", "import sys; sys.stdin.readline(); sys.exit(3)")
    with pytest.raises(InputError, match=r"ended with status 3 while it read one of 1 files, from a\.png to a\.png"):
        [*decoders.decoded([["a.png"]], 0, 2)]


def many(root, count):
    for k in range(count):
        write(root / f"{k:04d}.png", picture((k % 256, k // 256, 5)))
    return [f"{k:04d}.png" for k in range(count)]


def test_many_files_are_decoded_by_processes_in_the_order_of_the_list(tmp_path, monkeypatch):
    names = many(tmp_path, 40)
    monkeypatch.setattr(images, "FEW_FILES", 10)
    monkeypatch.setattr(images, "CHUNK_FILES", 6)
    monkeypatch.setattr(images, "cores", lambda: 3)
    seen = []
    with watching(lambda *facts: seen.append(facts)):
        data = loaded(tmp_path, names[:30], names[30:])
    assert data.train.x[:, 0, 0, 0].tolist() == [*range(30)]
    assert data.test.x[:, 0, 0, 0].tolist() == [*range(30, 40)]
    assert seen == [("decoding some", done, 40) for done in (6, 12, 18, 24, 30, 36, 40)]


def test_decoding_that_is_interrupted_leaves_nothing_behind(tmp_path, monkeypatch):
    names = many(tmp_path, 40)
    monkeypatch.setattr(images, "FEW_FILES", 10)
    monkeypatch.setattr(images, "CHUNK_FILES", 6)
    monkeypatch.setattr(images, "LEAST_KEPT", 0)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])

    def stop(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watching(stop):
        loaded(tmp_path, names)
    assert started
    assert all(process.poll() is not None for process in started)
    assert not (tmp_path / "cache").exists()
    assert len(loaded(tmp_path, names).train) == 40


# The cache


def no_decoding(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("decoded again")

    monkeypatch.setattr(images, "decoded", fail)


def test_images_are_decoded_once(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "LEAST_KEPT", 0)
    names = many(tmp_path, 5)
    (tmp_path / "0003.png").write_bytes(b"")
    first = loaded(tmp_path, names, unreadable="skip", mean=(0.5,) * 3, std=(0.2,) * 3, augment=("flip",))
    no_decoding(monkeypatch)
    second = loaded(tmp_path, names, unreadable="skip", mean=(0.5,) * 3, std=(0.2,) * 3, augment=("flip",))
    assert first.file == second.file
    assert first.file.parent == tmp_path / "cache"
    assert first.fingerprint() == second.fingerprint()
    assert first.unreadable == second.unreadable == ("0003.png: it is empty",)
    assert (second.mean, second.std, second.augment) == ((0.5,) * 3, (0.2,) * 3, ("flip",))


def test_what_the_cache_has_does_not_need_pillow(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "LEAST_KEPT", 0)
    write(tmp_path / "a.png")
    loaded(tmp_path, ["a.png"])
    monkeypatch.setitem(sys.modules, "PIL", None)
    loaded(tmp_path, ["a.png"])


@pytest.mark.parametrize("change", ["content", "time", "size", "labels", "classes", "files", "described_by"])
def test_whatever_has_changed_is_decoded_again(change, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "LEAST_KEPT", 0)
    names, table = many(tmp_path, 4), tmp_path / "table.csv"
    table.write_text("a")
    how, classes, label = {}, ("x", "y"), 0

    def load():
        files = [ImageFile(tmp_path / name, label) for name in names]
        return load_listing("some", lambda: Listing(files, files[:1], classes, (table,)), root=tmp_path, **how)

    load()
    if change == "content":
        write(tmp_path / names[1], picture(200))
    elif change == "time":
        os.utime(tmp_path / names[1], ns=(1, 1))
    elif change == "size":
        how["size"] = 4
    elif change == "labels":
        label = 1
    elif change == "classes":
        classes = ("x", "z")
    elif change == "files":
        names = names[1:]
    else:
        table.write_text("b")
    with monkeypatch.context() as context:
        no_decoding(context)
        with pytest.raises(AssertionError, match="decoded again"):
            load()
    load()
    no_decoding(monkeypatch)
    load()


def test_lists_of_the_same_files_that_differ_in_their_variant_are_all_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "LEAST_KEPT", 0)
    names = many(tmp_path, 4)
    files = {
        load_listing("some", listing(tmp_path, names, names[:1], variant=f"seed {seed}"), root=tmp_path).file
        for seed in range(3)
    }
    assert len(files) == 3
    assert all(file.exists() for file in files)


def test_a_few_small_images_are_not_kept(tmp_path):
    assert loaded(tmp_path, many(tmp_path, 4)).file is None
    assert not (tmp_path / "cache").exists()
    assert images.LEAST_KEPT < cache.LIMIT


# The command line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_shown_on_a_terminal_only(tmp_path, monkeypatch):
    names = many(tmp_path, 5)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with bars_while_reading():
            loaded(tmp_path, names)
        assert ("decoding some" in stream.getvalue()) == shown
    quiet = Terminal()
    monkeypatch.setattr(sys, "stderr", quiet)
    with bars_while_reading(), watching(None):
        loaded(tmp_path, names)
    assert quiet.getvalue() == ""
    loaded(tmp_path, names)  # as a library
    assert quiet.getvalue() == ""


@pytest.mark.slow
def test_ctrl_c_while_images_are_decoded_stops_the_command(tmp_path):
    names = [f"{label}/{k:05d}.png" for label in "ab" for k in range(1500)]
    for k, name in enumerate(names):
        write(tmp_path / "data" / name, picture((k % 250, 2, 3), 200, 200, spread=k % 7 + 1))
    command = [
        sys.executable,
        "-m",
        "fullrank",
        "run",
        "--set",
        "data.name=folder",
        "--set",
        f"data.root={tmp_path}/data",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while process.poll() is None and not psutil.Process(process.pid).children():
        time.sleep(0.01)  # until there are processes that decode
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not (tmp_path / "cache").exists()


def test_a_folder_can_be_given_a_size_of_two_numbers(tmp_path):
    for name in ("a/1.png", "a/2.png", "a/3.png", "b/1.png", "b/2.png", "b/3.png"):
        write(tmp_path / name, picture(3, 20, 30))
    assert load_dataset("folder", tmp_path, size=[8, 12]).input_shape[1:] == (8, 12)
