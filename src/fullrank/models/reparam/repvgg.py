"""RepVGG (Ding et al., CVPR 2021) and RepOpt-VGG (Ding et al., ICLR 2023), as FedRepOpt trains them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from fullrank.errors import InputError
from fullrank.models.layers import global_pool
from fullrank.models.net import Net
from fullrank.models.reparam.modes import CslaScales, IdentityStart, in_mode
from fullrank.models.reparam.operators import Mode, RepConv
from fullrank.models.reparam.scales import Scales


def repvgg(
    num_classes: int,
    in_channels: int = 3,
    *,
    widths: tuple[int, ...],
    blocks: tuple[int, ...],
    mode: Mode = "tr",
    post_norm: bool = True,
    scales: Scales = None,
    csla_scales: CslaScales = "searched",
    identity_start: IdentityStart = "authors",
    model: str = "repvgg",
) -> Net:
    """RepVGG of any size: a first block, then one stage for each further width.

    The first block and each stage's first block halve the map; z is the mean of the last one. A block is a `RepConv`,
    with an identity branch if width and size stay the same.

    Args:
        num_classes: The number of classes.
        in_channels: The number of channels of the images.
        widths: The width of the first block and that of each stage.
        blocks: The number of blocks of each stage.
        mode: The mode: "tr", "inf", "csla", "hs" or "repopt".
        post_norm: Whether a BatchNorm follows branches that have their own ("tr"), as in FedRepOpt's code and not in
            RepVGG.
        scales: The result of a search, for the modes "csla", "repopt" and "hs"; by default the values with which a
            search starts: 1, and √(2/i) in a stage's block i ≥ 1.
        csla_scales: With "init", as in the authors' rows, the mode "csla" ignores `scales`.
        identity_start: The initial scale of identity branches.
        model: The name of the network, for errors.

    Raises:
        InputError: If the numbers of widths and blocks do not match, there is no such mode, or the scales do not fit.
    """
    if len(widths) != len(blocks) + 1:
        raise InputError(
            f"model.widths has {len(widths)} numbers; it must have one more than model.blocks ({len(blocks)})"
        )

    def block(in_width: int, width: int, index: int, mode: Mode) -> RepConv:
        return RepConv(
            in_width,
            width,
            stride=1 if index else 2,
            mode=mode,
            pointwise=True,
            identity=in_width == width and index > 0,
            start=math.sqrt(2 / index) if index else 1.0,
            post_norm=post_norm,
        )

    def made(mode: Mode) -> Net:
        layers: OrderedDict[str, nn.Module] = OrderedDict(stem=block(in_channels, widths[0], 0, mode))
        last = widths[0]
        for number, (width, count) in enumerate(zip(widths[1:], blocks, strict=True), start=1):
            stage = nn.Sequential()
            for index in range(count):
                stage.append(block(last, width, index, mode))
                last = width
            layers[f"layer{number}"] = stage
        layers["pool"] = global_pool()
        return Net(nn.Sequential(layers), last, num_classes)

    return in_mode(made, model, mode, scales, csla_scales, identity_start)


def _named(model: str, widths: tuple[int, ...], blocks: tuple[int, ...], what: str) -> Callable[..., Net]:
    """Return a builder of a RepVGG of a fixed size, with the options of all."""

    def build(
        num_classes: int,
        in_channels: int = 3,
        *,
        mode: Mode = "tr",
        post_norm: bool = True,
        scales: Scales = None,
        csla_scales: CslaScales = "searched",
        identity_start: IdentityStart = "authors",
    ) -> Net:
        return repvgg(
            num_classes,
            in_channels,
            widths=widths,
            blocks=blocks,
            mode=mode,
            post_norm=post_norm,
            scales=scales,
            csla_scales=csla_scales,
            identity_start=identity_start,
            model=model,
        )

    build.__doc__ = what
    return build


repvgg_b1 = _named(
    "repvgg-b1",
    (64, 128, 256, 512, 2048),
    (4, 6, 16, 1),
    "RepVGG-B1, as in FedRepOpt: 28 blocks, z of 2048 dimensions; the last map of a 64×64 image is 2×2.",
)
repvgg_b0 = _named(
    "repvgg-b0",
    (64, 128, 256, 512, 2048),
    (2, 3, 8, 1),
    "RepVGG-B1 with 15 blocks, which FedRepOpt's code calls B0. (RepVGG's own B0 is narrower and as deep as B1.)",
)
repvgg_a0 = _named(
    "repvgg-a0",
    (48, 48, 96, 192, 1280),
    (2, 4, 14, 1),
    "RepVGG-A0 (Ding et al., CVPR 2021): 22 blocks, z of 1280 dimensions.",
)
