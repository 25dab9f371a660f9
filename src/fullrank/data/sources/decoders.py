"""Decode many image files at once, in processes.

Threads do not help with small images, because Pillow holds Python's lock for most of the time that they take; see
`benchmarks/decode_images.py`.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from fullrank.data.sources import decode
from fullrank.data.sources.decode import Pixels
from fullrank.errors import InputError

START = (
    "import sys, json, runpy; sys.path[:] = json.loads(sys.argv[1]); runpy.run_path(sys.argv[3], run_name='__main__')"
)

Decoded = list[Pixels | str]
"""The pixels of some images, each (channels, height, width), or a clause that says why a file cannot be read."""


def decoded(chunks: Iterable[Sequence[str]], size: int | Sequence[int], processes: int) -> Iterator[Decoded]:
    """Yield the images of every chunk of files, in order.

    Args:
        chunks: The paths of the files.
        size: Length of the short side of the images, or their height and width; 0 keeps the stored size.
        processes: The number of processes; with 1, this process decodes.
    """
    if processes == 1:
        yield from ([decode.decode(path, size) for path in paths] for paths in chunks)
        return
    workers = [_Worker(size) for _ in range(processes)]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def answer(paths: Sequence[str]) -> Decoded:
        worker = idle.get()
        try:
            return worker.decode(paths)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(processes)
    try:
        waiting: deque[Future[Decoded]] = deque()
        for paths in chunks:
            waiting.append(threads.submit(answer, paths))
            if len(waiting) > 3 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for worker in workers:
            worker.stop()
        threads.shutdown(cancel_futures=True)


class _Worker:
    """A process that decodes image files."""

    def __init__(self, size: int | Sequence[int]):
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, path, json.dumps(size), decode.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where libraries for images print remarks on files
        )

    def decode(self, paths: Sequence[str]) -> Decoded:
        """Return the images of some files."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(list(paths)).encode() + b"\n")
            self.process.stdin.flush()
            shapes = json.loads(self.process.stdout.readline())
            return [shape if isinstance(shape, str) else self._image(shape) for shape in shapes]
        except (OSError, ValueError):  # the end of the pipe
            status = self.process.wait()
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise InputError(
                f"a process that decodes images ended with {how} while it read one of {len(paths)} files, from "
                f"{paths[0]} to {paths[-1]}"
            ) from None

    def _image(self, shape: Sequence[int]) -> Pixels:
        assert self.process.stdout is not None
        content = self.process.stdout.read(math.prod(shape))
        return np.frombuffer(content, np.uint8).reshape(shape)

    def stop(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
