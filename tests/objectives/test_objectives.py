import doctest
import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fullrank.errors import InputError
from fullrank.objectives import decorrelation, proximal, singular_variance

SCALES = ("code", "paper", "algorithm")
WIDE, SQUARE, TALL = (6, 11), (7, 7), (11, 6)  # both Gram matrices, and where they meet
EXAMPLE = [[1, 1, 0], [2, 3, 1], [3, 2, -1], [4, 6, 0]]


def features(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dead_relu(n: int, d: int, seed: int = 0) -> Tensor:
    """What a backbone gives: non-negative, of very different sizes, with a common factor, some dead."""
    common = features(n, 1, seed + 1)
    z = torch.relu(features(n, d, seed) + 0.3 * common) * torch.logspace(-3, 3, d, dtype=torch.float64)
    z[:, ::7] = 0
    return z


def by_the_book(z: Tensor, scale: str) -> float:
    """The d×d matrix in float64, one line of the definition at a time."""
    x: NDArray[np.float64] = z.detach().double().numpy()
    n, d = x.shape
    x = x - x.mean(0)
    if scale == "code":
        x = x / np.sqrt(1e-8 + x.var(0, ddof=1))
        off_diagonal = (x.T @ x)[~np.eye(d, dtype=bool)]
        return float(np.mean(off_diagonal**2) / n)
    x = x / (np.sqrt(1e-8 + x.var(0)) if scale == "paper" else x.std(0, ddof=1))
    return float(np.mean((x.T @ x / n) ** 2))


def spectral(z: Tensor) -> float:
    """L_singular from an actual decomposition; NumPy's variance is over all d singular values."""
    x: NDArray[np.float64] = z.detach().double().numpy()
    return float(np.linalg.svd(np.cov(x.T, bias=True), compute_uv=False).var())


def gradient(z: Tensor, scale: str) -> Tensor:
    z = z.detach().requires_grad_()
    return torch.autograd.grad(decorrelation(z, scale), z)[0]


# --- decorrelation: known answers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "code", "paper", "algorithm"),
    [
        # r² = .7, .1, 1/28: mean (.7 + .1 + 1/28)/3 · 9/4, (3 + 2 · that sum)/9, and 9/16 of it
        (EXAMPLE, 0.626785714, 0.519047619, 0.291964286),
        ([[1, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]], 0.0, 1 / 3, 0.1875),  # Hadamard: uncorrelated
        ([[1, 5, -2], [4, 3, 0]], 0.5, 1.0, 0.25),  # two samples: every |r| = 1
    ],
)
def test_worked_by_hand(z: list[list[float]], code: float, paper: float, algorithm: float) -> None:
    for scale, expected in zip(SCALES, (code, paper, algorithm), strict=True):
        actual = decorrelation(torch.tensor(z, dtype=torch.float64), scale).item()
        assert actual == pytest.approx(expected, rel=1e-7, abs=1e-12), scale


def test_rank_one_is_the_ceiling() -> None:
    z = features(64, 1) @ torch.linspace(1, 9, 100, dtype=torch.float64)[None]
    assert decorrelation(z, "paper").item() == pytest.approx(1, rel=1e-6)
    assert decorrelation(z, "code").item() == pytest.approx(62.015625, rel=1e-6)


@pytest.mark.parametrize(("d", "code"), [(1280, 0.936657), (256, 0.745037)])
def test_floor_is_attained_by_a_tight_frame(d: int, code: float) -> None:
    # A real harmonic frame: d unit vectors in 63 dimensions whose rows are orthogonal and equally long,
    # turned into the hyperplane of centred columns by an orthonormal basis of it.
    n, angle = 64, 2 * torch.pi * torch.arange(d, dtype=torch.float64) / d
    k = torch.arange(1, 32, dtype=torch.float64)[:, None]
    rows = [(k * angle).cos() * 2**0.5, (k * angle).sin() * 2**0.5, torch.ones(1, d, dtype=torch.float64)]
    frame = torch.cat(rows) / (n - 1) ** 0.5
    plane = torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=torch.float64), features(n, n - 1)], 1))[0][:, 1:]
    z = 100 * plane @ frame
    assert decorrelation(z, "paper").item() == pytest.approx(1 / 63, rel=1e-6)
    assert decorrelation(z, "code").item() == pytest.approx(code, rel=1e-5)
    assert decorrelation(z.float(), "code").item() == pytest.approx(code, rel=1e-5)
    for seed in range(5):
        assert decorrelation(features(n, d, seed), "code").item() > code


