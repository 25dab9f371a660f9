"""The phases after the last round, saved client by client, so that an interruption loses no client's work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fullrank.errors import InputError
from fullrank.federated.server import CLIENT_KEYS, Server
from fullrank.files import Damaged, append_line, load_tensors, read_lines, save_tensors, write_lines
from fullrank.trees import flatten, unflatten


class Ending:
    """The results so far of the phases after the last round.

    They are in `ending.jsonl` and `ending.safetensors` until the result of the run is written. Lines that belong to
    another number of rounds, or that cannot be read, are ignored and computed again.

    Args:
        path: The run directory; None if nothing is written.
        rounds: The number of rounds of the run.
    """

    def __init__(self, path: Path | None, rounds: int):
        self._lines = path / "ending.jsonl" if path is not None else None
        self._tensors = path / "ending.safetensors" if path is not None else None
        self._rounds = rounds
        self._finish: dict[str, Any] | None = None
        self._before = 0.0
        self._start = self._last = time.perf_counter()
        self.clients: dict[int, dict[str, Any]] = {}
        """For each client "personal" and "test", its scores by stage on its hold-out and on the test part of its site,
        and "rows", their descriptions; or "skipped", the reason why it was left out."""
        if self._lines is not None and self._lines.is_file():
            kept = self._read(self._lines)
            write_lines(self._lines, kept)  # a killed process may have left half a line
            for line in kept:
                self._take(line)

    @property
    def seconds(self) -> float:
        """The seconds that these phases have taken, including earlier processes."""
        return self._before + time.perf_counter() - self._start

    def add(self, client: int, found: Mapping[str, Any]) -> None:
        """Save the result of a client."""
        self.clients[client] = dict(found)
        self._append({"client": client, **found})

    def keep_finish(self, server: Server, facts: Mapping[str, Any]) -> None:
        """Save the server after the methods' `finish`, and facts about it."""
        if self._tensors is not None:
            save_tensors(self._tensors, flatten(server.state()))
        self._append({"finish": dict(facts)})

    def finish(self, server: Server, device: torch.device) -> tuple[Server, dict[str, Any]] | None:
        """Return the server after the methods' `finish`, as an earlier process saved it.

        Args:
            server: The server before `finish`.
            device: The device of the tensors.

        Returns:
            The server, and the facts about it that were saved; None if nothing was saved.
        """
        if self._finish is None or self._tensors is None:
            return None
        try:
            state = {name: tensor.clone() for name, tensor in load_tensors(self._tensors).items()}
        except (OSError, Damaged):
            return None
        return server.restored(unflatten(state), device), self._finish

    def discard(self) -> None:
        """Delete the files, once the result is written."""
        for file in (self._lines, self._tensors):
            if file is not None:
                file.unlink(missing_ok=True)

    def _read(self, file: Path) -> list[dict[str, Any]]:
        try:
            return [line for line in read_lines(file) if line["rounds"] == self._rounds]
        except (InputError, KeyError, TypeError):
            return []

    def _take(self, line: dict[str, Any]) -> None:
        self._before += line["seconds"]
        if "personal" in line and "rows" not in line:
            return  # of an earlier version, which kept less of a client
        if "finish" in line:
            self._finish = line["finish"]
        else:
            self.clients[line["client"]] = {key: line[key] for key in (*CLIENT_KEYS, "skipped") if key in line}

    def _append(self, line: dict[str, Any]) -> None:
        now = time.perf_counter()
        if self._lines is not None:
            append_line(self._lines, {"rounds": self._rounds, **line, "seconds": now - self._last})
        self._last = now
