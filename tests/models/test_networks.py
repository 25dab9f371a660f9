"""Convolutional networks: the published sizes, and the computation against expressions written out here."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map
from typer.testing import CliRunner

import fullrank
from fullrank import Method, models
from fullrank.cli import app as cli
from fullrank.engine.cuda.odd_batches import can_be_padded
from fullrank.errors import InputError
from fullrank.local.settings import Settings
from fullrank.local.step import Context, Functional, State, Step
from fullrank.methods import Composition
from fullrank.models.alexnet import PoolToSix
from fullrank.models.efficientnet import MBConv, StochasticDepth
from fullrank.models.mobilenetv2 import InvertedResidual, mobilenetv2
from fullrank.models.net import Net
from fullrank.models.network import Network
from fullrank.models.resnet import BasicBlock, ZeroPad, projection, resnet18
from fullrank.models.wrn import WideBlock
from small import assert_close, trained_alone

FEATURES = {"mobilenetv2": 1280, "resnet18": 512, "resnet20": 64, "resnet32": 64, "resnet20-conv": 64}
NAMES = list(FEATURES)
OTHERS = {"wrn-28-10": 640, "efficientnet-b0": 1280, "alexnet-bn": 4096, "lenet": 84}
"""Networks with biases in convolutions, with activations other than ReLU, or for images of some size at least."""
STILL = {"wrn-28-10": {"dropout": 0.0}, "efficientnet-b0": {"dropout": 0.0, "drop_path": 0.0}}
"""Options with which nothing is drawn in training."""


def shapes_only(name, classes=10, channels=3, **options):
    """A network whose tensors have shapes and no values: nothing is drawn, a forward costs nothing."""
    with torch.device("meta"):
        net = models.build(name, classes, channels, **options)
        if name == "lenet":
            net(torch.empty(1, channels, 32, 32))  # which gives its first dense layer a width
        return net


def seeded(name, classes=10, channels=3, seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return models.build(name, classes, channels, **options)


def images(count, size, channels=3, seed=0, dtype=torch.float32):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameters_of(net):
    return sum(p.numel() for p in net.parameters())


def norms_of(net):
    return [layer for layer in net.modules() if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))]


# --- Sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "channels", "parameters", "state"),
    [
        ("mobilenetv2", 10, 3, 2_296_922, 2_332_067),
        ("mobilenetv2", 100, 3, 2_412_212, 2_447_357),
        ("mobilenetv2", 200, 3, 2_540_312, 2_575_457),
        ("resnet20", 10, 3, 269_722, 271_117),
        ("resnet20", 100, 3, 275_572, 276_967),
        ("resnet32", 10, 3, 464_154, 466_457),
        ("resnet32", 100, 3, 470_004, 472_307),
        ("resnet18", 10, 3, 11_173_962, 11_183_582),
        ("resnet18", 100, 3, 11_220_132, 11_229_752),
        ("resnet18", 10, 1, 11_172_810, 11_182_430),
        ("resnet20-conv", 10, 3, 272_474, 272_474 + 1_589),
        ("resnet20-conv", 100, 3, 278_324, 278_324 + 1_589),
        ("wrn-28-10", 100, 3, 36_546_980, 36_564_957),
        ("efficientnet-b0", 8, 3, 4_007_548 + 1281 * 8, 4_007_548 + 42_065 + 1281 * 8),
        ("alexnet-bn", 10, 3, 57_063_498, 57_082_193),
        ("lenet", 10, 3, 456 + 2_416 + 401 * 120 + 121 * 84 + 85 * 10, 62_006),
    ],
)
def test_as_many_parameters_as_published(name, classes, channels, parameters, state):
    net = shapes_only(name, classes, channels)
    assert parameters_of(net) == parameters
    assert sum(value.numel() for value in net.state_dict().values()) == state
    norms = norms_of(net)
    assert state - parameters == 2 * sum(norm.num_features for norm in norms) + len(norms)


def test_a_bottleneck_narrows_the_features_of_efficientnet():
    net = shapes_only("efficientnet-b0", 8, bottleneck=640)
    assert parameters_of(net) == 4_832_516
    assert sum(value.numel() for value in net.state_dict().values()) == 4_874_581
    body = {name: value for name, value in net.backbone.state_dict().items() if "bottleneck" not in name}
    assert sum(value.numel() for value in body.values()) == 4_007_548 + 42_065
    assert net.head.in_features == net.feature_dim == 640
    x = torch.empty(2, 3, 32, 32, device="meta")
    assert net.features(x).shape == (2, 640)
    assert isinstance(net.backbone[-1], nn.Linear)  # and nothing after it
    with pytest.raises(InputError, match=r"model\.bottleneck = -1"):
        models.build("efficientnet-b0", 8, bottleneck=-1)


def test_lenet_takes_its_width_from_the_images():
    for size, channels, width, parameters in ((32, 3, 400, 62_006), (28, 1, 256, 44_426)):
        with torch.device("meta"):
            net = models.build("lenet", 10, channels)
            net(torch.empty(2, channels, size, size))
        assert net.backbone.dense1[0].in_features == width
        assert parameters_of(net) == parameters
        assert shapes_only("lenet", 100).head.weight.shape == (100, 84)


@pytest.mark.parametrize(
    ("name", "layers", "channels"),
    [
        ("efficientnet-b0", 49, 21_008),
        ("alexnet-bn", 7, 64 + 192 + 384 + 2 * 256 + 2 * 4096),
        ("mobilenetv2", 57, 17_544),
        ("resnet18", 20, 4_800),
        ("resnet20", 19, 7 * 16 + 6 * 32 + 6 * 64),
        ("resnet32", 31, 11 * 16 + 10 * 32 + 10 * 64),
        ("resnet20-conv", 21, 7 * 16 + 7 * 32 + 7 * 64),
    ],
)
def test_batch_norm_layers(name, layers, channels):
    norms = norms_of(shapes_only(name))
    assert (len(norms), sum(norm.num_features for norm in norms)) == (layers, channels)
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.1)}


def test_the_last_statistics_of_wrn_follow_the_last_batch():
    *inside, last = norms_of(shapes_only("wrn-28-10"))
    assert (len(inside), sum(norm.num_features for norm in inside)) == (24, 16 + 8 * 160 + 8 * 320 + 7 * 640)
    assert {(norm.eps, norm.momentum) for norm in inside} == {(1e-5, 0.1)}
    assert (last.num_features, last.eps, last.momentum) == (640, 1e-5, 0.9)


@pytest.mark.parametrize("name", OTHERS)
def test_a_class_costs_one_row_of_the_head(name):
    net = shapes_only(name)
    assert isinstance(net, Net)
    assert net.head.in_features == net.feature_dim == OTHERS[name]
    assert parameters_of(shapes_only(name, 100)) - parameters_of(net) == 90 * (OTHERS[name] + 1)


@pytest.mark.parametrize("name", OTHERS)
def test_where_convolutions_have_biases(name):
    net = shapes_only(name)
    with_bias = [layer.bias is not None for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    if name == "efficientnet-b0":  # in squeeze-and-excitation, of 16 blocks
        assert (sum(with_bias), len(with_bias)) == (32, 81)
    else:
        assert all(with_bias)
    network = Network(net, "head", "head", 10, net.feature_dim)
    assert can_be_padded(network)
    assert network.has_dropout == (name in STILL)
    assert not any(isinstance(layer, nn.Dropout) for layer in shapes_only(name, **STILL.get(name, {})).modules())


@pytest.mark.parametrize("name", NAMES)
def test_convolutions_have_no_bias_and_a_class_costs_one_row_of_the_head(name):
    net = shapes_only(name)
    assert all(layer.bias is None for layer in net.modules() if isinstance(layer, nn.Conv2d))
    assert isinstance(net, Net)
    assert net.head.in_features == net.feature_dim == FEATURES[name]
    assert parameters_of(shapes_only(name, 100)) - parameters_of(net) == 90 * (FEATURES[name] + 1)


def test_a_convolutional_shortcut_costs_two_projections():
    difference = parameters_of(shapes_only("resnet20-conv")) - parameters_of(shapes_only("resnet20"))
    assert difference == (16 * 32 + 64) + (32 * 64 + 128)


def multiplications(net, x):
    """Of all convolutions and dense layers in one forward, per sample."""
    total = 0

    def count(layer, _, out):
        nonlocal total
        total += out[0].numel() * layer.weight[0].numel()  # each output is a sum over one filter

    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    net.eval()(x)
    return total / 1e6


@pytest.mark.parametrize(
    ("name", "classes", "size", "millions", "digits"),
    [
        ("mobilenetv2", 10, 32, 91.2, 1),
        ("mobilenetv2", 200, 64, 364.8, 1),
        ("resnet20", 10, 32, 40.55, 2),
        ("resnet32", 10, 32, 68.86, 2),
        ("resnet18", 10, 32, 555.4, 1),
        ("alexnet-bn", 10, 256, 923, 0),
        ("efficientnet-b0", 1000, 224, 390, -1),
    ],
)
def test_as_many_multiplications_as_published(name, classes, size, millions, digits):
    counted = multiplications(shapes_only(name, classes), torch.empty(1, 3, size, size, device="meta"))
    assert round(counted, digits) == millions


def test_the_command_line_counts_at_the_images_a_network_is_meant_for(monkeypatch):
    shown = CliRunner().invoke(cli.app, ["models", "--json"])
    facts = json.loads(shown.stdout)
    assert facts["mlp"]["input"] == [1, 8, 8]
    assert facts["mlp"]["parameters"] == 65 * 128 + 129 * 128 + 129 * 10
    for name in NAMES:
        assert facts[name]["input"] == [3, 32, 32]
        assert facts[name]["features"] == FEATURES[name]
        assert facts[name]["parameters"] == parameters_of(shapes_only(name))
    for name, size in (("wrn-28-10", 32), ("lenet", 32), ("alexnet-bn", 256), ("efficientnet-b0", 224)):
        assert facts[name]["input"] == [3, size, size]
        assert facts[name]["parameters"] == parameters_of(shapes_only(name))
    monkeypatch.setattr(models, "available", lambda: {"mobilenetv2": mobilenetv2})
    table = CliRunner().invoke(cli.app, ["models"], env={"COLUMNS": "120"}).stdout
    assert "mobilenetv2  2,296,922 parameters at 3×32×32, 1280 features" in table
    assert "Numbers of parameters are for 10 classes" in table


def maps(net, size, channels=3):
    """Side lengths of what the stages give, in order."""
    sides = []
    for name, part in net.backbone.named_children():
        if name.startswith("layer"):
            part.register_forward_hook(lambda _, args, out: sides.append(tuple(out.shape[2:])))
    net.eval()(torch.empty(1, channels, size, size, device="meta"))
    assert all(height == width for height, width in sides)
    return [height for height, _ in sides]


@pytest.mark.parametrize(
    ("name", "size", "sides"),
    [
        ("mobilenetv2", 32, [32, 32, 16, 8, 8, 4, 4]),
        ("mobilenetv2", 64, [64, 64, 32, 16, 16, 8, 8]),
        ("resnet18", 28, [28, 14, 7, 4]),
        ("resnet18", 32, [32, 16, 8, 4]),
        ("resnet18", 64, [64, 32, 16, 8]),
        ("resnet20", 32, [32, 16, 8]),
        ("resnet32", 32, [32, 16, 8]),
        ("resnet20-conv", 32, [32, 16, 8]),
        ("wrn-28-10", 32, [32, 16, 8]),
        ("efficientnet-b0", 224, [112, 56, 28, 14, 14, 7, 7]),
        ("alexnet-bn", 256, [63, 31, 15, 15, 15]),
        ("lenet", 32, [14, 5]),
    ],
)
def test_map_sizes(name, size, sides):
    assert maps(shapes_only(name), size) == sides


# --- Forwards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3), (64, 3), (9, 2)])
def test_images_of_any_size(name, size, channels):
    net, x = seeded(name, 7, channels), images(2, size, channels)
    for train in (False, True):
        out = net.train(train).represent(x)
        assert out.logits.shape == (2, 7)
        assert out.z.shape == (2, net.feature_dim)
        assert torch.isfinite(out.logits).all()
        assert (out.z >= 0).all()  # a mean of ReLUs
        torch.testing.assert_close(out.logits, F.linear(out.z, net.head.weight, net.head.bias))
    norms = norms_of(net)
    assert all(int(norm.num_batches_tracked) == 1 for norm in norms)


@pytest.mark.parametrize(
    ("name", "size", "channels"),
    [("wrn-28-10", 8, 1), ("efficientnet-b0", 8, 1), ("efficientnet-b0", 33, 3), ("alexnet-bn", 63, 1)]
    + [("lenet", size, channels) for size, channels in ((16, 1), (28, 1), (32, 3), (65, 2))],
)
def test_other_images(name, size, channels):
    """What each BatchNorm keeps of a batch is by its own momentum, and dropout is after z."""
    net, x, seen = seeded(name, 7, channels).train(), images(3, size, channels), {}
    for part in (*norms_of(net), net.dropout):
        part.register_forward_pre_hook(lambda part, args: seen.update({part: args[0].detach()}))
    trained = net.represent(x)
    assert torch.equal(seen[net.dropout], trained.z)
    for norm in norms_of(net):
        axes = [axis for axis in range(seen[norm].dim()) if axis != 1]
        mean, var = seen[norm].mean(axes), seen[norm].var(axes)
        torch.testing.assert_close(norm.running_mean, norm.momentum * mean)
        torch.testing.assert_close(norm.running_var, 1 - norm.momentum + norm.momentum * var)
    trained.logits.square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
    out = net.eval().represent(x)
    for some in (trained, out):
        assert some.logits.shape == (3, 7)
        assert some.z.shape == (3, net.feature_dim)
        assert torch.isfinite(some.logits).all()
    torch.testing.assert_close(out.logits, F.linear(out.z, net.head.weight, net.head.bias))
    assert (out.z >= 0).all() == (name != "efficientnet-b0")


@pytest.mark.parametrize(("name", "least"), [("alexnet-bn", 63), ("lenet", 16)])
def test_images_that_leave_nothing_are_rejected(name, least):
    with torch.device("meta"):
        assert models.build(name, 10)(torch.empty(2, 3, least, least + 1)).shape == (2, 10)
        with pytest.raises(InputError, match=f"at least {least}×{least} pixels, but these have {least}×{least - 1}; "):
            models.build(name, 10)(torch.empty(2, 3, least, least - 1))
        unguarded = models.build(name, 10).backbone
        unguarded.smallest = 0
        with pytest.raises(RuntimeError):
            unguarded(torch.empty(2, 3, least - 1, least - 1))
    with pytest.raises(InputError, match=rf'model\.name = "{name}" needs images .* these have 8×8; choose a model'):
        fullrank.run({"model.name": name, "train.rounds": 1})
    with pytest.raises(InputError, match=r"cannot take a batch of shape \(2, 5\)"):
        Network.of(seeded("lenet"), torch.zeros(2, 5), 10)


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet18", "resnet20", "wrn-28-10", "efficientnet-b0"])
def test_z_is_the_mean_of_the_last_map(name):
    net, seen = seeded(name).eval(), []
    net.backbone.pool.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    z = net.features(images(2, 32))
    torch.testing.assert_close(z, seen[0].mean((2, 3)))


def test_option_a_is_every_second_pixel_between_zero_channels():
    x = images(3, 7, channels=16).numpy()
    by_hand = np.zeros((3, 32, 4, 4), np.float32)
    for channel in range(16):
        for row in range(4):
            for column in range(4):
                by_hand[:, 32 // 4 + channel, row, column] = x[:, channel, 2 * row, 2 * column]
    pad = ZeroPad(16, 32, 2)
    assert not list(pad.state_dict())
    np.testing.assert_array_equal(pad(torch.from_numpy(x)).numpy(), by_hand)


def written_out(pair, x, **how):
    """A convolution with BatchNorm in eval mode, from its tensors."""
    convolution, norm = pair
    return normalised(norm, F.conv2d(x, convolution.weight, convolution.bias, **how))


def normalised(norm, h):
    scale = norm.weight / torch.sqrt(norm.running_var + 1e-5)
    return (h - norm.running_mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]


def unsettled(block):
    """In float64 and eval mode, with statistics and scales that are not 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    for norm in norms_of(block):
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            value.data = 0.5 + torch.rand(value.shape, generator=generator)
    return block.double().eval()


