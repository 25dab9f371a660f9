"""What clients send, found by running the method once on a synthetic client, before any real one is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.channels import Upload
from fullrank.data.hosted import HostedData
from fullrank.federated.site import Job, Result, Site
from fullrank.local.loop import Eager
from fullrank.randomness import generator, seeded
from fullrank.trees import pointwise

SYNTHETIC = -1
"""The id of the synthetic client: no real client has it, and Python finds an entry under it in any table by client."""
MOST_SAMPLES = 16
"""Of the synthetic client: one of each class, as far as these go."""


class Rehearsal:
    """A site with one synthetic client: random samples of the right shape, one step a fit.

    It has a copy of the network and uses no client's data, so nothing of a run depends on it.
    """

    def __init__(self, site: Site):
        self._of = site
        self._site: Site | None = None

    def do(self, job: Job) -> Result:
        """What comes of a job of the synthetic client; raises what the method raises."""
        if self._site is None:
            self._site = _synthetic(self._of)
        site = self._site
        with seeded(site.seed, "rehearsal", device=site.device):
            result = site.do(job)
        if result.error is not None:
            raise result.error
        return result


def form_of(upload: Upload) -> Upload:
    """An upload without its values: names, kinds, shapes and dtypes."""
    return {
        space: {name: type(part)(pointwise(part.tree, _shape_alone)) for name, part in parts.items()}
        for space, parts in upload.items()
    }


def described(upload: Upload) -> dict[str, dict[str, Any]]:
    """An upload's form in plain types: by name its kind and, by entry, the shape and the dtype."""
    return {
        f"{space}/{name}" if space else name: {"kind": type(part).__name__, "entries": _entries(part.tree)}
        for space, parts in upload.items()
        for name, part in parts.items()
    }


def _entries(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Tensor):
            found[f"{above}{name}"] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        else:
            found |= _entries(value, f"{above}{name}/")
    return found


def _shape_alone(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def _synthetic(site: Site) -> Site:
    data = _samples(site)
    number = data.size(SYNTHETIC)
    twin = site.twin(site.device)
    twin.data = data
    twin.settings = dataclasses.replace(site.settings, epochs=1, steps=1, batch_size=number)
    twin.stepper_of = Eager
    twin._x, twin._y = data.x.to(site.device), data.y.to(site.device)
    return twin


def _samples(site: Site) -> HostedData:
    """Return samples of random numbers; of whole numbers 0 and 1, which any embedding and any image can hold."""
    data = site.data
    number = min(max(data.num_classes, 2), MOST_SAMPLES)
    rng, shape = generator(site.seed, "rehearsal"), (number, *data.input_shape)
    like = data.x
    values = rng.standard_normal(shape) if like.is_floating_point() else rng.integers(0, 2, shape)
    labels = torch.arange(number) % data.num_classes
    x = torch.from_numpy(values).to(like.dtype)
    places, none = {SYNTHETIC: np.arange(number)}, {SYNTHETIC: np.empty(0, np.int64)}
    return HostedData(x, labels, places, none, data.pipeline, data.num_classes, peers=np.zeros(1, np.int64))
