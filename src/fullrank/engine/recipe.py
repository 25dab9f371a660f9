"""The recipe from which a worker in another process builds its site, and the form in which it returns results."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fullrank.data.hosted import HostedData
from fullrank.engine.processes.wire import pack
from fullrank.errors import InputError, RemoteError, kind_of, message_of
from fullrank.federated.site import Result, Site
from fullrank.local.settings import Schedule, Settings
from fullrank.methods import Composition
from fullrank.metrics.registry import Metric
from fullrank.models import Network
from fullrank.models.entries import Entries

SAMPLES_FILE = "FULLRANK_WORKER_DATA"
"""The environment variable with the name of the file from which a worker process maps the samples."""


@dataclass(frozen=True)
class SiteRecipe:
    """Everything from which a worker builds its site, except for the samples, and the settings of torch."""

    network: Network
    composition: Composition
    entries: Entries
    data: HostedData
    """The clients' data without samples."""
    training: tuple[Settings, Schedule, bool]
    seed: int
    device: str
    metrics: tuple[Metric, ...]
    threads: int
    dtype: torch.dtype
    deterministic: bool
    mkldnn: bool
    matmul_precision: str

    @classmethod
    def of(cls, site: Site, threads: int, device: str) -> SiteRecipe:
        """Return the recipe of a site.

        Args:
            site: The site.
            threads: The number of threads of torch in the worker.
            device: The device on which the worker trains.
        """
        network = site.network
        if site.device.type != "cpu":
            network = copy.deepcopy(network)
            network.module.to("cpu")
        return cls(
            network,
            site.composition,
            site.entries,
            replace(site.data, x=torch.empty(0), y=torch.empty(0), file=None, test_x=None, test_y=None),
            (site.settings, site.schedule, site.keep_optimiser),
            site.seed,
            device,
            tuple(site.metrics),
            threads,
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            bool(torch.backends.mkldnn.enabled),
            torch.get_float32_matmul_precision(),
        )

    def build(self, samples: Mapping[str, Tensor]) -> Site:
        """Set torch as the recipe says, and return the site with the samples that `samples_of` named."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]
        torch.set_float32_matmul_precision(self.matmul_precision)
        if self.deterministic:  # even to switch it off would import torch's compiler, for seconds
            torch.use_deterministic_algorithms(True)
        data = replace(self.data, x=samples["train.x"], y=samples["train.y"])
        if data.tests:
            data = replace(data, test_x=samples["test.x"], test_y=samples["test.y"])
        device = torch.device(self.device)
        if device.type != "cpu":
            self.network.module.to(device)
        shared = (self.network, self.composition, self.entries, data)
        return Site(*shared, *self.training, self.seed, device, self.metrics)


def samples_of(data: HostedData) -> dict[str, Tensor]:
    """Return the samples of clients by the names under which the file of a data set has them."""
    tensors = {"train.x": data.x, "train.y": data.y, "test.x": data.test_x, "test.y": data.test_y}
    return {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}


def packed_recipe(site: Site, threads: int, device: str = "cpu") -> list[Any]:
    """Return the recipe of a site as frames of bytes, for `unpack`.

    Args:
        site: The site.
        threads: The number of threads of torch in the worker.
        device: The device on which the worker trains.

    Raises:
        InputError: If the model or the method cannot be pickled.
    """
    try:
        return pack(SiteRecipe.of(site, threads, device))
    except Exception as error:
        raise InputError(
            f"the model or method cannot be sent to worker processes ({error}); "
            'move it into a separate module, or take engine.name = "serial"'
        ) from None


def cannot_load(error: RemoteError) -> InputError:
    """Return the error for a worker that could not build its site."""
    return InputError(
        f"a worker process cannot load the model or method ({error.kind}: {error}); "
        'move it into a module that can be imported, or take engine.name = "serial"'
    )


def sendable(result: Result) -> Result:
    """Return the result with its error, if any, in a form that can be sent."""
    if result.error is not None:
        result.error = remote(result.error)
    return result


def remote(error: BaseException) -> RemoteError:
    """Return an exception in a form that can be sent to another process."""
    return RemoteError(kind_of(error), message_of(error), "".join(traceback.format_exception(error)))
