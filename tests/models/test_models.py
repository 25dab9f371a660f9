"""Networks of the library, users' modules taken as they are, and the selectors of their entries."""

import copy
import doctest
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fullrank import Method, fit, models
from fullrank.errors import InputError
from fullrank.models.entries import classify, select
from fullrank.models.network import Network
from small import CLASSES, WIDTH, blobs, normed, plain, put_together

X = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))


def wrapped(module, x=X, classes=CLASSES, head=None):
    return Network.of(module, x, classes, head)


# --- The library's networks -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 13, 28, 32])
@pytest.mark.parametrize("norm", ["none", "batch", "group"])
def test_cnn_takes_images_from_8_pixels_on(size, norm):
    net = models.build("cnn", 7, in_channels=2, width=4, features=9, norm=norm)
    x = torch.randn(3, 2, size, size)
    assert net(x).shape == (3, 7)
    assert net.features(x).shape == (3, 9) == (3, net.feature_dim)
    assert (net.features(x) >= 0).all()


def test_cnn_has_the_parameters_its_docstring_says():
    net = models.build("cnn", 10, in_channels=3)
    convolutions = (3 * 9 + 1) * 32 + (32 * 9 + 1) * 64
    assert sum(p.numel() for p in net.parameters()) == convolutions + (64 * 16 + 1) * 128 + (128 + 1) * 10


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (2, 3)])
def test_mlp_takes_inputs_of_any_shape(shape):
    net = models.build("mlp", 4, width=6, depth=3, features=5)
    x = torch.randn(3, *shape)
    assert net(x).shape == (3, 4)
    assert net.features(x).shape == (3, 5)
    assert [m.out_features for m in net.modules() if isinstance(m, nn.Linear)] == [6, 6, 5, 4]


def test_z_is_before_dropout_and_the_head_behind_it():
    net = models.build("mlp", 4, width=6, dropout=0.5).train()
    x = torch.randn(64, 5)
    out = net.represent(x)
    assert torch.equal(out.z, net.backbone(x))
    assert not torch.equal(out.logits, net.head(out.z))
    assert torch.equal(net.eval()(x), net.head(out.z))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"widht": 3}, 'model.widht: the network "cnn" has no such option; did you mean "width"'),
        ({"width": "wide"}, 'model.width = "wide": must be a whole number'),
        ({"norm": "layer"}, "model.norm"),
        ({"width": 0}, "model.width = 0: must be at least 1"),
        ({"features": 0}, "model.features = 0: must be at least 1"),
        ({"dropout": 1.0}, "model.dropout = 1.0: must be less than 1"),
        ({"dropout": -0.1}, "model.dropout = -0.1: must be at least 0"),
    ],
)
def test_wrong_options_are_rejected(options, sentence):
    with pytest.raises(InputError, match=sentence):
        models.build("cnn", 10, **options)


@pytest.mark.parametrize("width", [1, 5, 8, 12, 18])
def test_group_norm_has_groups_for_any_width(width):
    assert models.build("cnn", 3, in_channels=1, width=width, norm="group")(torch.randn(2, 1, 8, 8)).shape == (2, 3)


OWN_MODELS = """\
from torch import nn

def no_channels(num_classes): return nn.Linear(3, num_classes)
def needs_more(num_classes, in_channels, hidden): return nn.Linear(hidden, num_classes)
def takes_any(**options): return nn.Linear(3, options["num_classes"])
def no_module(num_classes, in_channels): return num_classes
"""


def test_a_function_of_ones_own_must_take_what_it_is_given_and_return_a_module(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match=r'"own_models:no_channels": it must accept num_classes=, in_channels= .*in_chan'
    ):
        models.build("own_models:no_channels", 3)
    with pytest.raises(InputError, match="need nothing else: missing a required argument: 'hidden'"):
        models.build("own_models:needs_more", 3)
    with pytest.raises(InputError, match=r"must return a torch\.nn\.Module, but returned a int"):
        models.build("own_models:no_module", 3)
    assert models.build("own_models:needs_more", 3, hidden=2).in_features == 2
    assert models.build("own_models:takes_any", 3, other=2).out_features == 3


