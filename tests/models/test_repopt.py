"""FedRepOpt: the networks in all their modes, what they become, and that plain steps are the images of the branches'.

Kernels, masks and blocks are written out in NumPy; trajectories are compared with `torch.optim.SGD` on the branches.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fullrank
from fullrank import fit, methods, models
from fullrank.engine.serial import Serial
from fullrank.errors import InputError
from fullrank.local.client import decayed
from fullrank.local.settings import Settings
from fullrank.methods.fedrepopt import FedRepOpt, mapped_kernels, multiplier
from fullrank.models.net import Net
from fullrank.models.network import Network
from fullrank.models.reparam.fuse import to_deploy, to_plain, to_repopt
from fullrank.models.reparam.operators import SCALES, RepConv, Scale, operators
from fullrank.models.reparam.repghost import repghost
from fullrank.models.reparam.repvgg import repvgg
from fullrank.models.reparam.scales import read_scales, scales_of, shipped, write_scales
from fullrank.testing import check
from small import assert_close, assert_same_bits, averaged, put_together, trained_alone

CLASSES = 3
BOTTLENECKS = ((4, 6, 3, 1, False), (6, 6, 3, 1, True), (6, 8, 5, 2, True), (8, 8, 3, 1, False))
"""With and without shortcut convolutions, squeeze-and-excitation and a stride; the second keeps width and size."""


def vgg(mode="csla", seed=0, blocks=(3, 2, 1), **options):
    """Width 4 before and in the first stage, so that a stride alone forbids an identity branch there."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return repvgg(CLASSES, 2, widths=(4, 4, 6, 5)[: len(blocks) + 1], blocks=blocks, mode=mode, **options)


def ghost(mode="csla", seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"bottlenecks": BOTTLENECKS, "stem": 6, "tail": 10, "features": 12}
        return repghost(CLASSES, 2, mode=mode, **sizes, **options)


FAMILIES = {"vgg": vgg, "ghost": ghost}


def drawn_scales(family, seed=5):
    """Random scales, as a search might find them."""
    rng = np.random.default_rng(seed)
    found = scales_of(FAMILIES[family]("hs"))
    return {name: torch.tensor(rng.uniform(0.4, 1.6, len(scale)), dtype=torch.float32) for name, scale in found.items()}


def twins(family, **options):
    """In float64, a network with branches of constant scales, identity scales included, and its plain twin."""
    branches = FAMILIES[family]("csla", scales=drawn_scales(family), identity_start="searched", **options).double()
    return branches, to_repopt(branches)


def shapes_only(name, classes=200, **options):
    """A network whose tensors have shapes and no values."""
    with torch.device("meta"):
        return models.build(name, classes, **options)


def sizes(net):
    """Parameters, those that train, and all entries."""
    parameters = list(net.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return sum(p.numel() for p in parameters), trained, sum(t.numel() for t in net.state_dict().values())


def images(count, size=8, channels=2, seed=0, dtype=torch.float64):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def clients_of(sizes=(14, 9, 20, 6), size=8):
    rng = np.random.default_rng(3)
    return [
        (images(n, size, seed=k), torch.tensor(rng.choice(CLASSES, n, p=rng.dirichlet(np.ones(CLASSES)))))
        for k, n in enumerate(sizes)
    ]


# --- Sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "parameters", "trained", "state"),
    [
        ("repvgg-b1", {"mode": "inf"}, 50_202_632, 50_202_632, 50_227_364),
        ("repvgg-b1", {"mode": "csla"}, 55_766_472, 55_741_768, 55_791_204),
        ("repvgg-b1", {"mode": "hs"}, 55_766_472, 55_766_472, 55_791_204),
        ("repvgg-b1", {"mode": "tr"}, 55_800_520, 55_800_520, 55_893_427),
        ("repvgg-b1", {"mode": "tr", "post_norm": False}, 55_775_816, 55_775_816, 55_843_991),
        ("repvgg-b0", {"mode": "inf"}, 29_253_640, 29_253_640, 29_268_119),
        ("repvgg-b0", {"mode": "csla"}, 32_475_592, 32_461_128, 32_475_592 + 29_268_119 - 29_253_640),
        ("repvgg-b0", {"mode": "hs"}, 32_475_592, 32_475_592, 32_475_592 + 29_268_119 - 29_253_640),
        ("repvgg-b0", {"mode": "tr", "post_norm": False}, 32_479_816, 32_479_816, None),
        ("repvgg-b0", {"mode": "tr"}, 32_479_816 + 14_464, 32_479_816 + 14_464, None),
        ("repvgg-a0", {"mode": "inf"}, 7_289_080, 7_289_080, 7_298_094),
        ("repvgg-a0", {"mode": "csla"}, 8_081_336, 8_072_344, 8_081_336 + 7_298_094 - 7_289_080),
        ("repvgg-a0", {"mode": "hs"}, 8_081_336, 8_081_336, 8_081_336 + 7_298_094 - 7_289_080),
        ("repvgg-a0", {"mode": "tr", "post_norm": False}, 8_084_168, 8_084_168, None),
        ("repvgg-a0", {"mode": "tr"}, 8_084_168 + 8_992, 8_084_168 + 8_992, None),
        ("repghost-0.5", {"mode": "inf"}, 1_284_208, 1_284_208, 1_296_392),
        ("repghost-0.5", {"mode": "csla"}, 1_289_168, 1_286_688, 1_301_352),
        ("repghost-0.5", {"mode": "hs"}, 1_289_168, 1_289_168, 1_301_352),
        ("repghost-0.5", {"mode": "tr"}, 1_289_168, 1_289_168, 1_306_344),
    ],
)
def test_as_many_parameters_as_published(name, options, parameters, trained, state):
    net = shapes_only(name, **options)
    norms = [part for part in net.modules() if isinstance(part, nn.BatchNorm2d)]
    expected = parameters + 2 * sum(norm.num_features for norm in norms) + len(norms)
    assert sizes(net) == (parameters, trained, expected)
    assert state in (None, expected)
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.1)}