def test_gaussian_expectation() -> None:
    z = [features(64, 1280, seed) for seed in range(4)]
    assert np.mean([decorrelation(x, "code").item() for x in z]) == pytest.approx(63 / 64, rel=2e-3)
    assert np.mean([decorrelation(x, "paper").item() for x in z]) == pytest.approx(0.016642, rel=2e-3)


def test_proposition_1() -> None:
    # Σ(λ − λ̄)² = ‖K‖_F² − d, with the left side from an eigendecomposition
    z = features(20, 6)
    eigenvalues = np.linalg.eigvalsh(np.corrcoef(z.numpy().T))
    assert 36 * decorrelation(z, "paper").item() - 6 == pytest.approx(6 * eigenvalues.var(), rel=1e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", [WIDE, SQUARE, TALL, (64, 1280), (100, 30), (3, 2), (2, 2)])
def test_equals_the_definition(shape: tuple[int, int], scale: str) -> None:
    z = features(*shape) * 3 + 5
    assert decorrelation(z, scale).item() == pytest.approx(by_the_book(z, scale), rel=1e-11)


def test_scales_are_related() -> None:
    n, d = 64, 256
    z = features(n, d)
    r = np.corrcoef(z.numpy().T)[~np.eye(d, dtype=bool)]
    assert decorrelation(z, "code").item() == pytest.approx((n - 1) ** 2 / n * np.mean(r**2), rel=1e-6)
    paper, algorithm = decorrelation(z, "paper").item(), decorrelation(z, "algorithm").item()
    assert algorithm == pytest.approx((63 / 64) ** 2 * paper, rel=1e-6)


@pytest.mark.parametrize(("d", "factor"), [(1280, 62.064), (256, 62.259)])
def test_gradients_are_parallel(d: int, factor: float) -> None:
    z = features(64, d)
    ratio = 63**2 / 64 * d / (d - 1)
    assert ratio == pytest.approx(factor, abs=1e-3)
    torch.testing.assert_close(gradient(z, "code"), ratio * gradient(z, "paper"), rtol=1e-5, atol=1e-12)


# --- decorrelation: invariances -------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(3, 12),
    d=st.integers(2, 12),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from(SCALES),
    factor=st.floats(0.5, 50),
    shift=st.floats(-50, 50),
)
def test_affine_maps_and_permutations_change_nothing(
    n: int, d: int, seed: int, scale: str, factor: float, shift: float
) -> None:
    z = features(n, d, seed)
    # eps counts for less as z grows: start where it counts for nothing
    z = 1e3 * (z - z.mean(0)) / z.std(0)
    order = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(n, generator=order), torch.randperm(d, generator=order)
    signs = 1 - 2.0 * (columns % 2)
    mapped = (z * factor * signs + shift * columns)[rows][:, columns]
    assert decorrelation(mapped, scale).item() == pytest.approx(decorrelation(z, scale).item(), rel=1e-9, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 12), d=st.integers(1, 12), seed=st.integers(0, 10**6), factor=st.floats(0.1, 10))
def test_singular_variance_is_homogeneous_of_degree_four(n: int, d: int, seed: int, factor: float) -> None:
    z = features(n, d, seed)
    assert singular_variance(factor * z + 3).item() == pytest.approx(
        factor**4 * singular_variance(z).item(), rel=1e-7, abs=1e-12
    )


# --- decorrelation: edges -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [WIDE, SQUARE, TALL])
@pytest.mark.parametrize("constant", [0.0, 0.1, 12345.678])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_constant_columns(shape: tuple[int, int], constant: float, dtype: torch.dtype) -> None:
    # `constant` need not be representable, so that its mean may be rounded
    z = features(*shape).to(dtype)
    z[:, [1, 3]] = constant
    live = [j for j in range(shape[1]) if j not in (1, 3)]
    d, e = shape[1], len(live)
    for scale, pairs in (("code", e * (e - 1) / (d * (d - 1))), ("paper", e**2 / d**2)):
        expected = pairs * by_the_book(z[:, live].double(), scale)
        assert decorrelation(z, scale).item() == pytest.approx(expected, rel=1e-5)
        g = gradient(z, scale)
        assert g.isfinite().all()
        assert not g[:, [1, 3]].any()
        assert g[:, live].any()
    assert decorrelation(z, "algorithm").isnan()


@pytest.mark.parametrize("scale", ["code", "paper"])
def test_all_columns_dead(scale: str) -> None:
    for shape in (WIDE, TALL):
        z = torch.zeros(shape)
        assert decorrelation(z, scale).item() == 0
        assert not gradient(z, scale).any()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("n", [0, 1])