def test_images_without_channels_are_told_what_they_lack():
    with pytest.raises(InputError, match=r"grey images, add a channel axis: \(N, 1, 28, 20\)"):
        Network.of(models.build("cnn", CLASSES, 1), torch.zeros(2, 28, 20), CLASSES)


def test_data_that_a_model_cannot_take_are_rejected():
    for module, words in [
        (
            models.build("cnn", CLASSES),
            r"the model \(Net\) cannot take a batch of shape \(4, 5\) and dtype torch.float32",
        ),
        (nn.Sequential(nn.Linear(WIDTH + 1, CLASSES)), r"the model \(Sequential\) .* \(RuntimeError: mat1 and mat2"),
    ]:
        with pytest.raises(InputError, match=words) as caught:
            wrapped(module)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"\(NotImplementedError: "):
        wrapped(nn.Module())


def test_an_unknown_network_is_rejected_with_a_suggestion():
    with pytest.raises(InputError, match='"cnm" is not known; did you mean "cnn"'):
        models.build("cnm", 10)


def test_models_examples():
    assert doctest.testmod(models).failed == 0


# --- Selectors --------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Norm layers under names that do not say so, and a layer called bn that is none."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(WIDTH, 6)
        self.shortcut = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.bn = nn.Linear(6, 6)
        self.scale = nn.LayerNorm(6)
        self.groups = nn.GroupNorm(2, 6)
        self.classifier = nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = self.groups(self.scale(x + self.shortcut(x)))
        return self.classifier(torch.relu(self.bn(x)))


STATISTICS = {"shortcut.1.running_mean", "shortcut.1.running_var", "shortcut.1.num_batches_tracked"}
NORMS = {"shortcut.1.weight", "shortcut.1.bias", "scale.weight", "scale.bias", "groups.weight", "groups.bias"}
HEAD = {"classifier.weight", "classifier.bias"}
REST = {"stem.weight", "stem.bias", "shortcut.0.weight", "shortcut.0.bias", "bn.weight", "bn.bias"}
EVERYTHING = STATISTICS | NORMS | HEAD | REST


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("all", EVERYTHING),
        ("norm", NORMS | STATISTICS),
        ("head", HEAD),
        ("backbone", EVERYTHING - HEAD),
        ("buffers", STATISTICS),
        ("stem.bias", {"stem.bias"}),
        ("stem", {"stem.weight", "stem.bias"}),
        ("shortcut", {"shortcut.0.weight", "shortcut.0.bias", "shortcut.1.weight", "shortcut.1.bias"} | STATISTICS),
        ("bn", {"bn.weight", "bn.bias"}),
        ("*.bias", {name for name in EVERYTHING if name.endswith(".bias")}),
        ("shortcut.?.weight", {"shortcut.0.weight", "shortcut.1.weight"}),
        ("[bg]*.weight", {"bn.weight", "groups.weight"}),
        (("head", "stem"), HEAD | {"stem.weight", "stem.bias"}),
        ((), set()),
    ],
)
def test_selectors(selector, expected):
    assert select(wrapped(Mixed()), selector) == expected


@pytest.mark.parametrize(
    ("selector", "hint"),
    [
        ("clasifier.weight", 'did you mean "classifier.weight"'),
        ("heads", 'did you mean "head"'),
        ("ste", "known: "),  # a prefix is the whole name of a part
        ("*.scale", "known: "),
        ("neck", "known: "),
    ],
)
def test_a_selector_that_names_nothing_is_rejected_with_a_suggestion(selector, hint):
    named = re.escape(selector)
    with pytest.raises(InputError, match=rf'the selector "{named}" names no entry of the model; {hint}'):
        select(wrapped(Mixed()), selector)


@pytest.mark.parametrize("selector", ["norm", "buffers"])
def test_norm_and_buffers_name_nothing_in_a_net_without_them(selector):
    with pytest.raises(InputError, match="names no entry"):
        select(wrapped(plain(dtype=torch.float32)), selector)


