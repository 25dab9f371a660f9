"""Batches as the model sees them, against loops over samples in NumPy."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fullrank import Experiment
from fullrank.data import DataSet, Pipeline, Split, load_dataset, resized
from fullrank.data.augment.geometry import Rotate
from fullrank.data.augment.pipeline import Crop, Flip
from fullrank.data.augment.resize import ResizedCrop, resize
from fullrank.errors import InputError
from fullrank.runs.assemble import federate
from pictures import difference, pictures, to_pillow

BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))


def images(channels=3, height=32, width=32, count=6, dtype=torch.uint8, **more):
    shape = (count, channels, height, width)
    x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8).to(dtype)
    return DataSet("images", Split(x, torch.arange(count) % 2), None, ("a", "b"), **more)


def rows(dtype):
    return DataSet("rows", Split(torch.ones(4, 5, dtype=dtype), torch.tensor([0, 1, 0, 1])), None, ("a", "b"))


def crop_by_hand(x, u, pad, mode):
    out = np.empty_like(x)
    for i, picture in enumerate(x):
        bordered = np.pad(picture, ((0, 0), (pad, pad), (pad, pad)), mode=mode)
        top, left = (int(np.floor(float(v) * (2 * pad + 1))) for v in u[i])
        out[i] = bordered[:, top : top + x.shape[2], left : left + x.shape[3]]
    return out


def flip_by_hand(x, u):
    return np.stack([picture[:, :, ::-1] if v < 0.5 else picture for picture, v in zip(x, u[:, 0], strict=True)])


# crop and flip


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("reflect", "mode"), [(False, "constant"), (True, "reflect")])
@pytest.mark.parametrize(("height", "width", "pad"), [(8, 8, 1), (7, 5, 2), (32, 32, 4), (5, 5, 4)])
def test_crop_equals_a_loop(dtype, reflect, mode, height, width, pad):
    rng = np.random.default_rng(pad)
    x = rng.integers(1, 256, (40, 3, height, width)).astype(dtype)
    u = rng.random((40, 2), dtype=np.float32)
    result = Crop(pad, reflect).apply(torch.from_numpy(x), torch.from_numpy(u)).numpy()
    assert result.dtype == dtype
    assert np.array_equal(result, crop_by_hand(x, u, pad, mode))


def test_crop_by_hand_in_one_dimension():
    x = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)
    row = [Crop(1).apply(x, torch.tensor([[0.5, u]]))[0, 0, 0].tolist() for u in (0.0, 0.34, 0.67)]
    assert row == [[0, 1, 2], [1, 2, 3], [2, 3, 0]]
    x = torch.tensor([[[[1, 2, 3], [4, 5, 6]]]], dtype=torch.uint8)
    corner = Crop(1, reflect=True).apply(x, torch.tensor([[0.0, 0.0]]))[0, 0].tolist()
    assert corner == [[5, 4, 5], [2, 1, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("pad", [1, 2, 3, 4, 8, 1000])
def test_crop_at_the_ends_of_the_interval(dtype, pad):
    below_one = 1 - torch.finfo(dtype).eps / 2
    x = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    first = Crop(pad).apply(x, torch.zeros(1, 2, dtype=dtype))
    last = Crop(pad).apply(x, torch.full((1, 2), below_one, dtype=dtype))
    border = torch.nn.functional.pad(x, (pad,) * 4)
    assert torch.equal(first, border[:, :, :3, :3])
    assert torch.equal(last, border[:, :, -3:, -3:])
    assert torch.equal(Crop(pad).apply(x, torch.ones(1, 2, dtype=dtype)), last)


def test_crop_draws_every_offset_equally_often():
    pad = 2
    u = (torch.arange(5000) + 0.5) / 5000
    assert Crop(pad)._offset(u).bincount().tolist() == [1000] * 5


def test_flip_equals_a_loop_and_its_edges():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 3, 6, 5), dtype=np.uint8)
    u = rng.random((40, 1), dtype=np.float32)
    u[:4, 0] = [0, BELOW_ONE, 0.5, np.nextafter(np.float32(0.5), np.float32(0))]
    result = Flip().apply(torch.from_numpy(x), torch.from_numpy(u)).numpy()
    assert np.array_equal(result, flip_by_hand(x, u))
    assert np.array_equal(result[0], x[0][:, :, ::-1])
    assert np.array_equal(result[1:3], x[1:3])
    assert np.array_equal(result[3], x[3][:, :, ::-1])


# rotate and resized-crop


@pytest.mark.parametrize("degrees", [15, 30.5, 180])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 33), (1, 1, 4)], ids=str)
def test_rotate_is_pillows_to_the_bit(shape, degrees):
    x = pictures(*shape, each=10)
    u = np.random.default_rng(1).random((len(x), 1), dtype=np.float32)
    u[:3, 0] = [0, 0.5, BELOW_ONE]
    result = Rotate(degrees).apply(torch.from_numpy(x), torch.from_numpy(u)).numpy()
    for before, after, number in zip(x, result, u[:, 0], strict=True):
        angle = (2 * float(number) - 1) * degrees
        assert difference(after, to_pillow(before).rotate(angle, Image.Resampling.NEAREST)) == 0
    assert np.array_equal(result[1], x[1])


def test_rotate_turns_counter_clockwise_from_minus_to_plus():
    x = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    turned = [Rotate(90).apply(x, torch.tensor([[u]]))[0, 0].tolist() for u in (0.0, 0.5, 1.0)]
    assert turned == [[[3, 1], [4, 2]], [[1, 2], [3, 4]], [[2, 4], [1, 3]]]
    floating = Rotate(90).apply(x.double() / 3, torch.tensor([[0.0]]))
    assert torch.equal(floating, torch.tensor([[[[3, 1], [4, 2]]]]).double() / 3)


def window_by_hand(u, height, width):
    """The window of torchvision's RandomResizedCrop, try after try."""
    low, high = math.log(3 / 4), math.log(4 / 3)
    for area, ratio in zip(u[:10], u[10:20], strict=True):
        pixels, shape = height * width * (0.08 + 0.92 * area), math.exp(low + (high - low) * ratio)
        w, h = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < w <= width and 0 < h <= height:
            return math.floor(u[20] * (height - h + 1)), math.floor(u[21] * (width - w + 1)), h, w
    if width / height < 3 / 4:
        h, w = round(width / (3 / 4)), width
    elif width / height > 4 / 3:
        h, w = height, round(height * 4 / 3)
    else:
        h, w = height, width
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 33), (3, 6, 60), (3, 60, 6), (1, 2, 2)], ids=str)
def test_resized_crop_equals_a_loop_over_pillow(shape):
    x = pictures(*shape, each=20)
    u = np.random.default_rng(2).random((len(x), ResizedCrop.draws))
    # all tries too large: the middle
    u[0, :10], u[0, 10:20] = 0.99, 0.99
    result = ResizedCrop().apply(torch.from_numpy(x), torch.from_numpy(u)).numpy()
    for before, after, numbers in zip(x, result, u.tolist(), strict=True):
        top, left, height, width = window_by_hand(numbers, *shape[1:])
        window = to_pillow(before).crop((left, top, left + width, top + height))
        assert difference(after, window.resize(shape[:0:-1], Image.Resampling.BILINEAR)) == 0


