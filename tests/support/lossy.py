"""Methods that lose their worker, or the node that it runs on. Their files are shared by all nodes of a test."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from fullrank import Method


@dataclass(frozen=True)
class Crashes(Method):
    """Kills the process in which client 2 trains, a number of times, and counts them in a file."""

    note: str = ""
    times: int = 1

    def train(self, client):
        note = Path(self.note)
        done = len(note.read_text()) if note.is_file() else 0
        if client.id == 2 and done < self.times:
            note.write_text("x" * (done + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        client.fit()


@dataclass(frozen=True)
class Sleeps(Method):
    """Writes a note and sleeps on one node of a Ray cluster; on the others it waits for the note before it trains."""

    note: str = ""
    node: str = ""

    def train(self, client):
        import ray

        if self.node and client.id >= 0 and not Path(self.note).exists():
            if ray.get_runtime_context().get_node_id() == self.node:
                Path(self.note).touch()
                time.sleep(120)
            deadline = time.monotonic() + 30
            while not Path(self.note).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        client.fit()


@dataclass(frozen=True)
class Speaks(Method):
    """Prints a line for each client, and fails at client 2."""

    def train(self, client):
        print(f"client {client.id} speaks")
        if client.id == 2 and client.round == 1:
            raise RuntimeError(f"no luck at {client.id}")
        client.fit()
