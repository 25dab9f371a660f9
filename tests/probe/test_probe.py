"""Probes: what they say is what the measures say, and a run with them is the run without them, to the bit."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fullrank
from commands import fullrank as command
from fullrank import collapse
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions, open_engine
from fullrank.errors import InputError
from fullrank.probe import model_probe
from fullrank.probe.layers import layers_of
from fullrank.randomness import generator
from fullrank.runs import prober
from fullrank.runs.assemble import assemble
from fullrank.runs.prober import Prober
from fullrank.testing.trial import recorded
from killing import Strike, assert_equal_outcomes, attempt, timeless
from small import assert_same_bits, blobs, normed

SETTINGS = {
    "data.clients": 4,
    "data.alpha": 0.5,
    "model.width": 2,
    "model.features": 8,
    "model.norm": "batch",
    "model.dropout": 0.2,
    "method.name": "fedavg+feddecorr",
    "train.rounds": 4,
    "train.participation": 3,
    "train.steps": 3,
    "train.batch_size": 16,
    "train.lr": 0.1,
    "engine.name": "serial",
}


def run(out, *tables, **keys):
    values = dict(SETTINGS)
    for table in (*tables, keys):
        values |= table
    return fullrank.run(values, out)


def rows(path):
    return [timeless(json.loads(line)) for line in (path / "metrics.jsonl").read_text().splitlines()]


def probe_files(path):
    found = {"probes.jsonl": (path / "probes.jsonl").read_bytes()}
    return found | {file.name: file.read_bytes() for file in sorted((path / "probes").iterdir())}


def assert_same_probes(got, want):
    """Equal, nan included."""
    np.testing.assert_equal(got, want)


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    path = tmp_path_factory.mktemp("without") / "run"
    run(path)
    return path


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    path = tmp_path_factory.mktemp("with") / "run"
    run(path, {"probe.every": 3})
    return path


# No cost to the run's arithmetic


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_run_with_probes_is_the_run_without_to_the_bit(tmp_path, without, probed, engine):
    if engine == "processes":
        run(tmp_path / "run", {"probe.every": 3, "engine.name": engine, "engine.workers": 1})
    path = probed if engine == "serial" else tmp_path / "run"
    assert (path / "model.safetensors").read_bytes() == (without / "model.safetensors").read_bytes()
    assert rows(path) == rows(without)
    assert probe_files(path) == probe_files(probed)
    newest = [sorted((p / "checkpoints").glob("server-*"))[-1] for p in (path, without)]
    assert_same_bits(*map(load_file, newest))


def test_a_group_of_clients_trains_as_without_probes(tmp_path):
    table = {"model.dropout": 0.0, "train.participation": 1.0, "engine.name": "vectorised"}
    found = [run(tmp_path / str(every), table, {"probe.every": every}) for every in (0, 1)]
    assert "one_by_one" not in found[1].metrics[0]
    assert (tmp_path / "0" / "model.safetensors").read_bytes() == (tmp_path / "1" / "model.safetensors").read_bytes()
    assert rows(tmp_path / "0") == rows(tmp_path / "1")


def test_recorded_steps_are_those_without_probes():
    table = {**SETTINGS, "model.dropout": 0.0, "probe.every": 1, "train.participation": 1.0}
    found = []
    for probes in (False, True):
        parts = assemble(Experiment.of(table))
        prober, engine = Prober(parts), recorded(parts)
        try:
            for number in range(2):
                shown = prober.round_started(number + 1, parts.server.sample(number)) if probes else ()
                parts.server.run_round(engine, prober.client_done, show=shown)
                if probes:
                    assert prober.measure().row["clients"] == shown
        finally:
            engine.close()
        found.append(parts.server.model)
    assert_same_bits(*found)


def test_nothing_of_a_probe_is_written_without_one(without):
    assert not (without / "probes").exists()
    assert not (without / "probes.jsonl").exists()
    assert fullrank.load_run(without).probes == []


def test_probes_come_every_so_often_and_after_the_last_round(probed):
    assert [probe["round"] for probe in fullrank.load_run(probed).probes] == [3, 4]


@pytest.mark.parametrize(
    "strike",
    [
        Strike("a round, not yet written", 3),
        Strike("half of 000003", 1),
        Strike("half a note", 3),
        Strike("a row, not yet its checkpoint", 3),
        Strike("a checkpoint", 3),
        Strike("a round, not yet written", 4),
    ],
    ids=str,
)
def test_a_run_that_was_killed_has_the_same_probes(tmp_path, probed, strike):
    experiment = {**SETTINGS, "probe.every": 3}
    assert attempt(experiment, tmp_path / "run", strike).signal
    attempt(experiment, tmp_path / "run").succeeded()
    assert_equal_outcomes(tmp_path / "run", probed)
    assert probe_files(tmp_path / "run") == probe_files(probed)


def test_half_a_line_and_the_file_of_a_round_that_was_not_saved_are_forgotten(tmp_path, probed):
    path = tmp_path / "run"
    run(path, {"probe.every": 3, "train.rounds": 3})
    with (path / "probes.jsonl").open("a") as file:
        file.write('{"round": 4, "sam')
    for name in ("000004.safetensors", ".000004.safetensors.1.part"):
        (path / "probes" / name).write_bytes(b"half")
    run(path, {"probe.every": 3})
    assert probe_files(path) == probe_files(probed)


def test_more_rounds_leave_the_probes_of_a_run_that_never_ended_before(tmp_path, probed):
    run(tmp_path / "run", {"probe.every": 3, "train.rounds": 2})
    assert [probe["round"] for probe in fullrank.load_run(tmp_path / "run").probes] == [2]
    result = run(tmp_path / "run", {"probe.every": 3})
    assert probe_files(tmp_path / "run") == probe_files(probed)
    assert_same_probes(result.probes, fullrank.load_run(probed).probes)


def test_other_probes_are_another_run(tmp_path, probed):
    with pytest.raises(InputError, match=r"probe\.every was 3, is now 2"):
        run(probed, {"probe.every": 2})
    one, two = (Experiment.of({"probe.every": every}).directory() for every in (0, 1))
    assert one != two


@pytest.mark.parametrize("engine", ["serial", "processes", "vectorised", "recorded"])
def test_every_engine_shows_the_models_that_clients_sent(engine):
    table = {**SETTINGS, "model.dropout": 0.0, "train.participation": 1.0, "method.name": "fedavg"}
    parts = assemble(Experiment.of({**table, "engine.precision": "float64"}))
    opened = (
        recorded(parts)
        if engine == "recorded"
        else open_engine(engine, parts.site, EngineOptions(workers=1, clients=4))
    )
    try:
        outcome = parts.server.run_round(opened, show=(0, 1, 2, 3))
        again = parts.server.run_round(opened, show=(1,))
    finally:
        opened.close()
    if engine == "vectorised":
        assert not opened.reasons
    mean = {}
    for result in outcome.results:
        for name, value in result.model.items():
            mean[name] = mean.get(name, 0) + value.double() * result.samples / 1437
    assert {result.client for result in again.results if result.model} == {1}
    fresh = assemble(Experiment.of({**table, "engine.precision": "float64"}))
    fresh.server.run_round(open_engine("serial", fresh.site))
    for name in fresh.entries.shared:
        torch.testing.assert_close(mean[name], fresh.server.model[name], rtol=1e-9, atol=1e-12)


# Which clients


def test_the_same_clients_are_shown_in_every_round_where_all_take_part(tmp_path):
    found = run(tmp_path / "run", {"probe.every": 1, "train.participation": 1.0, "train.rounds": 2}).probes
    assert [len(probe["clients"]) for probe in found] == [2, 2]
    assert found[0]["clients"] == found[1]["clients"]


def test_where_few_take_part_the_first_of_them_in_the_seeds_order_are_shown():
    prober = Prober(assemble(Experiment.of({**SETTINGS, "data.clients": 10, "probe.every": 1})))
    order = prober._order
    assert sorted(order) == list(range(10))
    assert prober.chosen(order[4:]) == sorted(order[4:6])
    assert prober.chosen([order[7]]) == [order[7]]
    other = Prober(assemble(Experiment.of({**SETTINGS, "data.clients": 10, "seed": 1})))
    assert other._order != order


# What they say


def measures(module, x, y, counts):
    """The measures of a network on prepared inputs, from whole arrays."""
    with torch.no_grad():
        z, logits = module.features(x), module(x)
    head = module.head
    values = collapse.spectrum(z)
    return {
        "accuracy": float((logits.argmax(1) == y).double().mean()),
        "effective_rank": collapse.effective_rank(z),
        "significant": collapse.significant(values),
        "singular_variance": collapse.singular_variance(z),
        "spectrum": values,
        "confusion": collapse.confusion(logits, y, 10),
        "class_accuracy": collapse.class_accuracy(logits, y, 10),
        "classifier_norms": head.weight.detach().norm(dim=1),
        "classifier_cv": collapse.classifier_norms(head.weight)["cv"],
        "classifier_bias": collapse.classifier_norms(head.weight, counts)["bias"],
        **collapse.neural_collapse(z, y, head.weight, head.bias),
    }


def assert_measures(got, want):
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_every_measure_is_what_the_collapse_functions_say_of_the_models(tmp_path):
    table = {"probe.every": 1, "probe.clients": 3, "train.rounds": 1, "train.steps": 8, "train.participation": 1.0}
    result = run(tmp_path / "run", table)
    (probe,) = result.probes
    assert_same_probes(fullrank.load_run(tmp_path / "run").probes, [probe])
    assert probe["round"] == 1
    parts = assemble(Experiment.of({**SETTINGS, **table}))
    test, counts = parts.federation.data.test, parts.federation.class_counts
    x = parts.federation.pipeline(test.x, None, torch.float32)
    assert (probe["samples"], probe["features"]) == (360, 8)
    assert_measures(probe["global"], measures(result.model(), x, test.y, counts.sum(0)))
    modules, prototypes = [], []
    for local, client in zip(probe["locals"], probe["clients"], strict=True):
        assert local["client"] == client
        sent = parts.site.do(parts.server.job("train", client)).upload[""]
        module = result.model()
        module.load_state_dict({**sent["w"].tree, **sent["buffers"].tree})
        modules.append(module)
        assert_measures(local, measures(module, x, test.y, counts[client]))
        gap, number = collapse.spectrum_gap(local["spectrum"], probe["global"]["spectrum"], count=True)
        assert (local["gap"], local["gap_values"]) == (gap, number)
        own = parts.federation.parts[client]
        with torch.no_grad():
            z = module.features(parts.federation.pipeline(parts.federation.data.train.x[own], None, torch.float32))
        y = parts.federation.data.train.y[own]
        prototypes.append(np.stack([z[y == c].double().sum(0) / max(1, int((y == c).sum())) for c in range(10)]))
    alike = collapse.classifier_cosine(torch.stack([module.head.weight.detach() for module in modules]))
    np.testing.assert_allclose(probe["classifier_cosine"], alike["mean"], rtol=1e-6)
    np.testing.assert_allclose(probe["classifier_cosines"], alike["matrix"], rtol=1e-6)
    agreed = collapse.prototype_consistency(np.stack(prototypes))
    np.testing.assert_allclose(probe["prototype_consistency"], agreed["mean"], rtol=1e-5)
    assert probe["prototype_classes"] == agreed["classes"]
    np.testing.assert_allclose(probe["prototype_consistency_by_class"], agreed["by_class"], rtol=1e-4)
    assert list(probe["cka"]) == ["backbone.0", "backbone.4", "backbone.9", "z", "classifier"]
    outputs = [lambda net, i=i: net.backbone[: i + 1](x) for i in (0, 4, 9)]
    outputs += [lambda net: net.features(x), lambda net: net(x)]
    means = []
    with torch.no_grad():
        for layer, output in zip(probe["cka"], outputs, strict=True):
            seen = [output(module) for module in modules]
            for k in range(3):
                for m in range(3):
                    np.testing.assert_allclose(probe["cka"][layer][k, m], collapse.cka(seen[k], seen[m]), rtol=1e-5)
            means.append(np.mean([collapse.cka(seen[k], seen[m]) for k, m in ((0, 1), (0, 2), (1, 2))]))
    np.testing.assert_allclose(list(probe["cka_by_layer"].values()), means, rtol=1e-5)
    assert list(probe["cka_by_layer"]) == list(probe["cka"])
    assert probe["cka_mean"] == pytest.approx(np.mean(means), rel=1e-5)


def test_the_variance_of_eigenvalues_is_that_of_mini_batches_drawn_by_the_seed(tmp_path):
    result = run(tmp_path / "run", {"probe.every": 1, "probe.clients": 0, "train.rounds": 1})
    parts = assemble(Experiment.of(SETTINGS))
    test = parts.federation.data.test
    with torch.no_grad():
        z = result.model().features(parts.federation.pipeline(test.x, None, torch.float32)).double().numpy()
    order = generator(result.experiment.seed, "probe", "mini-batches").permutation(360)
    found = []
    for batch in (order[:128], order[128:256]):  # 360 samples make two whole mini-batches
        for c in range(10):
            own = z[batch][test.y.numpy()[batch] == c]
            own = (own - own.mean(0)) / (own.std(0) + 1e-8)
            values = np.linalg.eigvalsh(own.T @ own / (len(own) - 1))
            found.append(((values - values.mean()) ** 2).sum() / 128)
    assert result.probes[0]["global"]["eigenvalue_variance"] == pytest.approx(np.mean(found), rel=1e-4)


def test_a_probe_is_not_rounded_where_the_run_computes_in_a_shorter_dtype(tmp_path):
    table = {"probe.every": 1, "train.rounds": 1, "engine.precision": "bfloat16"}
    result = run(tmp_path / "run", table)
    (probe,) = result.probes
    parts = assemble(Experiment.of({**SETTINGS, **table}))
    assert parts.network.half is torch.bfloat16
    test, counts = parts.federation.data.test, parts.federation.class_counts
    x = parts.federation.pipeline(test.x, None, torch.float32)
    assert_measures(probe["global"], measures(result.model(), x, test.y, counts.sum(0)))


def test_clients_classifiers_are_kept_as_directions_unless_they_are_large(tmp_path, monkeypatch):
    table = {"probe.every": 1, "train.rounds": 1}
    (probe,) = run(tmp_path / "kept", table).probes
    directions = probe["classifier_directions"]
    assert (directions.dtype, directions.shape) == (np.float16, (2, 10, 8))
    rows = directions.astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=2), 1, atol=2e-3)
    np.testing.assert_allclose((rows[0] * rows[1]).sum(1).mean(), probe["classifier_cosines"][0, 1], atol=2e-3)
    monkeypatch.setattr(prober, "MOST_KEPT", 159)
    (probe,) = run(tmp_path / "not", table).probes
    assert "classifier_directions" not in probe
    assert "classifier_cosines" in probe


def test_switches_of_a_gpu_stay_as_they_are_without_one(tmp_path, monkeypatch):
    """To read torch's older switches after its newer ones were set is an error in some releases."""

    def touched():
        raise AssertionError("they were touched")

    monkeypatch.setattr(model_probe, "_without_tf32", touched)
    assert run(tmp_path / "run", {"probe.every": 1, "train.rounds": 1}).probes