@pytest.mark.parametrize(
    ("name", "classes", "options", "parameters"),
    [
        ("repvgg-b1", 1000, {"mode": "inf"}, 51_841_832),
        ("repvgg-b1", 1000, {"mode": "tr"}, 57_439_720),
        ("repvgg-b1", 100, {"mode": "inf"}, 49_997_732),
        ("repvgg-b1", 100, {"mode": "hs"}, 55_561_572),
        ("repvgg-b0", 10, {"mode": "inf"}, 28_864_330),
        ("repvgg-a0", 10, {"mode": "inf"}, 7_045_690),
        ("repvgg-a0", 1000, {"mode": "inf"}, 8_313_880),
        ("repvgg-a0", 1000, {"mode": "tr", "post_norm": False}, 9_108_968),
        ("repghost-0.5", 1000, {"mode": "tr"}, 2_313_968),
    ],
)
def test_for_other_numbers_of_classes(name, classes, options, parameters):
    assert sizes(shapes_only(name, classes, **options))[0] == parameters


@pytest.mark.parametrize(
    ("name", "classes", "options", "parameters", "state"),
    [
        ("repvgg-a0", 1000, {"mode": "tr", "post_norm": False}, 8_309_384, 8_309_384),
        ("repghost-0.5", 200, {"mode": "tr"}, 1_281_728, 1_288_920),
        ("repghost-0.5", 1000, {"mode": "inf"}, 2_306_528, 2_306_528 + 1_288_920 - 1_281_728),
    ],
)
def test_deployed_sizes(name, classes, options, parameters, state):
    assert sizes(to_deploy(shapes_only(name, classes, **options)))[::2] == (parameters, state)


@pytest.mark.parametrize(
    ("name", "convolutions", "kernels", "scales", "identities"),
    [
        ("repvgg-b1", 28, 49_768_128, 2 * 12_352, 9_344),
        ("repvgg-b0", 15, 28_829_376, 2 * 7_232, 4_224),
        ("repvgg-a0", 22, 7_023_888, 2 * 4_496, 2_832),
        ("repghost-0.5", 32, 9 * 2_480, 2_480, 2_480),
    ],
)
def test_what_the_plain_network_carries(name, convolutions, kernels, scales, identities):
    net, plain = shapes_only(name, mode="repopt"), shapes_only(name, mode="inf")
    frozen = {key: p for key, p in net.named_parameters() if not p.requires_grad}
    assert sum(p.numel() for p in frozen.values()) == scales
    assert {key: p.shape for key, p in net.state_dict().items() if key not in frozen} == {
        key: p.shape for key, p in plain.state_dict().items()
    }
    found = mapped_kernels(tuple(net.state_dict()))
    assert len(found) == len(dict(operators(net))) == convolutions
    entries = net.state_dict()
    assert sum(entries[kernel.name].numel() for kernel in found) == kernels
    assert sum(len(entries[kernel.scale]) for kernel in found if kernel.identity) == identities
    searched = scales_of(shapes_only(name, mode="hs"))
    assert sum(scale.numel() for scale in searched.values()) == scales + identities
    if name == "repvgg-b1":
        branches = dict(operators(shapes_only(name, mode="csla")))
        assert sum(part.pointwise.conv.weight.numel() for part in branches.values()) == 5_529_792
    kinds = {key.rpartition(".")[2] for key in searched}
    assert kinds == ({"alpha", "fusion"} if "ghost" in name else {"alpha3", "alpha1", "identity"})


def test_savings_as_the_paper_prints_them():
    plain, branches = (sizes(shapes_only("repvgg-b1", mode=mode))[0] for mode in ("inf", "tr"))
    assert round(100 * (1 - plain / branches), 1) == 10.0
    plain, branches = (sizes(shapes_only("repghost-0.5", mode=mode))[0] for mode in ("inf", "tr"))
    assert round(100 * (1 - round(plain / 1e6, 3) / round(branches / 1e6, 3)), 3) == 0.388  # of millions as printed


def sides(net, size, channels=3):
    seen = []
    for name, part in net.backbone.named_children():
        if name.startswith(("stem", "layer")):
            part.register_forward_hook(lambda _, args, out: seen.append(out.shape[2]))
    net.eval()(torch.empty(1, channels, size, size, device="meta"))
    return seen


def test_map_sizes():
    assert sides(shapes_only("repvgg-b1"), 64) == [32, 16, 8, 4, 2]
    assert sides(shapes_only("repvgg-a0"), 32) == [16, 8, 4, 2, 1]
    ghosts = [32] * 2 + [16] * 2 + [8] * 2 + [4] * 6 + [2] * 5
    assert sides(shapes_only("repghost-0.5"), 64) == ghosts


@pytest.mark.parametrize(("name", "features"), [("repvgg-b1", 2048), ("repvgg-a0", 1280), ("repghost-0.5", 1280)])
def test_the_head_sees_z(name, features):
    net = shapes_only(name)
    assert isinstance(net, Net)
    assert net.head.in_features == net.feature_dim == features
    assert (net.dropout.p if "ghost" in name else 0.2) == 0.2


def test_grey_images():
    assert shapes_only("repvgg-a0", in_channels=1).backbone.stem.plain.in_channels == 1
    assert shapes_only("repghost-0.5", in_channels=1).backbone.stem[0][0].in_channels == 1


