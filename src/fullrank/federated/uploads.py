"""The form of the uploads that the server expects, found by running the method once on a synthetic client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.channels import Mean, Upload, form_of
from fullrank.data.hosted import HostedData
from fullrank.errors import InputError, kind_of, message_of
from fullrank.federated.site import Job, Result, Site
from fullrank.local.loop import Eager
from fullrank.methods._compose import Composition
from fullrank.randomness import generator, seeded

SYNTHETIC = -1
"""The id of the synthetic client, which no real client has and which is a valid index of any list by client."""
MOST_SAMPLES = 16
"""The largest number of samples of the synthetic client, which has one of each class."""


class SyntheticClient:
    """A site with one synthetic client: random samples of the right shape, one step per fit.

    It has a copy of the network and uses no client's data, so it does not affect the run.

    Args:
        site: The site whose network, method and settings it has.
    """

    def __init__(self, site: Site):
        self._of = site
        self._site: Site | None = None

    def do(self, job: Job) -> Result:
        """Run a job of the synthetic client.

        Args:
            job: The job.

        Raises:
            Exception: Any exception of the method.
        """
        if self._site is None:
            self._site = _synthetic(self._of)
        site = self._site
        with seeded(site.seed, "rehearsal", device=site.device):
            result = site.do(job)
        if result.error is not None:
            raise result.error
        return result


class ExpectedUploads:
    """The form of what clients send after training and as the answer to each query.

    A method that declares `uploads`, or sends the weights in another form (`upload`), runs once on the synthetic
    client. The others send the weights and the BatchNorm statistics only, unless a client sends something else and the
    synthetic client sends it as well (`renew`).

    Each function takes a job of the synthetic client under the current model.

    Args:
        composition: The method.
        rehearsal: The synthetic client; None if there is no site on which it could run.
    """

    def __init__(self, composition: Composition, rehearsal: SyntheticClient | None):
        self._composition = composition
        self._rehearsal = rehearsal
        self._forms: dict[tuple[str, str], _Form] = {}

    def form(self, job: Job) -> Upload:
        """Return what every client sends, without values; empty where the method cannot run on synthetic data."""
        if job.query not in self._forms:
            parts = self._composition.parts
            declared = job.query[0] or self._composition.encoders or any(part.uploads for part in parts)
            self._forms[job.query] = self._found(job) if declared else _Form(_model_only(job))
        return self._forms[job.query].upload

    def renew(self, job: Job, accepted: bool) -> Upload | None:
        """Find the form of the uploads again, because a client sent something else.

        The method runs on the synthetic client once more, at most once per round. If it sends something else there too,
        the new form is expected from now on.

        Args:
            job: A job of the synthetic client.
            accepted: Whether the upload of a client of this round was accepted already.

        Returns:
            The new form; None if it is the old one.

        Raises:
            InputError: If the form is new and an upload in the old one was accepted.
        """
        known = self._forms[job.query]
        if known.unknown or known.round == job.round:
            return None
        fresh = self._forms[job.query] = self._found(job)
        if described(fresh.upload) == described(known.upload):
            return None
        if accepted:
            new = ", ".join(sorted(described(fresh.upload).keys() - described(known.upload).keys()))
            raise InputError(
                f'"{self._composition.method.name}" sends {new or "less than before"}, and a client of round '
                f"{job.round + 1} that did not was counted already; declare what the method sends in its `uploads`"
            )
        return fresh.upload

    def caution(self, job: Job) -> list[str]:
        """Return a warning in the round in which the method could not run on the synthetic client."""
        form = self._forms[job.query]
        if not form.unknown or form.round != job.round:
            return []
        return [
            f'the method "{self._composition.method.name}" cannot run on a synthetic client ({form.unknown}), so the '
            "first upload of each round decides what the others must look like"
        ]

    def finite_loss(self, job: Job) -> bool:
        """Return whether the model has a finite loss on the synthetic client; True if the method cannot run on it."""
        try:
            (first, *_) = self._rehearsed(job).metrics["epochs"]
        except Exception:
            return True
        return all(math.isfinite(value) for value in (first["criterion"], first["grad_norm"]))

    def _found(self, job: Job) -> _Form:
        try:
            return _Form(form_of(self._rehearsed(job).upload), job.round)
        except Exception as error:
            return _Form({}, job.round, f"{kind_of(error)}: {message_of(error)}")

    def _rehearsed(self, job: Job) -> Result:
        if self._rehearsal is None:
            raise InputError("there is no site on which the method could run")
        return self._rehearsal.do(job)


@dataclass(frozen=True)
class _Form:
    """The form of uploads, or the reason why it is unknown."""

    upload: Upload
    round: int = -1
    """The round in which the method ran on the synthetic client; −1 if the form follows from what it declares."""
    unknown: str = ""


def _model_only(job: Job) -> Upload:
    return form_of({"": {"w": Mean(job.broadcast["w"]), "buffers": Mean(job.broadcast["buffers"])}})


def described(upload: Upload) -> dict[str, dict[str, Any]]:
    """Return an upload's form in plain types: by name its kind and, by entry, the shape and the dtype."""
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
    """Return random samples. Integers are 0 or 1, which are valid indices of any embedding and valid pixels of any
    image.
    """
    data = site.data
    number = min(max(data.num_classes, 2), MOST_SAMPLES)
    rng, shape = generator(site.seed, "rehearsal"), (number, *data.input_shape)
    like = data.x
    values = rng.standard_normal(shape) if like.is_floating_point() else rng.integers(0, 2, shape)
    labels = torch.arange(number) % data.num_classes
    x = torch.from_numpy(values).to(like.dtype)
    places, none = {SYNTHETIC: np.arange(number)}, {SYNTHETIC: np.empty(0, np.int64)}
    return HostedData(x, labels, places, none, data.pipeline, data.num_classes, peers=np.zeros(1, np.int64))