def test_features_that_are_too_many_to_keep_are_computed_again(tmp_path, monkeypatch):
    table = {"probe.every": 1, "train.rounds": 1}
    want = run(tmp_path / "kept", table).probes
    monkeypatch.setattr(model_probe, "KEPT_BYTES", 0)
    assert_same_probes(run(tmp_path / "again", table).probes, want)


def test_files_are_small_and_spectra_are_whole(probed):
    tensors = load_file(probed / "probes" / "000004.safetensors")
    assert tensors["global/spectrum"].dtype == torch.float32
    assert len(tensors["global/spectrum"]) == 8
    assert sum(file.stat().st_size for file in (probed / "probes").iterdir()) < 10_000


def test_a_frame_is_measured_against_what_it_acts_on(tmp_path):
    table = {"method.name": "fedetf", "probe.every": 1, "train.rounds": 1, "model.dropout": 0.0}
    result = run(tmp_path / "run", table, {"evaluate.personal": "never"})
    found = result.probes[0]["global"]
    parts = result._assembled()
    test = parts.federation.data.test
    with torch.no_grad():
        model = result.model()
        z = model.features(parts.federation.pipeline(test.x, None, torch.float32))
        mu = model.head(z)[1]["mu"]
    want = collapse.neural_collapse(mu, test.y, model.head.frame)
    for name, value in want.items():  # in float32, in which images with their channels last round otherwise
        np.testing.assert_allclose(found[name], value, rtol=1e-4)
    np.testing.assert_allclose(found["spectrum"], collapse.spectrum(z), rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(found["classifier_norms"], 1, rtol=1e-5)


def test_a_classifier_that_is_not_linear_has_no_rows_and_no_nc3(tmp_path):
    probe = run(tmp_path / "run", {"method.name": "fednh", "probe.every": 1, "train.rounds": 1, "model.features": 16})
    found = probe.probes[0]
    assert found["global"]["nc3"] is None
    assert 0 <= found["global"]["nc4"] <= 1
    assert "classifier_norms" not in found["global"]
    assert "classifier_cosine" not in found


def test_without_a_global_model_only_clients_are_probed(tmp_path):
    found = run(tmp_path / "run", {"method.name": "fedbn", "probe.every": 1, "train.rounds": 1}).probes[0]
    assert "each client's own" in found["absent"]
    assert "global" not in found
    assert len(found["locals"]) == 2
    assert "gap" not in found["locals"][0]


@pytest.mark.parametrize(("clients", "shown"), [(0, 0), (1, 1), (9, 3)])
def test_as_many_clients_as_asked_for_or_as_there_are(tmp_path, clients, shown):
    found = run(tmp_path / "run", {"probe.every": 1, "probe.clients": clients, "train.rounds": 1}).probes[0]
    assert len(found["clients"]) == len(found["locals"]) == shown
    assert ("cka" in found) == (shown > 1)


def test_a_program_gets_its_probes_without_a_directory():
    result = fullrank.fit(normed(), blobs(), test=blobs((20,))[0], rounds=3, set={"probe.every": 2})
    assert [probe["round"] for probe in result.probes] == [2, 3]
    assert result.probes[0]["global"]["spectrum"].shape == (6,)
    assert list(result.probes[0]["cka"]) == ["0", "z", "classifier"]


def test_layers_come_in_the_order_of_the_network(tmp_path):
    table = {"model.name": "lenet", "data.size": 28, "train.rounds": 1, "train.steps": 1, "probe.every": 1}
    rest = {key: value for key, value in SETTINGS.items() if not key.startswith("model.")}
    probes = fullrank.run({**rest, **table}, tmp_path / "run").probes
    for found in (probes, fullrank.load_run(tmp_path / "run").probes):
        layers = layers_of(assemble(Experiment.of(table)).network)
        assert list(found[0]["cka"]) == found[0]["layers"] == [*layers, "z", "classifier"]


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 6)
        self.shared = torch.nn.Linear(6, 6)
        self.never = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x):
        z = self.first(x).tanh()
        return self.head(self.shared(self.shared(z).tanh()).tanh())


