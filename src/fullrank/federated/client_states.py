"""The states of clients between rounds: in memory up to a limit, and otherwise in the files of checkpoints."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from fullrank.errors import InputError
from fullrank.files import Damaged, verify_tensors
from fullrank.trees import Tree, by_name, nbytes, unflatten

MEMORY_LIMIT = 2**31
"""The number of bytes of saved states that stay in memory."""


class ClientStates:
    """The states of the clients that have taken part, and the version of the frozen entries that each has.

    The cost of a round depends on its own clients only, not on the number of clients that took part before: a
    checkpoint notes what is new since the previous one (`note`), and a process that resumes reads all notes (`follow`).

    Args:
        limit: The number of bytes of saved states that stay in memory. States that are not saved yet always do.
    """

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self.limit = limit
        self.files: dict[int, str] = {}
        """The file that contains the saved state of each client."""
        self.contacts: dict[int, int] = {}
        """The version of the frozen entries that each client was sent last."""
        self._met: dict[int, int] = {}
        """The contacts since the last checkpoint."""
        self._held: Counter[str] = Counter()
        """The number of clients whose newest states are in each file."""
        self._directory = Path()
        self._verified: set[str] = set()
        """The files whose checksums were found to be right."""
        self._unsaved: dict[int, Tree] = {}
        self._saved: OrderedDict[int, Tree] = OrderedDict()
        self._bytes = 0

    def get(self, client: int) -> Tree | None:
        """Return a client's state, or None before its first contact."""
        if client in self._unsaved:
            return self._unsaved[client]
        if client in self._saved:
            self._saved.move_to_end(client)
            return self._saved[client]
        if client in self.files:
            return self._remember(client, self._read(client))
        return None

    def put(self, client: int, state: Tree) -> None:
        """Store a client's new state.

        Args:
            client: The client.
            state: The state.
        """
        if client in self._saved:
            self._bytes -= nbytes(self._saved.pop(client))
        self._unsaved[client] = by_name(state)

    def meet(self, client: int, version: int) -> None:
        """Record that a client was sent a version of the frozen entries.

        Args:
            client: The client.
            version: The version.
        """
        self.contacts[client] = self._met[client] = version

    def unsaved(self) -> dict[str, Tree]:
        """Return the states that are in no file yet, by client."""
        return {str(client): state for client, state in sorted(self._unsaved.items())}

    def note(self, file: str) -> dict[str, Any]:
        """Return what is new since the last checkpoint in plain types, to be written as one line of JSON.

        Args:
            file: The name of the file into which the unsaved states will be written.
        """
        contacts: dict[str, list[int]] = {}
        for client, version in sorted(self._met.items()):
            contacts.setdefault(str(version), []).append(client)
        return {"contacts": contacts, "file": file, "states": sorted(self._unsaved)}

    def saved_as(self, file: str, directory: Path) -> list[str]:
        """Record that all unsaved states have been written to a file.

        Args:
            file: The name of the file that contains them.
            directory: The directory of the checkpoints.

        Returns:
            The files that no longer contain the newest state of any client.
        """
        self._directory, unsaved = directory, self._unsaved
        self._unsaved, self._met = {}, {}
        left = self._moved_to(file, sorted(unsaved))
        for client, state in sorted(unsaved.items()):
            self._remember(client, state)
        return left

    def follow(self, note: Mapping[str, Any], directory: Path) -> list[str]:
        """Apply the note of the next checkpoint, so that the object describes the states at that checkpoint.

        Args:
            note: What `note` returned at that checkpoint.
            directory: The directory of the checkpoints.

        Returns:
            The files that no longer contain the newest state of any client.
        """
        self._directory = directory
        self.contacts |= {client: int(version) for version, met in note["contacts"].items() for client in met}
        return self._moved_to(note["file"], note["states"])

    def _moved_to(self, file: str, clients: Iterable[int]) -> list[str]:
        left = []
        for client in clients:
            before = self.files.get(client)
            self.files[client] = file
            self._held[file] += 1
            if before is not None:
                self._held[before] -= 1
                if not self._held[before]:
                    del self._held[before]
                    left.append(before)
        return left

    def _remember(self, client: int, state: Tree) -> Tree:
        self._saved[client] = state
        self._bytes += nbytes(state)
        while self._bytes > self.limit and len(self._saved) > 1:
            self._bytes -= nbytes(self._saved.popitem(last=False)[1])
        return state

    def _read(self, client: int) -> Tree:
        path = self._directory / self.files[client]
        if path.name not in self._verified:
            try:
                verify_tensors(path)
            except Damaged as problem:
                raise InputError(f'the checkpoint file "{path}" is damaged ({problem})') from None
            self._verified.add(path.name)
        # Clones, so that tensors are aligned as before they were saved: some kernels round differently otherwise.
        with safe_open(path, framework="pt") as file:
            prefix = f"{client}/"
            found = {
                key[len(prefix) :]: file.get_tensor(key).clone() for key in list(file.keys()) if key.startswith(prefix)
            }
        return by_name(unflatten({path: tensor for path, tensor in found.items() if path}))
