"""Files with the searched scales of re-parameterisable networks.

A file holds for every convolution, under its name in the network, the scales behind its branches: `alpha3`, `alpha1`
and, where there is one, `identity` (RepVGG), or `alpha` and `fusion` (RepGhost). Some files come with the package, in
`searched`, each with a JSON file that describes its search.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from pydantic import InstanceOf
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fullrank.errors import InputError
from fullrank.models.reparam.operators import RepConv, operators

Scales: TypeAlias = dict[str, InstanceOf[Tensor]] | str | None
"""Scales as a dict of tensors, the path of a file, the data set of a search whose scales come with the package, or None
for the values with which a search starts."""
SEARCHED = Path(__file__).parent / "searched"

_WITH_POINTWISE = {"kernel": "alpha3", "pointwise": "alpha1", "identity": "identity"}
_DEPTHWISE = {"kernel": "alpha", "identity": "fusion"}


def scales_of(net: nn.Module) -> dict[str, Tensor]:
    """Return the scales of a network in the "csla" or "hs" mode, as a file holds them."""
    return {
        f"{name}.{_names(operator)[branch]}": scale.detach().flatten().clone()
        for name, operator in operators(net)
        for branch, scale in operator.scales_by_branch().items()
    }


def write_scales(path: str | Path, net: nn.Module, model: str) -> None:
    """Write the scales of a network to a file.

    Args:
        path: The file.
        net: The network.
        model: The name of the network, which the file records.

    Raises:
        InputError: If the network has no scales.
    """
    found = {name: scale.cpu() for name, scale in scales_of(net).items()}
    if not found:
        raise InputError('the network has no scales to write; build it with mode = "hs" or "csla"')
    save_file(found, path, metadata={"model": model})


def read_scales(path: str | Path, model: str) -> dict[str, Tensor]:
    """Read the scales of a network from a file.

    Args:
        path: The file, or the data set of a search whose scales come with the package.
        model: The name of the network.

    Returns:
        The scales by name.

    Raises:
        InputError: If there is no such file, or it holds scales of another network.

    >>> sorted(read_scales("cifar100", "repvgg-a0"))[:2]
    ['backbone.layer1.0.alpha1', 'backbone.layer1.0.alpha3']
    """
    if not Path(path).is_file():
        path = shipped(str(path), model)
    try:
        with safe_open(path, framework="pt") as file:
            made_for = (file.metadata() or {}).get("model", model)
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise InputError(f'model.scales: "{path}" is not a safetensors file ({error})') from None
    if made_for != model:
        raise InputError(f'model.scales: "{path}" holds scales of {made_for}, not of {model}')
    return found


def shipped(name: str, model: str) -> Path:
    """Return the file of the package with the scales of a network.

    Args:
        name: The data set on which they were searched.
        model: The name of the network.

    Raises:
        InputError: If the package has no such file.
    """
    path = SEARCHED / f"{model}-{name}.safetensors"
    if not Path(name).suffix and Path(name).name == name and path.is_file():
        return path
    there = sorted(file.stem.removeprefix(f"{model}-") for file in SEARCHED.glob(f"{model}-*.safetensors"))
    known = f"the package has {', '.join(there) or 'none'} for {model}"
    raise InputError(f'model.scales: there is no file "{name}" ({known}); make one with fullrank search-scales {model}')


@torch.no_grad()
def set_scales_(net: nn.Module, given: Mapping[str, Tensor], model: str, identity: bool) -> None:
    """Copy scales into the branches of a network.

    Args:
        net: The network.
        given: The scales by name, as a file holds them.
        model: The name of the network, for errors.
        identity: Whether scales are copied into identity branches as well.

    Raises:
        InputError: If the scales are not those of this network.
    """
    wanted = scales_of(net)
    if problem := _misfit(given, wanted):
        raise InputError(f"model.scales does not fit {model}: {problem}")
    for name, operator in operators(net):
        for branch, scale in operator.scales_by_branch().items():
            if identity or branch != "identity":
                scale.copy_(given[f"{name}.{_names(operator)[branch]}"].reshape(scale.shape))


def _misfit(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    for name, scale in wanted.items():
        if name not in given:
            return f"{name} is missing"
        if given[name].shape != scale.shape:
            return f"{name} has shape {tuple(given[name].shape)} instead of {tuple(scale.shape)}"
        if not given[name].is_meta and not bool(torch.isfinite(given[name]).all()):
            return f"{name} is not finite"
    surplus = [name for name in given if name not in wanted]
    return f"{surplus[0]} is not in the network" if surplus else ""


def _names(operator: RepConv) -> dict[str, str]:
    return _DEPTHWISE if operator.pointwise is None else _WITH_POINTWISE