# --- Start values -----------------------------------------------------------------------------------


def starts(net):
    return {name: sorted(set(scale.tolist())) for name, scale in scales_of(net).items()}


def test_scales_start_at_one_over_the_root_of_the_place():
    found = starts(repvgg(10, 3, widths=(2, 2, 3), blocks=(17, 2), mode="hs"))
    for branch in ("alpha3", "alpha1"):
        got = [found[f"backbone.layer1.{i}.{branch}"][0] for i in range(17)]
        assert got == pytest.approx([1.0] + [math.sqrt(2 / i) for i in range(1, 17)])
        assert [got[i] for i in (1, 2, 8, 15)] == pytest.approx([1.4142, 1, 0.5, 0.3651], abs=5e-5)
        assert found[f"backbone.stem.{branch}"] == [1.0]
        assert found[f"backbone.layer2.0.{branch}"] == [1.0]
    assert found["backbone.layer1.1.identity"] == [1.0]
    assert "backbone.layer1.0.identity" not in found  # a width that stays, but at stride 2
    assert "backbone.stem.identity" not in found


def test_scales_of_ghosts_start_by_their_place_in_a_row():
    found = starts(models.build("repghost-0.5", 10, mode="hs"))
    rows = [1, 1, 2, 1, 2, 1, 2, 3, 4, 1, 2, 1, 2, 3, 4, 5]  # starts over where width or size change
    for number, b in enumerate(rows, start=1):
        for module, m in ((1, 2 * b - 1), (2, 2 * b)):
            alpha = found[f"backbone.layer{number}.ghost{module}.cheap.alpha"]
            assert alpha == pytest.approx([math.sqrt(2 / (m + 1))])
            assert found[f"backbone.layer{number}.ghost{module}.cheap.fusion"] == [1.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_which_scales_a_mode_takes(family):
    make, given = FAMILIES[family], drawn_scales(family)
    ends = ("identity", "fusion")
    default = scales_of(make("csla"))
    taken = scales_of(make("csla", scales=given))
    assert_same_bits(
        taken, {n: torch.ones_like(s) if n.endswith(ends) else s for n, s in given.items()}
    )  # s starts at 1
    assert_same_bits(scales_of(make("csla", scales=given, identity_start="searched")), given)
    assert_same_bits(scales_of(make("hs", scales=given)), given)
    assert_same_bits(default, scales_of(make("hs")))
    ignored = scales_of(make("csla", scales=given, csla_scales="init"))
    ones = {name: torch.ones_like(scale) for name, scale in default.items()}
    assert_same_bits(ignored, ones if family == "ghost" else default)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("identity_start", ["authors", "searched", "one"])
def test_the_plain_kernels_start_as_the_sum_of_the_branches(family, identity_start):
    given = drawn_scales(family)
    branches, plain = (
        FAMILIES[family](mode, scales=given, identity_start=identity_start) for mode in ("csla", "repopt")
    )
    at_one = identity_start == "one"
    for name, part in operators(plain):
        source = branches.get_submodule(name)
        ghosts = family == "ghost"
        alpha3 = given[f"{name}.alpha" if ghosts else f"{name}.alpha3"].double().numpy()
        want = alpha3[:, None, None, None] * source.kernel.conv.weight.detach().double().numpy()
        if not ghosts:
            alpha1 = given[f"{name}.alpha1"].double().numpy()
            want[:, :, 1, 1] += alpha1[:, None] * source.pointwise.conv.weight.detach().double().numpy()[:, :, 0, 0]
        if (key := f"{name}.{'fusion' if ghosts else 'identity'}") in given:
            s = np.ones(len(want)) if at_one else given[key].double().numpy()
            for o in range(len(want)):
                want[o, 0 if ghosts else o, 1, 1] += s[o]
        np.testing.assert_allclose(part.plain.weight.detach().numpy(), want, rtol=1e-6, atol=1e-7)


def test_the_modes_of_one_seed_share_their_kernels():
    nets = [vgg(mode) for mode in ("tr", "csla", "hs")]
    for name, part in operators(nets[0]):
        for other in nets[1:]:
            twin = other.get_submodule(name)
            assert torch.equal(part.plain.weight, twin.plain.weight)
            assert torch.equal(part.pointwise.conv.weight, twin.pointwise.conv.weight)


def test_what_trains_in_which_mode():
    for family, make in FAMILIES.items():
        for mode in ("csla", "hs"):
            for _, part in operators(make(mode)):
                assert part.kernel.tail.weight.requires_grad == (mode == "hs")
                assert part.identity is None or part.identity.tail.weight.requires_grad
        assert all(p.requires_grad for mode in ("tr", "inf") for p in make(mode).parameters())
        assert any(not p.requires_grad for p in make("repopt").parameters()), family


# --- Blocks in NumPy --------------------------------------------------------------------------------


def convolved(x, kernel, stride, depthwise=False):
    """A padded k×k convolution without bias, pixel by pixel."""
    k = kernel.shape[-1]
    padded = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    side = (x.shape[2] - 1) // stride + 1
    out = np.zeros((len(x), len(kernel), side, side))
    for i in range(side):
        for j in range(side):
            window = padded[:, :, i * stride : i * stride + k, j * stride : j * stride + k]
            if depthwise:
                out[:, :, i, j] = (window * kernel[:, 0]).sum((2, 3))
            else:
                out[:, :, i, j] = np.tensordot(window, kernel, axes=([1, 2, 3], [1, 2, 3]))
    return out


def normalised(x, norm):
    """BatchNorm in evaluation."""
    mean, var, weight, bias = (
        t.detach().numpy()[:, None, None] for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / np.sqrt(var + 1e-5) * weight + bias


def unsettled(net, seed=1):
    """In float64 and eval mode, with statistics and scales that are not 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            for value in (part.weight, part.bias, part.running_mean, part.running_var):
                value.data = 0.5 + torch.rand(value.shape, generator=generator)
        elif isinstance(part, Scale):
            part.weight.data = 0.5 + torch.rand(part.weight.shape, generator=generator)
    return net.double().eval()


def block(mode, stride=1, width=3, depthwise=False, **options):
    torch.manual_seed(7)
    identity = width == 3 and stride == 1
    made = RepConv(
        3, width, stride, mode=mode, pointwise=not depthwise, identity=identity, depthwise=depthwise, **options
    )
    return unsettled(made)


CASES = [{}, {"stride": 2}, {"stride": 2, "width": 4}, {"width": 4}, {"depthwise": True}]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mode", ["tr", "csla", "hs", "inf"])
@pytest.mark.parametrize("relu", [True, False])
def test_a_block_written_out(mode, case, relu):
    x, stride, depthwise = images(2, 5, 3).numpy(), case.get("stride", 1), case.get("depthwise", False)

    def run(branch):
        value = x if branch.conv is None else convolved(x, branch.conv.weight.detach().numpy(), stride, depthwise)
        if isinstance(branch.tail, nn.BatchNorm2d):
            return normalised(value, branch.tail)
        return value if branch.tail is None else value * branch.tail.weight.detach().numpy().reshape(-1, 1, 1)

    several = mode != "inf"
    for post_norm in (False, True):
        part = block(mode, relu=relu, post_norm=post_norm, **case)
        assert (part.pointwise is not None) == (several and not depthwise)
        assert (part.identity is not None) == (several and case in ({}, {"depthwise": True}))
        assert (part.norm is not None) == (mode != "tr" or post_norm)
        want = sum(run(branch) for branch in (part.kernel, part.pointwise, part.identity) if branch is not None)
        want = want if part.norm is None else normalised(want, part.norm)
        got = part(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(got, np.maximum(want, 0) if relu else want, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_constant_branches_are_one_convolution(case):
    """The kernel by hand; at the 1×1 branch's stride, the middle tap of a padded window is what it reads."""
    part, x = block("csla", relu=False, **case), images(2, 5, 3)
    depthwise = case.get("depthwise", False)
    kernel = part.kernel.tail.weight.detach().numpy()[:, None, None, None] * part.plain.weight.detach().numpy()
    if part.pointwise is not None:
        one = part.pointwise
        kernel[:, :, 1, 1] += one.tail.weight.detach().numpy()[:, None] * one.conv.weight.detach().numpy()[:, :, 0, 0]
    if part.identity is not None:
        for o, s in enumerate(part.identity.tail.weight.flatten().tolist()):
            kernel[o, 0 if depthwise else o, 1, 1] += s
    want = normalised(convolved(x.numpy(), kernel, case.get("stride", 1), depthwise), part.norm)
    np.testing.assert_allclose(part(x).detach().numpy(), want, atol=1e-12)
    np.testing.assert_allclose(part.sum_of_branches()[0].numpy(), kernel, atol=1e-15)
    assert not part.sum_of_branches()[1].any()


# --- Conversions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("mode", "convert"),
    [(mode, to_deploy) for mode in ("tr", "inf", "csla", "hs", "repopt")]
    + [(mode, to_plain) for mode in ("inf", "csla", "hs", "repopt")]
    + [(mode, to_repopt) for mode in ("csla", "hs")],
)
def test_conversions_change_no_prediction(family, mode, convert):
    for options in ({}, {"post_norm": False}) if mode == "tr" and family == "vgg" else ({},):
        net, x = unsettled(FAMILIES[family](mode, **options)), images(4)
        before = copy.deepcopy(net.state_dict())
        made = convert(net)
        assert float((made(x) - net(x)).detach().abs().max()) < 1e-10
        net, made = net.float(), convert(net.float())
        want = net(x.float()).detach()
        assert float((made(x.float()) - want).detach().abs().max()) < 1e-4 * float(want.abs().max())
        assert {p.dtype for p in made.parameters()} == {torch.float32}
        assert_close(net.double().state_dict(), before, 1e-6)  # the network itself is as it was


def test_what_a_conversion_leaves():
    for family, make in FAMILIES.items():
        inf = make("inf")
        assert to_plain(make("csla")).state_dict().keys() == inf.state_dict().keys()
        assert to_plain(make("repopt")).state_dict().keys() == inf.state_dict().keys()
        assert to_repopt(make("hs")).state_dict().keys() == make("repopt").state_dict().keys()
        bare = to_deploy(make("tr"))
        assert all(part.norm is None and part.plain.bias is not None for _, part in operators(bare))
        if family == "vgg":
            assert not any(isinstance(part, nn.BatchNorm2d) for part in bare.modules())
        assert to_plain(make("repopt")).made_for == "" != to_repopt(make("csla")).made_for


def test_a_plain_network_trains_on():
    start = vgg("csla")
    for made in (to_plain(start), to_repopt(start)):
        moved = trained_alone(made.double(), [(images(6), torch.tensor([0, 1, 2, 0, 1, 2]))], lr=0.1)
        assert not torch.equal(moved.backbone.stem.plain.weight, made.backbone.stem.plain.weight)


def test_conversions_that_cannot_be():
    with pytest.raises(InputError, match=r'"backbone\.stem" has BatchNorm in its branches.*to_deploy'):
        to_plain(vgg("tr"))
    with pytest.raises(InputError, match="no scales to keep"):
        to_repopt(vgg("inf"))
    with pytest.raises(InputError, match="no re-parameterisable convolution"):
        to_deploy(models.build("cnn", 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["repvgg-b1", "repvgg-b0", "repvgg-a0", "repghost-0.5"])
def test_conversions_of_the_real_networks(name):
    torch.manual_seed(0)
    x = images(2, 64, 3)
    for mode, convert in (("tr", to_deploy), ("csla", to_plain), ("repopt", to_deploy)):
        net = unsettled(models.build(name, 10, mode=mode))
        want = net(x).detach()
        assert float((convert(net)(x) - want).detach().abs().max()) < 1e-10 * max(1.0, float(want.abs().max()))


# --- The multiplier ---------------------------------------------------------------------------------


def mask(shape, alpha3, alpha1=None, identity=False):
    """M, entry by entry."""
    m = np.zeros(shape)
    for o, i, y, x in np.ndindex(*shape):
        m[o, i, y, x] = alpha3[o] ** 2
        if (y, x) == (1, 1):
            m[o, i, y, x] += alpha1[o] ** 2 if alpha1 is not None else 0
            m[o, i, y, x] += 1 if identity and (o == i or shape[1] == 1) else 0
    return m


def times_m(slope, kernel, pointwise, identity):
    """A kernel's gradient as the method changes it."""
    scales = f"part.{SCALES[identity]}"
    model = {f"{scales}.kernel": kernel} | ({f"{scales}.pointwise": pointwise} if pointwise is not None else {})
    (changed,) = multiplied({"part.kernel.conv.weight": slope}, model).values()
    return changed


def multiplied(g, model):
    return FedRepOpt().grad(g, SimpleNamespace(model=model, fixed={"multiplier": multiplier(g, model)}))


def test_known_multipliers():
    ones, alpha3, alpha1 = torch.ones(2, 2, 3, 3), torch.tensor([2.0, 3.0]), torch.tensor([1.0, 0.5])
    m = times_m(ones, alpha3, alpha1, identity=True)
    off_centre = torch.ones(3, 3, dtype=torch.bool)
    off_centre[1, 1] = False
    assert set(m[0][:, off_centre].flatten().tolist()) == {4.0}
    assert set(m[1][:, off_centre].flatten().tolist()) == {9.0}
    assert m[:, :, 1, 1].tolist() == [[6.0, 5.0], [9.25, 10.25]]
    bare = times_m(ones, alpha3, alpha1, identity=False)
    assert bare[:, :, 1, 1].tolist() == [[5.0, 5.0], [9.25, 9.25]]
    deep = times_m(torch.ones(1, 1, 3, 3), torch.tensor([2.0]), None, identity=True)
    assert deep[0, 0].tolist() == [[4.0, 4.0, 4.0], [4.0, 5.0, 4.0], [4.0, 4.0, 4.0]]
    assert torch.equal(ones, torch.ones(2, 2, 3, 3))  # not written into


@pytest.mark.parametrize(("shape", "pointwise"), [((5, 5, 3, 3), True), ((5, 2, 3, 3), True), ((6, 1, 3, 3), False)])
@pytest.mark.parametrize("identity", [True, False])
def test_the_multiplier_entry_by_entry(shape, pointwise, identity):
    identity = identity and shape != (5, 2, 3, 3)
    rng = np.random.default_rng(0)
    slope, alpha3, alpha1 = rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[0])
    want = slope * mask(shape, alpha3, alpha1 if pointwise else None, identity)
    given = [torch.tensor(value) for value in (slope, alpha3, alpha1)]
    got = times_m(given[0], given[1], given[2] if pointwise else None, identity)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)


