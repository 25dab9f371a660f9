"""The program of a worker process, which runs clients' jobs at its own site and ends with the process that started it.

A worker starts here and never imports the user's main module, so a script needs no `__main__` guard.
"""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import replace
from typing import Any

from safetensors.torch import load_file

from fullrank.engine.allocator import keep_freed_memory
from fullrank.engine.processes.wire import Wire, unpack
from fullrank.engine.recipe import SAMPLES_FILE, remote, sendable
from fullrank.local import interrupt


def main() -> None:
    """Run jobs until the parent closes the pipe."""
    interrupt.leave_to_parent()
    keep_freed_memory()
    wire = _pipes()
    messages: queue.Queue[list[bytearray]] = queue.Queue()
    threading.Thread(target=_listen, args=(wire, messages), daemon=True).start()
    try:
        site = unpack(messages.get()).build(load_file(os.environ[SAMPLES_FILE]))
    except BaseException as error:
        wire.send(remote(error))
        return
    wire.send("ready")
    broadcast: Any = None
    while True:
        kind, content = unpack(messages.get())
        if kind == "broadcast":
            broadcast = content
        else:
            wire.send(sendable(site.do(replace(content, broadcast=broadcast))))


def _pipes() -> Wire:
    """Return the pipes to the parent, on descriptors that no other code prints to or reads from."""
    reader, writer = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what the user's code prints goes to the parent's standard error
    return Wire(reader, writer)


def _listen(wire: Wire, messages: queue.Queue[list[bytearray]]) -> None:
    """Receive messages as they come; when the parent is gone, end the process at once."""
    while True:
        try:
            messages.put(wire.receive_packed())
        except (EOFError, OSError):
            os._exit(1)
