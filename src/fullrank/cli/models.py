"""The command `fullrank models`."""

from __future__ import annotations

import inspect
import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from fullrank import models
from fullrank.cli.options import AsJson
from fullrank.runs.terminal import say

_CIFAR, _DIGITS = (3, 32, 32), (1, 8, 8)
_COUNTED_AT = {  # input shapes for which parameters are counted; all other networks use that of CIFAR
    "cnn": _DIGITS,
    "mlp": _DIGITS,
    "alexnet-bn": (3, 256, 256),
    "efficientnet-b0": (3, 224, 224),
}


def list_models(as_json: AsJson = False) -> None:
    """List the networks, with their sizes and options."""
    found = {name: _facts(name) for name in models.available()}
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console(highlight=False)
    for name, known in found.items():
        size = ""
        if "parameters" in known:
            shape = "×".join(str(size) for size in known["input"])
            size = f"  {known['parameters']:,} parameters at {shape}, {known['features']} features"
        console.print(f"[bold]{name}[/bold]{size}")
        options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in known["options"].items())
        for label, text in {"": known["what"], "options: ": options}.items():
            if text:
                console.print(Padding(f"[dim]{label}[/dim]{escape(text)}", (0, 0, 0, 4)))
    say("\nNumbers of parameters are for 10 classes.")
    say('To use your own network: --set model.name="package.module:function".')


def _facts(name: str) -> dict[str, Any]:
    """Describe a network; only those of the library are known to have an input for which sizes can be counted."""
    builder = models.builder(name)
    options = {
        key: parameter.default
        for key, parameter in inspect.signature(builder).parameters.items()
        if key not in ("num_classes", "in_channels")
    }
    size = _size(name) if name in models.MODELS.own else {}
    return {"what": _first_sentence(builder), **size, "options": options}


def _size(name: str) -> dict[str, Any]:
    import torch

    shape = _COUNTED_AT.get(name, _CIFAR)
    with torch.device("meta"):  # shapes only, no memory and no computation
        net = models.build(name, num_classes=10, in_channels=shape[0]).eval()
        net(torch.empty(2, *shape))
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return {"input": shape, "parameters": parameters, "features": net.feature_dim}


def _first_sentence(thing: Any) -> str:
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split())