def test_a_layer_that_is_called_twice_or_never_is_not_compared():
    clients = blobs(dtype=torch.float32)
    result = fullrank.fit(Twice(), clients, test=clients[0], rounds=1, set={"probe.every": 1})
    assert result.probes[0]["layers"] == ["first", "z", "classifier"]


def test_few_layers_are_compared_evenly_over_the_depth():
    parts = assemble(Experiment.of({"model.name": "resnet20", "data.clients": 2}))
    names = layers_of(parts.network)
    assert len(names) == 8
    assert names[0] == next(n for n, m in parts.network.module.named_modules() if isinstance(m, torch.nn.Conv2d))
    assert not any(name.startswith("head") for name in names)


# InputErrors


def test_without_a_test_set_probes_are_rejected():
    with pytest.raises(InputError, match=r"probe\.every = 1: .*test set.* set probe\.every = 0"):
        fullrank.fit(normed(), blobs(), rounds=1, set={"probe.every": 1})


@pytest.mark.parametrize("key", ["probe.every", "probe.clients"])
def test_negative_numbers_are_rejected(key):
    with pytest.raises(InputError, match=f"{key} = -1"):
        Experiment.of({key: -1})


def test_a_probe_file_that_is_missing_is_named(tmp_path):
    run(tmp_path / "run", {"probe.every": 1, "train.rounds": 1})
    (tmp_path / "run" / "probes" / "000001.safetensors").unlink()
    with pytest.raises(InputError, match=r"000001\.safetensors.*is missing"):
        _ = fullrank.load_run(tmp_path / "run").probes