def test_selectors_in_a_net_of_the_library():
    network = wrapped(models.build("mlp", CLASSES, width=4))
    assert select(network, "head") == {"head.weight", "head.bias"}
    assert select(network, "backbone") == {name for name in network.names if name.startswith("backbone.")}
    with pytest.raises(InputError):
        select(network, "neck")
    network.neck = nn.Linear(4, 4)
    assert select(network, "neck") == {"neck.weight", "neck.bias"}
    assert select(network, "backbone") == {name for name in network.names if name.startswith("backbone.")}


# --- Entry classes ----------------------------------------------------------------------------------


def test_every_entry_is_in_exactly_one_class():
    module = Mixed()
    module.stem.weight.requires_grad_(False)
    network = wrapped(module)
    entries = classify(network, personal=("norm",), freeze=("bn",))
    assert set(entries.frozen) == {"stem.weight", "bn.weight", "bn.bias"}
    assert set(entries.personal) == NORMS | STATISTICS
    assert set(entries.shared) == EVERYTHING - set(entries.frozen) - set(entries.personal)
    assert entries.buffers == ()
    together = entries.shared + entries.buffers + entries.personal + entries.frozen
    assert sorted(together) == sorted(EVERYTHING)


def test_without_a_word_parameters_are_shared_and_buffers_are_buffers():
    entries = classify(wrapped(Mixed()))
    assert set(entries.shared) == EVERYTHING - STATISTICS
    assert set(entries.buffers) == STATISTICS
    assert entries.personal == entries.frozen == ()


def test_local_buffers_are_personal():
    entries = classify(wrapped(Mixed()), buffers="local")
    assert set(entries.personal) == STATISTICS
    assert entries.buffers == ()
    assert set(entries.shared) == EVERYTHING - STATISTICS


def test_frozen_goes_before_personal():
    entries = classify(wrapped(Mixed()), personal=("all",), freeze=("head",))
    assert set(entries.frozen) == HEAD
    assert set(entries.personal) == EVERYTHING - HEAD


def test_buffers_outside_the_state_are_no_entries():
    module = plain(dtype=torch.float32)
    module.register_buffer("scratch", torch.zeros(3), persistent=False)
    assert "scratch" not in wrapped(module).names


# --- Finding the classifier of a user's module ------------------------------------------------------


class Turned(nn.Module):
    """The classifier is registered first and called last."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, CLASSES)
        self.hidden = nn.Linear(WIDTH, 6)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def test_the_classifier_is_the_last_linear_called_not_registered():
    module = Turned()
    network = wrapped(module)
    assert network.head_name == "out"
    assert network.head is module.out
    assert network.feature_dim == 6
    out = network(X)
    assert torch.equal(out.z, torch.relu(module.hidden(X)))
    assert torch.equal(out.logits, module(X))
    assert out.extras == {}


def test_a_users_module_keeps_its_names_order_and_values():
    module = Turned()
    before = copy.deepcopy(module.state_dict())
    network = wrapped(module)
    assert network.names == ("out.weight", "out.bias", "hidden.weight", "hidden.bias")
    assert network.module is module
    assert all(torch.equal(value, before[name]) for name, value in network.tensors().items())
    assert not module._forward_hooks
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert module.training


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Linear(WIDTH, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, CLASSES)),
        (nn.Linear(WIDTH, 6), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=False), nn.Linear(6, CLASSES)),
        (nn.Linear(WIDTH, 6), nn.ReLU(), nn.Dropout(0.5), nn.Identity(), nn.Linear(6, CLASSES)),
        (nn.Linear(WIDTH, 6), nn.ReLU(), nn.AlphaDropout(0.5), nn.Flatten(), nn.Linear(6, CLASSES)),
    ],
)
def test_z_is_read_before_the_dropout_in_front_of_the_classifier(layers):
    module = nn.Sequential(*layers)
    network = wrapped(module)
    assert network.z_name == "2"
    out = network(X)  # in training mode
    assert torch.equal(out.z, torch.relu(F.linear(X, module[0].weight, module[0].bias)))


def test_an_earlier_dropout_is_not_in_front():
    module = nn.Sequential(nn.Linear(WIDTH, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, CLASSES))
    assert wrapped(module).z_name == "3"


def test_a_dropout_before_an_activation_in_place_is_not_in_front():
    module = nn.Sequential(nn.Linear(WIDTH, 6), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(6, CLASSES))
    network = wrapped(module)
    assert network.z_name == "3"
    assert (network(X).z >= 0).all()


def test_lazy_modules_are_materialised_by_the_first_forward():
    module = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(CLASSES))
    network = wrapped(module, torch.randn(2, 3, 8, 8))
    assert network.head_name == "3"
    assert network.feature_dim == 4 * 36
    assert {"1.running_mean", "3.weight"} <= set(network.names)
    assert module[1].num_batches_tracked.item() == 0  # the forward was in eval mode
    assert not any(nn.parameter.is_lazy(p) for p in module.parameters())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(self.a(x)) + self.out(self.a(-x))


class Attended(nn.Module):
    """The last Linear called gives something else than the classes."""

    def __init__(self):
        super().__init__()
        self.a, self.out, self.gate = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES), nn.Linear(6, 2)

    def forward(self, x):
        z = torch.relu(self.a(x))
        return self.out(z) * self.gate(z).mean(1, keepdim=True)


class PerToken(nn.Module):
    """The classifier sees (samples, tokens, features)."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, CLASSES)

    def forward(self, x):
        return self.out(x[..., None]).mean(1)