def test_multipliers_of_one_are_plain_gradients():
    """α₃ = 1, α₁ = 0, no identity: FedAvg, to the bit."""
    given = {
        name: torch.ones_like(scale) if name.endswith("alpha3") else torch.zeros_like(scale)
        for name, scale in scales_of(vgg("hs", blocks=(1, 1))).items()
    }
    net = vgg("repopt", blocks=(1, 1), scales=given)
    one, other = (fit(net, clients_of(), method, rounds=2).model().state_dict() for method in ("fedavg", "fedrepopt"))
    assert_same_bits(one, other)
    assert not torch.equal(one["backbone.stem.kernel.conv.weight"], net.backbone.stem.plain.weight)


# --- Plain steps are the images of the branches' steps ------------------------------------------------


@dataclass(frozen=True)
class Uniform(FedRepOpt):
    """The paper's equation 1: all of a kernel by α₃² + α₁²."""

    def grad(self, g, b):
        changed = dict(g)
        for kernel in mapped_kernels(tuple(b.model)):
            times = b.model[kernel.scale].square()
            times = times + (b.model[kernel.pointwise].square() if kernel.pointwise in b.model else 1)
            changed[kernel.name] = g[kernel.name] * times.view(-1, 1, 1, 1)
        return changed


def gap(branches, plain, size=8):
    """The largest difference of logits, in evaluation."""
    x = images(16, size, seed=99)
    return float((branches.eval()(x) - plain.eval()(x)).detach().abs().max())


