"""The logic of the `cuda` engine without a GPU: steps are run again instead of replayed from graphs."""

import copy
import gc

import pytest
import torch

import fullrank
from engines import check_same, distance, play, recordings
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.cuda.compiled import Forward
from fullrank.engine.cuda.engine import Cuda, nothing_collected
from fullrank.engine.serial import Serial
from fullrank.models import Net, Network
from fullrank.runs.assemble import assemble
from fullrank.trees import Flat, flats
from small import on_its_network, rerun

CPU = torch.device("cpu")
BASE = {
    "data.clients": 4,
    "data.share": 0.3,
    "data.augment": ["crop", "flip"],
    "model": {"name": "cnn", "norm": "batch", "width": 4},
    "train.epochs": 2,
    "train.batch_size": 30,
    "train.weight_decay": 1e-3,
    "engine.precision": "float64",
}
# Where PyTorch was built for CUDA and no GPU is in sight, it keeps a pointer to what ended with the first thread that
# compiled (`ensureCUDADeviceGuardSet`), and the second crashes.
compiles = pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(), reason="this PyTorch compiles in one thread only"
)


def cuda(slots=3, devices=(CPU,), **options):
    return lambda site: Cuda(site, EngineOptions(slots=slots, clients=6, **options), record=rerun, devices=devices)


OWN = """
Variates Counting Previous Sharpness Doubled Prepared PreparedTwice Anchored Sometimes Balanced Shrink HeadThenBody
SideModel Memory FineTuned OwnNorm OwnHead Frame MovingFrame Projection Prototypes ServerMomentum Even Travelled
Calibrated Distils TopK
"""
METHODS = [*fullrank.methods.available(), "fedprox+feddecorr", "stateful:Variates+fedprox", "stateful:OwnNorms"]
METHODS += [f"hook_methods:{name}" for name in OWN.split()]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_as_in_serial(method):
    engine = check_same(on_its_network(BASE, method), cuda())
    assert not engine.reasons
    assert engine.recorded_then
    assert None not in engine.recorded_then
    assert not recordings(engine)  # closed, it holds no memory of the device


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "hook_methods:HeadThenBody"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_weights_in_channels_last_form_train_as_in_serial(method, norm, monkeypatch):
    """As on a GPU, where half of a network may train while the other half lies in between."""

    def as_on_a_gpu(network, engine):
        network.half = torch.bfloat16
        network.channels_last = True
        network.module.to(memory_format=torch.channels_last)

    def on_a_gpu(weights, slopes, velocities, **options):
        for alike in zip(weights, slopes, velocities, strict=True):
            assert len({tensor.stride() for tensor in alike}) == 1  # a GPU rejects others, a CPU mixes them up
        update(weights, slopes, velocities, **options)

    update = torch._fused_sgd_
    monkeypatch.setattr(torch, "_fused_sgd_", on_a_gpu)
    monkeypatch.setattr("fullrank.runs.assemble.set_up_for", as_on_a_gpu)
    model = {"name": "cnn", "norm": norm, "width": 4}
    table = {**BASE, "engine.precision": "float32", "model": model, "method.name": method, "train.epochs": 1}
    start = assemble(Experiment.of(table)).server.model
    one, other = (play(table, engine, rounds=1)[0].server.model for engine in (Serial, cuda()))
    assert distance(one, other) <= 0.1 * distance(one, start)  # bfloat16 has 8 bits


def test_a_fit_that_is_not_recorded_decays_what_it_should():
    """A term with a tensor of its own is no part of a recording: such steps run eagerly, on the same flat entries."""
    keys = {"method.name": "hook_methods:OwnTerm", "train.weight_decay": 1.0, "train.lr": 0.01}
    for momentum in (0.0, 0.9):
        check_same({**BASE, **keys, "train.decay_on": "matrices", "train.momentum": momentum}, cuda())


@compiles
@pytest.mark.parametrize("method", ["fedavg", "stateful:Variates+fedprox", "hook_methods:Sharpness"])
def test_a_compiled_forward_changes_nothing(method, monkeypatch):
    monkeypatch.setattr(
        "fullrank.engine.cuda.engine.Forward", lambda network, stats: Forward(network, stats, "aot_eager")
    )
    engine = check_same({**BASE, "method.name": method}, cuda(2, compile=True))
    assert not engine.reasons
    assert engine.device_contexts[0].forwards.keys() == {"move"}
    assert len(engine.device_contexts[0].forwards["move"].counters) > 0


