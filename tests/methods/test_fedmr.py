"""FedMR: its losses against loops in NumPy float64, and whole federations against a perceptron written out there."""

from __future__ import annotations

import doctest
import importlib
import itertools

import numpy as np
import pytest
import torch
from test_baselines_b import check, features, forward, linear, mean, numbers, server_state
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import fullrank
from fullrank import fit, models
from fullrank.engine.serial import Serial
from fullrank.errors import InputError
from fullrank.local.step import named_terms
from fullrank.methods import available, build
from fullrank.methods._batch import Batch
from fullrank.methods.fedmr import FedMR
from fullrank.objectives import (
    decorrelation,
    intra_class_decorrelation,
    prototype_margin,
    prototype_margin_literal,
    prototype_pull,
)
from fullrank.randomness import generator
from fullrank.testing import check as check_method
from fullrank.trees import elements
from small import CLASSES, HIDDEN, WIDTH, assert_same_bits, blobs, exchanged, normed, plain, put_together

SCALES = ("code", "paper")
EPS = 1e-8


def draw(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slope_of(loss, z):
    z = z.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(z), z)[0]


def near(value, tolerance=1e-6):
    return pytest.approx(value, rel=tolerance, abs=tolerance)


# --- The losses, class by class and sample by sample ------------------------------------------------


def intra(z, y, scale="code"):
    """Value and gradient: one class after the other, with its d×d matrix."""
    classes = [c for c in np.unique(y) if (y == c).sum() > 1]
    value, dz, d = 0.0, np.zeros_like(z), z.shape[1]
    for c in classes:
        x = z[y == c] - z[y == c].mean(0)
        n = len(x)
        free = n if scale == "paper" else n - 1
        s = 1 / np.sqrt((x**2).sum(0) / free + EPS)
        u = x * s
        if scale == "paper":
            k, share = u.T @ u / n, 1 / len(classes)
            value += share * (k**2).sum()
            du = share * 4 * u @ k / n
        else:
            k, share = u.T @ u, 1 / (d * (d - 1) * sum((y == b).sum() for b in classes))
            np.fill_diagonal(k, 0)
            value += share * (k**2).sum()
            du = share * 4 * u @ k
        dx = s * du - s**3 * (du * x).sum(0) * x / free
        dz[y == c] = dx - dx.mean(0)
    return value, dz


def away(a):
    length = np.linalg.norm(a)
    return length, a / length if length else 0 * a


def inter(z, y, g, has, reading="sample", margin=0.0, mine=None):
    """Value and gradient: every comparison by itself."""
    classes = sorted(set(y.tolist()))
    value, dz = 0.0, np.zeros_like(z)
    if reading == "literal":
        pairs = [(a, b) for a in classes for b in classes if a != b]
        for a, b in pairs:
            rows = list(zip(np.flatnonzero(y == a), np.flatnonzero(y == b), strict=False))  # as many as the smaller has
            for i, j in rows:
                (one, to_one), (two, to_two) = away(z[i] - g[a]), away(z[j] - g[b])
                if has[a] and has[b] and one > two:
                    value += (one - two) / len(rows) / len(pairs)
                    dz[i] += to_one / len(rows) / len(pairs)
                    dz[j] -= to_two / len(rows) / len(pairs)
        return value, dz
    for c in classes:
        rows = np.flatnonzero(y == c)
        others = [j for j in range(len(g)) if j != c and has[j] and (reading != "local" or mine[j])]
        for i in rows if has[c] else ():
            share = 1 / len(classes) / len(rows)
            own, to_own = away(z[i] - g[c])
            if reading == "pull":
                value, dz[i] = value + share * own, dz[i] + share * to_own
                continue
            for j in others:
                other, to_other = away(z[i] - g[j])
                h = own - other + margin
                if h > 0:
                    value += share * h / len(others)
                    dz[i] += share * (to_own - to_other) / len(others)
    return value, dz


def labels(*counts):
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


# --- Within classes ---------------------------------------------------------------------------------


def test_intra_is_the_closed_form_and_ignores_a_singleton():
    torch.manual_seed(0)
    z, y = torch.randn(30, 6, dtype=torch.float64), labels(14, 10, 5, 1)
    off = ~np.eye(6, dtype=bool)
    m = [np.mean(np.corrcoef(z[y == c].numpy().T)[off] ** 2) for c in range(3)]
    closed = (13**2 * m[0] + 9**2 * m[1] + 4**2 * m[2]) / (14 + 10 + 5)
    assert closed == near(0.751836)
    assert intra_class_decorrelation(z, y, 4).item() == near(closed, 1e-7)
    assert intra_class_decorrelation(z, y, 4).item() == near(intra_class_decorrelation(z[:29], y[:29], 4).item(), 1e-12)
    assert not slope_of(lambda z: intra_class_decorrelation(z, y, 4), z)[29].any()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("counts", [(14, 10, 5, 1), (2, 2), (9,), (1, 7), (0, 3, 0, 4, 1, 1)])