def test_resized_crop_takes_the_first_try_that_fits():
    too_wide, fits = (0.999, 0.99), (0.0, 0.5)
    for first in range(11):
        tries = np.array([too_wide] * first + [fits] * (10 - first)).reshape(10, 2)
        u = torch.tensor([[*tries[:, 0], *tries[:, 1], 0.0, 0.0]])
        found = [int(number) for number in ResizedCrop()._window(u, 32, 32)]
        # .08 of 1024 pixels as a square: 9 by 9; where nothing fits, all of it
        assert found == ([0, 0, 9, 9] if first < 10 else [0, 0, 32, 32])


def test_resized_crop_of_floating_images():
    x = pictures(3, 16, 16)
    u = torch.rand(len(x), ResizedCrop.draws, generator=torch.Generator().manual_seed(0))
    exact = ResizedCrop().apply(torch.from_numpy(x).double(), u)
    assert exact.dtype == torch.float64
    # two roundings, each by half a level at most
    assert float((exact - ResizedCrop().apply(torch.from_numpy(x), u)).abs().max()) <= 1


# resizing a data set


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        *(((1, 28, 28), (side, side)) for side in (1, 7, 14, 27, 32, 64)),
        *(((3, 33, 20), target) for target in ((45, 70), (33, 41), (40, 20), (20, 20), (33, 9))),
    ],
    ids=str,
)
def test_resize_is_pillows_to_the_bit(shape, target):
    x = pictures(*shape)
    result = resize(torch.from_numpy(x), *target).numpy()
    assert (result.dtype, result.shape) == (np.uint8, (len(x), shape[0], *target))
    for before, after in zip(x, result, strict=True):
        assert difference(after, to_pillow(before).resize(target[::-1], Image.Resampling.BILINEAR)) == 0


