"""A convolution that may train as several branches and is equivalent to one 3×3 convolution.

Every mode of a re-parameterisable network is made of this operator: a sum of branches, each a linear map followed by a
layer that multiplies every channel (BatchNorm, or a scale), and a BatchNorm behind the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Mode: TypeAlias = Literal["tr", "inf", "csla", "hs", "repopt"]
"""The way in which a network trains: with BatchNorm in each branch ("tr"), as one plain convolution ("inf"), with
constant scales behind its branches ("csla"), with trained ones ("hs"), or plain with the constant scales in its
gradient ("repopt")."""

TAILS: tuple[str, ...] = ("tr", "csla", "hs")
"""The modes that have branches."""
SCALES = ("scales", "scales_beside_identity")
"""The names of a plain convolution's scales: without, and with an identity branch among the branches it stands for. A
gradient correction sees names and shapes only, and shapes do not distinguish the two (with a stride there is no
identity)."""
MADE_FOR = "fedrepopt"
"""The method that the "repopt" mode needs."""


class Scale(nn.Module):
    """A factor for each channel.

    Args:
        width: The number of channels.
        start: The initial factor.
        trained: Whether the factors are trained.
        shape: Further dimensions of the parameter, each of size 1.
    """

    def __init__(self, width: int, start: float = 1.0, *, trained: bool = True, shape: tuple[int, ...] = ()):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width, *shape), start), requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map with its channels multiplied."""
        return x * self.weight.view(-1, 1, 1)