class Own(nn.Module):
    """A classifier that is no nn.Linear."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv1d(1, 6, WIDTH)
        self.cosine = Cosine(6)

    def forward(self, x):
        return self.cosine(self.body(x[:, None]).flatten(1))


class Cosine(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(CLASSES, width))

    def forward(self, z):
        return F.normalize(z) @ F.normalize(self.proxies).T


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.out(input=x)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Twice(), 'the layer "out" is called more than once in a forward; .*head='),
        (Own(), "no nn.Linear is called in the model's forward; .*head="),
        (Attended(), 'classifier "gate" gives 2 outputs, but the data have 3 classes; .*head='),
        (PerToken(), r'the input of the classifier "out" has shape \(4, 5, 1\), .*head='),
        (ByKeyword(), 'the input of the classifier "out" .*head='),
        (nn.Sequential(nn.Linear(WIDTH, 7)), 'classifier "0" gives 7 outputs, but the data have 3 classes'),
    ],
)
def test_a_classifier_that_cannot_be_told_is_asked_for(module, sentence):
    with pytest.raises(InputError, match=sentence):
        wrapped(module)


def test_naming_the_classifier_settles_it():
    assert wrapped(Attended(), head="out").feature_dim == 6
    network = wrapped(Own(), head="cosine")
    assert network.feature_dim == 6
    assert select(network, "head") == {"cosine.proxies"}
    assert network(X).z.shape == (4, 6)


@pytest.mark.parametrize(
    ("head", "sentence"),
    [("outt", 'no part called "outt"; did you mean "out"'), ("unused", '"unused" is never called .*head=')],
)
def test_a_named_classifier_must_exist_and_be_called(head, sentence):
    module = Attended()
    module.unused = nn.Linear(6, CLASSES)
    with pytest.raises(InputError, match=sentence):
        wrapped(module, head=head)


def test_a_network_of_the_library_has_its_own_classifier():
    net = models.build("mlp", CLASSES, 1)
    assert wrapped(net, head="head").head is net.head
    with pytest.raises(InputError, match=r'model.head = "backbone" .* is for your own networks'):
        wrapped(net, head="backbone")


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.out(x), x


class Shaped(Pair):
    def forward(self, x):
        return self.out(x)[:, :, None]


@pytest.mark.parametrize(("module", "what"), [(Pair(), "type tuple"), (Shaped(), r"shape \(4, 3, 1\)")])
def test_a_forward_must_give_scores(module, what):
    with pytest.raises(InputError, match=f"the model's forward gives a result of {what}; it must give scores"):
        wrapped(module)


def test_what_the_module_does_after_its_classifier_counts():
    module = nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, CLASSES), nn.LogSoftmax(1))
    network = wrapped(module)
    assert network.head_name == "2"
    assert torch.equal(network(X).logits, module(X))


def test_a_module_that_is_itself_one_linear_layer():
    module = nn.Linear(WIDTH, CLASSES)
    network = wrapped(module)
    out = network(X)
    assert torch.equal(out.z, X)
    assert torch.equal(out.logits, module(X))
    assert network.head is module
    assert select(network, "head") == {"weight", "bias"}
    with pytest.raises(InputError, match="names no entry"):
        select(network, "backbone")
    with pytest.raises(InputError, match="a single layer"):
        network.head = nn.Linear(WIDTH, CLASSES)


class Attention(nn.Module):
    """nn.MultiheadAttention registers a Linear, after the classifier, that its forward never calls as a module."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.classifier = nn.Linear(8, CLASSES)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        tokens = self.embed(x[..., None])
        return self.classifier(self.attention(tokens, tokens, tokens)[0].mean(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.classifier = nn.Linear(8, CLASSES)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        )

    def forward(self, x):
        return self.classifier(self.encoder(self.embed(x[..., None]))[:, 0])


@pytest.mark.parametrize("kind", [Attention, Encoder])
def test_attention_does_not_hide_the_classifier(kind):
    module = kind()
    network = wrapped(module)
    assert network.head_name == "classifier"
    assert network.feature_dim == 8
    assert torch.allclose(network(X).logits, network.head(network(X).z))
    x = [(x.float(), y) for x, y in blobs((8, 6))]
    assert fit(module, x, "feddecorr", rounds=1, lr=0.1).complete


# --- Replacing parts --------------------------------------------------------------------------------


class Extra(nn.Module):
    """A classifier that returns something named in addition to its logits."""

    def __init__(self, width, dtype=torch.float32):
        super().__init__()
        self.linear = nn.Linear(width, CLASSES, dtype=dtype)

    def forward(self, z):
        return self.linear(z), {"length": z.norm(dim=1)}


class Logged(nn.Module):
    """A user's module that still computes after its classifier."""

    def __init__(self, dropout):
        super().__init__()
        self.body = nn.Linear(WIDTH, 6)
        self.drop = nn.Dropout(0.5) if dropout else nn.Identity()
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x):
        return F.log_softmax(self.out(self.drop(torch.tanh(self.body(x)))), 1)


