"""The states of clients between rounds, in files at their own site.

The server never receives a state. It keeps a receipt of each, the round in which the state was made and a random
number, among what it saves in its checkpoints. It sends the receipt with the client's next job, so that a run that
continues from an earlier checkpoint, and a site that was started again, use the state that belongs to that moment.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fullrank.errors import InputError
from fullrank.files import Damaged, load_tensors, read_json, save_tensors, write_json
from fullrank.trees import Tree, by_name, flatten, unflatten

NAME = re.compile(r"(\d+)-([0-9a-f]{16})\.safetensors")
RUN = re.compile(r"[0-9a-f]{8,64}")
FROZEN = "frozen.safetensors"


@dataclass(frozen=True)
class Receipt:
    """A receipt of a client's state, which the server keeps in place of the state.

    >>> Receipt.of_tree(Receipt(3, 17).as_tree())
    Receipt(round=3, token=17)
    """

    round: int
    """The number of rounds that were complete when the client trained."""
    token: int
    """A random number below 2**63, which no other state has."""

    @property
    def file(self) -> str:
        """The name of the file with the state."""
        return f"{self.round:06d}-{self.token:016x}.safetensors"

    def as_tree(self) -> Tree:
        """Return the receipt in the form in which the server saves states."""
        return {"receipt": torch.tensor([self.round, self.token])}

    @classmethod
    def of_tree(cls, tree: Tree | None) -> Receipt | None:
        """Return the receipt that a server has saved, or None before the client's first contact."""
        return cls(*map(int, tree["receipt"])) if tree else None

    @classmethod
    def of_values(cls, values: Any) -> Receipt | None:
        """Return the receipt in a message, or None if there is none.

        Raises:
            InputError: If it is something else.
        """
        if values is None:
            return None
        if not (isinstance(values, list) and len(values) == 2 and all(type(number) is int for number in values)):
            raise InputError("the receipt of a client's state is not two whole numbers")
        if not (0 <= values[0] < 2**31 and 0 <= values[1] < 2**63):
            raise InputError("the receipt of a client's state has numbers out of range")
        return cls(*values)


class StateFolder:
    """The states of one client in one run, one file each.

    Args:
        folder: The folder of all states of the site.
        run: The identifier of the run, in hexadecimal digits.
        client: The client.

    Raises:
        InputError: If `run` is no such identifier.
    """

    def __init__(self, folder: Path, run: str, client: int):
        if not RUN.fullmatch(run):
            raise InputError(f'"{run[:80]}" does not identify a run')
        self.path = folder / run / f"client-{client:06d}"

    def load(self, receipt: Receipt | None) -> Tree | None:
        """Return the state that a receipt stands for; None before the first contact.

        Raises:
            InputError: If the state is missing or damaged.
        """
        if receipt is None:
            return None
        path = self.path / receipt.file
        try:
            kept = load_tensors(path)
        except FileNotFoundError:
            raise InputError(
                f"the client's state of round {receipt.round + 1} is not in its folder any more; restore the folder "
                "of states from a backup, or start a new run"
            ) from None
        except Damaged as problem:
            raise InputError(f"the client's state of round {receipt.round + 1} is damaged ({problem})") from None
        # Clones, so that tensors are aligned as before they were saved: some kernels round differently otherwise.
        return by_name(unflatten({name: value.clone() for name, value in kept.items()}))

    def save(self, round: int, state: Tree) -> Receipt:
        """Write a new state under a new name, and return its receipt."""
        receipt = Receipt(round, secrets.randbits(63))
        self.path.mkdir(parents=True, exist_ok=True)
        save_tensors(self.path / receipt.file, flatten(by_name(state)))
        return receipt

    def prune(self, current: Receipt | None, oldest: int) -> None:
        """Delete the states that no checkpoint of the server can need any more.

        All rounds after that of the current state are lost at the server, or were never complete. Of the rounds before
        the oldest checkpoint, only the newest state is needed.

        Args:
            current: The receipt of the state with which the client is about to train.
            oldest: The number of complete rounds of the oldest checkpoint to which the server can return.
        """
        kept = self._files()
        chain = {receipt: path for receipt, path in kept.items() if current and receipt.round < current.round}
        if current is not None and current in kept:
            chain[current] = kept[current]
        before = [receipt.round for receipt in chain if receipt.round < oldest]
        first = max(before, default=0)
        for receipt, path in kept.items():
            if receipt not in chain or receipt.round < first:
                path.unlink(missing_ok=True)

    def frozen(self, digest: str) -> Tree | None:
        """Return the frozen entries that the site has kept, if they are those of a digest."""
        try:
            if read_json(self.path / "frozen.json") != {"digest": digest}:
                return None
            return {name: value.clone() for name, value in load_tensors(self.path / FROZEN).items()}
        except (OSError, Damaged):
            return None

    def keep_frozen(self, digest: str, frozen: Tree) -> None:
        """Keep the frozen entries of a digest, so that they need not be sent again."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "frozen.json").unlink(missing_ok=True)
        save_tensors(self.path / FROZEN, frozen)
        write_json(self.path / "frozen.json", {"digest": digest})

    def _files(self) -> dict[Receipt, Path]:
        if not self.path.is_dir():
            return {}
        found = {}
        for path in self.path.iterdir():
            if match := NAME.fullmatch(path.name):
                found[Receipt(int(match[1]), int(match[2], 16))] = path
        return found