@pytest.mark.parametrize("target", [(32, 32), (14, 14), (7, 11), (26, 16), (1, 60)], ids=str)
def test_resize_is_within_a_level_where_pillow_takes_rows_first(target):
    x = pictures(3, 33, 20, each=20)
    result = resize(torch.from_numpy(x), *target).numpy()
    for before, after in zip(x, result, strict=True):
        assert difference(after, to_pillow(before).resize(target[::-1], Image.Resampling.BILINEAR)) <= 1


def test_resize_goes_in_pieces(monkeypatch):
    x = torch.from_numpy(pictures(3, 9, 7))
    whole = resize(x, 12, 5)
    monkeypatch.setattr("fullrank.data.augment.resize._CHUNK_BYTES", 5 * 4 * 3 * 12 * 7)
    assert torch.equal(resize(x, 12, 5), whole)


@pytest.mark.parametrize(
    ("stored", "size", "shape"), [((32, 50), 20, (20, 31)), ((50, 32), 17, (26, 17)), ((8, 8), 16, (16, 16))]
)
def test_a_data_set_is_resized_by_its_short_side(stored, size, shape):
    data = images(3, *stored, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), augment=("flip",))
    data = DataSet(
        "images", data.train, data.train.take(torch.tensor([4, 2])), ("a", "b"), mean=data.mean, std=data.std
    )
    smaller = resized(data, size)
    assert smaller.input_shape == (3, *shape)
    assert torch.equal(smaller.train.y, data.train.y)
    assert torch.equal(smaller.test.x, smaller.train.x[[4, 2]])
    assert (smaller.name, smaller.classes, smaller.mean, smaller.std) == (data.name, data.classes, data.mean, data.std)
    assert smaller.fingerprint() != data.fingerprint()
    assert resized(data, 0) is data
    assert resized(data, min(stored)) is data


def test_an_experiment_resizes_its_data():
    federation = federate(Experiment.of({"data.size": 12, "data.augment": ["crop"]}))
    assert federation.data.input_shape == (1, 12, 12)
    assert federation.pipeline.operations == (Crop(1),)
    digits = load_dataset("digits")
    assert torch.equal(federation.data.train.x, resize(digits.train.x, 12, 12))
    plain, larger = Experiment.of({}), Experiment.of({"data.size": 12})
    assert federate(plain).data.fingerprint() == digits.fingerprint()
    assert plain.hash() != larger.hash()


def test_resizing_rejects():
    with pytest.raises(
        InputError, match=r"data\.size = 4: only 8-bit images can be resized, but samples of rows are torch"
    ):
        resized(rows(torch.float32), 4)
    with pytest.raises(InputError, match="only 8-bit images"):
        resized(images(dtype=torch.float32), 4)
    with pytest.raises(InputError, match=r"data\.size = -4: must be a number of pixels"):
        resized(images(), -4)
    with pytest.raises(InputError, match=r"data\.size = -1"):
        Experiment.of({"data.size": -1})