NETS = {
    "library": lambda: models.build("mlp", CLASSES, width=6, dropout=0.5),
    "module": lambda: Logged(dropout=False),
    "module with dropout": lambda: Logged(dropout=True),
    "sequence": lambda: plain(dtype=torch.float32),
    "sequence with dropout": lambda: nn.Sequential(
        nn.Linear(WIDTH, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, CLASSES)
    ),
    "sequence in a sequence": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh()), nn.Sequential(nn.Linear(6, CLASSES))
    ),
}


@pytest.fixture(params=list(NETS))
def network(request):
    torch.manual_seed(0)
    network = wrapped(NETS[request.param]())
    network.module.eval()
    return network


def finished(network, logits):
    """What the module makes of its classifier's logits."""
    return F.log_softmax(logits, 1) if isinstance(network.module, Logged) else logits


def test_another_head_at_the_place_of_the_first(network):
    z, names = network(X).z, network.names
    head = network.head = nn.Linear(6, CLASSES)
    assert network.head is head
    assert network.names == names
    out = network(X)
    assert torch.equal(out.z, z)
    assert torch.allclose(out.logits, finished(network, head(z)))
    assert torch.equal(network.module(X), out.logits)


def test_a_head_may_name_what_else_it_computes(network):
    z = network(X).z
    head = network.head = Extra(6)
    out = network(X)
    assert torch.allclose(out.logits, finished(network, head.linear(z)))
    assert torch.equal(out.extras["length"], z.norm(dim=1))
    assert torch.equal(network.module(X), out.logits)  # outside the library the model gives scores, as ever
    assert torch.equal(network.at(network.tensors(), X).extras["length"], z.norm(dim=1))
    assert select(network, "head") == {name for name in network.names if ".linear." in name}


