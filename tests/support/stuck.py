"""Methods whose clients never return, or end the process. Named in experiments as `stuck:Class`."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fullrank import Method


def in_c_code() -> None:
    """One call that no signal interrupts: a mutex is locked for the second time."""
    mutex = ctypes.create_string_buffer(128)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


def stuck(how: str) -> None:
    """Say so in the file that the environment names, and never return."""
    Path(os.environ["STUCK"]).write_text(str(os.getpid()))
    if how == "c":
        in_c_code()
    while True:
        if how == "sleep":
            time.sleep(1000)


@dataclass(frozen=True)
class Hangs(Method):
    """The clients hang in the second round or, with `at = "end"`, when they personalise."""

    how: Literal["spin", "sleep", "c"] = "spin"
    at: Literal["round", "end"] = "round"

    def after(self, client):
        if self.at == "round" and client.round == 1:
            stuck(self.how)
        return {}

    def personalise(self, client):
        if self.at == "end":
            stuck(self.how)


@dataclass(frozen=True)
class Quits(Method):
    """Client 1 ends the process, or says that Ctrl-C was pressed, in the second round; or the server does."""

    how: Literal["exit", "interrupt"] = "exit"
    who: Literal["client", "server"] = "client"

    def _quit(self):
        if self.how == "exit":
            sys.exit(3)
        raise KeyboardInterrupt

    def loss(self, b):
        return 0.0 * b.z.mean()

    def after(self, client):
        if self.who == "client" and client.id == 1 and client.round == 1:
            self._quit()
        return {}

    def aggregate(self, server, new, up):
        if self.who == "server" and server.round == 1:
            self._quit()
        return new