# As a table


def probes(*arguments, capsys):
    return command("probes", *arguments, capsys=capsys)


def test_the_table_says_what_the_last_probe_found(probed, capsys):
    status, out, err = probes(probed, capsys=capsys)
    assert (status, err) == (0, "")
    last = fullrank.load_run(probed).probes[-1]
    shown = [float(np.mean([local[name] for local in last["locals"]])) for name in ("accuracy", "significant")]
    want = f"{100 * last['global']['accuracy']:.1f} / {100 * shown[0]:.1f}"
    header, row, note = out.splitlines()
    assert row.split("fedavg+feddecorr")[1].split()[:4] == ["4", *want.split()]
    assert f"{last['global']['significant']} / {shown[1]:.1f}" in row
    assert header.split()[0] == "run"
    assert note.startswith("global model /")


def test_every_probe_in_numbers_for_programs(probed, capsys):
    _, out, _ = probes(probed, "--every", "--json", capsys=capsys)
    rows = json.loads(out)
    assert [row["round"] for row in rows] == [3, 4]
    for row, probe in zip(rows, fullrank.load_run(probed).probes, strict=True):
        assert row["global"]["effective_rank"] == probe["global"]["effective_rank"]
        assert row["clients"]["number"] == len(probe["locals"])
        assert row["gap"] == pytest.approx(np.mean([local["gap"] for local in probe["locals"]]))