class Opaque(Net):
    """Its entries cannot be listed while a compiler looks: some releases of PyTorch cannot trace `state_dict`."""

    def state_dict(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            raise RuntimeError("a compiler looks at the structure")
        return super().state_dict(*args, **kwargs)


@pytest.mark.parametrize("stats", ["move", "freeze"])
def test_the_compiler_need_not_look_at_a_network_that_nobody_looked_at_before(stats):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = fullrank.models.build("cnn", 3, 1, norm="batch", width=2, features=4).backbone
        network = Network.of(Opaque(body, 4, 3), torch.zeros(2, 1, 8, 8), 3)
        x = torch.randn(6, 1, 8, 8)
    network.half = torch.bfloat16  # in which a forward asks for the dtype of the entries
    assert network._walked is None
    forward = Forward(network, stats, "aot_eager")
    entries = {name: value.detach().clone() for name, value in network.tensors().items()}
    got = forward(entries, x)
    with network.mode(train=True, stats=stats):
        want = network(x)
    torch.testing.assert_close(got.logits, want.logits.detach(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(got.z, want.z.detach(), rtol=1e-2, atol=1e-2)
    for name in network.buffer_names:
        torch.testing.assert_close(entries[name], network.tensors()[name], rtol=1e-2, atol=1e-2)
    assert int(entries["backbone.1.num_batches_tracked"]) == (stats == "move")


def test_what_methods_see_has_the_models_dtype_although_weights_come_in_the_shorter_one():
    """Else a method that multiplies z by something of its own would fail, and losses would be sums of short numbers."""
    network = Network.of(fullrank.models.build("mlp", 3, 1), torch.zeros(2, 1, 4, 4), 3)
    network.half = torch.bfloat16
    short = {name: value.detach().bfloat16() for name, value in network.tensors().items()}
    out = network.at(short, torch.randn(5, 1, 4, 4))
    assert out.logits.dtype == out.z.dtype == torch.float32


@pytest.mark.parametrize("last", ["keep", "wrap", "drop"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_optimisers_schedules_and_odd_batches(optimizer, last):
    values = {**BASE, "train.optimizer": optimizer, "train.optimizer_state": "keep", "train.last_batch": last}
    values |= {"train.lr_schedule": "cosine", "train.clip_norm": 0.5, "train.label_smoothing": 0.1, "train.lr": 0.002}
    values |= {"train.decay_on": "matrices", "train.rounds": 3}
    check_same(values, cuda(2), rounds=3, tolerance=1e-7)


def test_a_learning_rate_for_every_step():
    values = {**BASE, "train.lr_schedule": "cosine", "train.lr_schedule_by": "step", "train.rounds": 2}
    check_same(values, cuda(2), rounds=2)


def test_slots_on_several_devices():
    engine = check_same(BASE, cuda(4, devices=(CPU, CPU)))
    assert len(engine.device_contexts) == 2
    assert {worker.device_context for worker in engine.workers} == set(engine.device_contexts)


def test_client_failure_stops_the_others_and_leaves_the_engine_usable():
    values = {**BASE, "method.name": "stateful:AllFail"}
    parts = assemble(Experiment.of(values))
    engine = Cuda(parts.site, EngineOptions(slots=3, clients=6), record=rerun, devices=(CPU,))
    parts.server.run_round(engine)
    with pytest.raises(fullrank.errors.ClientFailed):
        parts.server.run_round(engine)
    assert all(slot.job is None for slot in engine.slots.slots)
    engine.close()


def test_a_model_that_draws_numbers_is_rejected_side_by_side():
    parts = assemble(Experiment.of({**BASE, "model": {**BASE["model"], "dropout": 0.5}}))
    engine = Cuda(parts.site, EngineOptions(slots=3, clients=6), record=rerun, devices=(CPU,))
    with pytest.raises(fullrank.errors.InputError, match=r"engine\.slots = 1"):
        parts.server.run_round(engine)
    engine.close()
    assert len(Cuda(parts.site, EngineOptions(slots=0, clients=6), record=rerun, devices=(CPU,)).workers) == 1


def test_what_cannot_be_recorded_runs_eagerly_and_says_why():
    def rejects(step, pool):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    engine = check_same(
        BASE, lambda site: Cuda(site, EngineOptions(slots=2, clients=6), record=rejects, devices=(CPU,))
    )
    assert engine.reasons == ["operation not permitted when stream is capturing"]


def test_evaluation_is_replayed(monkeypatch):
    parts = assemble(Experiment.of(BASE))
    want = parts.evaluator.evaluate(parts.server.model)
    engine = Cuda(parts.site, EngineOptions(slots=1, clients=6), record=rerun, devices=(CPU,))
    assert parts.evaluator.evaluate(parts.server.model) == pytest.approx(want)
    changed = {n: t + 0.1 if t.is_floating_point() else t for n, t in parts.server.model.items()}
    again = parts.evaluator.evaluate(changed)
    engine.close()
    assert parts.evaluator.evaluate(changed) == pytest.approx(again)


def test_bfloat16_forwards_stay_near_float32():
    values = {**BASE, "engine.precision": "float32"}
    start = assemble(Experiment.of(values)).server.model
    want, _, _ = play(values, Serial, 1)
    for engine_of in (Serial, cuda(2)):
        got, _, _ = play({**values, "engine.precision": "bfloat16"}, engine_of, 1)
        model = got.server.model
        assert all(t.dtype == want.server.model[n].dtype for n, t in model.items())
        assert 0 < distance(want.server.model, model) < 0.2 * distance(want.server.model, start)


def test_one_kernel_for_the_optimiser_in_float32():
    values = {**BASE, "engine.precision": "float32", "train.nesterov": True, "train.steps": 5}
    check_same(values, cuda(2), tolerance=1e-4, rounds=1)


@compiles
@pytest.mark.parametrize("method", ["Shrink", "Distils"])
def test_compiled_bfloat16_gathers_the_whole_gradient(monkeypatch, method):
    """Slopes of shortened weights, of the others, and of terms that look at the weights themselves."""
    monkeypatch.setattr(
        "fullrank.engine.cuda.engine.Forward", lambda network, stats: Forward(network, stats, "aot_eager")
    )
    values = {**BASE, "engine.precision": "bfloat16", "method.name": f"hook_methods:{method}+fedprox", "train.steps": 6}
    start = assemble(Experiment.of(values)).server.model
    want, _, _ = play(values, Serial, 1)
    got, _, engine = play(values, cuda(1, compile=True), 1)
    assert not engine.reasons
    assert distance(want.server.model, got.server.model) < 0.05 * distance(want.server.model, start)


class Noisy(torch.nn.Module):
    """Draws numbers in its forward, with no layer that says so."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        z = x.flatten(1)
        return self.head(z + 0.1 * torch.randn_like(z) if self.noise and self.training else z)


@pytest.mark.parametrize("noise", [True, False])
def test_a_users_model_that_draws_numbers_trains_alone(noise):
    parts = assemble(Experiment.of({**BASE, "model": {"name": "given"}}), module=Noisy(noise))
    engine = Cuda(parts.site, EngineOptions(clients=6), record=rerun, devices=(CPU,))
    parts.server.run_round(engine)
    engine.close()
    assert (len(engine.workers) == 1) == noise
    assert engine.notes()["setup_seconds"] > 0


def test_no_garbage_is_collected_in_a_capture():
    """A graph that is freed there, left over from an engine that is gone, would spoil it."""
    assert gc.isenabled()
    with nothing_collected():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_trees_that_leave_the_engine_are_plain():
    """Vectors of parameters are the engine's own; whoever gets a result needs to know nothing of them."""
    values = {**BASE, "train.optimizer_state": "keep"}
    for method in ("scaffold", "fedrep", "hook_methods:OwnNorm"):
        parts = assemble(Experiment.of({**values, "method.name": method}))
        engine = Cuda(parts.site, EngineOptions(slots=1, clients=6), record=rerun, devices=(CPU,))
        (result,) = engine.run([parts.server.job("train", 0)])
        assert isinstance(engine.workers[0].site.network.some(parts.entries.shared), Flat) or method != "scaffold"
        engine.close()
        trees = [result.state, *(part.tree for space in result.upload.values() for part in space.values())]
        assert not any(isinstance(tree, Flat) for tree in all_trees(trees))


def all_trees(trees):
    for tree in trees:
        if isinstance(tree, dict):
            yield tree
            yield from all_trees(list(dict.values(tree)))


def test_corrections_are_one_operation_on_vectors():
    """However many entries there are: the variates of client and server, and the weights as received."""
    parts = assemble(Experiment.of({**BASE, "method.name": "scaffold"}))
    engine = Cuda(parts.site, EngineOptions(slots=1, clients=6), record=rerun, devices=(CPU,))
    list(engine.run([parts.server.job("train", 0)]))
    ((buffers,),) = (worker.recorder.static_buffers.values() for worker in engine.workers)
    context = buffers.context
    assert flats(context.w0, context.own["scaffold"]["c"], context.sent["scaffold"]["c"])
    engine.close()


def test_uploads_that_are_the_networks_own_tensors_are_those_of_their_client():
    """The slot's next client comes before the server has read them."""
    check_same({**BASE, "method.name": "hook_methods:Overheard"}, cuda(1))


def test_a_correction_that_extends_another_is_obeyed():
    values = on_its_network(BASE, "fedrepopt")
    check_same({**values, "method.name": "hook_methods:Tripled"}, cuda())


def test_a_copy_of_a_flat_network_is_loaded_by_itself():
    parts = assemble(Experiment.of(BASE))
    engine = Cuda(parts.site, EngineOptions(slots=1, clients=6), record=rerun, devices=(CPU,))
    network = engine.workers[0].site.network
    w = network.some(parts.entries.shared)
    assert isinstance(w, Flat)
    other = copy.deepcopy(network)
    other.load({name: torch.ones_like(tensor) for name, tensor in w.items()})
    assert all((other.tensors()[name] == 1).all() for name in w)
    assert not all((network.tensors()[name] == 1).all() for name in w)
    network.head = torch.nn.Linear(network.head.in_features, 10).double()
    assert torch.equal(network.some(["head.weight"])["head.weight"], network.head.weight)
    engine.close()
