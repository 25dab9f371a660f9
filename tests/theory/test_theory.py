"""The papers' theory: identities and derivatives by independent means, known answers, and the studies in small."""

import importlib
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import fullrank
from fullrank import collapse, methods, theory
from fullrank.errors import InputError
from fullrank.report.style import drawing
from fullrank.theory import disjoint, figures, linear, panels, sphere_study, theorem, toy_study
from fullrank.theory.figures import spheres

DEPTHS = (1, 2, 3)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_state(depth: int, seed: int = 0):
    """Weights that fulfil nothing, samples and labels."""
    draw = rng(seed)
    widths = [5, *[4] * depth, 3]
    weights = [0.5 * draw.normal(size=(out, below)) for below, out in itertools.pairwise(widths)]
    return weights, draw.normal(size=(5, 12)), linear.one_hot(draw.integers(0, 3, 12), 3)


# --- linear networks ------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", DEPTHS)
def test_velocity_is_the_gradient_of_the_summed_cross_entropy(depth):
    weights, X, Y = random_state(depth)
    tensors = [torch.tensor(W, requires_grad=True) for W in weights]
    z = torch.tensor(X)
    for W in tensors:
        z = W @ z
    loss = F.cross_entropy(z.T, torch.tensor(Y.argmax(0)), reduction="sum")
    for mine, gradient in zip(theory.velocity(weights, X, Y), torch.autograd.grad(loss, tensors), strict=True):
        np.testing.assert_allclose(mine, -gradient.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("depth", DEPTHS)
def test_balance_is_kept_along_the_flow(depth):
    weights, X, Y = random_state(depth)
    before = theory.imbalance(weights)
    path = theory.flow(weights, X, Y, 0.5, 400)
    assert np.linalg.norm(path[-1][0] - weights[0]) > 0.1
    for start, end in zip(before, theory.imbalance(path[-1]), strict=True):
        np.testing.assert_allclose(end, start, atol=1e-8)
    start = theory.balanced_start([6, *[4] * depth, 3], seed=1)
    for gap in theory.imbalance(start)[:-1]:
        np.testing.assert_allclose(gap, 0, atol=1e-15)


def test_the_flow_does_not_depend_on_its_steps():
    weights, X, Y = random_state(2)
    coarse, fine = (theory.flow(weights, X, Y, 0.2, steps)[-1] for steps in (100, 200))
    for a, b in zip(coarse, fine, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("seed", range(3))
def test_lemma_1_by_finite_differences(depth, seed):
    weights, X, Y = random_state(depth, seed)
    found = theory.rates(weights, X, Y)
    h = 1e-5
    there, back = (
        np.linalg.svd(
            theory.product([W + s * h * v for W, v in zip(weights, theory.velocity(weights, X, Y), strict=True)]),
            compute_uv=False,
        )
        for s in (1, -1)
    )
    np.testing.assert_allclose(found.exact, ((there - back) / (2 * h))[:3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", DEPTHS)
def test_lemma_2_needs_balanced_layers(depth):
    weights, X, Y = theory.aligned_example(depth, 1)
    exact = theorem.product_velocity(weights, X, Y)
    np.testing.assert_allclose(theorem.balanced_velocity(weights, X, Y), exact, atol=1e-11)
    weights, X, Y = random_state(depth)
    wrong = np.abs(theorem.balanced_velocity(weights, X, Y) - theorem.product_velocity(weights, X, Y)).max()
    assert (wrong < 1e-10) == (depth == 1)


# --- Theorem 1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("seed", range(5))
def test_theorem_1_holds_with_the_product_outside_the_root(depth, seed):
    weights, X, Y = theory.aligned_example(depth, seed)
    found = theory.rates(weights, X, Y)
    np.testing.assert_allclose(found.alignment, 1, atol=1e-12)
    np.testing.assert_allclose(found.formal, found.exact, rtol=1e-9, atol=1e-10)
    assert len(found.exact) == 4


@pytest.mark.parametrize("depth", DEPTHS)
def test_theorem_1_fails_as_printed(depth):
    states = [theory.aligned_example(depth, seed) for seed in range(10)]
    found = [theory.rates(*state) for state in states]
    printed = np.concatenate([each.printed for each in found])
    exact = np.concatenate([each.exact for each in found])
    real = ~np.isnan(printed)
    assert (printed[real] >= 0).all()  # a root cannot say that a singular value shrinks
    assert (exact[real] < 0).any()
    assert (np.abs(printed - exact)[real] > 0.1 * np.abs(exact[real])).mean() > 0.95
    everything = np.concatenate(
        [theory.rates(*theory.aligned_example(d, s)).printed for d in DEPTHS for s in range(12)]
    )
    assert np.isnan(everything).any()  # and somewhere its root is not real


@pytest.mark.parametrize("depth", DEPTHS)
def test_theorem_1_along_a_flow_on_which_its_assumptions_stay_true(depth):
    weights, X, Y = theory.aligned_forever(depth)
    steps, time = 2000, 2.0
    path = theory.flow(weights, X, Y, time, steps)
    singular = np.array([np.linalg.svd(theory.product(w), compute_uv=False) for w in path])
    speed = np.gradient(singular, time / steps, axis=0, edge_order=2)
    for i in (0, 500, 1000, steps):
        found = theory.rates(path[i], X, Y)
        np.testing.assert_allclose(found.alignment, 1, atol=1e-10)
        np.testing.assert_allclose(found.M, [0.8**2 - 0.3**2, 0.4**2 - 0.15**2], atol=1e-9)  # constant, one for each k
        np.testing.assert_allclose(found.formal, speed[i], rtol=1e-4, atol=1e-6)
    assert singular[-1, 0] > 3 * singular[0, 0]
    assert singular[-1, 1] == pytest.approx(singular[0, 1])


def test_the_printed_direction_is_exact_only_for_repeated_points():
    shares = [theory.dropped_share(*theory.aligned_example(depth, seed)) for depth in DEPTHS for seed in range(5)]
    assert min(shares) > 0.4
    weights, X, Y = theory.aligned_example(2, 0)
    points = X[:, : len(Y)][:, Y.argmax(0)]
    assert theory.dropped_share(weights, points, Y) < 1e-12
    # and the theorem itself holds with the exact one on any samples
    G = theorem.exact_direction(weights, X, Y)
    summed = sum(np.outer(Y[:, i] - linear.probabilities(weights, X)[:, i], X[:, i]) for i in range(X.shape[1]))
    np.testing.assert_allclose(G, summed / X.shape[1], atol=1e-14)


def test_few_classes_let_few_singular_values_grow():
    equal = theory.growth([0.1] * 10)
    two = theory.growth([0.5, 0.5, *[0.0] * 8])
    rare = theory.growth([0.46, 0.46, *[0.01] * 8])

    def grown(found):
        return int((found.singular[-1] > 0.5 * found.singular[-1, 0]).sum())

    assert (grown(equal), grown(two), grown(rare)) == (9, 2, 2)
    assert equal.effective_rank[-1] > 8
    assert two.effective_rank[-1] < 2.5
    assert rare.effective_rank[-1] < 3
    with pytest.raises(InputError, match="sum to 1"):
        theory.growth([0.5, 0.6])
    with pytest.raises(InputError, match="classes ≤ width ≤ inputs must hold, not 40, 16 and 32"):
        theory.growth([1 / 40] * 40)


# --- identities -----------------------------------------------------------------------------------


def test_representation_covariance_worked_by_hand():
    X = np.array([[1.0, 0, 1, 2], [0, 1, 1, 0]])
    P = np.array([[1.0, 2], [0, 1], [1, 0]])
    want = [[0.5, 0.25, 0], [0.25, 0.25, -0.25], [0, -0.25, 0.5]]
    for side in theory.representation_covariance(P, X):
        np.testing.assert_allclose(side, want, atol=1e-15)
    np.testing.assert_allclose(collapse.spectrum((P @ X).T), [0.75, 0.5, 0], atol=1e-15)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), inputs=st.integers(1, 8), width=st.integers(1, 8), n=st.integers(1, 20))
def test_the_representation_has_no_more_dimensions_than_the_weights(seed, inputs, width, n):
    draw = rng(seed)
    rank = draw.integers(0, min(inputs, width) + 1)
    P = draw.normal(size=(width, rank)) @ draw.normal(size=(rank, inputs))
    X = draw.normal(size=(inputs, n)) + 5
    a, b = theory.representation_covariance(P, X)
    np.testing.assert_allclose(a, b, atol=1e-9 * max(1, np.abs(b).max()))
    values = collapse.spectrum((P @ X).T)
    assert (values > 1e-10 * max(values[0], 1e-300)).sum() <= rank or values[0] < 1e-20


def test_on_a_trained_network_in_float32():
    weights, X, Y = random_state(2)
    weights = [W.astype(np.float32) for W in theory.flow(weights, X, Y, 0.3, 100)[-1]]
    a, b = theory.representation_covariance(theory.product(weights), X.astype(np.float32))
    assert np.linalg.norm(a - b) < 1e-6 * np.linalg.norm(b)


@pytest.mark.parametrize("seed", range(4))
def test_proposition_1(seed):
    z = rng(seed).normal(size=(20, 6))
    left, right = theory.proposition_1(np.corrcoef(z.T))
    assert left == pytest.approx(right, rel=1e-12)
    assert left > 0
    for scaled in theory.spread_of_eigenvalues(np.cov(z.T)), theory.spread_of_eigenvalues(np.corrcoef(z.T) * 20 / 19):
        assert scaled[0] == pytest.approx(scaled[1], rel=1e-10)
    # FedMR's Lemma 1 mixes two normalisers: its diagonal is N/(N−1), so d is not what is to be subtracted
    M = np.corrcoef(z.T) * 20 / 19
    spread = theory.spread_of_eigenvalues(M)[0]
    assert np.square(M).sum() - 6 * (20 / 19) ** 2 == pytest.approx(spread, rel=1e-10)
    assert np.square(M).sum() - 6 != pytest.approx(spread, rel=1e-2)


# --- alignment ------------------------------------------------------------------------------------


def test_alignment_of_digits():
    found = theory.alignment("digits", epochs=(1, 30), seed=0)
    assert list(found) == [1, 30]
    for table in found.values():
        assert table.shape == (10, 10)
        assert (table >= 0).all()
        assert (table <= 1 + 1e-9).all()
    assert np.sort(found[30].diagonal())[5:].mean() > 0.8
    again = theory.alignment("digits", epochs=(1,), seed=0)
    np.testing.assert_array_equal(again[1], found[1])
    assert not np.array_equal(theory.alignment("digits", epochs=(1,), start="default")[1], found[1])
    with pytest.raises(InputError, match="balanced"):
        theory.alignment("digits", start="zeros")
    with pytest.raises(InputError, match="lr = 0: must be a number above 0"):
        theory.alignment("digits", lr=0)
    with pytest.raises(InputError, match="diverged in epoch 1 with lr = 100"):
        theory.alignment("digits", lr=100)


def test_only_as_many_directions_grow_as_classes_but_one():
    # cross-entropy's gradients sum to 0 over classes
    weights, X, Y = random_state(2)
    np.testing.assert_allclose(theory.velocity(weights, X, Y)[-1].sum(0), 0, atol=1e-12)


@pytest.mark.slow
def test_alignment_of_fashion_mnist():
    try:
        found = theory.alignment()
    except InputError as absent:
        pytest.skip(str(absent))
    assert found[3].diagonal()[:9].min() > 0.9
    assert found[9].diagonal()[:9].min() > 0.97
    assert found[9].diagonal()[9] < 0.3
    assert theory.alignment(epochs=(9,), lr=0.05)[9].diagonal().mean() < 0.6


# --- FedMR ----------------------------------------------------------------------------------------


def test_the_example_and_its_right_angle():
    found = theory.disjoint_example()
    assert found.angle == pytest.approx(15, abs=1e-9)
    assert found.printed_angle == pytest.approx(45, abs=1e-9)
    root = math.sqrt(3)
    np.testing.assert_allclose(found.local[0], [[0.5, -root / 2], [-0.5, root / 2], [0, 0]], atol=1e-15)
    np.testing.assert_allclose(found.local[2], [[0, 0], [0, 1], [0, -1]], atol=1e-15)
    want = [[1 / 3, 0], [-1 / 6, (root + 2) / 6], [-1 / 6, -(root + 2) / 6]]
    np.testing.assert_allclose(found.averaged, want, atol=1e-15)
    assert found.distances["printed"][1] == pytest.approx(0.448, abs=5e-4)
    assert found.distances["averaged"].min() == pytest.approx(0.6265, abs=5e-5)
    assert found.distances["optimal"][0] == pytest.approx(root / 2)
    assert found.misclassified["printed"].tolist() == pytest.approx([0, 0.0197, 0.0197], abs=5e-5)
    assert not found.misclassified["averaged"].any()


def test_the_misclassified_share_by_sampling():
    draw = rng()
    radius = disjoint.RADIUS * np.sqrt(draw.uniform(size=200_000))
    turn = draw.uniform(0, 2 * np.pi, 200_000)
    x = disjoint.CENTRES[1] + np.stack([radius * np.cos(turn), radius * np.sin(turn)], 1)
    wrong = (x @ disjoint.PRINTED.T).argmax(1) != 1
    assert wrong.mean() == pytest.approx(theory.disjoint_example().misclassified["printed"][1], abs=1e-3)


def test_bound_worked_by_hand():
    cases = {(0.5, 0.0): (1, 0.671875, 2 / 3), (0.5, 0.1): (1.1, 0.8046875, 0.8), (0.75, 0.0): (0.5, 0.0078125, 0)}
    for (p_hat, delta), wanted in cases.items():
        for t, want in zip((1, 4, math.inf), wanted, strict=True):
            assert theory.fedmr_bound(0.25, p_hat, t, 1.0, delta) == pytest.approx(want, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(p=st.floats(0, 0.99), part=st.floats(0, 1), t=st.integers(0, 30), G=st.floats(0, 5), delta=st.floats(0, 2))
def test_bound_is_the_recursion_and_keeps_its_remarks(p, part, t, G, delta):
    p_hat = part * (1 - p)
    bound = theory.fedmr_bound(p, p_hat, t, G, delta)
    assert bound == pytest.approx(theory.fedmr_recursion(p, p_hat, t, G, delta), rel=1e-9, abs=1e-9)
    calm = [theory.fedmr_bound(p, p_hat, each, G) for each in range(t + 2)]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(calm))  # falls with t
    assert theory.fedmr_bound(p, p_hat / 2, t, G, delta) >= bound - 1e-9  # falls with p̂
    limit = (2 * G * (1 - p - p_hat) + delta) / (1 - p)
    assert theory.fedmr_bound(p, p_hat, math.inf, G, delta) == pytest.approx(limit, rel=1e-6, abs=1e-9)


def test_bound_edges():
    assert theory.fedmr_bound(1, 0, 7) == 2
    assert theory.fedmr_bound(1, 0, math.inf, 1, 0) == 2
    assert theory.fedmr_bound(0.5, 0.2, 0, 3, 1) == 6
    for wrong in ((0.5, 0.6, 1), (-0.1, 0.5, 1), (0.5, 0.1, -1)):
        with pytest.raises(InputError):
            theory.fedmr_bound(*wrong)


# --- spheres --------------------------------------------------------------------------------------


def on_the_sphere(found, classes, samples):
    for panel in found:
        assert panel.points.shape == (samples, 3)
        np.testing.assert_allclose(np.linalg.norm(panel.points, axis=1), 1, atol=1e-5)
        assert set(panel.classes) == set(range(classes))
        assert 1 <= panel.effective_rank <= 3
        assert 0 <= panel.accuracy <= 1


def test_toy_sphere_in_small(tmp_path):
    known = "fedmr" in methods.available()
    found = theory.toy_sphere(0, samples=40, test=20, epochs=25, rounds=3, local_epochs=2)
    names = ["all classes", "two classes only", "FedAvg's client", *["FedMR's client"] * known]
    assert [panel.name for panel in found] == names
    on_the_sphere(found, 6, 120)
    assert found[0].effective_rank > 2
    assert found[1].effective_rank < 1.7
    assert found[1].accuracy <= 1 / 3 + 1e-9  # it never saw the others
    assert len(theory.toy_sphere(1, samples=20, test=5, epochs=1, rounds=1, local_epochs=1, with_fedmr=False)) == 3
    figures.draw_toy_sphere(found, tmp_path / "toy.png")
    assert (tmp_path / "toy.png").stat().st_size > 10_000


def test_the_client_shown_is_that_of_the_last_round():
    """The model of the round after r rounds is what the client sends in round r + 1."""
    x, y, _, _ = toy_study.toy_data(30, 2)
    clients = [(x[y < 3], y[y < 3]), (x[y >= 3], y[y >= 3])]
    net = toy_study.SphereNet()
    one = fullrank.fit(net, clients, "fedavg", rounds=1, lr=0.05)
    sent = [panels.client_after_next_round(one, k).state_dict() for k in range(2)]
    two = fullrank.fit(net, clients, "fedavg", rounds=2, lr=0.05).model().state_dict()
    for name, value in two.items():
        torch.testing.assert_close((sent[0][name] + sent[1][name]) / 2, value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_toy_sphere(seed):
    found = theory.toy_sphere(seed)
    on_the_sphere(found, 6, 1200)
    ranks = [panel.effective_rank for panel in found]
    assert ranks[0] > 2.3
    assert ranks[1] < 1.3
    assert ranks[2] > 2
    if len(found) == 4:
        assert ranks[3] > 2.3
        assert found[3].smallest_angle > 30


def test_a_sphere_from_features():
    z = torch.tensor([[2.0, 0, 0], [0, 3, 0], [0, 0, 0]])
    panel = theory.sphere("name", z, torch.tensor([0, 1, 1]), 0.5)
    assert panel.points.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert panel.smallest_angle == pytest.approx(90)
    wide = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(50) % 2
    seen = theory.sphere("pca", wide, y, 0.5, "pca")
    axes = np.linalg.eigh(np.cov(wide.numpy().T))[1][:, ::-1][:, :3]
    want = (wide.numpy() - wide.numpy().mean(0)) @ axes
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(seen.points), np.abs(want), atol=1e-4)
    assert seen.effective_rank == pytest.approx(collapse.effective_rank(wide))
    with pytest.raises(InputError, match="8 dimensions"):
        theory.sphere("no", wide, y, 0.5)
    assert math.isnan(theory.smallest_angle(np.eye(3), np.zeros(3, dtype=int)))


def test_a_sphere_is_turned_towards_its_points(tmp_path):
    draw = rng()
    for direction in ([0.1, 0.2, 1], [-1, 0.5, -0.3], [0, 0, -1]):
        points = np.array(direction) / np.linalg.norm(direction) + 0.2 * draw.normal(size=(40, 3))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        across, up, depth = spheres.seen(points, spheres.view_of(points))
        np.testing.assert_allclose(across**2 + up**2 + depth**2, 1)  # turned, not bent
        assert [across.mean(), up.mean()] == pytest.approx([0, 0], abs=1e-12)
        assert (depth > 0).all()
        panel = panels.Sphere("one side", points, np.zeros(40, dtype=np.int64), 1.0, 0.0, 1.0)
        with drawing(tmp_path / "sphere.png", 2) as figure:
            axes = figure.subplots()
            spheres.draw_sphere(axes, panel, "")
            drawn = np.concatenate([part.get_offsets() for part in axes.collections])
            assert np.linalg.norm(drawn.mean(0)) < 1e-9
    around = np.concatenate([np.eye(3), -np.eye(3)])
    assert spheres.view_of(around) == spheres.OBLIQUE


def test_an_unknown_projection_is_rejected_before_training(monkeypatch):
    monkeypatch.setattr(sphere_study, "execute", lambda *_: pytest.fail("trained in vain"))
    with pytest.raises(InputError, match='project = "foo": must be neck'):
        theory.unit_sphere("tiny", project="foo")


def test_unit_sphere_in_small(tmp_path):
    found = theory.unit_sphere("tiny", rounds=1, clients=3)
    assert [panel.name for panel in found.panels] == ["homogeneous", "heterogeneous", "with FedDecorr"]
    on_the_sphere(found.panels, 10, len(found.panels[0].points))
    assert found.counts.shape == (3, 10)
    assert found.counts.sum() == 1437
    figures.draw_unit_sphere(found, tmp_path / "sphere.pdf")
    assert (tmp_path / "sphere.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(InputError, match="tiny"):
        theory.unit_sphere("teny")


def test_the_bottleneck_is_what_the_methods_see():
    net = sphere_study.bottleneck(10, 1, base="cnn")
    assert net.feature_dim == 3
    assert net.features(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert net.neck.bias is None
    assert sphere_study.bottleneck(10, 1, base="cnn", neck=False).feature_dim == 128


@pytest.mark.slow
def test_unit_sphere_of_digits():
    equal, unequal, helped = theory.unit_sphere("tiny").panels
    assert equal.effective_rank > unequal.effective_rank
    assert helped.effective_rank > unequal.effective_rank


def test_is_loaded_on_demand():
    assert fullrank.theory is importlib.import_module("fullrank.theory")
    assert "theory" in fullrank.__all__