class Branch(nn.Module):
    """A convolution, or the identity, followed by BatchNorm, a scale, or neither.

    Args:
        conv: The convolution; None for the identity.
        tail: The layer behind it.
    """

    def __init__(self, conv: nn.Conv2d | None, tail: nn.BatchNorm2d | Scale | None):
        super().__init__()
        self.conv = conv
        self.tail = tail

    def forward(self, x: Tensor) -> Tensor:
        """Return the term that the branch adds to the sum."""
        out: Tensor = x if self.conv is None else self.conv(x)
        return out if self.tail is None else self.tail(out)

    def kernel(self, like: Tensor) -> Tensor:
        """Return the branch before its tail as a kernel of the shape of `like`, in float64.

        A 1×1 convolution reads the centre of the 3×3 window, at any stride, because the 3×3 convolution is padded by 1.
        """
        if self.conv is None:
            return _identity_kernel(like)
        return F.pad(self.conv.weight.detach().double(), [(3 - self.conv.kernel_size[0]) // 2] * 4)

    def affine(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the tail does to each channel in evaluation, in float64.

        Args:
            like: A tensor with as many rows as there are channels.

        Returns:
            The factors and the offsets, each of shape (channels,).
        """
        if isinstance(self.tail, nn.BatchNorm2d):
            return affine(self.tail)
        one = torch.ones(like.shape[0], dtype=torch.float64, device=like.device)
        bias = self.conv.bias if self.conv is not None else None
        shift = torch.zeros_like(one) if bias is None else bias.detach().double()
        return (one if self.tail is None else self.tail.weight.detach().double().flatten()), shift


class FrozenScales(nn.Module):
    """The constant scales of the branches that a plain convolution stands for.

    They are sent to a client once and never trained.

    Args:
        kernel: The scales of the 3×3 branch.
        pointwise: The scales of the 1×1 branch, if there is one.
    """

    def __init__(self, kernel: Tensor, pointwise: Tensor | None):
        super().__init__()
        self.kernel = nn.Parameter(kernel.detach().clone(), requires_grad=False)
        if pointwise is not None:
            self.pointwise = nn.Parameter(pointwise.detach().clone(), requires_grad=False)


class RepConv(nn.Module):
    """BatchNorm of the sum of up to three branches (3×3, 1×1 and identity), and a ReLU.

    In the terms of FedRepOpt (Lau et al., ACCV 2024) and RepOptimizers (Ding et al., ICLR 2023), with W₃, W₁ the
    kernels, α₃, α₁ constants and s trained, all per output channel:

    - "tr": [BN](BN(W₃∗x) + BN(W₁∗x) + BN(x)), the outer one only if `post_norm`
    - "csla", "hs": BN(α₃⊙(W₃∗x) + α₁⊙(W₁∗x) + s⊙x); "hs" trains α₃ and α₁ as well
    - "inf": BN(W∗x)

    A trained s has the shape of a depthwise 1×1 kernel, so that weight decay restricted to kernels acts on it as it
    does on the corresponding entries of the plain kernel.

    Args:
        in_width: The number of channels of the input.
        width: The number of channels of the output.
        stride: The stride.
        mode: The mode.
        pointwise: Whether there is a 1×1 branch.
        identity: Whether there is an identity branch.
        depthwise: Whether each channel is convolved separately.
        start: The initial value of α₃ and α₁.
        post_norm: Whether "tr" has a BatchNorm behind the sum.
        relu: Whether a ReLU follows.
    """

    def __init__(
        self,
        in_width: int,
        width: int,
        stride: int = 1,
        *,
        mode: Mode,
        pointwise: bool,
        identity: bool,
        depthwise: bool = False,
        start: float = 1.0,
        post_norm: bool = False,
        relu: bool = True,
    ):
        super().__init__()
        groups = width if depthwise else 1
        several = mode in TAILS

        def tail() -> nn.BatchNorm2d | Scale | None:
            if mode == "tr":
                return nn.BatchNorm2d(width)
            return Scale(width, start, trained=mode == "hs") if several else None

        self.kernel = Branch(nn.Conv2d(in_width, width, 3, stride, 1, groups=groups, bias=False), tail())
        self.pointwise: Branch | None = None
        if pointwise and several:
            self.pointwise = Branch(nn.Conv2d(in_width, width, 1, stride, groups=groups, bias=False), tail())
        self.identity: Branch | None = None
        if identity and several:
            self.identity = Branch(None, nn.BatchNorm2d(width) if mode == "tr" else Scale(width, shape=(1, 1, 1)))
        self.norm = nn.BatchNorm2d(width) if mode != "tr" or post_norm else None
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.kernel(x)
        for branch in (self.pointwise, self.identity):
            if branch is not None:
                out = out + branch(x)
        if self.norm is not None:
            out = self.norm(out)
        return F.relu(out) if self.relu else out

    @property
    def branches(self) -> dict[str, Branch]:
        """The branches of the block that exist, by name."""
        found = {"kernel": self.kernel, "pointwise": self.pointwise, "identity": self.identity}
        return {name: branch for name, branch in found.items() if branch is not None}

    @property
    def has_norms_in_branches(self) -> bool:
        """Whether the block is in the "tr" mode."""
        return isinstance(self.kernel.tail, nn.BatchNorm2d)

    @property
    def plain(self) -> nn.Conv2d:
        """The single 3×3 convolution of a plain block."""
        assert self.kernel.conv is not None
        return self.kernel.conv

    def sum_of_branches(self) -> tuple[Tensor, Tensor]:
        """Compute the convolution that equals all branches in evaluation, in float64.

        Returns:
            The kernel and the bias.
        """
        like = self.plain.weight.detach()
        kernel = torch.zeros_like(like, dtype=torch.float64)
        bias = torch.zeros(like.shape[0], dtype=torch.float64, device=like.device)
        for branch in self.branches.values():
            times, plus = branch.affine(like)
            kernel = kernel + times.view(-1, 1, 1, 1) * branch.kernel(like)
            bias = bias + plus
        return kernel, bias

    def scales_by_branch(self) -> dict[str, Tensor]:
        """Return the scales of the block by branch."""
        return {name: branch.tail.weight for name, branch in self.branches.items() if isinstance(branch.tail, Scale)}

    def become_plain_(self, kernel: Tensor, bias: Tensor | None = None) -> None:
        """Replace all branches by one convolution.

        Args:
            kernel: The kernel of the convolution.
            bias: Its bias; with a bias the block has no BatchNorm.
        """
        conv = self.plain
        with torch.no_grad():
            conv.weight.copy_(kernel)
            if bias is not None:
                conv.bias = nn.Parameter(bias.to(conv.weight))
        self.kernel, self.pointwise, self.identity = Branch(conv, None), None, None
        self.norm = None if bias is not None else self.norm
        for name in SCALES:
            if hasattr(self, name):
                delattr(self, name)

    def register_scales_(self, kernel: Tensor, pointwise: Tensor | None, identity: bool) -> None:
        """Register the scales of the branches that the plain convolution stands for.

        Args:
            kernel: The scales of the 3×3 branch.
            pointwise: The scales of the 1×1 branch, if there is one.
            identity: Whether there is an identity branch.
        """
        self.add_module(SCALES[identity], FrozenScales(kernel, pointwise))


def _identity_kernel(like: Tensor) -> Tensor:
    """Return the kernel of the identity map."""
    kernel = torch.zeros_like(like, dtype=torch.float64)
    centre_diagonal(kernel).fill_(1)
    return kernel


def centre_diagonal(kernel: Tensor) -> Tensor:
    """Return a view of the weights of a 3×3 kernel for each channel's own centre pixel."""
    centre = kernel[:, :, 1, 1]
    return centre[:, 0] if kernel.shape[1] == 1 else centre.diagonal()


def affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return what a BatchNorm does to each channel in evaluation, in float64.

    Args:
        norm: The layer.

    Returns:
        The factors and the offsets, each of shape (channels,).
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    times = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
    return times, norm.bias.detach().double() - times * norm.running_mean.double()


def operators(module: nn.Module) -> Iterator[tuple[str, RepConv]]:
    """Yield the re-parameterisable convolutions of a network with their names."""
    for name, part in module.named_modules():
        if isinstance(part, RepConv):
            yield name, part
