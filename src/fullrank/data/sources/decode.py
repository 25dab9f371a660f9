"""Decode image files with Pillow.

This module imports nothing else of the library, so that a process that only decodes images starts at once; see
`decoders.py`, which runs it as a program.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import stat
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "MPO", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
"""The formats that are read. Pillow knows more, of which some run another program, such as Ghostscript for EPS."""

_SIXTEEN_BITS = 65535
_ORIENTATION = 0x0112  # the tag of EXIF


class Unreadable(Exception):
    """Raised for a file that is not a usable image; the message says why."""


def new_shape(height: int, width: int, size: int | Sequence[int]) -> tuple[int, int]:
    """Return the size of an image after it is resized.

    Args:
        height: The height of the image.
        width: The width of the image.
        size: Length of the short side, or height and width; 0 keeps the stored size.

    Returns:
        The height and the width.

    >>> new_shape(30, 40, 15), new_shape(30, 40, [8, 8]), new_shape(30, 40, 0)
    ((15, 20), (8, 8), (30, 40))
    """
    if not isinstance(size, int):
        tall, wide = size
        return tall, wide
    short = min(height, width)
    return (size * height // short, size * width // short) if size else (height, width)


def decode(path: str, size: int | Sequence[int]) -> Pixels | str:
    """Decode an image file.

    Grey images have one channel and all others three; transparency is dropped. The EXIF orientation is applied. Of an
    animation the first frame is decoded.

    Args:
        path: The file.
        size: Length of the short side, or height and width; 0 keeps the stored size.

    Returns:
        The pixels (channels, height, width), or a clause that says why the file cannot be read.
    """
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            raise Unreadable("it is not a regular file")
        if not state.st_size:
            raise Unreadable("it is empty")
        with open(path, "rb") as file:
            return decode_content(file, size)
    except FileNotFoundError:
        return "there is no such file"
    except Unreadable as error:
        return str(error)
    except Exception as error:  # such as a path that no file can have
        return _in_words(error)


def decode_content(file: Any, size: int | Sequence[int]) -> Pixels | str:
    """Decode the image in an open file, as `decode` does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _pixels(file, size)
    except Unreadable as error:
        return str(error)
    except Exception as error:  # a damaged file can fail in any way
        return _in_words(error)


def _in_words(error: Exception) -> str:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(why.split())


def _pixels(file: Any, size: int | Sequence[int]) -> Pixels:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        raise Unreadable("it is not an image of a known format") from None
    except Image.DecompressionBombError:
        raise Unreadable(f"it has more than {Image.MAX_IMAGE_PIXELS} pixels, Pillow's limit") from None
    with image:
        _reject_too_many(image.size, "it has")
        image.load()
        upright = _upright(image)
        height, width = new_shape(upright.height, upright.width, size)
        _reject_too_many((width, height), "resized it would have")
        pixels = np.asarray(_resized(_eight_bits(upright), height, width))
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that the installed Pillow can read."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _reject_too_many(shape: tuple[int, int], what: str) -> None:
    from PIL import Image

    most = Image.MAX_IMAGE_PIXELS
    if most is not None and math.prod(shape) > most:
        raise Unreadable(f"{what} {shape[0]}×{shape[1]} pixels, and Pillow's limit is {most}")


def _upright(image: Any) -> Any:
    """Apply the EXIF orientation to an image."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = None
    with contextlib.suppress(Exception):  # damaged EXIF data are no reason to reject the pixels
        turn = turns.get(image.getexif().get(_ORIENTATION))
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Any) -> Any:
    """Convert an image to 8-bit grey or colour. Pillow itself would cut levels of 16 bits off at 255."""
    from PIL import Image

    if image.mode in ("L", "RGB"):
        return image
    if image.mode in ("1", "LA", "La"):
        return image.convert("L")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        levels = np.asarray(image).astype(np.int64)
        return Image.fromarray(((levels * 255 + _SIXTEEN_BITS // 2) // _SIXTEEN_BITS).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Unreadable("its pixels have 32 bits, whose range is unknown; store 8 or 16 bits")
    colour = image.convert("RGB")
    if image.mode == "P":
        pixels = np.asarray(colour)
        if (pixels == pixels[:, :, :1]).all():
            return colour.getchannel(0)
    return colour


def _resized(image: Any, height: int, width: int) -> Any:
    """Resize first the rows and then the columns, of which Pillow's own order depends on its version."""
    from PIL.Image import Resampling

    for shape in ((width, image.height), (width, height)):
        if shape != image.size:
            image = image.resize(shape, Resampling.BILINEAR)
    return image


def main() -> None:
    """Decode the files that the standard input names; `decoders.py` runs this as a program.

    Every line is a JSON list of paths. The answer is a JSON line with each image's shape, or why there is none, and
    then the bytes of all images.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    size = json.loads(sys.argv[2])
    for line in sys.stdin.buffer:
        found = [decode(path, size) for path in json.loads(line)]
        shapes = [image if isinstance(image, str) else image.shape for image in found]
        sys.stdout.buffer.write(json.dumps(shapes).encode() + b"\n")
        for image in found:
            if not isinstance(image, str):
                sys.stdout.buffer.write(image.data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