# the whole pipeline


def test_pipeline_in_training_equals_a_loop():
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)
    data = images(mean=mean, std=std, augment=("crop", "flip"))
    prepare = Pipeline.build(data)
    assert prepare.draws == 3
    u = torch.rand(6, 3, generator=torch.Generator().manual_seed(1))
    x = data.train.x.numpy()
    changed = flip_by_hand(crop_by_hand(x, u[:, :2].numpy(), 4, "constant"), u[:, 2:].numpy())
    expected = (changed / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert np.allclose(prepare(data.train.x, u, dtype=torch.float64).numpy(), expected, atol=1e-13, rtol=0)
    assert np.allclose(prepare(data.train.x, u).numpy(), expected, atol=1e-5, rtol=0)
    # the border is black before normalisation, not grey after it
    corner = prepare(data.train.x, torch.zeros(6, 3) + torch.tensor([0.0, 0.0, 0.9]))[0, :, 0, 0]
    assert np.allclose(corner.numpy(), -np.array(mean) / np.array(std), atol=1e-5)


def test_pipeline_order_follows_the_list():
    data = images(channels=1, height=8, width=8)
    u = torch.tensor([[0.1, 0.5, 0.0]]).expand(6, 3)
    flip_first = Pipeline.build(data, "none", ["flip", "crop:1"])(data.train.x, u, torch.float64).numpy() * 255
    x = data.train.x.numpy()
    assert np.allclose(flip_first, crop_by_hand(x[:, :, :, ::-1], u[:, 1:].numpy(), 1, "constant"))


def test_pipeline_in_evaluation_does_not_augment():
    data = images()
    result = Pipeline.build(data, "half", ["crop", "flip"])(data.train.x)
    assert np.allclose(result.numpy(), (data.train.x.numpy() / 255 - 0.5) / 0.5, atol=1e-6)


def test_pipeline_normalisations():
    data = images(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    x = data.train.x
    plain = x.numpy() / 255
    given = {"mean": [0.3, 0.2, 0.1], "std": [1, 2, 4]}
    for normalise, mean, std in (
        ("auto", data.mean, data.std),
        ("none", (0, 0, 0), (1, 1, 1)),
        ("half", (0.5,) * 3, (0.5,) * 3),
        (given, given["mean"], given["std"]),
    ):
        expected = (plain - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
        assert np.allclose(Pipeline.build(data, normalise)(x, dtype=torch.float64).numpy(), expected, atol=1e-13)
    assert Pipeline.build(images()).statistics is None
    assert torch.equal(Pipeline.build(images())(x), x.float() / 255)


def test_digits_by_default():
    digits = load_dataset("digits")
    prepare = Pipeline.build(digits)
    x = prepare(digits.train.x, torch.empty(1437, 0))
    assert prepare.draws == 0
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3
    assert Pipeline.build(digits, augment=["crop"]).operations == (Crop(1),)


@pytest.mark.parametrize(("side", "pad"), [(8, 1), (16, 2), (28, 3), (32, 4), (224, 4)])
def test_default_border(side, pad):
    assert Pipeline.build(images(1, side, side + 9, 1), augment=["crop"]).operations == (Crop(pad),)
    assert Pipeline.build(images(1, side, side, 1), augment=["crop-reflect:2"]).operations == (Crop(2, True),)


def test_floats_pass_through():
    x = torch.randn(4, 5)
    data = DataSet("rows", Split(x, torch.tensor([0, 1, 0, 1])), None, ("a", "b"))
    prepare = Pipeline.build(data)
    assert prepare(x) is x
    assert prepare(x, torch.empty(4, 0)) is x
    assert torch.equal(prepare(x, dtype=torch.float64), x.double())


def test_float_images_may_be_changed_when_asked():
    data = images(1, 8, 8, dtype=torch.float64)
    x, u = data.train.x, torch.rand(6, 3, generator=torch.Generator().manual_seed(3))
    assert Pipeline.build(data)(x, torch.empty(6, 0), torch.float64) is x
    prepare = Pipeline.build(data, {"mean": [2.0], "std": [4.0]}, ["crop", "flip"])
    changed = flip_by_hand(crop_by_hand(x.numpy(), u[:, :2].numpy(), 1, "constant"), u[:, 2:].numpy())
    # no division by 255: floating values are used as they are given
    assert np.allclose(prepare(x, u, torch.float64).numpy(), (changed - 2) / 4)


def test_whole_numbers_pass_untouched_and_bytes_are_divided():
    tokens, flat = rows(torch.int32), rows(torch.uint8)
    assert Pipeline.build(tokens)(tokens.train.x) is tokens.train.x
    assert torch.equal(Pipeline.build(flat)(flat.train.x), torch.full((4, 5), 1 / 255))


def test_half_precision_is_rounded_once():
    data = images(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    prepare = Pipeline.build(data)
    result = prepare(data.train.x, dtype=torch.bfloat16)
    assert torch.equal(result, prepare(data.train.x).bfloat16())


# how it is called


def test_traced_and_vmapped_give_the_same():
    data = images(2, 8, 8, count=12, mean=(0.1, 0.2), std=(0.5, 0.6))
    prepare = Pipeline.build(data, augment=["crop", "flip", "crop-reflect"])
    x, u = data.train.x, torch.rand(12, prepare.draws, generator=torch.Generator().manual_seed(3))
    expected = prepare(x, u)
    traced = make_fx(prepare)(x, u)
    assert torch.equal(traced(x, u), expected)
    other = torch.rand(12, prepare.draws, generator=torch.Generator().manual_seed(4))
    assert torch.equal(traced(x.flip(0), other), prepare(x.flip(0), other))
    clients = vmap(prepare)(x.reshape(3, 4, 2, 8, 8), u.reshape(3, 4, -1))
    assert torch.equal(clients.reshape(12, 2, 8, 8), expected)


def test_constants_are_made_once(monkeypatch):
    data = images(mean=(0.15, 0.25, 0.35), std=(0.55, 0.65, 0.75), dtype=torch.float32)
    prepare = Pipeline.build(data)
    with torch.inference_mode():
        prepare(data.train.x)
    prepare.place(torch.device("cpu"), torch.float64)

    def reject(*_: object):
        raise AssertionError("made again")

    monkeypatch.setattr(torch, "from_numpy", reject)
    prepare(data.train.x, dtype=torch.float64)
    # made under inference mode, and yet usable where gradients are taken
    x = data.train.x.clone().requires_grad_()
    prepare(x).sum().backward()
    assert torch.allclose(x.grad[0, :, 0, 0], 1 / torch.tensor(data.std))


def test_tracing_with_stand_ins_leaves_no_constant_behind():
    data = images(mean=(0.16, 0.26, 0.36), std=(0.5, 0.6, 0.7))
    prepare = Pipeline.build(data)
    make_fx(prepare, tracing_mode="fake", _allow_non_fake_inputs=True)(data.train.x)
    assert np.isfinite(prepare(data.train.x).numpy()).all()


def test_everything_is_made_where_the_batch_is():
    # the device without memory stands for any other: torch does not mix it with the CPU
    data = images(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    prepare = Pipeline.build(data, augment=["crop", "flip", "crop-reflect"])
    x, u = data.train.x.to("meta"), torch.empty(6, prepare.draws, device="meta")
    result = prepare(x, u)
    assert (result.device.type, result.shape, result.dtype) == ("meta", x.shape, torch.float32)


def test_pipelines_are_values():
    data = images(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    prepare = Pipeline.build(data, augment=["crop", "flip"])
    assert prepare == Pipeline.build(data, augment=("crop:4", "flip"))
    assert pickle.loads(pickle.dumps(prepare)) == copy.deepcopy(prepare) == prepare
    assert len({prepare, Pipeline.build(data, augment=["crop", "flip"])}) == 1


# errors


@pytest.mark.parametrize(
    ("normalise", "words"),
    [
        ("haf", 'unknown normalise "haf": did you mean "half"'),
        ({"mean": [0.5] * 3}, "normalise has the keys mean; it must have mean and std"),
        ({"mean": [0.5] * 3, "sdt": [1] * 3}, "mean, sdt"),
        ({"mean": [0.5], "std": [0.5] * 3}, "mean has 1 numbers and the images 3 channels"),
        ({"mean": [0.5] * 3, "std": [0.5] * 4}, "std has 4 numbers"),
        ({"mean": [0.5] * 3, "std": [0.5, 0, 0.5]}, "std holds 0.0; it must be finite and above 0"),
        ({"mean": [0.5, float("nan"), 0.5], "std": [0.5] * 3}, "mean holds nan"),
        ({"mean": 0.5, "std": 0.5}, "must be lists of numbers"),
        ({"mean": ["a"] * 3, "std": [0.5] * 3}, "must be lists of numbers"),
    ],
)
def test_normalise_rejects(normalise, words):
    with pytest.raises(InputError, match=words):
        Pipeline.build(images(), normalise)


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        ("crop", r'it must be "auto", "none" or a list'),
        (["crp"], 'data.augment = "crp" is not known; did you mean "crop"'),
        (["crop:x"], 'the border "x" of a crop must be a whole number'),
        (["crop:0"], "must be a whole number"),
        (["crop:-1"], "must be a whole number"),
        (["crop:"], "ends in a colon"),
        (["flip:0.5"], '"flip" takes no number'),
        (["rotate"], '"rotate:" must give the largest angle in degrees, above 0 to 180, as in "rotate:15"'),
        (["rotate:x"], '"rotate:x" must give the largest angle in degrees'),
        (["rotate:0"], "above 0 to 180"),
        (["rotate:-15"], "above 0 to 180"),
        (["rotate:181"], "above 0 to 180"),
        (["rotate:nan"], "above 0 to 180"),
        (["resized-crop:64"], '"resized-crop" takes no number'),
        (["crop-reflect:32"], "cannot be reflected over a border of 32; at most 31"),
    ],
)
def test_augment_rejects(augment, words):
    with pytest.raises(InputError, match=words):
        Pipeline.build(images(), augment=augment)


def test_tiny_images_need_a_stated_border():
    with pytest.raises(InputError, match="6×9 are too small to crop"):
        Pipeline.build(images(1, 6, 9), augment=["crop"])
    assert Pipeline.build(images(1, 6, 9), augment=["crop:1"]).draws == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_what_is_no_image_is_neither_normalised_nor_augmented(dtype):
    data = rows(dtype)
    assert Pipeline.build(data, "none", "none") == Pipeline.build(data) == Pipeline()
    with pytest.raises(InputError, match="is for 8-bit images, and samples of rows are torch"):
        Pipeline.build(data, "half")
    with pytest.raises(InputError, match="need images"):
        Pipeline.build(data, {"mean": [0.0], "std": [1.0]})
    with pytest.raises(InputError, match='"flip" needs images'):
        Pipeline.build(data, augment=["flip"])


def test_half_is_for_8_bit_images():
    with pytest.raises(InputError, match="8-bit"):
        Pipeline.build(images(dtype=torch.float32), "half")


@pytest.mark.parametrize("shape", [(6, 2), (5, 3), (6,)])
def test_uniform_numbers_of_the_wrong_shape_are_rejected(shape):
    data = images()
    with pytest.raises(InputError, match=r"it must be \(6, 3\)"):
        Pipeline.build(data, augment=["crop", "flip"])(data.train.x, torch.rand(shape))
