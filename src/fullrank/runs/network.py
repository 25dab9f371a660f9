"""The network of a run: built, shaped by the method, and set up for the engine that trains it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fullrank import models
from fullrank.config.experiment import Experiment
from fullrank.data.dataset import DataSet, is_integer
from fullrank.data.federation import Federation
from fullrank.engine.resolve import Resolved
from fullrank.errors import InputError
from fullrank.methods import Composition
from fullrank.models.findhead import find_head
from fullrank.models.net import Net
from fullrank.models.network import Network, takes_channels_last
from fullrank.plugins import hooked
from fullrank.randomness import seeded

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def build_network(
    experiment: Experiment,
    federation: Federation,
    composition: Composition,
    module: nn.Module | None,
    head: str | None,
    device: torch.device,
) -> Network:
    """Build the network of an experiment, shaped by its method, with its initial weights, on a device.

    Args:
        experiment: The experiment.
        federation: The data, whose inputs and classes the network must fit.
        composition: The method.
        module: A program's own module in place of `model.name`; it is copied.
        head: Name of the classifier, if it is not to be searched.
        device: Where the network goes.
    """
    data, seed, precision = federation.data, experiment.seed, experiment.engine.precision
    with seeded(seed, "model"):
        if module is None:
            module = models.build(experiment.model.name, data.num_classes, data.in_channels, **experiment.model.options)
        else:
            module = copy.deepcopy(module)
        if precision in DTYPES:
            if precision == "float64" and any(map(nn.parameter.is_lazy, module.parameters())):
                find_head(module, _example(federation, module), head)  # draws their weights before the conversion
            module = module.to(DTYPES[precision])
        example = _example(federation, module)
        network = Network.of(module, example, data.num_classes, head)
    with seeded(seed, "method"):
        network = apply_method(network, composition, example)
    network.module.to(device)
    return network


def set_up_for(network: Network, engine: Resolved) -> None:
    """Set a network's precision and memory layout to those of an engine.

    On a GPU the weights have their channels last as well. On a CPU that would gain little more, and all code that reads
    weights would have to take it into account.

    Args:
        network: The network.
        engine: The complete table `[engine]`.
    """
    if engine.recorded.get("precision") in DTYPES:
        # As `build_network` converts it when the run continues, since its recorded experiment names the precision.
        network.module.to(DTYPES[engine.recorded["precision"]])
    if engine.autocast:
        network.half = torch.bfloat16
    network.channels_last = engine.channels_last and takes_channels_last(network)
    if network.channels_last and engine.device.startswith("cuda"):
        network.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _example(federation: Federation, module: nn.Module) -> torch.Tensor:
    kinds = [p.dtype for p in module.parameters() if not nn.parameter.is_lazy(p) and p.is_floating_point()]
    lazy = [p.dtype for p in module.parameters() if nn.parameter.is_lazy(p)]
    dtype = (kinds or lazy or [torch.get_default_dtype()])[0]
    return federation.pipeline(_of_each_size(federation.data), None, dtype)


def _of_each_size(data: DataSet) -> torch.Tensor:
    """Return two samples; of whole numbers those with the smallest and the largest value, for which an embedding needs
    rows."""
    x = data.train.x
    if x.dtype == torch.uint8 or not is_integer(x.dtype) or not x[0].numel():
        return x[:2]
    values = [split.x.reshape(len(split), -1) for split in (data.train, data.test) if split is not None]
    smallest = min((part[part.amin(1).argmin()] for part in values), key=lambda sample: int(sample.min()))
    largest = max((part[part.amax(1).argmax()] for part in values), key=lambda sample: int(sample.max()))
    return torch.stack([smallest, largest]).reshape(2, *x.shape[1:])


def apply_method(network: Network, composition: Composition, example: torch.Tensor) -> Network:
    """Let the methods shape the network: another body, a new head if its width changed, another head.

    Args:
        network: The network.
        composition: The methods.
        example: A small batch of inputs.

    Returns:
        The network to train.

    Raises:
        InputError: If it does not return scores (samples, classes).
    """
    width = network.feature_dim
    for part in composition.defined("model"):
        network = hooked(part, "model", network)
        network.module.to(network.dtype)
        with torch.no_grad(), network.mode(train=False):
            network.feature_dim = _z(network, example).shape[1]
    if network.feature_dim != width:
        # drawn before it is converted, so that every precision starts from the same numbers
        network.head = nn.Linear(network.feature_dim, network.num_classes).to(network.dtype)
    for part in composition.defined("head"):
        network.head = hooked(part, "head", network)
    if composition.defined("model") or composition.defined("head"):
        network.module.to(network.dtype)
        with torch.no_grad(), network.mode(train=False):
            logits = network(example).logits
        if logits.shape != (len(example), network.num_classes):
            raise InputError(
                f"the method's network gives scores of shape {tuple(logits.shape)}, not (samples, classes)"
            )
    if isinstance(network.module, Net):
        network.module.feature_dim = network.feature_dim
    return network


def _z(network: Network, example: torch.Tensor) -> torch.Tensor:
    """Return the representation, although the head may not fit it yet."""
    if isinstance(network.module, Net):
        return network.module.features(example)
    caught: list[torch.Tensor] = []
    part = network.module.get_submodule(network.z_name)
    handle = part.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    try:
        network.module(example)
    except RuntimeError:
        if not caught:
            raise
    finally:
        handle.remove()
    return caught[0]