@pytest.mark.parametrize("shortcut", [ZeroPad, projection])
@pytest.mark.parametrize(("width", "stride"), [(8, 1), (16, 2)])
def test_a_basic_block_written_out(shortcut, width, stride):
    block, x = unsettled(BasicBlock(8, width, stride, shortcut)), images(2, 6, 8, dtype=torch.float64)
    h = torch.relu(written_out(block.conv1, x, stride=stride, padding=1))
    h = written_out(block.conv2, h, padding=1)
    if stride == 1:
        added = x
    elif shortcut is projection:
        added = written_out(block.shortcut, x, stride=2)
    else:
        zeros = torch.zeros(2, 4, 3, 3, dtype=x.dtype)
        added = torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)
    torch.testing.assert_close(block(x), torch.relu(h + added))


@pytest.mark.parametrize(("width", "expansion", "stride"), [(8, 6, 1), (12, 6, 1), (12, 6, 2), (8, 6, 2), (4, 1, 1)])
def test_an_inverted_residual_written_out(width, expansion, stride):
    block, x = unsettled(InvertedResidual(8, width, expansion, stride)), images(2, 6, 8, dtype=torch.float64)
    h = torch.relu(written_out(block.expand[0], x))
    h = torch.relu(written_out(block.depthwise[0], h, stride=stride, padding=1, groups=8 * expansion))
    h = written_out(block.project, h)
    if stride == 1:
        h = h + (x if width == 8 else written_out(block.shortcut, x))
    torch.testing.assert_close(block(x), h)


