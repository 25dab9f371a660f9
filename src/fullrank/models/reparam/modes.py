"""The modes of re-parameterisable networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from fullrank.errors import InputError
from fullrank.models.net import Net
from fullrank.models.reparam.fuse import collapse_
from fullrank.models.reparam.operators import Mode
from fullrank.models.reparam.scales import Scales, read_scales, set_scales_

CslaScales: TypeAlias = Literal["searched", "init"]
"""Whether constant scales are the given ones ("searched") or always those with which a search starts ("init")."""
IdentityStart: TypeAlias = Literal["authors", "searched", "one"]
"""Initial scale of an identity branch; "authors" means 1 for "csla" and the searched value for "repopt"."""


def in_mode(
    make: Callable[[Mode], Net],
    model: str,
    mode: Mode,
    scales: Scales = None,
    csla_scales: CslaScales = "searched",
    identity_start: IdentityStart = "authors",
) -> Net:
    """Build a network in a mode, with the given scales.

    "repopt" is "csla" with its branches summed: with the same random numbers and the same initial identity scales, both
    start as the same function.

    Args:
        make: A function that builds the network in a mode other than "repopt".
        model: The name of the network, for errors.
        mode: The mode.
        scales: The scales, or what names them.
        csla_scales: Whether "csla" uses the scales.
        identity_start: The initial scale of identity branches.

    Raises:
        InputError: If there is no such mode, or the scales do not fit the network.
    """
    if mode not in get_args(Mode):
        raise InputError(f'model.mode = "{mode}": {model} has the modes {", ".join(get_args(Mode))}')
    if scales is not None and mode in ("tr", "inf"):
        raise InputError(
            f'model.scales: the mode "{mode}" of {model} has no scales; leave them out, or choose csla or repopt'
        )
    net = make("csla" if mode == "repopt" else mode)
    if scales is not None and not (mode == "csla" and csla_scales == "init"):
        given = read_scales(scales, model) if isinstance(scales, str) else scales
        searched = identity_start == "searched" or (identity_start == "authors" and mode != "csla")
        set_scales_(net, given, model, identity=searched)
    if mode == "repopt":
        collapse_(net, keep_scales=True)
    return net