def test_one_sample_is_zero_on_the_graph(scale: str, n: int) -> None:
    z = torch.tensor([[1.0, torch.inf, torch.nan]], requires_grad=True)[:n]
    loss = decorrelation(z, scale)
    assert loss.shape == ()
    assert loss.item() == 0
    assert loss.requires_grad
    assert torch.equal(torch.autograd.grad(loss, z)[0], torch.zeros(n, 3))


def test_one_column() -> None:
    z = features(5, 1)
    assert decorrelation(z, "code").item() == 0
    assert not gradient(z, "code").any()
    assert decorrelation(z, "paper").item() == pytest.approx(1, rel=1e-6)
    assert decorrelation(z, "algorithm").item() == pytest.approx(0.64, rel=1e-12)


def test_short_batch_counts_less() -> None:
    # the single division by N: rank-1 features give (N−1)²/N
    z = torch.arange(16.0)[:, None] * torch.ones(8)
    assert decorrelation(z[:4]).item() == pytest.approx(9 / 4)
    assert decorrelation(z).item() == pytest.approx(225 / 16)


def test_unusable_arguments_are_rejected() -> None:
    with pytest.raises(InputError, match='no scale "papr"; did you mean "paper"'):
        decorrelation(features(3, 3), "papr")
    with pytest.raises(InputError, match=r"not \(2, 3, 4, 4\)"):
        decorrelation(torch.zeros(2, 3, 4, 4))
    with pytest.raises(InputError, match=r"not \(3,\)"):
        singular_variance(torch.zeros(3))


# --- decorrelation: precision ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 1280), (64, 512), (64, 64), (128, 64), (65, 64)])
@pytest.mark.parametrize("scale", ["code", "paper"])
def test_float32_keeps_its_digits(shape: tuple[int, int], scale: str) -> None:
    z = dead_relu(*shape)
    assert decorrelation(z.float(), scale).item() == pytest.approx(by_the_book(z, scale), rel=2e-6)
    exact = gradient(z, scale)
    # columns differ a million-fold in size and so do their gradients: compare each at its own size
    error = (gradient(z.float(), scale) - exact).norm(dim=0) / exact.norm(dim=0).clamp(min=1e-30)
    assert error.max() < 2e-5


def test_float32_never_noticeably_negative() -> None:
    # the hardest case for the subtraction: N ≤ d, yet the few live columns are exactly uncorrelated
    n = 64
    z = torch.zeros(n, 128, dtype=torch.float64)
    z[:, :60] = torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=torch.float64), features(n, 60)], 1))[0][:, 1:]
    assert abs(decorrelation((z * 37).float()).item()) < 1e-6  # of 1 for noise, 62 for rank one


@pytest.mark.parametrize("scale", ["code", "paper"])
@pytest.mark.parametrize("shape", [(64, 1280), (128, 64)])
def test_half_precision(shape: tuple[int, int], scale: str) -> None:
    z = dead_relu(*shape).bfloat16()
    assert decorrelation(z, scale).dtype == torch.float32
    assert decorrelation(z, scale).item() == pytest.approx(by_the_book(z, scale), rel=2e-6)
    assert gradient(z, scale).dtype == torch.bfloat16
    assert gradient(z, scale).isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert decorrelation(z.float(), scale).item() == pytest.approx(by_the_book(z, scale), rel=2e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", [(4, 6), (5, 5), (6, 4)])
def test_gradcheck(shape: tuple[int, int], scale: str) -> None:
    z = features(*shape).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: decorrelation(z, scale), z)


# --- singular_variance ----------------------------------------------------------------------------


@pytest.mark.parametrize(("z", "expected"), [(EXAMPLE, 3.75), ([[2, 1], [2, -1], [-2, 1], [-2, -1]], 2.25)])
def test_singular_variance_worked_by_hand(z: list[list[float]], expected: float) -> None:
    x = torch.tensor(z, dtype=torch.float64)
    assert singular_variance(x).item() == pytest.approx(expected, rel=1e-12)
    # more columns than samples, the added ones dead: the same nonzero spectrum among d = 9 values
    wide = torch.cat([x, torch.full((4, 9 - x.shape[1]), 7.0, dtype=torch.float64)], 1)
    assert singular_variance(wide).item() == pytest.approx(spectral(wide), rel=1e-12)


@pytest.mark.parametrize("shape", [WIDE, SQUARE, TALL, (64, 200), (5, 2), (2, 5)])
def test_singular_variance_equals_the_decomposition(shape: tuple[int, int]) -> None:
    z = features(*shape) * torch.linspace(0.1, 3, shape[1], dtype=torch.float64) + 2
    assert singular_variance(z).item() == pytest.approx(spectral(z), rel=1e-10)
    assert singular_variance(z.float()).item() == pytest.approx(spectral(z), rel=1e-5)
    assert singular_variance(z.bfloat16()).item() == pytest.approx(spectral(z.bfloat16()), rel=1e-5)