def test_runs_that_share_a_name_are_told_apart_by_their_seed(tmp_path, capsys):
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("fedprox", 0)):
        keys = {"method.name": method, "seed": seed, "probe.every": 1, "train.rounds": 1}
        run(tmp_path / "all" / f"{method}-{seed}", keys)
    rows = json.loads(probes(tmp_path / "all", "--json", capsys=capsys)[1])
    assert [row["run"] for row in rows] == ["fedavg, seed 0", "fedavg, seed 1", "fedprox"]


def test_runs_of_a_folder_without_probes_are_left_out_aloud(tmp_path, probed, without, capsys):
    shutil.copytree(probed, tmp_path / "all" / "with")
    shutil.copytree(without, tmp_path / "all" / "without")
    status, out, err = probes(tmp_path / "all", tmp_path / "all" / "with", capsys=capsys)
    assert (status, len(out.splitlines())) == (0, 3)
    assert err == "fullrank: skipped 1 of 2 runs, without probes\n"


def test_a_run_without_a_global_model_has_strokes_in_its_place(tmp_path, capsys):
    run(tmp_path / "run", {"method.name": "fedbn", "probe.every": 1, "train.rounds": 1})
    _, out, _ = probes(tmp_path / "run", capsys=capsys)
    assert out.splitlines()[1].split()[-4] == "–"  # no R, but CKA of the clients
    assert json.loads(probes(tmp_path / "run", "--json", capsys=capsys)[1])[0]["global"]["accuracy"] is None