def test_a_neck_stands_in_front_of_the_head(network):
    body, names = network(X).z, network.names
    assert isinstance(network.neck, nn.Identity)
    neck = network.neck = nn.Linear(6, 6)
    out = network(X)
    assert network.neck is neck
    assert torch.allclose(out.z, neck(body))
    assert torch.allclose(out.logits, finished(network, F.linear(out.z, network.head.weight, network.head.bias)))
    assert set(names) < set(network.names)  # nothing is renamed
    added = set(network.names) - set(names)
    assert {name.rsplit(".", 1)[1] for name in added} == {"weight", "bias"}
    assert select(network, "neck") == added
    assert select(network, "head") & added == set()
    assert select(network, "backbone") & added == set()
    assert select(network, "all") == select(network, "backbone") | select(network, "head") | added
    assert torch.equal(network.module(X), out.logits)


def test_a_second_neck_replaces_the_first(network):
    body = network(X).z
    network.neck = nn.Linear(6, 6)
    network.neck = nn.Sequential(network.neck, nn.Tanh())
    assert torch.allclose(network(X).z, network.neck(body))
    assert len(select(network, "neck")) == 2


def test_neck_and_head_in_either_order(network):
    body = network(X).z
    network.neck = nn.Linear(6, 4)
    head = network.head = nn.Linear(4, CLASSES)
    network.head = head  # once more changes nothing
    z = network.neck(body)
    out = network(X)
    assert torch.allclose(out.z, z)
    assert torch.allclose(out.logits, finished(network, F.linear(z, head.weight, head.bias)))
    assert len(select(network, "head")) == len(select(network, "neck")) == 2


def test_the_bare_head_has_no_neck(network):
    network.neck = nn.Linear(6, 6)
    bare, z = network.bare_head(), torch.randn(3, 6)
    assert torch.allclose(bare(z), F.linear(z, network.head.weight, network.head.bias))
    assert {name for name, _ in bare.named_parameters()} == {"weight", "bias"}
    assert bare.weight is not network.head.weight


def test_copies_have_their_own_neck(network):
    network.neck = nn.Linear(6, 6)
    before = network(X)
    module, whole = copy.deepcopy(network.module), copy.deepcopy(network)
    assert torch.equal(module(X), before.logits)
    with torch.no_grad():
        for parameter in network.neck.parameters():
            parameter.zero_()
    assert torch.equal(module(X), before.logits)
    assert torch.equal(whole(X).z, before.z)
    assert not network(X).z.any()
    names = dict(module.named_parameters())
    with torch.no_grad():
        names[f"{network.neck_name}.weight"].zero_()
        names[f"{network.neck_name}.bias"].zero_()
    assert torch.equal(module(X), network.module(X))


def test_a_module_with_a_neck_can_be_pickled(network):
    network.neck = nn.Linear(6, 6)
    assert torch.equal(pickle.loads(pickle.dumps(network.module))(X), network.module(X))


def test_a_users_layer_that_is_called_neck_is_kept():
    module = Logged(dropout=False)
    module.neck = nn.Linear(6, 2)
    network = wrapped(module)
    own = module.neck
    assert {"neck.weight", "neck.bias"} <= select(network, "backbone")
    assert select(network, "neck") == {"neck.weight", "neck.bias"}  # a part's name like any other
    z = network(X).z
    network.neck = nn.Linear(6, 6)
    assert module.neck is own
    assert torch.allclose(network(X).z, network.neck(z))
    assert {"neck.weight", "neck.bias"} <= select(network, "backbone")