@pytest.mark.parametrize("shape", [(4, 6), (5, 5), (6, 4)])
def test_singular_variance_gradcheck(shape: tuple[int, int]) -> None:
    assert torch.autograd.gradcheck(singular_variance, features(*shape).requires_grad_())


def test_singular_variance_edges() -> None:
    z = torch.tensor([[1.0, torch.inf]], requires_grad=True)
    singular_variance(z).backward()
    assert torch.equal(z.grad, torch.zeros(1, 2))
    isotropic = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])  # all products are exact, fused or not
    assert singular_variance(isotropic).item() == 0
    assert singular_variance(features(5, 1)).item() == pytest.approx(0, abs=1e-15)


# --- traced and vectorised ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        lambda z: decorrelation(z),
        lambda z: decorrelation(z, "paper"),
        lambda z: decorrelation(z, "algorithm"),
        singular_variance,
    ],
    ids=[*SCALES, "singular_variance"],
)
@pytest.mark.parametrize("shape", [WIDE, SQUARE, TALL, (1, 4)])
def test_vmap_grad_and_trace(loss, shape: tuple[int, int]) -> None:
    clients = torch.stack([features(*shape, seed=s) for s in range(3)])
    values, grads = torch.func.vmap(loss)(clients), torch.func.vmap(torch.func.grad(loss))(clients)
    for z, value, grad in zip(clients, values, grads, strict=True):
        z = z.clone().requires_grad_()
        torch.testing.assert_close(value, loss(z))
        torch.testing.assert_close(grad, torch.autograd.grad(loss(z), z)[0])
    traced = make_fx(torch.func.vmap(torch.func.grad(loss)))(clients)
    torch.testing.assert_close(traced(clients.flip(0)), grads.flip(0))


# --- proximal -------------------------------------------------------------------------------------


def test_proximal_by_hand() -> None:
    w = {"a": torch.tensor([1.0, 2.0], requires_grad=True), "b": torch.tensor([[3.0]], requires_grad=True)}
    w0 = {"b": torch.tensor([[1.0]], requires_grad=True), "a": torch.tensor([0.0, 5.0])}
    loss = proximal(w, w0)
    assert loss.item() == (1 + 9 + 4) / 2
    loss.backward()
    assert w["a"].grad.tolist() == [1.0, -3.0]
    assert w["b"].grad.tolist() == [[2.0]]
    assert w0["b"].grad is None


def test_proximal_moves_with_the_weights() -> None:
    # the very dict as reference: no gradient flows through it, so a step's worth of drift is not cancelled
    w = {"a": torch.ones(2)}
    grad = torch.func.grad(lambda v: proximal({"a": v}, w))
    assert grad(w["a"]).tolist() == [0.0, 0.0]
    assert grad(w["a"] + 0.5).tolist() == [0.5, 0.5]
    assert torch.func.grad(lambda v: proximal({"a": 3 * v}, {"a": v}))(w["a"]).tolist() == [6.0, 6.0]


def test_proximal_under_vmap_trace_and_half_precision() -> None:
    w, w0 = (
        {"a": features(3, 4), "b": features(3, 2, seed=1)},
        {"a": features(1, 4)[0], "b": features(1, 2)[0]},
    )
    values = torch.func.vmap(proximal, in_dims=(0, None))(w, w0)
    by_hand = [sum(((w[k][i] - w0[k]) ** 2).sum().item() for k in w) / 2 for i in range(3)]
    assert values.tolist() == pytest.approx(by_hand)
    one = {k: v[0] for k, v in w.items()}
    assert make_fx(proximal)(one, w0)(one, w0).item() == pytest.approx(by_hand[0])
    many = {"a": torch.full((1000,), 1.0, dtype=torch.bfloat16)}
    assert proximal(many, {"a": torch.zeros(1000, dtype=torch.bfloat16)}).item() == 500
    assert proximal({}, {}).item() == 0


def test_proximal_rejects_trees_that_differ() -> None:
    a, b = torch.zeros(2), torch.zeros(3)
    with pytest.raises(InputError, match='"y" is in w only'):
        proximal({"x": a, "y": b}, {"x": a, "z": b})
    with pytest.raises(InputError, match='"z" is in w0 only'):
        proximal({"x": a}, {"x": a, "z": b})
    with pytest.raises(InputError, match=r'"x" has shape \(2,\) in w, \(1,\) in w0'):
        proximal({"x": a}, {"x": a[:1]})


@pytest.mark.parametrize("module", ["correlation", "proximity"])
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"fullrank.objectives.{module}"))
    assert result.attempted
    assert not result.failed
