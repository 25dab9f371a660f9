"""Collapse measures: worked examples, independent NumPy computations, and streams against whole arrays."""

import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

import fullrank
from fullrank import collapse
from fullrank.collapse import Moments, Similarity
from fullrank.errors import InputError
from fullrank.objectives import simplex_etf

EXAMPLE = np.array([[1.0, 1, 0], [2, 3, 1], [3, 2, -1], [4, 6, 0]])
CROSS = np.array([[2.0, 1], [2, -1], [-2, 1], [-2, -1]])
THREE = np.array([[2.0, 0], [4, 0], [0, 1], [0, 3], [-1, -1], [-3, -1]])
THREE_Y = np.array([0, 0, 1, 1, 2, 2])
THREE_W = np.array([[1.0, 0], [0, 1], [-1, -1]])
SQUARE = np.array([[1.0, 0], [2, 1], [3, 1], [4, 4]])


def etf(classes: int, width: int, seed: int = 0) -> np.ndarray:
    """A simplex ETF (classes, width), by QR as in FedETF, or by the eigenvectors of I − 11ᵀ/C where width = C − 1."""
    rng = np.random.default_rng(seed)
    centring = np.eye(classes) - 1 / classes
    if width == classes - 1:
        axes = np.linalg.eigh(centring)[1][:, 1:]
        turn = np.linalg.qr(rng.normal(size=(width, width)))[0]
        return math.sqrt(classes / (classes - 1)) * axes @ turn.T
    columns = np.linalg.qr(rng.uniform(size=(width, classes)))[0]
    return (math.sqrt(classes / (classes - 1)) * columns @ centring).T


def by_the_book(z, y, W=None, b=0.0) -> dict[str, float]:
    """Neural collapse in plain NumPy, one line of the definition at a time."""
    present = np.unique(y)
    K = len(present)
    means = np.stack([z[y == c].mean(0) for c in present])
    D = means - means.mean(0)
    within = sum(np.cov(z[y == c].T, bias=True).reshape(z.shape[1], -1) for c in present) / K
    between = D.T @ D / K
    gram = D @ D.T
    norms = np.linalg.norm(D, axis=1)
    cosine = gram / np.outer(norms, norms)
    found = {
        "nc1": np.trace(within @ np.linalg.pinv(between, rcond=1e-10, hermitian=True)) / K,
        "nc2": np.linalg.norm(gram / np.linalg.norm(gram) - (np.eye(K) - 1 / K) / math.sqrt(K - 1)),
        "nc2_norm": norms.std() / norms.mean(),
        "nc2_angle": np.mean([abs(cosine[i, j] + 1 / (K - 1)) for i in range(K) for j in range(K) if i != j]),
        "nc3": math.nan,
        "nc4": math.nan,
    }
    if W is not None:
        rows = W[present]
        found["nc3"] = np.linalg.norm(rows / np.linalg.norm(rows) - D / np.linalg.norm(D))
        scores = z @ rows.T + (b[present] if np.ndim(b) else b)
        distance = np.stack([np.linalg.norm(z - h, axis=1) for h in means], 1)
        found["nc4"] = np.mean(scores.argmax(1) != distance.argmin(1))
    return found