def test_four_blocks_of_mobilenetv2_have_a_convolutional_shortcut():
    blocks = [block for block in shapes_only("mobilenetv2").modules() if isinstance(block, InvertedResidual)]
    kinds = [type(block.shortcut) for block in blocks]
    assert len(blocks) == 17
    assert [kinds.count(kind) for kind in (nn.Sequential, nn.Identity, type(None))] == [4, 10, 3]


@pytest.mark.parametrize(("width", "stride"), [(8, 1), (12, 1), (12, 2), (8, 2)])
def test_a_wide_block_written_out(width, stride):
    block, x = unsettled(WideBlock(8, width, stride, 0.3)), images(2, 6, 8, dtype=torch.float64)
    h = F.conv2d(torch.relu(normalised(block.norm1, x)), block.conv1.weight, block.conv1.bias, padding=1)
    h = torch.relu(normalised(block.norm2, h))
    h = F.conv2d(h, block.conv2.weight, block.conv2.bias, stride=stride, padding=1)
    same = (width, stride) == (8, 1)
    added = x if same else F.conv2d(x, block.shortcut.weight, block.shortcut.bias, stride=stride)
    torch.testing.assert_close(block(x), h + added)


def test_dropout_of_a_wide_block_is_between_its_convolutions():
    block, seen = WideBlock(8, 8, 1, 0.5).train(), {}
    for name, part in block.named_children():
        part.register_forward_hook(lambda part, args, out, name=name: seen.update({name: (args[0], out)}))
    block(images(2, 6, 8))
    assert seen["dropout"][0] is seen["conv1"][1]
    assert seen["norm2"][0] is seen["dropout"][1]
    kept = seen["dropout"][1] != 0
    torch.testing.assert_close(seen["dropout"][1][kept], 2 * seen["conv1"][1][kept])
    assert 0.4 < kept.double().mean() < 0.6
    rates = [part.p for part in shapes_only("wrn-28-10").modules() if isinstance(part, nn.Dropout)]
    assert rates == [0.3] * 12