def test_a_run_without_probes_is_told_how_to_have_them(without, capsys):
    status, _, err = probes(without, capsys=capsys)
    assert status == 2
    assert "has no probes; run the experiment with --set probe.every=1" in err


# Maps of test features


def test_a_probe_keeps_two_coordinates_and_labels_of_as_many_samples_as_asked(tmp_path, without):
    found = run(tmp_path / "run", {"probe.every": 3, "probe.embed": 40})
    test = fullrank.data.load_dataset("digits").test
    first, last = found.probes
    assert first["embedded_labels"].tolist() == last["embedded_labels"].tolist()
    assert len(first["embedded_labels"]) == 40
    shares = np.bincount(test.y.numpy(), minlength=10) / len(test.y)
    np.testing.assert_allclose(np.bincount(first["embedded_labels"], minlength=10), 40 * shares, atol=1)
    assert [model["embedding"].shape for model in (last["global"], *last["locals"])] == [(40, 2)] * 3
    arrays = load_file(tmp_path / "run" / "probes" / "000004.safetensors")
    longest = {name: array.shape for name, array in arrays.items() if 40 in array.shape}
    assert set(longest) == {"embedded_labels", "global/embedding", "locals/0/embedding", "locals/1/embedding"}
    assert rows(tmp_path / "run") == rows(without)


def test_the_map_is_the_projection_of_the_features_of_the_final_model(tmp_path):
    found = run(tmp_path / "run", {"probe.every": 4, "probe.embed": 1000, "model.dropout": 0.0})
    model, test = found.model(), fullrank.data.load_dataset("digits").test
    features = []
    model.head.register_forward_hook(lambda _, args, __: features.append(args[0].detach()))
    with torch.no_grad():
        assembly = found._assembled()
        model(assembly.federation.pipeline(test.x, None))
    z = torch.cat(features).double().numpy()
    z = z - z.mean(0)
    left, size, _ = np.linalg.svd(z, full_matrices=False)
    expected = left[:, :2] * size[:2]
    got = found.probes[-1]["global"]["embedding"]
    signs = np.sign((got * expected).sum(0))
    np.testing.assert_allclose(got, expected * signs, atol=1e-3 * size[0] / len(z) ** 0.5)
    assert found.probes[-1]["embedded_labels"].tolist() == test.y.tolist()


def test_no_map_is_kept_by_default(probed):
    arrays = load_file(probed / "probes" / "000003.safetensors")
    assert not [name for name in arrays if "embed" in name]