def features(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Correlated, of very different sizes, and far from the origin."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * np.logspace(-2, 1, d) + 1000 * rng.normal(size=d)


def cut(x: np.ndarray, seed: int) -> list[np.ndarray]:
    """Batches of random sizes, some empty, some of one sample."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.integers(0, len(x) + 1, rng.integers(0, 6)))
    return np.split(x, np.sort(np.concatenate([places, places[:1], np.minimum(places[:2] + 1, len(x))])))


def close(got, want, rel=1e-10, scale=None):
    """Relative to the largest of the values that belong together."""
    size = np.nanmax(np.abs(want)) if scale is None else scale
    np.testing.assert_allclose(got, want, rtol=rel, atol=rel * size)


# --- spectra --------------------------------------------------------------------------------------


def test_spectrum_worked_by_hand():
    values = collapse.spectrum(EXAMPLE)
    assert values.tolist() == pytest.approx([4.457940217, 0.75, 0.042059783])
    assert values.sum() == pytest.approx(5.25)
    assert collapse.effective_rank(EXAMPLE) == pytest.approx(1.577001539)
    assert collapse.significant(values) == 2
    assert collapse.singular_variance(EXAMPLE) == pytest.approx(3.75)
    assert collapse.spectrum(CROSS).tolist() == pytest.approx([4, 1])
    assert collapse.effective_rank(CROSS) == pytest.approx(1.649384888)
    assert collapse.singular_variance(CROSS) == pytest.approx(2.25)


def test_gap_worked_by_hand():
    flat = EXAMPLE * [1, 1, 0]
    local, other = collapse.spectrum(EXAMPLE), collapse.spectrum(flat)
    gap, number = collapse.spectrum_gap(local, other, count=True)
    assert (gap, number) == (pytest.approx(0.467535518), 2)
    assert collapse.spectrum_gap(local, local) == 0
    assert collapse.spectrum_gap(math.e * local, local, count=True) == (pytest.approx(1), 3)
    assert collapse.spectrum_gap(local, other, top=1) == pytest.approx(math.log(local[0] / other[0]))
    assert math.isnan(collapse.spectrum_gap([0.0, 0], local))
    assert math.isnan(collapse.spectrum_gap([], []))
    assert collapse.spectrum_gap(local, local[:2], count=True) == (0, 2)


@pytest.mark.parametrize("shape", [(50, 7), (7, 7), (5, 30), (2, 3)])
def test_spectrum_against_a_decomposition_of_the_covariance(shape):
    z = features(*shape)
    want = np.linalg.svd(np.cov(z.T, bias=True), compute_uv=False)
    values = collapse.spectrum(z)
    assert values.shape == (shape[1],)
    assert (values >= 0).all()
    assert (np.diff(values) <= 0).all()
    close(values, want, 1e-11)
    p = want / want.sum()
    p = p[p > 1e-14]
    assert collapse.effective_rank(z) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)
    assert collapse.singular_variance(z) == pytest.approx(want.var(), rel=1e-9)


def test_spectrum_of_data_with_a_known_covariance():
    # rows ±√d·s_i e_i have the covariance diag(s²) exactly, turned by any orthogonal matrix
    s = np.array([5.0, 3, 2, 0.5, 0])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    z = np.concatenate([np.diag(s), -np.diag(s)]) * math.sqrt(5) @ turn + 7
    np.testing.assert_allclose(collapse.spectrum(z), s**2, atol=1e-12)


def test_spectrum_edges():
    assert collapse.spectrum([[3.0, 4, 5]]).tolist() == [0, 0, 0]
    assert collapse.effective_rank([[3.0, 4, 5]]) == 0
    assert collapse.effective_rank(np.full((9, 4), 0.1)) == 0
    assert collapse.effective_rank(np.full((3, 4), 0.1)) == 0
    assert collapse.effective_rank(np.outer(np.arange(9), [1, 2, 3])) == pytest.approx(1)
    assert collapse.effective_rank(np.eye(5)) == pytest.approx(4)
    assert collapse.effective_rank(np.ones(6)) == pytest.approx(6)
    for empty in (np.zeros((0, 3)), [], iter([]), [np.zeros((0, 3))], Moments()):
        with pytest.raises(InputError):
            collapse.spectrum(empty)
    with pytest.raises(InputError, match="no sample"):
        collapse.singular_variance(np.zeros((0, 3)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
def test_what_is_not_finite_gives_nan(bad, shape):
    z = features(*shape)
    z[0, 1] = bad
    y = np.arange(len(z)) % 2
    assert np.isnan(collapse.spectrum(z)).all()
    assert math.isnan(collapse.effective_rank(z))
    assert math.isnan(collapse.singular_variance(z))
    assert math.isnan(collapse.cka(z, features(*shape)))
    assert all(map(math.isnan, collapse.neural_collapse(z, y, np.ones((2, shape[1]))).values()))
    assert math.isnan(collapse.mean_class_eigenvalue_variance(z, y))


def test_arrays_tensors_and_lists_alike():
    z = features(12, 4).astype(np.float32)
    want = collapse.spectrum(z)
    for form in (
        torch.tensor(z),
        torch.tensor(z, requires_grad=True),
        z.tolist(),
        [z[:5], torch.tensor(z[5:])],
        z[::1],
    ):
        close(collapse.spectrum(form), want, 1e-12)
    close(collapse.spectrum(z.astype(np.float64)[:, ::-1]), want, 1e-12)
    half = torch.tensor(z - z.mean(0)).bfloat16()
    close(collapse.spectrum(half), collapse.spectrum(half.double().numpy()), 1e-12)
    assert collapse.spectrum(np.arange(6).reshape(3, 2)).tolist() == pytest.approx([16 / 3, 0])


def test_shapes_are_rejected():
    with pytest.raises(InputError, match=r"not \(3,\)"):
        collapse.spectrum(np.zeros(3))
    with pytest.raises(InputError, match=r"\(d,\)"):
        collapse.significant(np.zeros((2, 2)))
    with pytest.raises(InputError, match="4 features per sample, earlier ones had 3"):
        collapse.spectrum([np.zeros((2, 3)), np.zeros((2, 4))])


# --- neural collapse ------------------------------------------------------------------------------


def test_neural_collapse_worked_by_hand():
    found = collapse.neural_collapse(THREE, THREE_Y, THREE_W)
    want = {"nc1": 0.130177515, "nc2": 0.459505841, "nc2_norm": 0.197453049, "nc2_angle": 0.222514823}
    assert found == pytest.approx({**want, "nc3": 0.280110968, "nc4": 0}, rel=1e-7)
    assert collapse.nc_error(THREE, THREE_Y) == pytest.approx(want["nc2_angle"], rel=1e-7)
    moments = Moments([2, 2, 2])
    moments.add(THREE, THREE_Y)
    np.testing.assert_allclose(moments.within, np.diag([2 / 3, 1 / 3]), atol=1e-15)


@pytest.mark.parametrize("classes", [2, 3, 4, 10, 100])
def test_the_frames_of_these_tests_are_simplex_etfs(classes):
    for width in {max(classes - 1, 1), classes, classes + 5}:
        V = etf(classes, width)
        gram = classes / (classes - 1) * np.eye(classes) - 1 / (classes - 1)
        np.testing.assert_allclose(V @ V.T, gram, atol=1e-12)
        assert np.linalg.matrix_rank(V, tol=1e-10) == classes - 1
        eigenvalues = np.linalg.eigvalsh(V.T @ V)[-(classes - 1) :]
        np.testing.assert_allclose(eigenvalues, classes / (classes - 1), atol=1e-12)
    angle = {2: 180, 3: 120, 4: 109.471, 10: 96.379, 100: 90.579}[classes]
    assert math.degrees(math.acos(max(-1, V[0] @ V[1]))) == pytest.approx(angle, abs=1e-3)


@pytest.mark.parametrize(("classes", "width"), [(4, 3), (4, 4), (10, 64), (100, 128)])
def test_an_exact_etf_has_collapsed(classes, width):
    V = etf(classes, width)
    y = np.repeat(np.arange(classes), np.arange(classes) % 5 + 1)  # unequal classes, some of one sample
    z = 3 * V[y]
    found = collapse.neural_collapse(z, y, 2 * V)
    assert found["nc1"] < 1e-25
    assert max(found[name] for name in ("nc2", "nc2_norm", "nc2_angle", "nc3")) < 1e-13
    assert found["nc4"] == 0
    streamed = collapse.neural_collapse(cut(z + 0.7, 1), y, 2 * V)
    assert max(streamed[name] for name in found if name != "nc4") < 1e-10
    moved = collapse.neural_collapse(z + 100, y, 2 * V)
    assert max(moved[name] for name in found if name != "nc4") < 1e-10


@pytest.mark.parametrize("seed", range(4))
def test_neural_collapse_against_the_definition(seed):
    rng = np.random.default_rng(seed)
    y = rng.choice(7, 60, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05, 0.0])  # class 6 never occurs
    z = rng.normal(size=(60, 5)) + 2 * rng.normal(size=(7, 5))[y] + 10
    W, b = rng.normal(size=(7, 5)), rng.normal(size=7)
    assert collapse.neural_collapse(z, y, W, b) == pytest.approx(by_the_book(z, y, W, b), rel=1e-9)
    logits = z @ W.T + b
    with_logits = collapse.neural_collapse(z, y, logits=logits)
    assert with_logits["nc4"] == by_the_book(z, y, W, b)["nc4"]
    assert math.isnan(with_logits["nc3"])
    assert 0 < with_logits["nc4"] < 1


def test_neural_collapse_depends_on_no_shift_scale_or_rotation():
    z, y = features(40, 4), np.arange(40) % 5
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 4)))[0]
    want = collapse.neural_collapse(z, y)
    assert collapse.neural_collapse(3 * z @ turn + 50, y) == pytest.approx(want, rel=1e-6, nan_ok=True)


def test_undefined_is_nan():
    def undefined(found):
        return {name for name, value in found.items() if math.isnan(value)}

    everything = {"nc1", "nc2", "nc2_norm", "nc2_angle", "nc3", "nc4"}
    z = features(6, 3)
    W = np.ones((6, 3))
    assert undefined(collapse.neural_collapse(z, [4] * 6, W)) == everything
    assert undefined(collapse.neural_collapse(z, THREE_Y)) == {"nc3", "nc4"}
    assert undefined(collapse.neural_collapse(z, THREE_Y, 0 * W)) == {"nc3"}
    same = np.full((6, 3), 0.1)  # every class mean alike: no direction at all
    assert undefined(collapse.neural_collapse(same, THREE_Y, W)) == everything - {"nc4"}
    assert undefined(collapse.neural_collapse(cut(same, 0), THREE_Y, W)) == everything - {"nc4"}
    line = np.array([[-1.0, 0], [0, 0], [1, 0]])  # the middle one has no angle
    assert undefined(collapse.neural_collapse(line, [0, 1, 2])) == {"nc2_angle", "nc3", "nc4"}
    single = collapse.neural_collapse([[1.0, 0], [0, 1]], [0, 1])
    assert single["nc1"] == 0
    assert undefined(single) == {"nc3", "nc4"}
    with pytest.raises(InputError, match="no sample"):
        collapse.neural_collapse(np.zeros((0, 2)), np.zeros(0, dtype=int))


def test_first_class_on_ties():
    z, y = [[1.0, 0], [-1, 0], [0, 0]], [0, 1, 1]
    z[1] = [-2.0, 0]  # means (1, 0) and (−1, 0); the last sample is half-way
    assert collapse.neural_collapse(z, y, [[0.0, 0], [0, 0]])["nc4"] == pytest.approx(1 / 3)
    assert collapse.neural_collapse(z, y, [[1.0, 0], [-1, 0]])["nc4"] == 0


def test_what_does_not_fit_is_rejected():
    z = features(6, 3)
    for labels, classifier, message in [
        (THREE_Y[:5], None, "6 samples or more, but 5 labels"),
        (THREE_Y - 1, None, "-1 is not a label"),
        (THREE_Y / 2, None, "whole numbers"),
        (THREE_Y, np.ones((3, 4)), "takes 4 features"),
        (THREE_Y, np.ones((2, 3)), "class 2 has samples"),
        (None, None, "need labels"),
    ]:
        with pytest.raises(InputError, match=message):
            collapse.neural_collapse(z, labels, classifier)


# --- streams --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), d=st.integers(1, 12), seed=st.integers(0, 10**6), classes=st.integers(1, 8))
def test_streams_equal_whole_arrays(n, d, seed, classes):
    rng = np.random.default_rng(seed)
    z = features(n, d, seed)
    y = rng.choice(classes + 2, n, p=[*rng.dirichlet(np.ones(classes)), 0, 0])
    batches = cut(z, seed)
    whole, stream = collapse.spectrum(z), collapse.spectrum(batches)
    close(stream, whole, 1e-10)
    close(collapse.effective_rank(batches), collapse.effective_rank(z), 1e-10)
    close(collapse.singular_variance(iter(batches)), collapse.singular_variance(z), 1e-10, whole[0] ** 2)
    W = rng.normal(size=(classes + 2, d))
    want = collapse.neural_collapse(z, y, W)
    pairs = list(zip(batches, np.split(y, np.cumsum([len(b) for b in batches])[:-1]), strict=True))
    for got in (collapse.neural_collapse(batches, y, W), collapse.neural_collapse(pairs, classifier=W)):
        if classes_well_apart(z, y):
            assert got == pytest.approx(want, rel=1e-10, abs=1e-10, nan_ok=True)
        else:
            assert got.keys() == want.keys()


def classes_well_apart(z, y) -> bool:
    """Whether no eigenvalue of Σ_B is near the threshold below which it counts as 0, on either side."""
    present = np.unique(y)
    if len(present) < 2:
        return True
    D = np.stack([z[y == c].mean(0) for c in present])
    values = np.linalg.svd(D - D.mean(0), compute_uv=False) ** 2
    return not ((values > 1e-14 * values[0]) & (values < 1e-4 * values[0])).any()


def test_a_long_stream_far_from_the_origin():
    # Σzzᵀ − N z̄z̄ᵀ would lose all digits: the mean is 10⁷ times the spread
    rng = np.random.default_rng(0)
    z = rng.normal(size=(5000, 6)) * [1, 1, 1, 1e-3, 1e-3, 0] + 1e7
    z = np.round(z * 2**20) / 2**20  # so that the shift itself is exact
    want = np.linalg.eigvalsh(np.cov((z - 1e7).T, bias=True))[::-1]
    values = collapse.spectrum(z[i : i + 7] for i in range(0, 5000, 7))
    close(values, want, 1e-10)
    assert values[-1] == 0


def test_batches_of_one_and_empty_ones():
    z, y = features(30, 4), np.arange(30) % 3
    moments, counted = Moments(), Moments(np.bincount(y))
    for i in range(30):
        for each in (moments, counted):
            each.add(z[i : i + 1], y[i : i + 1])
            each.add(z[:0], y[:0])
    want = by_the_book(z, y)
    assert moments.samples == 30
    np.testing.assert_allclose(moments.mean, z.mean(0), rtol=1e-13)
    for each in (moments, counted):
        found = collapse.neural_collapse(each)
        assert found == pytest.approx(want, rel=1e-9, nan_ok=True)
        close(collapse.spectrum(each), collapse.spectrum(z), 1e-11)
        assert each.class_counts.tolist() == [10, 10, 10]
        np.testing.assert_allclose(each.class_means, [z[y == c].mean(0) for c in range(3)], rtol=1e-13)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), told=st.booleans())
def test_merged_moments_are_those_of_everything(seed, told):
    rng = np.random.default_rng(seed)
    z, y = features(25, 3, seed), rng.integers(0, 5, 25)
    counts = np.bincount(y) if told else None
    together, parts = Moments(counts), [Moments(counts) for _ in range(4)]
    for part, rows in zip(parts, np.array_split(rng.permutation(25), 3), strict=False):
        part.add(z[rows], y[rows])
    for part in rng.permutation(np.array(parts, dtype=object)):
        together.merge(part)
    whole = Moments(counts)
    whole.add(z, y)
    assert together.samples == 25
    for name in ("mean", "covariance", "class_means", "within"):
        want = getattr(whole, name)
        torch.testing.assert_close(getattr(together, name), want, rtol=1e-10, atol=1e-10 * float(want.abs().max()))


def test_moments_reject_what_does_not_go_together():
    z, y = features(6, 3), THREE_Y
    moments = Moments([2, 2, 1])
    moments.add(z, y)
    with pytest.raises(InputError, match="counts disagree"):
        collapse.neural_collapse(moments)
    with pytest.raises(InputError, match="all batches need labels"):
        moments.add(z)
    other = Moments()
    other.add(z, y)
    with pytest.raises(InputError, match="same class counts"):
        moments.merge(other)
    unlabelled = Moments()
    unlabelled.add(z)
    with pytest.raises(InputError, match="have no classes"):
        collapse.neural_collapse(unlabelled)


def test_memory_is_that_of_a_few_square_matrices():
    moments, d, classes = Moments(np.full(50, 4)), 16, 50
    z, y = features(200, d), np.tile(np.arange(classes), 4)
    for i in range(0, 200, 8):
        moments.add(z[i : i + 8], y[i : i + 8])
    held = [x for x in vars(moments).values() if isinstance(x, torch.Tensor)]
    assert sum(x.numel() for x in held) <= 2 * d * d + classes * d + 2 * (d + classes)
    assert not moments._scatters


def test_forms_of_streams():
    z, y = features(12, 3), np.arange(12) % 3
    want = collapse.neural_collapse(z, y)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.tensor(z), torch.tensor(y)), batch_size=5)
    for stream in (loader, [(z[:5], y[:5]), (z[5:], y[5:])], [[torch.tensor(z), torch.tensor(y)]]):
        assert collapse.neural_collapse(stream) == pytest.approx(want, rel=1e-9, nan_ok=True)
        close(collapse.spectrum(stream), collapse.spectrum(z), 1e-11)
    close(collapse.spectrum(rows for rows in (z[:4].tolist(), z[4:].tolist())), collapse.spectrum(z), 1e-11)
    assert collapse.spectrum([(2.0, 1.0), (2.0, -1.0), (-2.0, 1.0), (-2.0, -1.0)]).tolist() == pytest.approx([4, 1])
    with pytest.raises(InputError, match="labels are missing"):
        collapse.neural_collapse([z[:5], z[5:]])


def test_nc4_needs_the_features_twice():
    z, y = features(20, 3), np.arange(20) % 4
    W = np.random.default_rng(0).normal(size=(4, 3))
    once = collapse.neural_collapse(iter(np.split(z, 4)), y, W)
    twice = collapse.neural_collapse(np.split(z, 4), y, W)
    assert math.isnan(once.pop("nc4"))
    assert twice.pop("nc4") == by_the_book(z, y, W)["nc4"]
    assert once == pytest.approx(twice)


# --- clients --------------------------------------------------------------------------------------


def test_prototypes_worked_by_hand():
    given = np.array([[[1.0, 0], [0, 1]], [[1, 1], [0, 2]], [[0, 1], [0, 0]]])
    found = collapse.prototype_consistency(given)
    assert found["by_class"].tolist() == pytest.approx([0.471404521, 1])
    assert (found["mean"], found["classes"]) == (pytest.approx(0.735702260), 2)
    given[2, 1] = np.nan
    assert collapse.prototype_consistency(given)["mean"] == pytest.approx(0.735702260)
    given[2, 1] = 9
    held = [[True, True], [True, True], [True, False]]
    assert collapse.prototype_consistency(torch.tensor(given), held)["mean"] == pytest.approx(0.735702260)
    single = collapse.prototype_consistency(given[:1])
    assert math.isnan(single["mean"])
    assert single["classes"] == 0


def test_prototypes_against_all_pairs():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(6, 5, 4)) * np.logspace(-100, 100, 6)[:, None, None]
    g[rng.uniform(size=(6, 5)) < 0.4] = 0
    wanted = []
    for c in range(5):
        rows = [v / np.linalg.norm(v / np.abs(v).max()) / np.abs(v).max() for v in g[:, c] if v.any()]
        cosines = [a @ b for i, a in enumerate(rows) for b in rows[:i]]
        if cosines:
            wanted.append(np.mean(cosines))
    found = collapse.prototype_consistency(g)
    assert (found["mean"], found["classes"]) == (pytest.approx(np.mean(wanted)), len(wanted))


def test_classifiers_worked_by_hand():
    given = np.array([[[1.0, 0], [0, 1]], [[1, 1], [0, 2]]])
    found = collapse.classifier_cosine(given)
    assert found["mean"] == pytest.approx(0.853553391)
    np.testing.assert_allclose(found["matrix"], [[1, 0.853553391], [0.853553391, 1]], rtol=1e-8)
    same = collapse.classifier_cosine(np.stack([features(5, 3)] * 4))
    assert same["mean"] == pytest.approx(1)
    np.testing.assert_allclose(same["matrix"], 1)
    norms = collapse.classifier_norms([[3.0, 4], [0, 1], [2, 0]], [50, 20, 10])
    assert norms["norms"].tolist() == [5, 1, 2]
    assert norms["ratio"].tolist() == pytest.approx([1.875, 0.375, 0.75])
    assert (norms["cv"], norms["bias"]) == (pytest.approx(0.637377439), pytest.approx(0.884615385))
    assert math.isnan(collapse.classifier_norms(np.eye(3), [1, 2, 3])["bias"])
    assert math.isnan(collapse.classifier_norms([[3.0, 4], [0, 1]], [5, 5])["bias"])
    frame = simplex_etf(10, 64, seed=0).mT.float()
    assert frame.double().norm(dim=1).std() > 0
    assert math.isnan(collapse.classifier_norms(frame, range(10))["bias"])
    assert collapse.classifier_norms([[1.0, 0], [0, 1 + 1e-5]], [1, 2])["bias"] == pytest.approx(1)
    assert math.isnan(collapse.classifier_norms(np.zeros((2, 2)))["cv"])


def test_the_map_of_classifiers_is_the_same_every_time():
    rows = np.random.default_rng(0).normal(size=(5, 1, 8)) * 0.1 + np.random.default_rng(1).normal(size=(1, 6, 8))
    points, classes = collapse.classifier_map(rows)
    assert points.shape == (30, 2)
    assert classes.tolist() == [0, 1, 2, 3, 4, 5] * 5
    np.testing.assert_array_equal(points, collapse.classifier_map(rows)[0])
    np.testing.assert_allclose(points, collapse.classifier_map(rows * 7)[0], rtol=1e-3, atol=1e-2)


# --- CKA ------------------------------------------------------------------------------------------


def cka_by_the_book(x, y):
    x, y = x - x.mean(0), y - y.mean(0)
    return np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))


def test_cka_worked_by_hand():
    assert collapse.cka(SQUARE, np.array([[1.0], [0], [0], [1]])) == pytest.approx(0.074953169)
    assert collapse.cka(SQUARE, SQUARE[:, :1]) == pytest.approx(0.914428661)
    assert collapse.cka(SQUARE, SQUARE @ [[0, -2], [2, 0]] + 5) == pytest.approx(1)
    assert math.isnan(collapse.cka(SQUARE, np.full((4, 2), 0.1)))
    assert math.isnan(collapse.cka(SQUARE, np.full((4, 9), 0.1)))
    with pytest.raises(InputError):
        collapse.cka(np.zeros((0, 2)), np.zeros((0, 2)))
    with pytest.raises(InputError, match="of 3 and 4 samples"):
        collapse.cka(SQUARE, SQUARE[:3])
    with pytest.raises(InputError, match="numbers of batches"):
        collapse.cka([SQUARE[:2], SQUARE[2:]], [SQUARE[:2]])


@settings(max_examples=40, deadline=None)
@given(n=st.integers(3, 30), a=st.integers(1, 9), b=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_cka_of_rotated_scaled_and_streamed_features(n, a, b, seed):
    rng = np.random.default_rng(seed)
    x, y = features(n, a, seed), rng.normal(size=(n, b))
    want = cka_by_the_book(x, y)
    turn = np.linalg.qr(rng.normal(size=(b, b)))[0]
    assert collapse.cka(x, y) == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert collapse.cka(y, x) == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert collapse.cka(x, 0.01 * y @ turn - 3) == pytest.approx(want, rel=1e-7, abs=1e-10)
    assert collapse.cka(cut(x, seed), cut(y, seed)) == pytest.approx(collapse.cka(x, y), rel=1e-10, abs=1e-12)
    assert collapse.cka(y, y) == pytest.approx(1)


def test_cka_of_few_samples_is_biased():
    rng = np.random.default_rng(0)
    for n, want in ((64, 0.33), (1000, 0.03)):
        found = [collapse.cka(rng.normal(size=(n, 32)), rng.normal(size=(n, 32))) for _ in range(5)]
        assert np.mean(found) == pytest.approx(want, abs=0.015)


def test_cka_by_layer_and_in_batches():
    rng = np.random.default_rng(0)
    clients = [{"conv": rng.normal(size=(20, 3, 4, 5)), "z": rng.normal(size=(20, 6))} for _ in range(3)]
    clients[2]["z"] = 2 * clients[0]["z"] + 1
    found = collapse.cka_by_layer(clients)
    assert found["z"].shape == (3, 3)
    assert found["z"][0, 2] == pytest.approx(1)
    for k in range(3):
        for m in range(3):
            want = cka_by_the_book(clients[k]["conv"].mean((2, 3)), clients[m]["conv"].mean((2, 3)))
            assert found["conv"][k, m] == pytest.approx(want)
    stream = Similarity()
    for i in (0, 1, 1, 8):
        rows = slice(i, {0: 1, 1: 8, 8: 20}[i]) if i != 1 or stream.samples == 1 else slice(0, 0)
        stream.add([{layer: torch.tensor(x[rows]) for layer, x in client.items()} for client in clients])
    assert stream.samples == 20
    for layer, table in stream.matrices().items():
        np.testing.assert_allclose(table, found[layer], rtol=1e-10)
    with pytest.raises(InputError, match="first batch"):
        stream.add(clients[:2])


# --- inside classes, and class by class -----------------------------------------------------------


def test_table_7_of_rank_one_and_of_independent_features():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 64)
    line = rng.normal(size=(128, 1)) @ rng.normal(size=(1, 512)) * 100
    want = 0.98 * (512 * 64 / 63) ** 2 / 128
    assert want == pytest.approx(2071.26, abs=0.01)
    assert collapse.mean_class_eigenvalue_variance(line, y) == pytest.approx(want, rel=1e-5)
    assert collapse.class_eigenvalue_variance(line, y) == {c: pytest.approx(want, rel=1e-5) for c in (0, 1)}
    free = [collapse.mean_class_eigenvalue_variance(rng.normal(size=(128, 512)), y) for _ in range(3)]
    assert np.mean(free) == pytest.approx(2.4, abs=0.1)


@pytest.mark.parametrize(("n", "d"), [(10, 80), (100, 80), (40, 6), (3, 60)])
def test_table_7_against_a_decomposition(n, d):
    z = features(n, d)
    hat = (z - z.mean(0)) / (z.std(0) + 1e-8)
    values = np.sort(np.linalg.eigvalsh(hat.T @ hat / (n - 1)))[::-1][:50]
    want = np.square(values - values.mean()).sum() / 128
    labels = np.zeros(n + 1, dtype=int)
    labels[-1] = 3  # a single sample says nothing
    found = collapse.class_eigenvalue_variance(np.concatenate([z, z[:1]]), labels)
    assert found == {0: pytest.approx(want, rel=1e-8)}


def test_table_7_in_mini_batches():
    z, y = features(300, 8), np.arange(300) % 3
    wanted = [
        np.mean(list(collapse.class_eigenvalue_variance(z[i : i + 128], y[i : i + 128]).values())) for i in (0, 128)
    ]
    assert collapse.mean_class_eigenvalue_variance(z, y) == pytest.approx(np.mean(wanted))
    assert math.isnan(collapse.mean_class_eigenvalue_variance(z[:3], [0, 1, 2]))
    dead = np.concatenate([z, np.full((300, 2), 0.1)], 1)
    assert math.isfinite(collapse.mean_class_eigenvalue_variance(dead, y))


def test_class_by_class():
    rng = np.random.default_rng(0)
    scores, y = rng.normal(size=(200, 6)), rng.integers(0, 5, 200)
    predicted = scores.argmax(1)
    table = collapse.confusion(scores, y)
    np.testing.assert_array_equal(table, metrics.confusion_matrix(y, predicted, labels=range(6)))
    np.testing.assert_array_equal(collapse.confusion(torch.tensor(predicted), y, num_classes=6), table)
    found = collapse.class_accuracy(torch.tensor(scores), torch.tensor(y))
    np.testing.assert_allclose(found[:5], metrics.recall_score(y, predicted, average=None, labels=range(5)))
    assert math.isnan(found[5])
    parts = collapse.confusion(scores[:50], y[:50]) + collapse.confusion(scores[50:], y[50:])
    np.testing.assert_array_equal(collapse.recall(parts), found)
    assert np.nanmean(collapse.class_accuracy([0, 0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 1, 1, 2])) == pytest.approx(
        0.916666667
    )
    with pytest.raises(InputError, match="no sample"):
        collapse.confusion(np.zeros((0, 3)), [])


# --- the package ----------------------------------------------------------------------------------


def test_is_loaded_on_demand():
    assert fullrank.collapse is importlib.import_module("fullrank.collapse")
    assert "collapse" in fullrank.__all__


@pytest.mark.gpu
def test_on_a_device_as_in_memory():
    z, y = features(50, 6), np.arange(50) % 4
    W = np.random.default_rng(0).normal(size=(4, 6))
    there = [torch.tensor(x, device="cuda") for x in (z, y, W)]
    close(collapse.spectrum(there[0]), collapse.spectrum(z), 1e-10)
    assert collapse.neural_collapse(*there) == pytest.approx(collapse.neural_collapse(z, y, W), rel=1e-9)
    assert collapse.cka(there[0], there[0][:, :2]) == pytest.approx(collapse.cka(z, z[:, :2]), rel=1e-10)
    assert collapse.mean_class_eigenvalue_variance(*there[:2]) == pytest.approx(
        collapse.mean_class_eigenvalue_variance(z, y), rel=1e-9
    )