def swish(x):
    return x * torch.sigmoid(x)


@pytest.mark.parametrize(
    ("width", "expansion", "kernel", "stride"), [(8, 6, 3, 1), (12, 6, 5, 1), (8, 6, 5, 2), (8, 1, 3, 1)]
)
def test_an_mbconv_written_out(width, expansion, kernel, stride):
    block = unsettled(MBConv(8, width, expansion, kernel, stride, drop_rate=0.2))
    x = images(2, 6, 8, dtype=torch.float64)
    h = x if expansion == 1 else swish(written_out(block.expand[0], x))
    h = swish(written_out(block.depthwise[0], h, stride=stride, padding=kernel // 2, groups=8 * expansion))
    narrow, widen = (part for part in block.squeeze.modules() if isinstance(part, nn.Conv2d))
    assert narrow.weight.shape == (2, 8 * expansion, 1, 1)  # a quarter of the block's input
    s = swish(h.mean((2, 3)) @ narrow.weight[:, :, 0, 0].T + narrow.bias)
    h = h * torch.sigmoid(s @ widen.weight[:, :, 0, 0].T + widen.bias)[:, :, None, None]
    h = written_out(block.project, h)
    torch.testing.assert_close(block(x), h + x if (width, stride) == (8, 1) else h)


def test_deeper_blocks_of_efficientnet_are_left_out_more_often():
    blocks = [block for block in shapes_only("efficientnet-b0").modules() if isinstance(block, MBConv)]
    rates = {
        number: block.depth.dropout.p for number, block in enumerate(blocks) if isinstance(block.depth, StochasticDepth)
    }
    assert rates == {number: pytest.approx(0.2 * number / 16) for number in (2, 4, 6, 7, 9, 10, 12, 13, 14)}
    assert len(blocks) == 16


def test_stochastic_depth_leaves_out_whole_samples():
    depth, x = StochasticDepth(0.25), images(400, 2, 3)
    assert torch.equal(depth.eval()(x), x)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = depth.train()(x)
    stays = out.flatten(1).ne(0).all(1)
    assert 0.65 < stays.double().mean() < 0.85
    assert not out[~stays].any()
    torch.testing.assert_close(out[stays], x[stays] / 0.75)


@pytest.mark.parametrize("size", [1, 3, 6, 7, 8, 13])
def test_six_by_six_windows(size):
    x = images(2, size, 3, dtype=torch.float64).requires_grad_()
    edges = [(i * size // 6, -((-(i + 1) * size) // 6)) for i in range(6)]
    rows = [torch.stack([x[:, :, a:b, c:d].mean((2, 3)) for c, d in edges], -1) for a, b in edges]
    want, got = torch.stack(rows, -2), PoolToSix()(x)
    torch.testing.assert_close(got, want)
    weights = images(2, 6, 3, seed=1, dtype=torch.float64)
    one, other = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (got, want))
    torch.testing.assert_close(one, other)


def test_lenet_written_out():
    net, x = seeded("lenet").double().eval(), images(2, 32, dtype=torch.float64)
    out = net.represent(x)
    named = dict(net.named_parameters())
    w = [named[name] for name in named if name.endswith("weight")]
    b = [named[name] for name in named if name.endswith("bias")]
    h = x
    for k in range(2):
        h = torch.relu(F.conv2d(h, w[k], b[k]))
        h = h.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5))
    h = h.flatten(1)
    for k in (2, 3):
        h = torch.relu(h @ w[k].T + b[k])
    torch.testing.assert_close(out.z, h)
    torch.testing.assert_close(out.logits, h @ w[4].T + b[4])


# --- Initial weights --------------------------------------------------------------------------------


def draws(layers, fan):
    """All weights of some layers, each divided by the √(2 / fan) of its layer."""
    return torch.cat([layer.weight.detach().flatten() * math.sqrt(fan(layer) / 2) for layer in layers])


def fan_in(layer):
    return layer.weight[0].numel()


def fan_out(layer):
    return layer.weight.shape[0] * layer.weight[0, 0].numel()


def assert_standard_normal(values):
    n = len(values)
    assert abs(float(values.mean())) < 4 / math.sqrt(n)
    assert abs(float(values.var()) - 1) < 4 * math.sqrt(2 / n)
    assert float((values.abs() > 2).double().mean()) == pytest.approx(0.0455, abs=4 * math.sqrt(0.0455 / n))


@pytest.mark.parametrize("name", ["resnet20", "resnet32"])
def test_kaiming_normal_in_convolutions_and_head(name):
    net = seeded(name, classes=100)
    assert_standard_normal(draws([m for m in net.modules() if isinstance(m, nn.Conv2d)], fan_in))
    assert_standard_normal(draws([net.head], fan_in))
    assert float(net.head.bias.detach().abs().max()) <= 1 / math.sqrt(64)  # PyTorch's own


def test_fan_out_in_convolutions_alone():
    net = seeded("resnet18", init="fan-out")
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert_standard_normal(draws(convolutions, fan_out))
    widening = net.backbone.layer2[0].conv1[0]  # fan-out and fan-in differ by 2 here
    assert float(widening.weight.detach().var()) == pytest.approx(2 / (128 * 9), rel=0.03)
    assert float(net.head.weight.detach().abs().max()) <= 1 / math.sqrt(512)


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet18", "resnet20-conv", "efficientnet-b0"])
def test_elsewhere_the_initialisation_of_pytorch(name):
    for layer in seeded(name).modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            bound = 1 / math.sqrt(fan_in(layer))
            assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_scales_start_at_one(name):
    for norm in norms_of(seeded(name)):
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()


def test_another_init_is_rejected():
    with pytest.raises(InputError, match=r'model\.init = "fan-in": must be "default" or "fan-out"'):
        models.build("resnet18", 10, init="fan-in")
    with pytest.raises(InputError, match="must be default or fan-out"), torch.device("meta"):
        resnet18(10, init="fan-in")
    with pytest.raises(InputError, match="no such option"):
        models.build("resnet20", 10, init="fan-out")


# --- One step of training, traced -------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size"), [("resnet20", 8), ("mobilenetv2", 16)])
def test_a_step_under_vmap_and_traced(name, size):
    nets = [seeded(name, classes=3, seed=k).double().train() for k in range(2)]
    x = torch.stack([images(4, size, seed=k, dtype=torch.float64) for k in range(2)])
    y = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]])
    network = Network.of(nets[0], x[0], 3)
    step = Step(
        Composition(Method()),
        Functional(network),
        Settings(lr=0.1, momentum=0.9),
        frozenset(network.parameter_names),
        frozenset(),
    )
    trained, buffers = stack_module_state(nets)
    trained = {key: value.detach() for key, value in trained.items()}
    state = State(trained, {}, buffers, {"velocity": {key: torch.zeros_like(value) for key, value in trained.items()}})
    context = Context({**trained, **buffers}, {}, {}, torch.ones(2, 3))

    together, _ = vmap(step)(state, context, x, y)
    entries = {**together.trained, **together.buffers}
    for k in range(2):
        alone = trained_alone(nets[k], [(x[k], y[k])], lr=0.1).state_dict()
        assert_close({key: value[k] for key, value in entries.items()}, {key: alone[key] for key in entries}, 1e-8)

    traced = make_fx(step)(*tree_map(lambda value: value[0], (state, context, x, y)))
    new, _ = traced(*tree_map(lambda value: value[1], (state, context, x, y)))
    assert_close({**new.trained, **new.buffers}, {key: value[1] for key, value in entries.items()}, 1e-8)


