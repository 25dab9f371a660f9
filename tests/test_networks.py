"""MobileNetV2 and the ResNets: the published sizes, and the computation against expressions written out here."""

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
from fullrank import Method, cli, models
from fullrank.errors import Refusal
from fullrank.local.settings import Settings
from fullrank.local.step import Context, Functional, State, Step
from fullrank.methods import Composition
from fullrank.models.mobilenetv2 import InvertedResidual
from fullrank.models.network import Net, Network
from fullrank.models.resnet import BasicBlock, ZeroPad, projection, resnet18
from small import assert_close, trained_alone

FEATURES = {"mobilenetv2": 1280, "resnet18": 512, "resnet20": 64, "resnet32": 64, "resnet20-conv": 64}
NAMES = list(FEATURES)


def shapes_only(name, classes=10, channels=3):
    """A network whose tensors have shapes and no values: nothing is drawn, a forward costs nothing."""
    with torch.device("meta"):
        return models.build(name, classes, channels)


def seeded(name, classes=10, channels=3, seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return models.build(name, classes, channels, **options)


def images(count, size, channels=3, seed=0, dtype=torch.float32):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameters_of(net):
    return sum(p.numel() for p in net.parameters())


def norms_of(net):
    return [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]


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
    ],
)
def test_as_many_parameters_as_published(name, classes, channels, parameters, state):
    net = shapes_only(name, classes, channels)
    assert parameters_of(net) == parameters
    assert sum(value.numel() for value in net.state_dict().values()) == state
    norms = norms_of(net)
    assert state - parameters == 2 * sum(norm.num_features for norm in norms) + len(norms)


@pytest.mark.parametrize(
    ("name", "layers", "channels"),
    [
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
    ],
)
def test_as_many_multiplications_as_published(name, classes, size, millions, digits):
    counted = multiplications(shapes_only(name, classes), torch.empty(1, 3, size, size, device="meta"))
    assert round(counted, digits) == millions


def test_the_command_line_counts_at_the_images_a_network_is_meant_for():
    shown = CliRunner().invoke(cli.app, ["models", "--json"])
    facts = json.loads(shown.stdout)
    assert facts["mlp"]["input"] == [1, 8, 8]
    assert facts["mlp"]["parameters"] == 65 * 128 + 129 * 128 + 129 * 10
    for name in NAMES:
        assert facts[name]["input"] == [3, 32, 32]
        assert facts[name]["features"] == FEATURES[name]
        assert facts[name]["parameters"] == parameters_of(shapes_only(name))
    table = CliRunner().invoke(cli.app, ["models"], env={"COLUMNS": "120"}).stdout
    assert "3×32×32  2,296,922" in table
    assert "for 10 classes and the input shown" in table


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


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet18", "resnet20"])
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
    h = F.conv2d(x, convolution.weight, **how)
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


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet18", "resnet20-conv"])
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


def test_another_init_is_refused():
    with pytest.raises(Refusal, match=r'model\.init = "fan-in": must be "default" or "fan-out"'):
        models.build("resnet18", 10, init="fan-in")
    with pytest.raises(Refusal, match="knows default and fan-out"), torch.device("meta"):
        resnet18(10, init="fan-in")
    with pytest.raises(Refusal, match="no such option"):
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


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet20"])
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
        "train.batch_size": 8,
    }
    run = fullrank.run(values, tmp_path / "out")
    assert len(run.metrics) == 1
    assert {client["client"] for client in run.metrics[0]["clients"]} == {0, 1}
    state = run.model().state_dict()
    assert all(torch.isfinite(value).all() for value in state.values())
    assert int(state["backbone.stem.0.1.num_batches_tracked"]) == 2
    assert not torch.equal(state["backbone.stem.0.1.running_mean"], torch.zeros_like(state["backbone.stem.0.1.bias"]))
