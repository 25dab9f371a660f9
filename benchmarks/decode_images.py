"""Seconds to decode image files with one process, with threads and with all cores, and to load them again.

Run `python benchmarks/decode_images.py`. It writes 100,000 synthetic JPEG files of 64×64 pixels in the format of
Tiny-ImageNet into a temporary folder, about 400 MB; `--images 20000` writes fewer. A start is a new process, of which
only `load_dataset` is timed. Files are in the page cache of the system.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from fullrank.data.sources.decode import decode
from fullrank.data.sources.decoders import decoded

CLASSES = 200
DIFFERENT = 500
SIDE = 64
CHUNK = 128
START = """
import json, sys, time
from fullrank.data import load_dataset
before = time.perf_counter()
data = load_dataset("tiny-imagenet", sys.argv[1])
print(json.dumps([time.perf_counter() - before, len(data.train), str(data.file)]))
"""


def jpegs() -> list[bytes]:
    """Return some pictures with the detail of photographs: about 2 KB each, as in Tiny-ImageNet."""
    rng = np.random.default_rng(0)
    encoded = []
    for _ in range(DIFFERENT):
        coarse = Image.fromarray(rng.integers(0, 256, (10, 10, 3), dtype=np.uint8)).resize((SIDE, SIDE))
        noisy = np.asarray(coarse).astype(int) + rng.integers(-8, 9, (SIDE, SIDE, 3))
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
        encoded.append(file.getvalue())
    return encoded


def write(root: Path, images: int) -> list[str]:
    """Write the data set and return the paths of its training images."""
    below, encoded = root / "tiny-imagenet-200", jpegs()
    wnids = [f"n{k:08d}" for k in range(CLASSES)]
    paths = []
    for label, wnid in enumerate(wnids):
        folder = below / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for k in range(images // CLASSES):
            path = folder / f"{wnid}_{k}.JPEG"
            path.write_bytes(encoded[(label + k) % DIFFERENT])
            paths.append(str(path))
    (below / "val" / "images").mkdir(parents=True)
    (below / "val" / "images" / "val_0.JPEG").write_bytes(encoded[0])
    (below / "val" / "val_annotations.txt").write_text(f"val_0.JPEG\t{wnids[0]}\t0\t0\t1\t1\n")
    (below / "wnids.txt").write_text("\n".join(wnids))
    (below / "words.txt").write_text("\n".join(f"{wnid}\tclass {wnid}" for wnid in wnids))
    return paths


def seconds(action: Callable[[], object]) -> float:
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


def start(root: Path, cache: Path) -> float:
    """Return the seconds of `load_dataset` in a new process."""
    words = [sys.executable, "-c", START, str(root)]
    done = subprocess.run(
        words, env={**os.environ, "FULLRANK_CACHE": str(cache)}, check=True, capture_output=True, text=True
    )
    return float(json.loads(done.stdout)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000, metavar="N", help="number of files (default: 100000)")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    images = parser.parse_args().images
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = write(root / "data", images)
        chunks = [paths[at : at + CHUNK] for at in range(0, len(paths), CHUNK)]
        for path in paths:  # into the page cache
            Path(path).read_bytes()

        def with_threads() -> None:
            with ThreadPoolExecutor(cores) as threads:
                for _ in threads.map(lambda chunk: [decode(path, 0) for path in chunk], chunks):
                    pass

        lines = {
            "decode, this process only": seconds(lambda: [len(found) for found in decoded(chunks, 0, 1)]),
            f"decode, {cores} threads": seconds(with_threads),
            f"decode, {cores} processes": seconds(lambda: [len(found) for found in decoded(chunks, 0, cores)]),
            "first start: list, decode, write the cache": start(root / "data", root / "cache"),
            "second start: list, map the cache, check it": start(root / "data", root / "cache"),
        }
    print(f"{len(paths)} JPEG files of {SIDE}×{SIDE}, {cores} cores")
    for what, took in lines.items():
        print(f"{what:<44} {took:7.2f} s {len(paths) / took:10.0f} images/s")


if __name__ == "__main__":
    main()