# --- A federated run --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet20", "efficientnet-b0", "lenet"])
def test_a_round_with_two_clients(name, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "tiny.npz",
        x=rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8),
        y=np.arange(40) % 4,
    )
    values = {
        "data.name": str(tmp_path / "tiny.npz"),
        "data.partition": "iid",
        "data.clients": 2,
        "model.name": name,
        "train.rounds": 1,
        "train.epochs": 1,
        "train.batch_size": 8,
    }
    run = fullrank.run(values, tmp_path / "out")
    assert len(run.metrics) == 1
    assert {client["client"] for client in run.metrics[0]["clients"]} == {0, 1}
    state = run.model().state_dict()
    assert all(torch.isfinite(value).all() for value in state.values())
    if name == "lenet":  # without BatchNorm
        return
    assert int(state["backbone.stem.0.1.num_batches_tracked"]) == 2
    assert not torch.equal(state["backbone.stem.0.1.running_mean"], torch.zeros_like(state["backbone.stem.0.1.bias"]))


# --- Channels last ------------------------------------------------------------------------------------


class Flattens(nn.Module):
    """A backbone that looks at a feature map with `view`, which only takes numbers in their standard order."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 64, 5)

    def forward(self, x):
        maps = self.conv(x).relu()
        return self.dense(maps.view(len(maps), -1)).relu()


def coloured(clients=2):
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(12, 3, 8, 8, generator=g), torch.arange(12) % 4) for _ in range(clients)]


def test_a_users_view_of_a_feature_map_is_allowed_in_one_of_our_networks():
    run = fullrank.fit(Net(Flattens(), 5, 4), coloured(), "fedavg", rounds=1)
    assert not run._assembled().network.channels_last


def test_our_networks_see_channels_last_and_hand_out_weights_in_standard_order():
    run = fullrank.fit(models.build("cnn", 4), coloured(), "fedavg", rounds=1)
    assert run._assembled().network.channels_last
    torch.nn.utils.parameters_to_vector(run.model().parameters())
    assert all(value.is_contiguous() for value in run.model().state_dict().values())