def test_forwards_with_other_tensors_do_not_change_the_module(network):
    network.neck = nn.Linear(6, 6)
    before = network(X)
    doubled = {name: value * 2 if value.is_floating_point() else value for name, value in network.tensors().items()}
    there = network.at(doubled, X)
    assert not torch.equal(there.logits, before.logits)
    assert torch.equal(network(X).logits, before.logits)
    network.load(doubled)
    assert torch.equal(network(X).logits, there.logits)
    assert torch.equal(network(X).z, there.z)


# --- Tied parameters, modes, dtype ------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)
        self.second = nn.Linear(CLASSES, CLASSES, bias=False)
        self.out = nn.Linear(CLASSES, CLASSES, bias=False)
        self.out.weight = self.second.weight

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.body(x)))))


def test_a_tied_parameter_is_one_entry_and_stays_tied():
    module = Tied()
    network = wrapped(module)
    assert network.names == ("body.weight", "body.bias", "second.weight")
    new = {name: torch.randn_like(value) for name, value in network.tensors().items()}
    there = network.at(new, X).logits
    network.load(new)
    assert torch.equal(module(X), there)
    x = [(x.float(), y) for x, y in blobs((8, 6))]
    run = fit(module, x, "fedavg", rounds=2, lr=0.1)
    model = run.model()
    assert model.out.weight is model.second.weight
    assert not torch.equal(model.second.weight, module.second.weight)
    assert run.metrics[0]["elements_up"] == 2 * (WIDTH * CLASSES + CLASSES + CLASSES * CLASSES)


def test_training_a_tied_parameter_equals_torch():
    module = Tied().double()
    (x, y) = blobs((10,))[0]
    run = fit(module, [(x, y)], "fedavg", rounds=1, epochs=5, lr=0.2, momentum=0.9)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    for name, value in run.model().state_dict().items():
        torch.testing.assert_close(value, module.state_dict()[name], rtol=1e-12, atol=1e-12)


def test_modes_are_given_back():
    module = normed(dtype=torch.float32)
    module[1].eval()
    network = wrapped(module)
    with network.mode(train=True, stats="freeze"):
        assert module[0].training
        assert not module[1].training
    with network.mode(train=True):
        assert module[1].training
        with network.mode(train=False):
            assert not module[0].training
        assert module[1].training
    assert module[0].training
    assert not module[1].training


def test_the_users_module_is_never_changed():
    module = normed()
    before = copy.deepcopy(module.state_dict())

    class Neck(Method):
        def model(self, net):
            net.neck = nn.Linear(6, 4)
            return net

    fit(module, blobs(), Neck(), rounds=2, lr=0.1)
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_trains_in_its_own_dtype(dtype):
    run = fit(plain(dtype=dtype), [(x.float(), y) for x, y in blobs()], "fedavg", rounds=1)
    assert {value.dtype for value in run.model().state_dict().values()} == {dtype}


def test_the_same_seed_builds_the_same_network_and_method_parts():
    class Neck(Method):
        def model(self, net):
            net.neck = nn.Linear(net.feature_dim, 3)
            return net

    def build(seed):
        return put_together(models.build("mlp", CLASSES, width=4), blobs(dtype=torch.float32), Neck(), {"seed": seed})

    torch.manual_seed(1)
    one = build(0)
    torch.manual_seed(1)
    torch.rand(3)
    two = build(0)
    assert one.network.feature_dim == one.network.module.feature_dim == 3
    # the neck, the head that its width needs, and the lazy layer, which the first forward fills
    for name in ("neck.weight", "head.weight", "backbone.1.weight"):
        assert torch.equal(one.server.model[name], two.server.model[name]), name
    assert not torch.equal(build(1).server.model["neck.weight"], one.server.model["neck.weight"])


def test_weights_under_a_name_that_the_model_lacks_are_rejected_in_a_sentence():
    network = Network.of(plain(), torch.zeros(2, WIDTH, dtype=torch.float64), CLASSES)
    with pytest.raises(InputError, match=r'no entry "other\.weight": .* earlier version of fullrank'):
        network.load({"other.weight": torch.zeros(1)})
