"""Networks that consist of a backbone, which gives the representation z, a neck, and a head, which gives the logits."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, get_type_hints

from fullrank.errors import InputError, checked, nearest
from fullrank.lazy import OnFirstUse, exports
from fullrank.plugins import Registry, called

if TYPE_CHECKING:
    from torch import nn

    from fullrank.models.net import Net, Output
    from fullrank.models.network import Network

__all__ = ["MODELS", "Net", "Network", "Output", "available", "build", "builder"]
__getattr__ = exports(__name__, {"fullrank.models.net": ("Net", "Output"), "fullrank.models.network": ("Network",)})

MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "models",
    "model.name",
    OnFirstUse(
        {
            "alexnet-bn": "fullrank.models.alexnet:alexnet_bn",
            "cnn": "fullrank.models.cnn:cnn",
            "efficientnet-b0": "fullrank.models.efficientnet:efficientnet_b0",
            "lenet": "fullrank.models.lenet:lenet",
            "mlp": "fullrank.models.mlp:mlp",
            "mobilenetv2": "fullrank.models.mobilenetv2:mobilenetv2",
            "repghost-0.5": "fullrank.models.reparam.repghost:repghost_half",
            "repvgg-a0": "fullrank.models.reparam.repvgg:repvgg_a0",
            "repvgg-b0": "fullrank.models.reparam.repvgg:repvgg_b0",
            "repvgg-b1": "fullrank.models.reparam.repvgg:repvgg_b1",
            "resnet18": "fullrank.models.resnet:resnet18",
            "resnet20": "fullrank.models.resnet:resnet20",
            "resnet20-conv": "fullrank.models.resnet:resnet20_conv",
            "resnet32": "fullrank.models.resnet:resnet32",
            "wrn-28-10": "fullrank.models.wrn:wrn_28_10",
        }
    ),
)
"""The networks that `model.name` can name: functions of `num_classes`, `in_channels` and the network's own options."""


def available() -> dict[str, Callable[..., nn.Module]]:
    """Return the networks that need no import path: the library's own and those of installed packages.

    Returns:
        The functions that build the networks, by name.

    >>> sorted(available())[:2]
    ['alexnet-bn', 'cnn']
    """
    return {name: MODELS.find(name) for name in MODELS.names()}


def builder(name: str) -> Callable[..., nn.Module]:
    """Return the function that builds a network.

    Args:
        name: A name of `available`, or "package.module:function".

    Returns:
        A function of `num_classes`, `in_channels` and the network's own options.

    Raises:
        InputError: If there is no such network, or it cannot be imported.

    >>> builder("cnn")(num_classes=10).feature_dim
    128
    """
    return MODELS.find(name)


def build(name: str, num_classes: int, in_channels: int = 3, **options: Any) -> nn.Module:
    """Build a network by name.

    Args:
        name: A name of `available`, or "package.module:function".
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        options: The network's own options, such as `width` or `mode`; `fullrank models` lists them.

    Returns:
        The network. Those of the library have `backbone`, `neck`, `head`, `features` and `feature_dim`.

    Raises:
        InputError: If there is no such network, or it does not take an option.
        CallFailed: If a function outside the library raises.

    >>> build("cnn", num_classes=10, in_channels=1).feature_dim
    128
    """
    from torch import nn

    function = builder(name)
    options = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in options.items()}
    check_options(name, function, options)
    arguments = {"num_classes": num_classes, "in_channels": in_channels, **options}
    net = called(function, name, "model.name", **arguments) if ":" in name else _built(function, name, arguments)
    if not isinstance(net, nn.Module):
        raise InputError(
            f'model.name = "{name}": it must return a torch.nn.Module, but returned a {type(net).__name__}'
        )
    return net


def _built(function: Callable[..., nn.Module], name: str, arguments: dict[str, Any]) -> nn.Module:
    """Return a network of the library; its options have been checked, so that only their size can be wrong."""
    try:
        return function(**arguments)
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f'model.name = "{name}": it cannot be built for {arguments["num_classes"]} classes with these options of '
            f"[model]; smaller ones need less memory ({why})"
        ) from error


def unknown_options(name: str, options: Iterable[str]) -> list[str]:
    """Return those of the names that are no options of a network.

    Args:
        name: The name of the network.
        options: The names of the options.

    >>> unknown_options("resnet18", ["width", "init"])
    ['width']
    """
    parameters = inspect.signature(builder(name)).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return [option for option in options if option not in parameters]


def check_options(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Reject options that a network does not take or lacks, and values of the wrong type.

    Args:
        name: The name of the network, for the message.
        function: The function that builds it.
        options: The options, without `num_classes` and `in_channels`.

    Raises:
        InputError: If an option is rejected.
    """
    signature = inspect.signature(function)
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        _check_each(name, function, options, list(signature.parameters))
    try:
        signature.bind(num_classes=None, in_channels=None, **options)
    except TypeError as error:
        raise InputError(
            f'model.name = "{name}": it must accept num_classes=, in_channels= and the other keys of [model], '
            f"and need nothing else: {error}"
        ) from None


def _check_each(name: str, function: Callable[..., Any], options: dict[str, Any], parameters: list[str]) -> None:
    known = [parameter for parameter in parameters if parameter not in ("num_classes", "in_channels")]
    kinds = get_type_hints(function, include_extras=True) if inspect.isroutine(function) else {}
    for key, value in options.items():
        if key not in known:
            raise InputError(f'model.{key}: the network "{name}" has no such option; {nearest(key, known)}')
        if key in kinds:
            checked(kinds[key], value, f"model.{key}")