@pytest.mark.parametrize("d", [1, 2, 6, 40])
def test_intra_is_its_definition_with_its_gradient(scale, counts, d):
    y = labels(*counts)
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    z = 3 * draw(len(y), d) * torch.linspace(0.1, 2, d, dtype=torch.float64) + 5
    if scale == "code" and d == 1:
        want, dz = 0.0, np.zeros((len(y), 1))
    else:
        want, dz = intra(z.numpy(), y.numpy(), scale)
    for named in (6, 1000):  # few and many, which are summed in different ways
        assert intra_class_decorrelation(z, y, named, scale).item() == near(want, 1e-10)
        got = slope_of(lambda z, named=named: intra_class_decorrelation(z, y, named, scale), z)
        np.testing.assert_allclose(got.numpy(), dz, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("scale", SCALES)
def test_intra_of_singletons_is_zero_with_a_zero_gradient(scale):
    for n in (1, 4):
        z = draw(n, 3).requires_grad_()
        loss = intra_class_decorrelation(z, torch.arange(n), n, scale)
        assert loss.shape == ()
        assert loss.item() == 0
        assert loss.requires_grad
        assert torch.equal(torch.autograd.grad(loss, z)[0], torch.zeros(n, 3, dtype=torch.float64))


def test_intra_of_one_class_is_feddecorrs_loss():
    for shape in ((7, 12), (12, 7)):
        z, y = draw(*shape) * 4 + 1, torch.full(shape[:1], 2)
        assert intra_class_decorrelation(z, y, 3).item() == near(decorrelation(z, "code").item(), 1e-10)
        torch.testing.assert_close(
            slope_of(lambda z, y=y: intra_class_decorrelation(z, y, 3), z),
            slope_of(lambda z: decorrelation(z, "code"), z),
        )
        d = shape[1]
        paper = intra_class_decorrelation(z, y, 3, "paper").item()
        assert paper == near(d**2 * decorrelation(z, "paper").item(), 1e-10)


def test_intra_of_uncorrelated_features():
    """A Hadamard design in each class: no correlation at all, and the paper's sum is the diagonal, d."""
    h = torch.tensor([[1.0, 1], [1, -1]], dtype=torch.float64)
    design = torch.kron(torch.kron(h, h), h)[:, 1:6]  # 8 samples, 5 features, each of mean 0
    z, y = torch.cat([design, 7 * design + 3, -design]), labels(8, 8, 8)
    assert intra_class_decorrelation(z, y, 3).item() == near(0, 1e-12)
    assert intra_class_decorrelation(z, y, 3, "paper").item() == near(5, 1e-7)
    mixed = torch.cat([design + 9, design])
    assert decorrelation(mixed).item() > 1  # seen as one class they correlate


@pytest.mark.parametrize("biased", [True, False])
def test_lemma_1_needs_one_normaliser(biased):
    """Σ(λ−λ̄)² = ‖M‖² − (tr M)²/d always; that is ‖M‖² − d only where both normalisers are the same."""
    z, d = draw(12, 5).numpy(), 5
    x = (z - z.mean(0)) / z.std(0)
    m = x.T @ x / (12 if biased else 11)
    spread = d * np.linalg.eigvalsh(m).var()
    assert (m**2).sum() - spread == near(np.trace(m) ** 2 / d, 1e-10)
    assert spread == near((m**2).sum() - d * (1 if biased else 12 / 11) ** 2, 1e-10)
    if biased:
        loss = intra_class_decorrelation(torch.tensor(z), labels(12), 1, "paper").item()
        assert loss - spread == near(d, 1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_intra_knows_no_names_and_no_order(scale):
    z, y = draw(15, 4), labels(6, 5, 3, 1)
    want = intra_class_decorrelation(z, y, 4, scale).item()
    assert intra_class_decorrelation(z, torch.tensor([3, 0, 9, 1])[y], 10, scale).item() == near(want, 1e-12)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(3))
    assert intra_class_decorrelation(z[order], y[order], 4, scale).item() == near(want, 1e-12)
    g = slope_of(lambda z: intra_class_decorrelation(z, y, 4, scale), z)
    moved = slope_of(lambda z: intra_class_decorrelation(z, y[order], 4, scale), z[order])
    torch.testing.assert_close(moved, g[order])


@pytest.mark.parametrize(
    ("n", "d", "kappa"), [(64, 512, 4353.8), (43, 512, 6685), (26, 512, 11772), (128, 640, 3296.8)]
)
def test_kappa_as_printed(n, d, kappa):
    assert n**3 * d * (d - 1) / (n - 1) ** 4 == pytest.approx(kappa, rel=1e-4)


@pytest.mark.parametrize(("n", "d"), [(5, 8), (12, 6)])
def test_gradients_of_the_scales_are_parallel(n, d):
    """With equal counts L_paper = κ·L_code + a constant; one normaliser leaves ((N−1)/N)² of the printed κ.

    Code: (N−1)²·m/N with m the mean of r² off the diagonal. Eq. 3 off the diagonal: d(d−1)·m with one normaliser,
    (N/(N−1))² of that with a biased σ under 1/(N−1).
    """
    z, y = draw(3 * n, d), labels(n, n, n)
    printed = n**3 * d * (d - 1) / (n - 1) ** 4
    ours = d * (d - 1) * n / (n - 1) ** 2
    assert ours == pytest.approx(printed * ((n - 1) / n) ** 2, rel=1e-12)
    code, paper = (slope_of(lambda z, s=s: intra_class_decorrelation(z, y, 3, s), z) for s in SCALES)
    torch.testing.assert_close(paper, ours * code, rtol=1e-5, atol=1e-6)

    def as_printed(z):
        found = []
        for c in range(3):
            x = z[y == c] - z[y == c].mean(0)
            x = x / x.square().mean(0).sqrt()
            found.append((x.mT @ x / (n - 1)).square().sum())
        return sum(found) / 3

    torch.testing.assert_close(slope_of(as_printed, z), printed * code, rtol=1e-5, atol=1e-6)
    values = [intra_class_decorrelation(z, y, 3, s).item() for s in SCALES]
    assert values[1] == pytest.approx(ours * values[0] + d, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", SCALES)
def test_intra_of_features_that_are_constant_in_a_class(scale, dtype):
    """They correlate with nothing there, however large and whatever their rounding; nothing becomes infinite."""
    z, y = draw(20, 6).to(dtype), labels(9, 8, 3)
    z[:9, [0, 2]] = 12345.678
    z[9:17, 1] = 0.1
    z[17:] = 0.0
    dead = torch.zeros(20, 6, dtype=torch.bool)
    dead[:9, [0, 2]], dead[9:17, 1], dead[17:] = True, True, True
    clean = z.double().masked_fill(dead, 0)
    want, _ = intra(clean.numpy(), y.numpy(), scale)
    assert intra_class_decorrelation(z, y, 3, scale).item() == pytest.approx(want, rel=1e-5)
    g = slope_of(lambda z: intra_class_decorrelation(z, y, 3, scale), z)
    assert g.isfinite().all()
    assert not g[dead].any()
    assert g[:9, 1].any()


def test_losses_in_half_precision_are_computed_in_float32():
    z, y, g, has = draw(20, 8).bfloat16(), labels(8, 7, 5), draw(3, 8, 1).bfloat16(), torch.ones(3, dtype=torch.bool)
    for loss in (
        lambda z: intra_class_decorrelation(z, y, 3),
        lambda z: intra_class_decorrelation(z, y, 3, "paper"),
        lambda z: prototype_margin(z, y, g, has),
        lambda z: prototype_pull(z, y, g, has),
        lambda z: prototype_margin_literal(z, y, g, has),
    ):
        assert loss(z).dtype == torch.float32
        want = loss(z.double()).item()
        assert loss(z).item() == pytest.approx(want, rel=1e-5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert loss(z.float()).item() == pytest.approx(want, rel=1e-5)
        assert slope_of(loss, z).dtype == torch.bfloat16


# --- Between classes --------------------------------------------------------------------------------

CORNERS = torch.tensor([[0.0, 0], [4, 0], [0, 3]], dtype=torch.float64)
POINTS = torch.tensor([[1.0, 0], [3, 0], [0, 2]], dtype=torch.float64)
OF = torch.tensor([0, 0, 1])
ALL = torch.ones(3, dtype=torch.bool)


def test_margin_worked_by_hand():
    one = [prototype_margin(POINTS[i : i + 1], OF[i : i + 1], CORNERS, ALL).item() for i in range(3)]
    assert one == [0, 1, near((2.472136 + 3.472136) / 2)]
    assert prototype_margin(POINTS, OF, CORNERS, ALL).item() == near(1.736068)
    # with a margin of 1: (1,0): h = 1−3+1 and 1−√10+1, none; (3,0): 3, 0 (3−√18+1); (0,2): both more by 1
    want = ((0 + 1.5) / 2 + 3.972136) / 2
    assert prototype_margin(POINTS, OF, CORNERS, ALL, 1.0).item() == near(want)


def test_pull_worked_by_hand():
    assert prototype_pull(POINTS, OF, CORNERS, ALL).item() == near(3.236068)
    assert prototype_pull(POINTS, OF, CORNERS, torch.tensor([True, False, True])).item() == near(2 / 2)


def test_literal_worked_by_hand():
    """Own distances 1, 3 of class 0 and √20 of class 1: one pair, max(1 − √20, 0) and max(√20 − 1, 0)."""
    assert prototype_margin_literal(POINTS, OF, CORNERS, ALL).item() == near((0 + 3.472136) / 2)
    order = [1, 0, 2]  # now the first of class 0 is the other sample
    assert prototype_margin_literal(POINTS[order], OF[order], CORNERS, ALL).item() == near(1.472136 / 2)
    assert prototype_margin_literal(POINTS[:2], OF[:2], CORNERS, ALL).item() == 0


def test_onehot_worked_by_hand():
    z = torch.tensor([[0.5, 0.5, 0, 0], [0, 2, 0, 1]], dtype=torch.float64)
    g, y = torch.eye(3, 4, dtype=torch.float64), torch.tensor([0, 2])
    assert prototype_margin(z[:1], y[:1], g, ALL).item() == 0
    assert prototype_margin(z[1:], y[1:], g, ALL).item() == near(0.517638)
    assert prototype_margin(z, y, g, ALL).item() == near(0.258819)


def mapped_loss(reading, margin=0.0):
    return {
        "sample": lambda z, y, g, has: prototype_margin(z, y, g, has, margin),
        "pull": prototype_pull,
        "literal": prototype_margin_literal,
    }[reading]


@pytest.mark.parametrize("reading", ["sample", "pull", "literal"])
@pytest.mark.parametrize("counts", [(5, 3, 2, 1), (4,), (0, 3, 0, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("missing", [(), (1,), (0, 3), (0, 1, 2, 3)])
def test_inter_is_its_definition_with_its_gradient(reading, counts, missing):
    y = labels(*counts)
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(4))]
    z, g, has = draw(len(y), 3), draw(4, 3, seed=1), torch.tensor([c not in missing for c in range(4)])
    loss = mapped_loss(reading)
    want, dz = inter(z.numpy(), y.numpy(), g.numpy(), has.numpy(), reading)
    assert loss(z, y, g, has).item() == near(want, 1e-12)
    np.testing.assert_allclose(slope_of(lambda z: loss(z, y, g, has), z).numpy(), dz, rtol=1e-10, atol=1e-14)
    if reading == "sample":
        want, dz = inter(z.numpy(), y.numpy(), g.numpy(), has.numpy(), margin=0.7)
        assert prototype_margin(z, y, g, has, 0.7).item() == near(want, 1e-12)
    wild = torch.where(has[:, None], g, 1e6)  # what stands in place of a missing prototype does not matter
    torch.testing.assert_close(loss(z, y, wild, has), loss(z, y, g, has), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reading", ["sample", "pull", "literal"])
def test_prototypes_are_constants(reading):
    z, g = draw(6, 3).requires_grad_(), draw(3, 3, seed=1).requires_grad_()
    loss = mapped_loss(reading)(z, labels(3, 2, 1), g, ALL)
    loss.backward()
    assert z.grad.any()
    assert g.grad is None


def test_margin_is_zero_where_every_sample_is_nearest_to_its_own():
    g, y = draw(4, 3) * 3, labels(5, 5, 5, 5)
    z = g[y] + 0.1 * draw(20, 3, seed=2)
    has = torch.ones(4, dtype=torch.bool)
    assert prototype_margin(z, y, g, has).item() == 0
    assert not slope_of(lambda z: prototype_margin(z, y, g, has), z).any()
    z[7] = g[0] + 0.01
    assert prototype_margin(z, y, g, has).item() > 0
    assert slope_of(lambda z: prototype_margin(z, y, g, has), z).any(1).nonzero().flatten().tolist() == [7]


def test_a_tie_and_a_sample_on_its_prototype_have_no_gradient():
    """As near to its own as to another is near enough; the norm at 0 has a finite slope."""
    z = torch.tensor([[2.0, 0], [0, 0]], dtype=torch.float64)
    y = torch.tensor([0, 0])
    assert prototype_margin(z, y, CORNERS[:2], ALL[:2]).item() == 0
    assert not slope_of(lambda z: prototype_margin(z, y, CORNERS[:2], ALL[:2]), z).any()
    for reading in ("sample", "pull", "literal"):
        got = slope_of(lambda z, r=reading: mapped_loss(r)(z, torch.tensor([0, 1]), CORNERS, ALL), z)
        assert got.isfinite().all()
    pulled = slope_of(lambda z: prototype_pull(z, y, CORNERS, ALL), z)
    assert pulled.tolist() == [[0.5, 0], [0, 0]]


@pytest.mark.parametrize("reading", ["sample", "pull", "literal"])
def test_inter_depends_on_distances_only(reading):
    z, y, g, has = draw(9, 4), labels(4, 3, 2), draw(3, 4, seed=1), ALL
    loss = mapped_loss(reading)
    want = loss(z, y, g, has).item()
    turn, shift = torch.linalg.qr(draw(4, 4, seed=5))[0], draw(1, 4, seed=6)
    assert loss(z @ turn + shift, y, g @ turn + shift, has).item() == near(want, 1e-12)
    assert loss(3.5 * z, y, 3.5 * g, has).item() == near(3.5 * want, 1e-12)
    relabel = torch.tensor([2, 0, 1])
    assert loss(z, relabel[y], g[relabel.argsort()], has).item() == near(want, 1e-12)
    if reading != "literal":
        order = torch.randperm(9, generator=torch.Generator().manual_seed(7))
        assert loss(z[order], y[order], g, has).item() == near(want, 1e-12)


def test_small_distances_keep_their_digits_in_float32():
    g = torch.full((2, 512), 100.0)
    g[1, 0] += 1e-2
    z = g[:1].clone()
    z[0, 0] += 8e-3  # 0.008 from its own, 0.002 from the other
    assert prototype_margin(z, torch.tensor([0]), g, ALL[:2]).item() == pytest.approx(6e-3, rel=1e-2)


LOSSES = {
    "intra": lambda z, y, g, has: intra_class_decorrelation(z, y, 4),
    "intra paper": lambda z, y, g, has: intra_class_decorrelation(z, y, 4, "paper"),
    "sample": lambda z, y, g, has: prototype_margin(z, y, g, has),
    "margin": lambda z, y, g, has: prototype_margin(z, y, g, has, 0.3),
    "pull": prototype_pull,
    "literal": prototype_margin_literal,
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("d", [3, 9])
def test_objectives_differentiate_map_and_trace(loss, d):
    z = torch.stack([draw(8, d, seed) for seed in range(3)])
    y = torch.stack([labels(4, 3, 1, 0), labels(2, 2, 2, 2), labels(0, 8)])
    g = torch.stack([draw(4, d, seed + 10) for seed in range(3)])
    has = torch.tensor([[True] * 4, [True, False, True, True], [False] * 4])
    for k in range(3):
        assert torch.autograd.gradcheck(lambda z, k=k: loss(z, y[k], g[k], has[k]), z[k].clone().requires_grad_())
    mapped = torch.func.vmap(torch.func.grad(loss))
    got = mapped(z, y, g, has)
    for k in range(3):
        torch.testing.assert_close(got[k], slope_of(lambda z, k=k: loss(z, y[k], g[k], has[k]), z[k]))
    traced = make_fx(mapped)(z, y, g, has)
    torch.testing.assert_close(traced(*(t.flip(0) for t in (z, y, g, has))), got.flip(0))


@pytest.mark.parametrize("scale", SCALES)
def test_the_intra_class_gradient_differentiates_again(scale):
    z, y = draw(8, 3), labels(4, 3, 1)
    assert torch.autograd.gradgradcheck(lambda z: intra_class_decorrelation(z, y, 3, scale), z.clone().requires_grad_())


def test_a_negative_margin_forgives_as_much():
    one, g = torch.zeros(1, 1), torch.tensor([[0.0], [10.0]])
    assert prototype_margin(one, torch.tensor([0]), g, ALL[:2], -0.5).item() == 0
    assert prototype_margin(one + 7, torch.tensor([0]), g, ALL[:2], -0.5).item() == near(7 - 3 - 0.5)


def test_unusable_arguments_are_rejected_in_one_sentence():
    z, y = draw(4, 3), labels(2, 2)
    with pytest.raises(InputError, match='no scale "papr"; did you mean "paper"'):
        intra_class_decorrelation(z, y, 2, "papr")
    with pytest.raises(InputError, match=r"labels \(samples,\), not \(4, 3\) and \(3,\)"):
        intra_class_decorrelation(z, y[:3], 2)
    for loss in (prototype_margin, prototype_pull, prototype_margin_literal):
        with pytest.raises(InputError, match=r"not \(4, 3\), \(4,\) and \(2, 2\)"):
            loss(z, y, torch.zeros(2, 2), ALL[:2])
        with pytest.raises(InputError, match=r"boolean tensor of 2 classes, not \(3,\) of torch.bool"):
            loss(z, y, torch.zeros(2, 3), ALL)
        with pytest.raises(InputError, match=r"not \(2,\) of torch.float32"):
            loss(z, y, torch.zeros(2, 3), torch.ones(2))


@pytest.mark.parametrize("module", ["intraclass", "margin"])
def test_docstring_examples(module):
    result = doctest.testmod(importlib.import_module(f"fullrank.objectives.{module}"))
    assert result.attempted
    assert not result.failed


# --- The method's term ------------------------------------------------------------------------------


def term(method, z, y, counts, g=None, has=None):
    z = torch.as_tensor(z).clone().requires_grad_()
    sent = {} if g is None else {"prototypes": torch.as_tensor(g), "available": torch.as_tensor(has)}
    b = Batch({}, z=z, y=torch.as_tensor(y), counts=torch.as_tensor(counts), sent=sent, base=z.sum())
    value = named_terms("fedmr", method.loss(b))["fedmr"]
    return value.item(), torch.autograd.grad(value, z)[0].numpy()


COUNTS = torch.tensor([9.0, 4, 0, 7, 0])
HAS = np.array([True, True, True, False, True])


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (FedMR(mu1=0.3, mu2=0.7), {}),
        (FedMR(mu1=0.3, mu2=0.7, scale="paper", margin=0.5), {"margin": 0.5}),
        (FedMR(mu1=0.3, mu2=0.7, reading="local", margin=0.2), {"reading": "local", "margin": 0.2}),
        (FedMR(mu1=0.3, mu2=0.7, reading="literal"), {"reading": "literal"}),
        (FedMR(mu1=0.3, mu2=0.7, reading="pull"), {"reading": "pull"}),
        (FedMR(mu1=0.3, mu2=0.7, lite=5), {}),
        (FedMR(mu1=0.3, mu2=0.7, lite=5, reading="literal"), {"reading": "literal"}),
    ],
)
def test_the_term_of_every_reading(method, kind):
    """L_intra over the whole batch, L_inter over its first `lite` samples, other classes as the reading says."""
    z, g = draw(11, 6, 3).numpy(), draw(5, 6, 4).numpy()
    y = np.array([0, 3, 1, 0, 1, 3, 0, 1, 0, 3, 3])
    few = slice(0, method.lite or None)
    one, dz = intra(z, y, method.scale)
    two, dfew = inter(z[few], y[few], g, HAS, mine=COUNTS.numpy() > 0, **kind)
    want = 0.3 * dz
    want[few] += 0.7 * dfew
    value, got = term(method, z, y, COUNTS, g, HAS)
    assert value == near(0.3 * one + 0.7 * two, 1e-10)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-11)


def test_the_local_variant_takes_the_clients_classes_not_those_of_the_batch():
    z, g, y = draw(4, 6, 3), draw(5, 6, 4), torch.tensor([0, 0, 1, 1])
    has = torch.ones(5, dtype=torch.bool)
    local = FedMR(mu1=0.0, mu2=1.0, reading="local")
    want, _ = inter(z.numpy(), y.numpy(), g.numpy(), has.numpy(), "local", mine=COUNTS.numpy() > 0)
    assert term(local, z, y, COUNTS, g, has)[0] == near(want, 1e-12)
    everybody = term(FedMR(mu1=0.0, mu2=1.0), z, y, COUNTS, g, has)[0]
    assert term(local, z, y, torch.ones(5), g, has)[0] == everybody
    assert abs(everybody - want) > 1e-3


@pytest.mark.parametrize("reading", ["sample", "literal", "local", "pull"])
def test_lite_takes_the_first_of_the_batch(reading):
    z, g, y = draw(11, 6, 3), draw(5, 6, 4), torch.tensor([0, 3, 1, 0, 1, 3, 0, 1, 0, 3, 3])
    whole = term(FedMR(mu2=0.7, reading=reading), z, y, COUNTS, g, HAS)
    for q in (11, 12, 1000):
        value, got = term(FedMR(mu2=0.7, reading=reading, lite=q), z, y, COUNTS, g, HAS)
        assert value == whole[0]
        assert np.array_equal(got, whole[1])
    few = term(FedMR(mu1=0.0, mu2=0.7, reading=reading, lite=6), z, y, COUNTS, g, HAS)
    assert few[0] == near(term(FedMR(mu1=0.0, mu2=0.7, reading=reading), z[:6], y[:6], COUNTS, g, HAS)[0], 1e-12)
    assert not few[1][6:].any()


def test_the_onehot_term_needs_nothing_sent():
    method = FedMR(mu1=0.0, mu2=1.0, prototypes="onehot")
    value, _ = term(method, torch.tensor([[0.5, 0.5, 0, 0], [0, 2, 0, 1.0]]), torch.tensor([0, 2]), torch.ones(3))
    assert value == near(0.258819)
    # a class that the client lacks has its unit vector too
    lacks = term(method, torch.tensor([[0, 2, 0, 1.0]]), torch.tensor([2]), torch.tensor([0.0, 0, 5]))[0]
    assert lacks == near(0.517638)
    pull = term(FedMR(mu1=0.0, mu2=1.0, prototypes="onehot", reading="pull"), torch.eye(3), labels(1, 1, 1), ALL)
    assert pull[0] == 0


# --- Whole rounds -----------------------------------------------------------------------------------

NAMED = 5  # classes of which nobody has the fourth
TRAIN = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "epochs": 2, "batch_size": 1000}


def network(dtype=torch.float64, norm=True):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        between = [nn.BatchNorm1d(HIDDEN), nn.ReLU()] if norm else [nn.Tanh()]
        return nn.Sequential(nn.Linear(WIDTH, HIDDEN), *between, nn.Linear(HIDDEN, NAMED)).to(dtype)


def unequal(dtype=torch.float64):
    """Of unequal sizes, each without some classes; the fourth is nobody's, the second client has one class."""
    has = ((0, 1), (2,), (1, 4, 2), (0, 4))
    rng = np.random.default_rng(2)
    centres = 1.5 * rng.normal(size=(NAMED, WIDTH))
    clients = []
    for size, classes in zip((13, 8, 10, 6), has, strict=True):
        y = rng.choice(classes, size)
        y[: len(classes)] = classes
        x = centres[y] + rng.normal(size=(size, WIDTH))
        clients.append((torch.tensor(x, dtype=dtype), torch.tensor(y)))
    return clients


def descend(state, client, orders, objective):
    """Full-batch steps with momentum and weight decay, samples in the given orders."""
    x, y = (part.numpy() for part in client)
    velocity = {}
    for order in orders:
        z, back, moved = forward(state, x[order])
        head, dz = objective(state, z, y[order])
        for name, g in {**head, **back(dz)}.items():
            velocity[name] = TRAIN["momentum"] * velocity.get(name, 0.0) + g + TRAIN["weight_decay"] * state[name]
            state = {**state, name: state[name] - TRAIN["lr"] * velocity[name]}
        state |= moved
    return state


def orders_of(seed, round, k, n):
    """How the library orders samples: what `lite` and `literal` see."""
    rng = generator(seed, "batches", round, k, "fit-0")
    return [rng.permutation(n) for _ in range(TRAIN["epochs"])]


class ByHand:
    """FedMR as the specification has it."""

    def __init__(self, module, clients, method, seed, submit=lambda k: True):
        self.state, self.clients, self.method, self.seed = numbers(module.state_dict()), clients, method, seed
        self.submit = submit
        self.g, self.has = np.zeros((NAMED, HIDDEN)), np.zeros(NAMED, dtype=bool)
        if method.prototypes == "onehot":
            self.g, self.has = np.eye(NAMED, HIDDEN), np.ones(NAMED, dtype=bool)

    def pull(self, k):
        m, mine = self.method, np.bincount(self.clients[k][1].numpy(), minlength=NAMED) > 0

        def pull(z, y):
            dz = m.mu1 * intra(z, y, m.scale)[1]
            few = slice(0, m.lite or None)
            dz[few] += m.mu2 * inter(z[few], y[few], self.g, self.has, m.reading, m.margin, mine)[1]
            return dz

        return pull

    def round(self, t, drawn):
        after = [
            descend(
                self.state,
                self.clients[k],
                orders_of(self.seed, t, k, len(self.clients[k][1])),
                linear(pull=self.pull(k)),
            )
            for k in drawn
        ]
        if self.method.prototypes == "means" and self.method.mu2:
            self.collect(after, drawn)
        self.state = mean(after, [len(self.clients[k][1]) for k in drawn])

    def collect(self, after, drawn):
        """Means over all samples of a class under their clients' own final models, in eval mode."""
        found = {}
        for state, k in zip(after, drawn, strict=True):
            x, y = (part.numpy() for part in self.clients[k])
            for c in range(NAMED):
                rows = features(state, x[y == c])
                if self.submit(k) and len(rows) >= max(self.method.min_count, 1):
                    found.setdefault(c, []).extend(rows)
        for c, rows in found.items():
            self.g[c], self.has[c] = np.mean(rows, axis=0), True


def stepped(method, rounds=4, seed=0, participation=2, norm=True, submit=lambda k: True):
    """The library's server and ours after the same rounds, compared after each; what was available when."""
    module, clients = network(norm=norm), unequal()
    settings = {f"train.{name}": value for name, value in TRAIN.items()}
    parts = put_together(module, clients, method, {**settings, "seed": seed, "train.participation": participation})
    server, engine, hand = parts.server, Serial(parts.site), ByHand(module, clients, method, seed, submit)
    course = []
    for t in range(rounds):
        drawn = server.sample(t)
        server.run_round(engine)
        hand.round(t, drawn)
        check(server.model, hand.state, 1e-8)
        own = server.state()["own"].get("fedmr")
        if own is not None:
            np.testing.assert_allclose(own["prototypes"].numpy(), hand.g, rtol=1e-8, atol=1e-12)
            assert own["available"].tolist() == hand.has.tolist()
            assert own["available"].dtype == torch.bool
        held = {c for k in drawn for c in clients[k][1].tolist()}
        course.append((held, hand.has.copy(), hand.g.copy()))
    return server, course


METHODS = {
    "default": FedMR(mu1=0.1, mu2=1.0),
    "margin": FedMR(mu1=0.0, mu2=1.0, margin=0.4),
    "paper": FedMR(mu1=0.002, mu2=1.0, scale="paper"),
    "intra": FedMR(mu1=0.1, mu2=0.0),
    "local": FedMR(mu1=0.1, mu2=1.0, reading="local"),
    "literal": FedMR(mu1=0.0, mu2=1.0, reading="literal"),
    "pull": FedMR(mu1=0.0, mu2=1.0, reading="pull"),
    "lite": FedMR(mu1=0.1, mu2=1.0, lite=3),
    "onehot": FedMR(mu1=0.0, mu2=1.0, prototypes="onehot"),
    "min_count": FedMR(mu1=0.1, mu2=1.0, min_count=4),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_rounds_against_numpy(method):
    """Weights, statistics, prototypes and their mask after each of four rounds of two among four clients."""
    server, _ = stepped(method)
    still = stepped(FedMR(mu1=0.0, mu2=0.0))[0]
    assert max((server.model[n] - v).abs().max() for n, v in still.model.items()) > 1e-4, "it changes nothing"
    assert ("fedmr" in server.state()["own"]) == (method.mu2 > 0 and method.prototypes == "means")


def test_rounds_against_numpy_without_norm_layers():
    stepped(FedMR(mu1=0.1, mu2=1.0), rounds=2, participation=4, norm=False)


def test_prototypes_that_nobody_sends():
    """A class of no client is never available; one that is absent in a round keeps the prototype that it had."""
    kept = late = 0
    for seed in range(3):
        _, course = stepped(FedMR(mu1=0.0, mu2=1.0), seed=seed)
        for (_, before, g), (held, after, new) in itertools.pairwise(course):
            assert not after[3]
            assert not new[3].any()
            for c in set(range(NAMED)) - held:
                assert after[c] == before[c]
                assert np.array_equal(new[c], g[c])
                kept += before[c]
            late += (after & ~before).sum()
    assert kept
    assert late


class Watching(Serial):
    """Keeps what clients send, by round."""

    def __init__(self, site):
        super().__init__(site)
        self.seen, self.sent = [], []

    def run(self, jobs):
        for job in jobs:
            result = self.site.do(job)
            self.sent.append((job.round, job.client, job.broadcast["sent"]))
            self.seen.append((job.round, job.client, result.upload))
            yield result


def watched(method, clients, rounds=3, **settings):
    parts = put_together(network(), clients, method, {f"train.{n}": v for n, v in {**TRAIN, **settings}.items()})
    engine = Watching(parts.site)
    for _ in range(rounds):
        parts.server.run_round(engine)
    return parts, engine


@pytest.mark.parametrize(
    ("share", "clients", "number"), [(0.5, 8, 4), (0.8, 8, 6), (0.8, 7, 6), (0.8, 5, 4), (0.01, 3, 1), (1.0, 3, 3)]
)
def test_a_fixed_share_of_the_clients_ever_sends_prototypes(share, clients, number):
    given = (unequal() * 2)[:clients]
    _, engine = watched(FedMR(mu2=1.0, share=share), given)
    senders = [set(), set(), set()]
    for round, k, upload in engine.seen:
        tree = upload["fedmr"]["classes"].tree
        assert tree["sums"].shape == (NAMED, HIDDEN)
        counts = torch.bincount(given[k][1], minlength=NAMED).double()
        if tree["counts"].any():
            senders[round].add(k)
            assert torch.equal(tree["counts"], counts)
        else:
            assert not tree["sums"].any()
    assert senders[0] == senders[1] == senders[2]
    assert len(senders[0]) == number
    for round, _, sent in engine.sent:
        assert sent["fedmr"]["available"].any() == (round > 0)  # all receive what there is


def test_who_sends_does_not_depend_on_who_takes_part_and_differs_by_seed():
    clients, found = (unequal() * 3)[:10], set()
    for seed in range(4):
        senders = []
        for participation in (10, 3):
            parts = put_together(
                network(), clients, FedMR(share=0.5), {"seed": seed, "train.participation": participation}
            )
            engine = Watching(parts.site)
            for _ in range(4):
                parts.server.run_round(engine)
            met = {k for _, k, _ in engine.seen}
            senders.append((met, {k for _, k, up in engine.seen if up["fedmr"]["classes"].tree["counts"].any()}))
        (_, everybody), (met, some) = senders
        assert len(everybody) == 5
        assert some == everybody & met
        found.add(frozenset(everybody))
    assert len(found) > 1


def test_a_share_is_one_of_those_who_may_take_part():
    clients = (unequal() * 3)[:10]
    run = fit(network(), clients, FedMR(share=0.5, mu2=1.0), rounds=1, set={"data.unseen": 0.4})
    site, server = run._assembly.site, run._assembly.server
    seen = [int(k) for k in run._assembly.federation.seen]
    assert len(seen) == 6
    uploads = [site.do(server.job("train", k)).upload["fedmr"]["classes"].tree for k in seen]
    assert sum(bool(tree["counts"].any()) for tree in uploads) == 3


def test_rounds_with_partial_prototypes_against_numpy():
    _, engine = watched(FedMR(share=0.5), unequal(), 1)
    senders = {k for _, k, up in engine.seen if up["fedmr"]["classes"].tree["counts"].any()}
    assert len(senders) == 2
    stepped(FedMR(mu1=0.1, mu2=1.0, share=0.5), rounds=3, participation=3, submit=senders.__contains__)


def test_classes_below_min_count_stay_at_home():
    clients = unequal()
    for limit in (0, 1, 4, 100):
        _, engine = watched(FedMR(mu2=1.0, min_count=limit), clients, 1)
        for _, k, upload in engine.seen:
            n = np.bincount(clients[k][1].numpy(), minlength=NAMED)
            tree = upload["fedmr"]["classes"].tree
            np.testing.assert_array_equal(tree["counts"].numpy(), np.where(n >= limit, n, 0))
            assert (tree["sums"].abs().sum(1) > 0).tolist() == ((n >= limit) & (n > 0)).tolist()


class Sums(nn.Module):
    """z is x itself, so that prototypes are means of the inputs whatever was trained."""

    def __init__(self, classes=2):
        super().__init__()
        self.head = nn.Linear(2, classes, dtype=torch.float64)

    def forward(self, x):
        return self.head(x)


def test_prototypes_are_weighed_by_samples():
    """Counts 30 and 10: (3a + b)/4; a class of one client is that client's, to the bit."""
    a, b, c = (torch.tensor(v, dtype=torch.float64) for v in ((1.0, 2), (5, -2), (0.1, 0.7)))
    one = torch.cat([a.expand(30, 2)]), torch.zeros(30, dtype=torch.int64)
    two = torch.cat([b.expand(10, 2), c.expand(4, 2)]), labels(10, 4)
    run = fit(Sums(), [one, two], FedMR(mu2=1.0), rounds=1)
    own = server_state(run)["fedmr"]
    assert own["prototypes"][0].tolist() == [near(2.0, 1e-14), near(1.0, 1e-14)]
    torch.testing.assert_close(own["prototypes"][1], c, rtol=1e-15, atol=0)


# --- Where it is FedAvg, and where it is another FedMR ----------------------------------------------

SHORT = {"rounds": 3, "batch_size": 4, "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}


def trained(method, module=None, clients=None, **settings):
    run = fit(module or network(torch.float32), clients or unequal(torch.float32), method, **{**SHORT, **settings})
    return run.model().state_dict()


@pytest.mark.parametrize(
    "more", [{}, {"scale": "paper"}, {"reading": "literal"}, {"prototypes": "onehot"}, {"lite": 2}]
)
def test_without_coefficients_it_is_fedavg_to_the_bit(more):
    assert FedMR.neutral == {"mu1": 0.0, "mu2": 0.0}
    base = trained("fedavg", participation=3)
    assert_same_bits(trained(FedMR(mu1=0.0, mu2=0.0, **more), participation=3), base)
    assert not torch.equal(trained(FedMR(**more), participation=3)["0.weight"], base["0.weight"])


@pytest.mark.parametrize("reading", ["sample", "literal", "local", "pull"])
def test_the_first_round_has_no_prototypes(reading):
    """A term of zeros with a margin too: to the bit what μ2 = 0 gives; then they differ."""
    more = {"reading": reading, "margin": 0.0 if reading in ("literal", "pull") else 0.5}
    with_them, without = FedMR(mu2=1.0, **more), FedMR(mu2=0.0, **more)
    assert_same_bits(trained(with_them, rounds=1), trained(without, rounds=1))
    assert not torch.equal(trained(with_them, rounds=2)["0.weight"], trained(without, rounds=2)["0.weight"])


def test_lite_of_a_whole_batch_is_the_full_loss_to_the_bit():
    assert_same_bits(trained(FedMR(mu2=1.0, lite=4)), trained(FedMR(mu2=1.0)))
    assert not torch.equal(trained(FedMR(mu2=1.0, lite=2))["0.weight"], trained(FedMR(mu2=1.0))["0.weight"])


def test_onehot_pulls_from_the_first_round_on():
    with_them, without = FedMR(mu2=1.0, prototypes="onehot"), FedMR(mu2=0.0)
    assert not torch.equal(trained(with_them, rounds=1)["0.weight"], trained(without, rounds=1)["0.weight"])


def test_metrics_name_the_term():
    run = fit(network(), unequal(), FedMR(mu1=0.0, mu2=1.0), **SHORT)
    first, second = (row["clients"][0]["epochs"][0]["fedmr"] for row in run.metrics[:2])
    assert first == 0
    assert second > 0


def test_fields_and_defaults():
    fields = {"mu1": 0.01, "mu2": 0.1, "margin": 0.0, "scale": "code", "reading": "sample"}
    fields |= {"prototypes": "means", "lite": 0, "share": 1.0, "min_count": 0}
    assert fullrank.methods.check_fields(available()["fedmr"], {}) == fields
    for bad in ({"mu1": -1.0}, {"share": 0.0}, {"share": 1.5}, {"lite": -1}, {"reading": "printed"}, {"min_count": -2}):
        with pytest.raises(InputError, match=rf"method\.fedmr\.{next(iter(bad))}"):
            build("fedmr", fedmr=bad)


# --- Statistics of norm layers ----------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("method", [FedMR(mu1=0.1, mu2=1.0), FedMR(mu2=1.0, prototypes="onehot")])
def test_statistics_after_a_round_do_not_depend_on_who_went_first(order, method):
    """Moved once by the batch of training; collecting prototypes in eval mode moves nothing."""
    given, start = blobs(), normed()
    clients = [given[k] for k in order]
    weight, bias = start[0].weight.detach().numpy(), start[0].bias.detach().numpy()
    inside = [x.numpy() @ weight.T + bias for x, _ in clients]
    shares = np.array([len(a) for a in inside]) / 28
    state = fit(start, clients, method, rounds=1, lr=0.2, batch_size=1000).model().state_dict()
    want = sum(share * 0.1 * a.mean(0) for share, a in zip(shares, inside, strict=True))
    np.testing.assert_allclose(state["1.running_mean"].numpy(), want, rtol=1e-11)
    want = 0.9 + sum(share * 0.1 * a.var(0, ddof=1) for share, a in zip(shares, inside, strict=True))
    np.testing.assert_allclose(state["1.running_var"].numpy(), want, rtol=1e-11)
    assert int(state["1.num_batches_tracked"]) == 1


# --- What crosses the channels ----------------------------------------------------------------------

P = WIDTH * HIDDEN + HIDDEN + 2 * HIDDEN + HIDDEN * CLASSES + CLASSES
B = 2 * HIDDEN + 1
CD, C = CLASSES * HIDDEN, CLASSES


@pytest.mark.parametrize(
    ("method", "extra"),
    [
        (FedMR(), CD + C),
        (FedMR(mu1=0.0), CD + C),
        (FedMR(share=0.5), CD + C),
        (FedMR(min_count=5), CD + C),
        (FedMR(mu2=0.0), 0),
        (FedMR(prototypes="onehot"), 0),
        (FedMR(mu1=0.0, mu2=0.0), 0),
    ],
)
def test_elements_exchanged_and_kept(method, extra):
    given = blobs((9, 8, 7, 6), dtype=torch.float32)
    run = fit(normed(dtype=torch.float32), given, method, rounds=3, participation=2)
    for row in run.metrics:
        assert row["elements_down"] == row["elements_up"] == 2 * (P + B + extra)
        assert row["bytes_down"] == 2 * (4 * (P + B - 1) + 8 + (4 * CD + C if extra else 0))  # a mask is a byte a class
        assert row["bytes_up"] == 2 * (4 * (P + B - 1) + 8 + 4 * extra)
    assert elements(server_state(run)) == extra
    assert all(not run._assembly.server.store.get(k) for k in range(4))


def state_elements(name, classes, channels, **options):
    with torch.device("meta"):
        net = models.build(name, classes, channels, **options)
    return sum(t.numel() for t in net.state_dict().values()), net.feature_dim


TABLE_3 = {  # model, classes, channels, options; elements of the model; with prototypes, as printed in millions
    "FMNIST": (("resnet18", 10, 1, {}), 11_182_430, 11_187_550),
    "SVHN": (("resnet18", 10, 3, {}), 11_183_582, 11_188_702),
    "CIFAR10": (("resnet18", 10, 3, {}), 11_183_582, 11_188_702),
    "CIFAR100": (("wrn-28-10", 100, 3, {}), 36_564_957, 36_628_957),
    "ISIC2019": (("efficientnet-b0", 8, 3, {"bottleneck": 640}), 4_874_581, 4_879_701),
}


@pytest.mark.parametrize("column", TABLE_3)
def test_table_3(column):
    (name, classes, channels, options), single, together = TABLE_3[column]
    if name not in models.available():
        pytest.skip(f"there is no {name}")
    count, width = state_elements(name, classes, channels, **options)
    assert count == single
    assert count + classes * width == together


def test_table_3_in_the_channel():
    """Prototypes as printed, the mask down and the counts up."""
    clients = [(torch.randn(10, 3, 8, 8), torch.arange(10))]
    parts = put_together(models.build("resnet18", 10, 3), clients, FedMR())
    assert elements(parts.server.job("train", 0).broadcast) == 11_188_702 + 10 == 11_188_712


# --- Edges ------------------------------------------------------------------------------------------


def finite(run):
    return all(torch.isfinite(v.double()).all() for v in run.model().state_dict().values())


EDGE = [
    FedMR(mu1=0.1, mu2=1.0),
    FedMR(scale="paper"),
    FedMR(mu2=1.0, reading="literal"),
    FedMR(mu2=1.0, reading="pull"),
]
EDGE += [FedMR(mu2=1.0, reading="local", margin=0.3), FedMR(mu2=1.0, prototypes="onehot"), FedMR(mu2=1.0, lite=1)]
IDS = ["default", "paper", "literal", "pull", "local", "onehot", "lite"]


@pytest.mark.parametrize("method", EDGE, ids=IDS)
def test_clients_of_one_class(method):
    x, y = blobs((24,))[0]
    clients = [(x[y == c], y[y == c]) for c in range(CLASSES)]
    run = fit(plain(), clients, method, rounds=3, batch_size=4)
    assert finite(run)
    term = [client["epochs"][0]["fedmr"] for client in run.metrics[2]["clients"]]
    if method.reading == "literal":  # nothing to compare with: what is left is the other term
        single = fit(plain(), clients, FedMR(mu2=0.0), rounds=3, batch_size=4)
        assert term == [client["epochs"][0]["fedmr"] for client in single.metrics[2]["clients"]]


@pytest.mark.parametrize("method", EDGE, ids=IDS)
@pytest.mark.parametrize("size", [1, 2])
def test_batches_of_one_or_two_samples(method, size):
    assert finite(fit(plain(), blobs(), method, rounds=2, batch_size=size))


def test_batches_of_one_have_no_intra_term():
    assert_same_bits(
        fit(plain(), blobs(), FedMR(mu1=5.0, mu2=0.0), rounds=2, batch_size=1).model().state_dict(),
        fit(plain(), blobs(), "fedavg", rounds=2, batch_size=1).model().state_dict(),
    )


@pytest.mark.parametrize("method", EDGE, ids=IDS)
def test_fewer_classes_in_the_data_than_the_model_names(method):
    clients = [(x[y != 2], y[y != 2]) for x, y in blobs((12, 11))]
    run = fit(normed(), clients, method, rounds=3, batch_size=6)
    assert finite(run)
    if method.exchanges:
        assert server_state(run)["fedmr"]["available"].tolist() == [True, True, False]
        assert not server_state(run)["fedmr"]["prototypes"][2].any()


def test_one_federation_of_one_sample_a_class():
    """Every class a singleton in every batch: the features are free, and all else still trains."""
    x, y = blobs((3,))[0]
    assert sorted(y.tolist()) == [0, 1, 2]
    run = fit(plain(), [(x, y)], FedMR(mu1=1.0, mu2=0.0), rounds=2)
    assert_same_bits(run.model().state_dict(), fit(plain(), [(x, y)], "fedavg", rounds=2).model().state_dict())


def test_onehot_prototypes_need_as_many_features_as_classes():
    with pytest.raises(
        InputError, match=r'method\.fedmr\.prototypes = "onehot" needs .*; this model has 2 for 3'
    ) as caught:
        fit(normed(hidden=2), blobs(), FedMR(prototypes="onehot"), rounds=1)
    assert "\n" not in str(caught.value)
    fit(normed(hidden=3), blobs(), FedMR(prototypes="onehot"), rounds=1)
    fit(normed(hidden=2), blobs(), FedMR(prototypes="onehot", mu2=0.0), rounds=1)


# --- Engines, compositions --------------------------------------------------------------------------

PAIRS = ["fedprox+fedmr", "fednova+fedmr", "moon+fedmr", "feddyn+fedmr", "feddc+fedmr"]
PAIRS += ["fedproc+fedprox", "fedmr+feddecorr", "fedbn+fedmr", "fedetf+fedmr"]
VARIANTS = {
    "literal": FedMR(mu2=1.0, reading="literal"),
    "local": FedMR(mu2=1.0, reading="local", margin=0.1),
    "pull": FedMR(mu2=1.0, reading="pull", scale="paper"),
    "lite": FedMR(mu2=1.0, lite=10),
    "share": FedMR(mu2=1.0, share=0.5, min_count=3),
    "onehot": FedMR(mu2=1.0, prototypes="onehot"),
    "intra": FedMR(mu2=0.0),
}


@pytest.mark.parametrize("name", PAIRS)
def test_compositions_exchange_what_their_parts_do(name):
    base, parts = exchanged("fedavg"), [exchanged(part) for part in name.split("+")]
    for way in ("down_first", "down_later", "up"):
        assert exchanged(name)[way] == base[way] + sum(part[way] - base[way] for part in parts)


@pytest.mark.parametrize("name", ["moon+fedmr", "fedetf+fedmr"])
def test_compositions_trace(name):
    assert check_method(name, only=("trace",)).results == {"trace": "holds"}


def test_variants_give_the_same_in_every_engine():
    """A group of clients trains on padded batches: the first samples and the classes of each stay its own."""
    for method in (VARIANTS["lite"], VARIANTS["literal"]):
        assert check_method(method, only=("engines",)).results == {"engines": "holds"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedmr", *PAIRS])
def test_compositions_pass_every_check(name):
    done = check_method(build(name, **({"fedetf": {"repeats": 1}} if "fedetf" in name else {})))
    assert {done.results[part] for part in ("trace", "engines", "processes", "resume", "exchange")} == {"holds"}
    if all(available()[part].neutral for part in name.split("+")):
        assert done.results["degenerate"] == "holds"


@pytest.mark.slow
@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_variants_pass_every_check(method):
    assert set(check_method(method).results.values()) == {"holds"}


@pytest.mark.parametrize("other", ["feddecorr", "fedprox", "fedproc"])
def test_composition_commutes_to_the_bit(other):
    clients, module = unequal(torch.float32), network(torch.float32)
    one, two = (trained(build(name), module, clients) for name in (f"fedmr+{other}", f"{other}+fedmr"))
    assert_same_bits(one, two)


def test_two_methods_have_prototypes_of_their_own():
    run = fit(network(), unequal(), build("fedproc+fedmr"), rounds=2)
    own = server_state(run)
    assert set(own) == {"fedproc", "fedmr"}
    torch.testing.assert_close(own["fedproc"]["prototypes"], own["fedmr"]["prototypes"])
