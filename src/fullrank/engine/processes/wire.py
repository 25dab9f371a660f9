"""Messages between this process and its own workers: pickles whose tensors are sent as separate plain bytes.

They carry live objects such as the network and the method. Between machines, `federated/codec.py` is used instead.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable
from typing import IO, Any, TypeAlias

import cloudpickle
import torch
from torch import Tensor

_LENGTH = struct.Struct("<Q")
Wait: TypeAlias = Callable[[IO[bytes], bool], None]


class Wire:
    """One end of a connection by two pipes.

    Args:
        reader: The pipe from which messages are read.
        writer: The pipe to which messages are written.
        wait: If given, the pipes do not block: it is called with a pipe and whether that is to be written to, and
            returns when the pipe may be ready, or raises an exception that ends the waiting.
    """

    def __init__(self, reader: IO[bytes], writer: IO[bytes], wait: Wait | None = None):
        self.reader = reader
        self.writer = writer
        self._wait = wait
        if wait is not None:
            for pipe in (reader, writer):
                os.set_blocking(pipe.fileno(), False)

    def send(self, message: Any) -> None:
        """Send an object."""
        self.send_packed(pack(message))

    def send_packed(self, frames: list[Any]) -> None:
        """Send the frames that `pack` returned."""
        self._write(_LENGTH.pack(len(frames)))
        for frame in frames:
            self._write(_LENGTH.pack(frame.nbytes))
            self._write(frame)
        self.writer.flush()

    def _write(self, data: Any) -> None:
        """Write all of the data, although a pipe may take only a part of it, or nothing yet."""
        left = memoryview(data)
        while left:
            count: Any = self.writer.write(left)
            if count is None:
                self._pause(self.writer, True)
            else:
                left = left[count:]

    def receive(self) -> Any:
        """Return the next object.

        Raises:
            EOFError: If the other end is closed.
        """
        return unpack(self.receive_packed())

    def receive_packed(self) -> list[bytearray]:
        """Return the frames of the next object, for `unpack`."""
        return [self._read(self._length()) for _ in range(self._length())]

    def _length(self) -> int:
        return int(_LENGTH.unpack(self._read(_LENGTH.size))[0])

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self.reader.readinto(view[got:])  # type: ignore[attr-defined]
            if count is None:
                self._pause(self.reader, False)
                continue
            if not count:
                raise EOFError
            got += count
        return data

    def _pause(self, pipe: IO[bytes], to_write: bool) -> None:
        assert self._wait is not None
        self._wait(pipe, to_write)


def pack(message: Any) -> list[Any]:
    """Return an object as frames of bytes. Classes of a script or notebook are included by value."""
    buffers: list[pickle.PickleBuffer] = []
    body = io.BytesIO()
    _Pickler(body, protocol=5, buffer_callback=buffers.append).dump(message)
    # Not `getbuffer`: some versions of Python crash if garbage contains a BytesIO whose buffer is in use.
    return [memoryview(body.getvalue()), *(buffer.raw() for buffer in buffers)]


def unpack(frames: list[bytearray]) -> Any:
    """Return the object of which `pack` made the frames."""
    return pickle.loads(frames[0], buffers=frames[1:])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and thing.device.type == "cpu" and not thing.requires_grad:
            raw: Any = thing.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            # by its strides: one channel is in both orders, and convolutions go by what the strides say
            standard = torch.empty(thing.shape, device="meta").stride()
            layout = None if thing.stride() == standard or not _dense(thing) else tuple(thing.stride())
            return _tensor, (pickle.PickleBuffer(raw), thing.dtype, tuple(thing.shape), layout)
        return super().reducer_override(thing)


def _dense(tensor: Tensor) -> bool:
    """Return whether strides only reorder the axes, as channels-last does."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return reach == tensor.numel()


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...], layout: tuple[int, ...] | None) -> Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    # A copy in the same layout, aligned like any other tensor: some kernels round differently on others.
    values = torch.frombuffer(data, dtype=dtype).reshape(shape)
    if layout is None:
        return values.clone()
    return torch.empty_strided(shape, layout, dtype=dtype).copy_(values)
