"""The worker of the engine `ray`: an actor that runs clients' jobs at its own site, on whatever node Ray chooses."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors.torch import load_file
from torch import Tensor

from fullrank._version import __version__
from fullrank.engine.allocator import keep_freed_memory
from fullrank.engine.processes.wire import pack, unpack
from fullrank.engine.ray.cluster import node_name
from fullrank.engine.recipe import SiteRecipe, remote, sendable
from fullrank.engine.transfer import handed_over, sent_to
from fullrank.errors import RemoteError
from fullrank.federated.site import Site
from fullrank.local import interrupt
from fullrank.trees import moved

PRINTED = 100_000
"""The number of characters of what a job printed that are passed on."""
CHUNK = 2**24

Frames = list[np.ndarray]
"""Frames of bytes, as `pack` returns them, as arrays, which Ray's object store gives to workers without a copy."""


@dataclass(frozen=True)
class SampleFile:
    """A file with samples that a worker may find on its own node."""

    path: str
    size: int
    digest: str

    @classmethod
    def at(cls, path: Path) -> SampleFile | None:
        """Return the facts about a file, or None if it cannot be read."""
        digest = xxhash.xxh64()
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                return cls(str(path), file.tell(), digest.hexdigest())
        except OSError:
            return None

    def is_here(self) -> bool:
        """Return whether the same file is on this machine."""
        path = Path(self.path)
        try:
            return path.stat().st_size == self.size and SampleFile.at(path) == self
        except OSError:
            return False


@dataclass(frozen=True)
class Introduction:
    """The facts that a worker tells about itself."""

    node: str
    has_file: bool
    versions: dict[str, str]


class RayWorker:
    """A worker, which Ray makes an actor of. It runs one job at a time."""

    def __init__(self) -> None:
        interrupt.leave_to_parent()
        keep_freed_memory()
        self._site: Site | None = None
        self._key = 0
        self._broadcast: Any = None

    def introduce(self, path: Sequence[str], file: SampleFile | None) -> Introduction:
        """Return where the worker is, and what it has.

        Args:
            path: Where the process that started the run finds modules; the worker searches there too.
            file: The file with the samples on the machine where the run was started, if they are in one.
        """
        import ray

        sys.path += [folder for folder in path if folder not in sys.path]
        node = node_name(ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id())
        return Introduction(node, file is not None and file.is_here(), versions())

    def build(
        self, recipe: Frames, file: SampleFile | None, samples: Mapping[str, np.ndarray] | None
    ) -> RemoteError | None:
        """Build the site, and return the exception that this raised.

        Args:
            recipe: The recipe of the site.
            file: The file with the samples, if the worker has it.
            samples: Otherwise the samples, as `as_arrays` returns them; they stay in the object store of the node.
        """
        try:
            found: SiteRecipe = from_frames(recipe)
            tensors = load_file(file.path) if file is not None else as_tensors(samples or {})
            self._site = found.build(tensors)
        except BaseException as error:
            return remote(error)
        return None

    def do(self, job: Frames, key: int, broadcast: Frames) -> tuple[Frames, str]:
        """Run a job.

        Args:
            job: The job, without its broadcast.
            key: The number of the broadcast, which is unpacked once.
            broadcast: The broadcast.

        Returns:
            The result, and the end of what the job printed.
        """
        assert self._site is not None
        site = self._site
        if key != self._key:
            self._broadcast, self._key = moved(from_frames(broadcast), site.device), key
        received = sent_to(site.device, replace(from_frames(job), broadcast=self._broadcast))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            result = sendable(site.do(received))
        if site.device.type != "cpu":
            result = handed_over(result, torch.device("cpu"))
        return to_frames(result), printed.getvalue()[-PRINTED:]


def versions() -> dict[str, str]:
    """Return the versions of which a difference between nodes changes results."""
    return {"fullrank": __version__, "torch": str(torch.__version__).partition("+")[0]}


def to_frames(message: Any) -> Frames:
    """Return an object as arrays of bytes."""
    return as_frames(pack(message))


def as_frames(packed: Sequence[Any]) -> Frames:
    """Return what `pack` returned as arrays."""
    return [np.frombuffer(frame, np.uint8) if frame.nbytes else np.empty(0, np.uint8) for frame in packed]


def from_frames(frames: Sequence[np.ndarray]) -> Any:
    """Return the object of which `to_frames` made the arrays."""
    return unpack([bytearray(frame) for frame in frames])


def as_arrays(samples: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return the memory of tensors as arrays, which the object store passes on without pickling them."""
    return {
        f"{name} {str(tensor.dtype).removeprefix('torch.')} {','.join(map(str, tensor.shape))}": tensor.reshape(-1)
        .view(torch.uint8)
        .numpy()
        for name, tensor in samples.items()
    }


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the tensors of `as_arrays`, in the memory of the arrays, which is not written to."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the memory is read-only
        for key, array in arrays.items():
            name, dtype, shape = key.split(" ")
            sizes = [int(size) for size in shape.split(",") if size]
            found[name] = torch.from_numpy(array).view(getattr(torch, dtype)).reshape(sizes)
    return found
