"""What clients keep between rounds, by client id: in memory up to a limit, the rest in the checkpoint's files."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from safetensors import safe_open

from .trees import Tree, nbytes, unflatten

MEMORY_LIMIT = 2**31
"""Bytes of saved states that stay in memory."""


class ClientStore:
    """States of those clients that have ever taken part."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self.limit = limit
        self.files: dict[int, str] = {}
        """The file in which each saved state lies."""
        self._directory = Path()
        self._unsaved: dict[int, Tree] = {}
        self._saved: OrderedDict[int, Tree] = OrderedDict()
        self._bytes = 0

    def get(self, client: int) -> Tree | None:
        """A client's state, or None before its first contact."""
        if client in self._unsaved:
            return self._unsaved[client]
        if client in self._saved:
            self._saved.move_to_end(client)
            return self._saved[client]
        if client in self.files:
            return self._remember(client, self._read(client))
        return None

    def put(self, client: int, state: Tree) -> None:
        """Keep a client's new state."""
        if client in self._saved:
            self._bytes -= nbytes(self._saved.pop(client))
        self._unsaved[client] = state

    def unsaved(self) -> dict[str, Tree]:
        """States that no file holds yet, by client."""
        return {str(client): state for client, state in sorted(self._unsaved.items())}

    def saved_as(self, file: str, directory: Path) -> None:
        """Note that all unsaved states now lie in a file of the directory, and may leave memory."""
        self._directory = directory
        for client, state in sorted(self._unsaved.items()):
            self.files[client] = file
            self._remember(client, state)
        self._unsaved = {}

    def restore(self, files: dict[int, str], directory: Path) -> None:
        """Start from a checkpoint."""
        self.files, self._directory = dict(files), directory

    def _remember(self, client: int, state: Tree) -> Tree:
        self._saved[client] = state
        self._bytes += nbytes(state)
        while self._bytes > self.limit and len(self._saved) > 1:
            self._bytes -= nbytes(self._saved.popitem(last=False)[1])
        return state

    def _read(self, client: int) -> Tree:
        # Clones, so that a tensor is aligned as it was when it was put: some kernels round differently on others.
        with safe_open(self._directory / self.files[client], framework="pt") as file:
            prefix = f"{client}/"
            found = {
                key[len(prefix) :]: file.get_tensor(key).clone() for key in list(file.keys()) if key.startswith(prefix)
            }
        return unflatten({path: tensor for path, tensor in found.items() if path})
