"""RandAugment with a level for every change: against Pillow, by numbers written down from the policy's description."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.augment.geometry import interpolate
from fullrank.data.augment.raug import OPERATIONS, SIGNED, Raug
from fullrank.errors import InputError
from pictures import SHAPES, difference, from_pillow, pictures, to_pillow

FILTERS = [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC]
ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")


def by_pillow(image: Image.Image, name: str, level: int, sign: int, smooth: Image.Resampling, middle=(0, 0)):
    """One operation at a level, where 10 is the usual largest magnitude."""
    width, height = image.size
    grey = 128 if image.mode == "L" else (128, 128, 128)

    def affine(*numbers: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, numbers, resample=smooth, fillcolor=grey)

    match name:
        case "AutoContrast" | "Equalize" | "Invert":
            return getattr(ImageOps, name.lower())(image)
        case "Rotate":
            return image.rotate(sign * level * 3, resample=smooth, fillcolor=grey)
        case "Posterize":
            bits = level * 4 // 10  # of none, newer Pillows will not hear
            return ImageOps.posterize(image, bits) if bits else image.point([0] * 256 * len(image.getbands()))
        case "Solarize":
            return ImageOps.solarize(image, level * 256 // 10)
        case "SolarizeAdd":
            return image.point([min(255, k + level * 11) if k < 128 else k for k in range(256)] * len(image.getbands()))
        case "ShearX":
            return affine(1, sign * level * 0.03, 0, 0, 1, 0)
        case "ShearY":
            return affine(1, 0, 0, sign * level * 0.03, 1, 0)
        case "TranslateX":
            return affine(1, 0, sign * level * 0.045 * width, 0, 1, 0)
        case "TranslateY":
            return affine(1, 0, 0, 0, 1, sign * level * 0.045 * height)
        case "Cutout":
            half = max(2, 4 * level) // 2
            holed = image.copy()
            for column in range(max(0, middle[0] - half), min(width, middle[0] + half)):
                for row in range(max(0, middle[1] - half), min(height, middle[1] + half)):
                    holed.putpixel((column, row), 122 if image.mode == "L" else (125, 122, 113))
            return holed
    return getattr(ImageEnhance, name)(image).enhance(0.1 + 0.18 * level)


def numbers(name: str, level: int, way: float, smooth: int, middle: tuple[float, float]) -> list[float]:
    return [(OPERATIONS.index(name) + 0.5) / 16, (level + 0.5) / 15, way, 0.25 + smooth / 2, *middle]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_at_every_level_is_pillows(name, shape):
    x = pictures(*shape, each=1)
    height, width = shape[1:]
    operation = Raug(height, width, number=1)
    middle = int(0.6 * width), int(0.2 * height)
    for way, smooth in itertools.product((0.25, 0.75), (0, 1)) if name in SIGNED else [(0.25, 1)]:
        u = torch.tensor([numbers(name, level, way, smooth, (0.6, 0.2)) for level in range(15)], dtype=torch.float64)
        result = operation.apply(torch.from_numpy(x).repeat(15, 1, 1, 1), u.repeat_interleave(len(x), 0)).numpy()
        # ours moves an image the other way for one sign: the chances are equal
        sign = (-1 if way < 0.5 else 1) * (-1 if name.startswith("Translate") else 1)
        for level, changed in enumerate(result.reshape(15, *x.shape)):
            for ours, before in zip(changed, x, strict=True):
                theirs = by_pillow(to_pillow(before), name, level, sign, FILTERS[smooth], middle)
                # a level between two, or a product, is cut off: there one bit decides
                assert difference(ours, theirs) <= (name in SIGNED or name in ENHANCED), (level, way, smooth)


def test_interpolation_is_pillows_nearly_everywhere():
    """To the bit but for numbers that end a hair above a whole level in one and below it in the other."""
    x = pictures(3, 32, 32, each=20)
    rng = np.random.default_rng(3)
    maps = np.eye(2, 3).reshape(6) + rng.normal(0, 0.2, (len(x), 6)) * [1, 1, 20, 1, 1, 20]
    for cubic in (False, True):
        chosen = torch.full((len(x),), cubic)
        ours = interpolate(torch.from_numpy(x), torch.from_numpy(maps), chosen, 9).numpy()
        for before, after, numbers_of in zip(x, ours, maps.tolist(), strict=True):
            theirs = from_pillow(
                to_pillow(before).transform(
                    (32, 32), Image.Transform.AFFINE, numbers_of, resample=FILTERS[cubic], fillcolor=(9, 9, 9)
                )
            )
            assert np.abs(after.astype(int) - theirs).max() <= 1
            assert np.mean(after != theirs) < 0.005


def test_interpolation_by_hand():
    x = torch.tensor([[[[0, 100, 200, 40]]]], dtype=torch.uint8)
    quarter = torch.tensor([[1.0, 0, 0.25, 0, 1, 0]], dtype=torch.float64)
    straight, cubic = (interpolate(x, quarter, torch.tensor([way]), 7)[0, 0, 0].tolist() for way in (False, True))
    assert straight == [25, 125, 160, 40]
    # Keys' curve with a = -1; weights at a quarter are -9/64, 57/64, 19/64 and -3/64: the first is (1900 - 600) / 64
    second, third = 57 * 100 + 19 * 200 - 3 * 40, -9 * 100 + 57 * 200 + 19 * 40 - 3 * 40
    assert cubic == [20, second // 64, third // 64, (-9 * 200 + (57 + 19 - 3) * 40) // 64]
    away = torch.tensor([[1.0, 0, 1, 0, 1, 0]], dtype=torch.float64)
    assert interpolate(x, away, torch.tensor([False]), 7)[0, 0, 0].tolist() == [100, 200, 40, 7]


def test_everything_is_drawn_equally_often():
    def centres(count: int) -> torch.Tensor:
        return (torch.arange(count, dtype=torch.float64) + 0.5) / count

    operation = Raug(32, 32)
    u = torch.cartesian_prod(centres(16), centres(15), centres(2), centres(1), centres(1), centres(1))
    assert operation.rows(u).sort().values.tolist() == list(range(16 * 15 * 2))


def test_two_in_a_row_are_one_after_the_other():
    x = torch.from_numpy(pictures(3, 24, 40, each=25))
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(len(x), 12, generator=generator, dtype=torch.float64)
    one = Raug(24, 40, number=1)
    assert torch.equal(Raug(24, 40).apply(x, u), one.apply(one.apply(x, u[:, :6]), u[:, 6:]))


def data_of(shape: tuple[int, int, int]) -> DataSet:
    x = torch.from_numpy(pictures(*shape))
    return DataSet("pictures", Split(x, torch.arange(len(x)) % 2), None, ("a", "b"))


def test_by_name():
    data = data_of((3, 12, 18))
    assert Pipeline.build(data, augment=["raug"]) == Pipeline.build(data, augment=["raug:15"])
    assert Pipeline.build(data, augment=["raug:11"]).operations == (Raug(12, 18, 11),)
    for wrong in ("raug:0", "raug:32", "raug:-1", "raug:2,9", "raug:x"):
        with pytest.raises(InputError, match=f'"{wrong}" must give the number of levels.*as in "raug:15"'):
            Pipeline.build(data, augment=[wrong])
