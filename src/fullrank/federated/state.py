"""The state of a server, which changes from round to round."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch

from fullrank.trees import Tensors, Tree, by_name, moved


@dataclass
class ServerState:
    """Everything that changes at a server from round to round, except for the states of clients."""

    model: Tensors
    """All entries of the global model; personal entries have their initial values."""
    own: dict[str, Tree] = field(default_factory=dict)
    """The server's state of each method, by the method's name."""
    frozen_version: int = 0
    """The number of times that the frozen entries have changed. A client with an older version receives them again."""
    round: int = 0
    """The number of rounds that are complete."""
    taking_part: tuple[int, ...] = ()
    """The clients whose uploads are in the means of the newest round."""
    mean: Tensors = field(default_factory=dict)
    """The mean of the weights of the newest round, if a method needs it to be evaluated (`Method.evaluate_mean`)."""

    def copy(self) -> ServerState:
        """Return a copy that shares the tensors, which are never changed in place."""
        return dataclasses.replace(self, model=dict(self.model), own=dict(self.own))

    def tensors(self) -> Tree:
        """Return what a checkpoint contains."""
        return {
            "model": dict(self.model),
            "own": dict(self.own),
            "frozen_version": torch.tensor(self.frozen_version),
            "mean": dict(self.mean),
        }

    def restored(self, saved: Tree, device: torch.device) -> ServerState:
        """Return the state of the same round that has the tensors of a checkpoint."""
        return dataclasses.replace(
            self,
            model={name: saved["model"][name].to(device, old.dtype) for name, old in self.model.items()},
            own={name: by_name(moved(own, device)) for name, own in saved.get("own", {}).items()},
            frozen_version=int(saved["frozen_version"]),
            mean={name: value.to(device, self.model[name].dtype) for name, value in saved.get("mean", {}).items()},
        )