TRAINING = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2}


def both_trained(family, plain_method="fedrepopt", branch_method="fedavg", sizes=(24,), rounds=1, **keys):
    """The branches under one method and the plain twin under another, in the same batches."""
    branches, plain = twins(family)
    keys = {"train.steps": 12, **keys}
    common = {"rounds": rounds, "batch_size": 8, **TRAINING}
    for name in ("lr", "momentum", "weight_decay", "participation"):
        if name in keys:
            common[name] = keys.pop(name)
    data = clients_of(sizes)
    runs = [fit(net, data, m, set=keys, **common) for net, m in ((branches, branch_method), (plain, plain_method))]
    trained = [run.model() for run in runs]
    assert gap(branches, trained[0]) > 1e-2  # both went somewhere
    return trained


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "keys",
    [
        {"momentum": 0.0, "weight_decay": 0.0},
        {"weight_decay": 0.0},
        {},
        {"train.nesterov": True},
        {"train.decay_on": "matrices"},
    ],
    ids=str,
)
def test_a_dozen_steps(family, keys):
    branches, plain = both_trained(family, **keys)
    assert gap(branches, plain) < 1e-10
    assert_close({**plain.state_dict()}, {**to_repopt(branches).state_dict()}, 1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_branches_trained_by_torch_alone(family):
    """Full batches, so that no plan of ours decides what a step sees."""
    branches, plain = twins(family, **({"dropout": 0.0} if family == "ghost" else {}))
    x, y = clients_of((18,))[0]
    alone = trained_alone(
        branches, [(x, y)] * 12, **TRAINING, names=lambda name: branches.get_parameter(name).requires_grad
    )
    run = fit(plain, [(x, y)], "fedrepopt", rounds=1, batch_size=18, **TRAINING, set={"train.steps": 12})
    assert gap(branches, alone) > 1e-2
    assert gap(alone, run.model()) < 1e-10


@pytest.mark.parametrize("family", FAMILIES)
def test_another_multiplier_or_clipping_leaves_the_branches(family):
    """What makes the tests above mean something."""
    assert gap(*both_trained(family, Uniform())) > 1e-3
    assert gap(*both_trained(family, "fedavg")) > 1e-3
    assert gap(*both_trained(family, **{"train.clip_norm": 0.5})) > 1e-3


def test_an_identity_scale_that_does_not_decay_leaves_the_branches():
    """The authors' groups for RepGhost: one-dimensional entries do not decay, the fusion scales among them."""
    branches, plain = twins("ghost")
    kernels = [
        [n for n, p in net.named_parameters() if p.dim() > 1 and "identity" not in n] for net in (branches, plain)
    ]
    data, results = clients_of((24,)), []
    for net, method, names in ((branches, "fedavg", kernels[0]), (plain, "fedrepopt", kernels[1])):
        keys = {"train.steps": 12, "train.decay_on": names}
        results.append(fit(net, data, method, rounds=1, batch_size=8, **TRAINING, set=keys).model())
    assert gap(*results) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beside", ["", "scaffold", "feddecorr", "fedprox"])
def test_a_federation_with_unequal_clients_of_which_some_take_part(family, beside):
    method = f"fedrepopt+{beside}" if beside else "fedrepopt"
    keys = {"participation": 2, "train.steps": 0, "train.epochs": 2, "lr": 0.02}
    branches, plain = both_trained(family, method, beside or "fedavg", (14, 9, 20, 6), rounds=4, **keys)
    assert gap(branches, plain) < 1e-10
    if not beside:
        assert gap(*both_trained(family, Uniform(), "fedavg", (14, 9, 20, 6), rounds=4, **keys)) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_averaging_commutes_with_summing_branches(family):
    clients = []
    for k in range(3):
        net, _ = twins(family)
        generator = torch.Generator().manual_seed(k)
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.data += torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        clients.append(net)
    shares = (0.2, 5.0, 1.3)
    first = copy.deepcopy(clients[0])
    first.load_state_dict(averaged(clients, shares))
    assert_close(to_repopt(first).state_dict(), averaged([to_repopt(net) for net in clients], shares), 1e-12)


# --- Frozen entries and weight decay ------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_scales_come_once_and_never_train_decay_or_leave(family):
    net = FAMILIES[family]("repopt", scales=drawn_scales(family)).double()
    frozen = {name: p.detach().clone() for name, p in net.named_parameters() if not p.requires_grad}
    keys = {"train.participation": 2, "train.weight_decay": 0.5, "train.momentum": 0.9, "train.batch_size": 8}
    parts = put_together(net, clients_of(), FedRepOpt(), keys)
    assert set(parts.entries.frozen) == set(frozen)
    uploads, downs = [], []

    class Watching(Serial):
        def run(self, jobs):
            for job in jobs:
                result = self.site.do(job)
                uploads.append(set(result.upload[""]["w"].tree) | set(result.upload[""]["buffers"].tree))
                yield result

    engine, met = Watching(parts.site), set()
    for number in range(4):
        taking_part = set(parts.server.sample(number))
        traffic = parts.server.run_round(engine).traffic
        downs.append((traffic.elements_down - traffic.elements_up, len(taking_part - met)))
        met |= taking_part
    assert not any(frozen.keys() & upload for upload in uploads)
    count = sum(scale.numel() for scale in frozen.values())
    assert {extra == new * count for extra, new in downs} == {True}
    assert {new for _, new in downs} >= {0, 2}
    assert_same_bits({name: parts.server.model[name] for name in frozen}, frozen)


@pytest.mark.parametrize("family", FAMILIES)
def test_weight_decay_on_matrices_is_on_kernels_and_identity_scales(family):
    for mode in ("csla", "hs", "repopt"):
        net = FAMILIES[family](mode)
        found = decayed(Network.of(net, images(2, dtype=torch.float32), CLASSES), Settings(decay_on="matrices"))
        for name, _ in net.named_parameters():
            owner = net.get_submodule(name.rpartition(".")[0])
            kernel = isinstance(owner, (nn.Conv2d, nn.Linear)) and name.endswith("weight")
            identity = isinstance(owner, Scale) and ".identity." in name
            assert (name in found) == (kernel or identity), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_kernel_that_a_fit_names_in_full_is_multiplied_too(family):
    """Nothing was computed for it before the fit."""
    model = FAMILIES[family]("repopt", scales=drawn_scales(family)).state_dict()
    g = {kernel.name: torch.ones_like(model[kernel.name]) for kernel in mapped_kernels(tuple(model))}
    got = FedRepOpt().grad(g, SimpleNamespace(model=model, fixed={"multiplier": {}}))
    assert_same_bits(got, multiplied(g, model))
    assert not torch.equal(*(tree[next(iter(g))] for tree in (g, got)))


# --- Files of scales ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_gives_the_same_multipliers_to_the_bit(family, tmp_path):
    given = drawn_scales(family)
    source = FAMILIES[family]("hs", scales=given)
    path = tmp_path / "scales.safetensors"
    write_scales(path, source, f"rep{family}")
    assert_same_bits(read_scales(path, f"rep{family}"), given)
    one, other = (FAMILIES[family]("repopt", scales=scales) for scales in (given, str(path)))
    assert_same_bits(one.state_dict(), other.state_dict())
    for kernel in mapped_kernels(tuple(one.state_dict())):
        masks = []
        for net in (one, other):
            entries = net.state_dict()
            ones = torch.ones_like(entries[kernel.name])
            masks.append(times_m(ones, entries[kernel.scale], entries.get(kernel.pointwise), kernel.identity))
        assert torch.equal(*masks)


@pytest.mark.parametrize("name", ["repvgg-a0", "repghost-0.5"])
def test_scales_that_come_with_the_package_are_those_that_their_facts_describe(name):
    path = shipped("cifar100", name)
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (facts["model"], facts["data"]["name"], facts["data"]["samples"]) == (name, "cifar100", 50_000)
    given = read_scales("cifar100", name)
    assert_same_bits(given, read_scales(path, name))
    start = scales_of(models.build(name, 10, mode="hs"))
    assert all(not torch.equal(given[key], value) for key, value in start.items())  # every one was learned
    entries = models.build(name, 10, mode="repopt", scales="cifar100").state_dict()
    for kernel in mapped_kernels(tuple(entries)):
        operator = kernel.scale.rpartition(f".{SCALES[kernel.identity]}")[0]
        searched = given[f"{operator}.alpha3" if name == "repvgg-a0" else f"{operator}.alpha"]
        assert torch.equal(entries[kernel.scale], searched)


def test_scales_that_do_not_come_with_the_package_are_rejected_by_name():
    with pytest.raises(InputError, match=r'no file "cifar10" \(the package has cifar100 for repvgg-a0\)'):
        models.build("repvgg-a0", 10, mode="repopt", scales="cifar10")
    with pytest.raises(InputError, match=r"has none for repvgg-b1\); make one with fullrank search-scales repvgg-b1"):
        models.build("repvgg-b1", 10, mode="repopt", scales="cifar100")


def test_scales_that_do_not_fit_are_rejected(tmp_path):
    path = tmp_path / "scales.safetensors"
    write_scales(path, vgg("hs"), "repvgg-b1")
    with pytest.raises(InputError, match=r"holds scales of repvgg-b1, not of repvgg-a0"):
        models.build("repvgg-a0", 10, mode="repopt", scales=str(path))
    with pytest.raises(InputError, match=r"holds scales of repvgg-b1, not of repghost-0\.5"):
        models.build("repghost-0.5", 10, mode="csla", scales=str(path))
    given = drawn_scales("vgg")
    first = next(iter(given))
    shorter = {**given, first: given[first][:2]}
    with pytest.raises(InputError, match=rf"{first} has shape \(2,\) instead of \(4,\)"):
        vgg("repopt", scales=shorter)
    with pytest.raises(InputError, match=f"{first} is missing"):
        vgg("repopt", scales={name: scale for name, scale in given.items() if name != first})
    with pytest.raises(InputError, match="more is not in the network"):
        vgg("repopt", scales={**given, "more": torch.ones(1)})
    with pytest.raises(InputError, match=f"{first} is not finite"):
        vgg("repopt", scales={**given, first: given[first] * math.nan})
    with pytest.raises(InputError, match="there is no file"):
        vgg("repopt", scales=str(tmp_path / "none.safetensors"))
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(InputError, match="is not a safetensors file"):
        vgg("repopt", scales=str(tmp_path / "text"))
    with pytest.raises(InputError, match="no scales to write"):
        write_scales(path, vgg("inf"), "repvgg")


def test_options_that_cannot_be_are_rejected():
    for mode in ("tr", "inf"):
        with pytest.raises(InputError, match=f'the mode "{mode}" of repvgg has no scales'):
            vgg(mode, scales=drawn_scales("vgg"))
    with pytest.raises(InputError, match=r'model\.mode = "deploy": must be'):
        models.build("repvgg-a0", 10, mode="deploy")
    with pytest.raises(InputError, match="has the modes tr, inf, csla, hs, repopt"):
        vgg("deploy")
    with pytest.raises(InputError, match=r"model\.scales = 3: must be"):
        models.build("repvgg-a0", 10, mode="repopt", scales=3)
    with pytest.raises(InputError, match="one more than"):
        repvgg(3, widths=(4, 4), blocks=(1, 1))


# --- The method in a run ------------------------------------------------------------------------------


def test_a_network_without_scales_is_rejected():
    for net in (vgg("inf"), vgg("csla"), models.build("cnn", CLASSES, 2)):
        with pytest.raises(InputError, match=r"fedrepopt needs a network with scales.*mode = repopt"):
            fit(net, [(images(4, dtype=torch.float32), torch.tensor([0, 1, 2, 0]))], "fedrepopt", rounds=1)


@pytest.mark.parametrize(
    ("mode", "method", "keys", "says"),
    [
        ("repopt", "fedavg", {}, 'made for the method "fedrepopt", which is missing'),
        ("repopt", "scaffold", {}, 'made for the method "fedrepopt", which is missing'),
        ("repopt", "fedrepopt", {"train.clip_norm": 1.0}, "train.clip_norm = 1: under it fedrepopt does not"),
        ("repopt", "fedrepopt", {"train.optimizer": "adamw"}, "train.optimizer = adamw: under it fedrepopt does not"),
        ("repopt", "fedrepopt+scaffold", {}, ""),
        ("csla", "fedavg", {"train.clip_norm": 1.0}, ""),
    ],
)
def test_what_is_missing_or_broken_is_said(mode, method, keys, says, tmp_path):
    def trained(rounds, net):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = fit(net, clients_of((20, 20)), method, rounds=rounds, set=keys, out=tmp_path / "run")
        told = [str(each.message) for each in caught if each.category is UserWarning]
        assert [says in text for text in told] == ([True] if says else [])
        return run, told

    net = vgg(mode).double()
    run, told = trained(2, net)
    assert [row.get("cautions", []) for row in run.metrics] == [told, []]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert says in log.split("round 1/2")[0]  # before anything is played
    trained(3, net)  # whoever goes on is told again


def test_a_network_inside_another_is_made_for_the_method_too():
    with pytest.warns(UserWarning, match='made for the method "fedrepopt", which is missing'):
        fit(nn.Sequential(nn.Identity(), vgg("repopt").double()), clients_of((6, 6)), "fedavg", rounds=1)


def test_what_is_known_of_the_method():
    assert methods.available()["fedrepopt"] is FedRepOpt
    assert FedRepOpt.paper
    assert not FedRepOpt.drift
    made = methods.build("scaffold+fedrepopt")
    assert [part.name for part in methods.Composition(made).corrections] == ["fedrepopt", "scaffold"]


WHOLE = ("trace", "engines", "processes", "exchange")


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("fedrepopt", ("exchange",)),  # the rest is in the checks of every method of the library
        pytest.param("fedrepopt", WHOLE, marks=pytest.mark.slow),
        pytest.param("fedrepopt+scaffold", WHOLE, marks=pytest.mark.slow),
        pytest.param("fedrepopt+feddecorr", WHOLE, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "whole" if value is WHOLE else "exchange",
)
def test_it_passes_the_checks_of_every_method(name, only):
    done = check(name, only=only)
    assert set(done.results.values()) == {"holds"}
    scales = 2 * (4 + 2 * 4 + 2 * 6 + 8)
    assert done.exchange["down_first"] - done.exchange["down_later"] == scales


@pytest.mark.slow
def test_ghosts_pass_them_too():
    torch.manual_seed(0)
    net = repghost(10, 1, bottlenecks=BOTTLENECKS[1:3], stem=6, tail=8, features=8, mode="repopt", dropout=0.0).double()
    done = check("fedrepopt", module=net, only=("trace", "exchange"))
    assert set(done.results.values()) == {"holds"}


@pytest.mark.slow  # as in methods/test_learning.py, with a larger network
def test_it_learns(tmp_path):
    values = {"method.name": "fedrepopt", "model": dict(FedRepOpt.tried_on), "data.clients": 4, "data.alpha": 1.0}
    values["model"] |= {"widths": [8, 16, 16], "blocks": [2, 1]}
    values |= {"train.rounds": 8, "train.epochs": 2, "train.lr": 0.05, "train.batch_size": 32}
    assert fullrank.run(values, tmp_path / "run").summary()["accuracy"]["last"] > 0.8


def test_a_round_of_a_real_network_with_a_file_of_scales(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "tiny.npz", x=rng.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8), y=np.arange(20) % 4)
    path = tmp_path / "scales.safetensors"
    source = models.build("repghost-0.5", 10, mode="hs")  # as many classes as it was searched with
    for number, (_, part) in enumerate(operators(source)):
        part.kernel.tail.weight.data.fill_(0.5 + number / 32)
    write_scales(path, source, "repghost-0.5")
    values = {"data.name": str(tmp_path / "tiny.npz"), "data.partition": "iid", "data.clients": 2, "train.rounds": 1}
    values |= {"model.name": "repghost-0.5", "model.mode": "repopt", "model.scales": str(path)}
    values |= {"train.batch_size": 8, "method.name": "fedrepopt", "data.normalise": "half"}
    values |= {"train.lr": 0.01, "train.epochs": 1}
    run = fullrank.run(values, tmp_path / "run")
    assert "cautions" not in run.metrics[0]
    net = run.model()
    scales = [part.scales_beside_identity.kernel for _, part in operators(net)]
    assert [set(scale.tolist()) for scale in scales] == [{0.5 + number / 32} for number in range(32)]
    assert all(torch.isfinite(value).all() for value in net.state_dict().values())
    assert sizes(to_deploy(net))[0] == 1_281_728 - 196 * 1281
    # a path is as good as its text, and a file that has changed is another experiment
    assert fullrank.run({**values, "model.scales": path}, tmp_path / "run").complete
    built = models.build("repghost-0.5", 4, mode="hs", scales=path)
    assert [set(part.kernel.tail.weight.flatten().tolist()) for _, part in operators(built)][1] == {0.5 + 1 / 32}
    write_scales(path, models.build("repghost-0.5", 10, mode="hs"), "repghost-0.5")
    with pytest.raises(InputError, match=r"the file of model.scales is not what it was when .* was started"):
        fullrank.run({**values, "train.rounds": 2}, tmp_path / "run")
