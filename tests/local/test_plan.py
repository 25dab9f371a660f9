"""The plan of a local fit: which samples form which batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank import fit
from fullrank.local.plan import make_plan
from fullrank.local.settings import Settings
from fullrank.randomness import generator
from small import blobs, normed, plain


def plan(samples, *, draws=0, batch_norm=False, seed=0, **values):
    return make_plan(samples, Settings(**values), generator(seed, "batches"), draws, batch_norm)


def batches(plan):
    return np.split(plan.index, np.cumsum(plan.sizes)[:-1]) if plan.steps else []


# --- Epochs -----------------------------------------------------------------------------------------


def test_keep_sees_every_sample_once_an_epoch():
    made = plan(10, batch_size=4, epochs=3)
    assert made.sizes == (4, 4, 2) * 3
    assert made.epochs == (0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert made.steps == 9
    passes = made.index.reshape(3, 10)
    assert all(sorted(seen) == list(range(10)) for seen in passes)
    assert not np.array_equal(passes[0], passes[1])  # each epoch in its own order


def test_drop_leaves_the_rest_of_an_epoch_out():
    made = plan(10, batch_size=4, epochs=2, last_batch="drop")
    assert made.sizes == (4, 4, 4, 4)
    assert made.epochs == (0, 0, 1, 1)
    for seen in made.index.reshape(2, 8):
        assert len(set(seen)) == 8


def test_drop_of_a_client_smaller_than_a_batch_makes_no_step():
    assert plan(3, batch_size=4, last_batch="drop").steps == 0
    assert plan(3, batch_size=4, last_batch="drop", steps=5).steps == 0
    assert plan(4, batch_size=4, last_batch="drop").sizes == (4,)


def test_wrap_fills_the_last_batch_from_the_epochs_beginning():
    made = plan(10, batch_size=4, epochs=2, last_batch="wrap")
    assert made.sizes == (4, 4, 4) * 2
    for seen in made.index.reshape(2, 12):
        assert sorted(seen[:10]) == list(range(10))
        assert list(seen[10:]) == list(seen[:2])


@pytest.mark.parametrize("last_batch", ["keep", "drop", "wrap"])
def test_batches_that_fit_exactly_need_no_rule(last_batch):
    made = plan(12, batch_size=4, last_batch=last_batch)
    assert made.sizes == (4, 4, 4)
    assert sorted(made.index) == list(range(12))


@pytest.mark.parametrize("batch_size", [7, 8, 1000])
@pytest.mark.parametrize("last_batch", ["keep", "wrap"])
def test_a_batch_as_large_as_the_clients_data_is_the_full_batch(batch_size, last_batch):
    made = plan(7, batch_size=batch_size, epochs=3, last_batch=last_batch)
    assert made.sizes == (7, 7, 7)
    assert all(sorted(batch) == list(range(7)) for batch in batches(made))


# --- Steps ------------------------------------------------------------------------------------------


def test_steps_take_the_place_of_epochs():
    made = plan(10, batch_size=4, epochs=50, steps=7)
    assert made.sizes == (4, 4, 2, 4, 4, 2, 4)
    assert made.epochs == (0, 0, 0, 1, 1, 1, 2)


def test_fewer_steps_than_an_epoch():
    made = plan(10, batch_size=4, steps=1)
    assert made.sizes == (4,)
    assert np.array_equal(made.index, plan(10, batch_size=4).index[:4])  # the same beginning


def test_steps_with_drop_and_wrap():
    assert plan(10, batch_size=4, steps=5, last_batch="drop").sizes == (4,) * 5
    assert plan(10, batch_size=4, steps=5, last_batch="wrap").sizes == (4,) * 5


# --- A single sample under BatchNorm ----------------------------------------------------------------


def test_a_single_sample_is_skipped_and_counted_where_a_net_cannot_take_it():
    made = plan(9, batch_size=4, epochs=3, batch_norm=True)
    assert made.sizes == (4, 4) * 3
    assert made.skipped == 3
    assert plan(9, batch_size=4, epochs=3).sizes == (4, 4, 1) * 3
    assert plan(9, batch_size=4, epochs=3).skipped == 0


@pytest.mark.parametrize(("batch_size", "rest", "left_out"), [(128, 15, 1), (128, 16, 0), (20, 9, 1), (20, 10, 0)])
def test_auto_leaves_out_a_last_batch_of_fewer_than_16_samples_and_than_half_a_batch(batch_size, rest, left_out):
    made = plan(batch_size + rest, batch_size=batch_size, batch_norm=True)
    assert made.sizes == ((batch_size,) if left_out else (batch_size, rest))
    assert made.skipped == left_out


@pytest.mark.parametrize("samples", [2, 5, 8, 10, 16])
def test_auto_is_keep_without_batch_norm_and_where_every_batch_has_enough_samples(samples):
    values = {"batch_size": 8, "epochs": 2, "draws": 2}
    kept, auto = (plan(samples, last_batch=choice, **values) for choice in ("keep", "auto"))
    assert np.array_equal(kept.index, auto.index)
    assert np.array_equal(kept.draws, auto.draws)
    assert kept.sizes == auto.sizes
    if samples != 10:
        assert plan(samples, last_batch="auto", batch_norm=True, **values).sizes == kept.sizes


def test_steps_are_made_up_for_when_auto_leaves_a_batch_out():
    made = plan(10, batch_size=8, steps=3, batch_norm=True)
    assert (made.sizes, made.epochs, made.skipped) == ((8, 8, 8), (0, 1, 2), 2)


def test_a_last_batch_that_is_kept_although_it_is_too_small_for_batch_norm_is_a_caution():
    clients = blobs((9, 10, 11, 12, 8, 2))

    def cautions(network, **values):
        return fit(network, clients, "fedavg", rounds=1, batch_size=8, set=values).metrics[0].get("cautions", [])

    few, single, whole = cautions(normed(), **{"train.last_batch": "keep"})
    assert "at client 1 (2 of 10 samples), client 2 (3 of 11 samples); " in few
    assert single.startswith("the last batch of client 0 (1 of 9 samples) is left out in each epoch although ")
    assert whole.startswith("the only batch of client 5 (2 of 2 samples) is too small for good BatchNorm statistics, ")
    for choice in ("auto", "wrap"):
        assert cautions(normed(), **{"train.last_batch": choice}) == [whole]
    assert not cautions(normed(), **{"train.last_batch": "drop"})
    assert not cautions(plain(), **{"train.last_batch": "keep"})


def test_the_only_batch_of_a_client_is_trained_on_whatever_its_size():
    for choice, sizes in {"auto": (2,), "keep": (2,), "wrap": (2,), "drop": ()}.items():
        assert plan(2, batch_size=8, last_batch=choice, batch_norm=True).sizes == sizes


def test_steps_are_made_up_for_when_a_single_sample_is_skipped():
    made = plan(5, batch_size=4, steps=4, batch_norm=True)
    assert made.sizes == (4, 4, 4, 4)
    assert made.epochs == (0, 1, 2, 3)
    assert made.skipped == 3  # none after the last step


@pytest.mark.parametrize(("samples", "batch_size"), [(1, 4), (1, 1), (5, 1)])
@pytest.mark.parametrize("steps", [0, 6])
@pytest.mark.parametrize("last_batch", ["auto", "keep", "wrap", "drop"])
def test_a_client_without_a_usable_batch_ends_without_a_step(samples, batch_size, steps, last_batch):
    made = plan(samples, batch_size=batch_size, steps=steps, last_batch=last_batch, batch_norm=True)
    assert made.steps == 0
    assert made.index.shape == (0,)
    assert made.skipped > 0 or (last_batch == "drop" and samples < batch_size)


def test_a_client_without_samples_makes_no_step():
    assert plan(0).steps == 0
    assert plan(0, steps=3).steps == 0


def test_a_skipped_batch_is_reported_by_the_run():
    clients = blobs((9, 5))
    row = fit(normed(), clients, "fedavg", rounds=1, batch_size=4).metrics[0]
    assert [(c["samples"], c["steps"], c["skipped_batches"]) for c in row["clients"]] == [(9, 2, 1), (5, 1, 1)]
    row = fit(plain(), clients, "fedavg", rounds=1, batch_size=4).metrics[0]
    assert [(c["steps"], c["skipped_batches"]) for c in row["clients"]] == [(3, 0), (2, 0)]


def test_a_client_of_one_sample_sits_out_and_is_named():
    x, y = blobs((9,))[0]
    run = fit(normed(), [(x, y), (x[:1], y[:1])], "fedavg", rounds=2, batch_size=4, set={"train.steps": 3})
    assert [row["idle"] for row in run.metrics] == [[1], [1]]
    single = fit(normed(), [(x, y)], "fedavg", rounds=2, batch_size=4, set={"train.steps": 3})
    got, want = run.model().state_dict(), single.model().state_dict()
    assert all(torch.equal(got[name], want[name]) for name in want)


# --- Only a function of the seed --------------------------------------------------------------------


def test_the_plan_is_a_function_of_the_generators_key_only():
    one, two = plan(20, batch_size=6, epochs=2, draws=3), plan(20, batch_size=6, epochs=2, draws=3)
    assert np.array_equal(one.index, two.index)
    assert np.array_equal(one.draws, two.draws)
    np.random.seed(5)
    torch.manual_seed(5)
    assert np.array_equal(plan(20, batch_size=6, epochs=2).index, one.index)
    assert not np.array_equal(plan(20, batch_size=6, epochs=2, seed=1).index, one.index)


def test_augmentation_does_not_change_the_batches():
    made = plan(20, batch_size=6, epochs=2, draws=5)
    assert made.draws.shape == (40, 5)
    assert made.draws.dtype == np.float32
    assert ((made.draws >= 0) & (made.draws < 1)).all()
    assert np.array_equal(made.index, plan(20, batch_size=6, epochs=2).index)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(0, 9),
    st.sampled_from(["auto", "keep", "drop", "wrap"]),
    st.booleans(),
)
def test_whatever_the_sizes(samples, batch_size, steps, last_batch, batch_norm):
    made = plan(samples, batch_size=batch_size, steps=steps, epochs=2, last_batch=last_batch, batch_norm=batch_norm)
    assert sum(made.sizes) == len(made.index)
    assert len(made.sizes) == len(made.epochs)
    assert all(1 <= size <= batch_size for size in made.sizes)
    assert made.steps <= steps or not steps
    assert all(0 <= i < samples for i in made.index)
    if batch_norm:
        assert 1 not in made.sizes
    if batch_norm and last_batch == "auto" and samples > batch_size:
        assert all(size >= min(16, batch_size / 2) for size in made.sizes)
    if steps and min(samples, batch_size) > 1 and not (last_batch == "drop" and samples < batch_size):
        assert made.steps == steps
