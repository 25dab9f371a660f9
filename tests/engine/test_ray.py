"""The ray engine on a cluster of several nodes: the same bits as the reference, whatever is lost on the way.

The equality of further methods takes minutes: `python -m pytest tests/engine/test_ray.py -m slow`.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fullrank
import ray_cluster
from engines import distance, result, same
from fullrank.config.experiment import Experiment
from fullrank.engine import open_engine
from fullrank.engine.base import EngineOptions
from fullrank.engine.ray import worker
from fullrank.engine.ray.cluster import cause
from fullrank.engine.ray.engine import _place
from fullrank.engine.recipe import samples_of
from fullrank.engine.serial import Serial
from fullrank.errors import ClientFailed, InputError
from fullrank.runs.assemble import assemble
from fullrank.runs.display import problems_of
from lossy import Crashes, Sleeps, Speaks
from small import on_its_network

ray = pytest.importorskip("ray")
cluster = ray_cluster.cluster

SUPPORT = str(Path(__file__).parents[1] / "support")
VALUES = {
    "data.clients": 5,
    "data.augment": ["crop", "flip"],
    "data.holdout": 0.2,
    "evaluate.personal": "every",
    "model.width": 4,
    "model.features": 16,
    "model.norm": "batch",
    "model.dropout": 0.2,
    "train.rounds": 2,
    "train.participation": 3,
    "train.epochs": 1,
    "train.batch_size": 16,
}


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    sizes = (30, 21, 50, 17, 44)
    return [
        (torch.randn(n, 1, 8, 8, generator=generator), torch.randint(0, 3, (n,), generator=generator)) for n in sizes
    ]


def fit(data, engine, method, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = fullrank.models.build("cnn", 3, 1, norm="batch", width=4, features=16)
    return fullrank.fit(net, data, method, engine=engine, rounds=2, batch_size=16, set=settings)


def compared(values, tmp_path, workers=2):
    """The runs of an experiment with both engines."""
    one = fullrank.run({**values, "engine.name": "serial"}, tmp_path / "serial")
    other = fullrank.run({**values, "engine.name": "ray", "engine.workers": workers}, tmp_path / "ray")
    assert one.metrics[-1]["round"] == values["train.rounds"]
    return one, other


# Equal to the reference


def test_scaffold_is_equal_to_serial_to_the_bit_on_two_nodes(cluster, tmp_path):
    one, other = compared({**VALUES, "method.name": "scaffold"}, tmp_path)
    assert same(result(one), result(other))
    places = other.metrics[-1]["ray"]["nodes"]
    assert sum(places.values()) == 3
    assert len({node for row in other.metrics for node in row["ray"]["nodes"]}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("optimizer_state", ["fresh", "keep"])
@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox+feddecorr", "scaffold", "fedmr", "fedetf", "fedbn", "fedrepopt", "fednova"]
)
def test_methods_are_equal_to_serial_to_the_bit(cluster, method, optimizer_state, tmp_path):
    values = on_its_network(VALUES, method) | {"train.optimizer_state": optimizer_state, "train.rounds": 3}
    one, other = compared(values, tmp_path)
    assert same(result(one), result(other))


@pytest.mark.slow
def test_two_threads_are_equal_to_two_threads(cluster, tmp_path):
    node = cluster.add_node(num_cpus=2, object_store_memory=10**8)
    try:
        values = {**VALUES, "engine.threads": 2, "model.width": 16, "model.features": 64}
        one, other = compared(values, tmp_path, workers=1)
        assert same(result(one), result(other))
    finally:
        cluster.remove_node(node)


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_workers(cluster, tmp_path):
    whole = fullrank.run({**VALUES, "engine.name": "serial"}, tmp_path / "serial")
    values = {**VALUES, "engine.name": "ray", "engine.workers": 2}
    fullrank.run({**values, "train.rounds": 1}, tmp_path / "ray")
    resumed = fullrank.run({**values, "engine.workers": 1}, tmp_path / "ray")
    assert same(result(whole)[:2], result(resumed)[:2])


@pytest.mark.slow
def test_samples_are_read_from_a_file_that_a_node_has_too(cluster, tmp_path, monkeypatch):
    """Without one they are in the object store; a file that differs is not used."""
    from safetensors.torch import save_file

    parts = assemble(Experiment.of(VALUES))
    want = parts.server.run_round(Serial(parts.site)).results
    save_file(samples_of(parts.site.data), tmp_path / "samples.safetensors")
    put = []
    monkeypatch.setattr("fullrank.engine.ray.engine.as_arrays", lambda samples: put.append(1) or as_arrays(samples))
    as_arrays = worker.as_arrays
    for file, expected in ((tmp_path / "samples.safetensors", 0), (None, 1)):
        parts = assemble(Experiment.of(VALUES))
        parts.site.data = dataclasses.replace(parts.site.data, file=file)
        engine = open_engine("ray", parts.site, EngineOptions(workers=1, clients=3))
        try:
            got = parts.server.run_round(engine).results
        finally:
            engine.close()
        assert [each.metrics for each in got] == [each.metrics for each in want]
        assert len(put) == expected
    facts = worker.SampleFile.at(tmp_path / "samples.safetensors")
    assert facts.is_here()
    content = bytearray((tmp_path / "samples.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "samples.safetensors").write_bytes(content)
    assert not facts.is_here()


@pytest.mark.slow
def test_classes_of_a_script_travel_by_value(cluster, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from dataclasses import dataclass
            import torch
            from torch import nn
            import fullrank

            class Own(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.out = nn.Linear(4, 8), nn.Linear(8, 2)
                def forward(self, x):
                    return self.out(self.body(x).relu())

            @dataclass(frozen=True)
            class Shrink(fullrank.Method):
                strength: float = 0.1
                def loss(self, b):
                    return self.strength * b.z.square().mean()

            print("imported")
            torch.manual_seed(0)
            clients = [(torch.randn(20, 4), torch.randint(0, 2, (20,))) for _ in range(3)]
            net = Own()
            weights = []
            for engine, keys in (("serial", {{}}), ("ray", {{"engine.address": "{cluster.address}"}})):
                run = fullrank.fit(net, clients, Shrink(), rounds=2, engine=engine, set=keys)
                weights.append(run.model().state_dict())
            assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
            print("equal")
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("imported\nequal\n", "")


# On GPUs

ON_GPU = {**VALUES, "engine.device": "cuda", "engine.precision": "float64", "model.dropout": 0.0, "train.lr": 0.003}


@pytest.fixture
def one_gpu():
    """A local Ray with one GPU, which a run in this process uses."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if ray.is_initialized():
        pytest.skip("this process is connected to a cluster without a GPU")
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["fedavg", "fedprox+feddecorr", "scaffold", "fedmr", "fedetf", "fedbn"])
def test_two_workers_that_share_a_gpu_agree_with_a_cpu(one_gpu, method, tmp_path):
    values = on_its_network(ON_GPU, method)
    cpu = {**values, "engine.name": "serial", "engine.device": "cpu"}
    start = result(fullrank.run({**cpu, "train.lr": 1e-15}, tmp_path / "start"))[0]
    want = result(fullrank.run(cpu, tmp_path / "cpu"))[0]
    run = fullrank.run({**values, "engine.name": "ray", "engine.slots": 2}, tmp_path / "ray")
    got = {name: tensor.cpu() for name, tensor in result(run)[0].items()}
    assert sum(run.metrics[-1]["ray"]["nodes"].values()) == 3
    assert distance(want, got) < 1e-8 * distance(want, start)


@pytest.mark.gpu
def test_clients_of_a_killed_worker_on_a_gpu_run_again(one_gpu, data, tmp_path):
    keys = {"engine.device": "cuda", "engine.slots": 2}
    run = fit(data, "ray", Crashes(str(tmp_path / "ray"), times=1), **keys)
    want = fit(data, "serial", Crashes(str(tmp_path / "serial"), times=0), **{"engine.device": "cuda"})
    (again,) = [row["ray"]["again"] for row in run.metrics if "again" in row["ray"]]
    assert list(again) == ["2"]
    one, other = result(want)[0], result(run)[0]
    assert distance(one, other) < 1e-5 * sum(float(t.double().norm() ** 2) for t in one.values()) ** 0.5
    assert {t.device.type for t in other.values()} == {"cuda"}


@pytest.mark.gpu
def test_a_run_continues_with_the_workers_for_which_there_are_gpus(one_gpu, tmp_path):
    """Two workers with a GPU each were asked for, and there is one GPU."""
    run = fullrank.run({**ON_GPU, "engine.name": "ray", "engine.workers": 2}, tmp_path / "ray")
    assert [sum(row["ray"]["nodes"].values()) for row in run.metrics] == [3, 3]


# What is lost


def test_the_clients_of_a_killed_worker_run_again(cluster, data, tmp_path, capfd, monkeypatch):
    """With a method of the user's own script, which no node could import."""
    monkeypatch.setattr(Crashes, "__module__", "__main__")
    one = fit(data, "serial", Crashes(str(tmp_path / "serial"), times=0))
    other = fit(data, "ray", Crashes(str(tmp_path / "ray"), times=1))
    assert (tmp_path / "ray").read_text() == "x"
    assert same(result(one), result(other))
    (found,) = [row["ray"]["again"] for row in other.metrics if "again" in row["ray"]]
    assert list(found) == ["2"]
    assert "its process died" in found["2"]
    lines = [line for row in other.metrics for line in problems_of(row)]
    assert lines[0].startswith("round 1: client 2 was run again on another worker: node ")
    assert capfd.readouterr().out == ""  # Ray's own words do not reach the terminal


@pytest.mark.slow
def test_a_client_that_always_kills_its_worker_is_named_with_the_nodes(cluster, data, tmp_path):
    message = r"client 2: WorkerDied: its Ray worker was lost 3 times \(node .*: its process died\)"
    with pytest.raises(ClientFailed, match=message):
        fit(data, "ray", Crashes(str(tmp_path / "note"), times=99))
    skipping = {"run.on_client_error": "skip"}
    run = fit(data, "ray", Crashes(str(tmp_path / "other"), times=3), **skipping)
    assert [list(row.get("skipped", {})) for row in run.metrics] == [["2"], []]


def test_the_clients_of_a_lost_node_run_again_elsewhere(cluster, data, tmp_path):
    node = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    note = tmp_path / "note"

    def remove():
        deadline = time.monotonic() + 60
        while not note.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        other = fit(data, "ray", Sleeps(str(note), node.node_id), **{"engine.workers": 3})
    finally:
        thread.join()
    one = fit(data, "serial", Sleeps(str(note), ""))
    assert note.exists()
    assert same(result(one), result(other))
    again = {client: why for row in other.metrics for client, why in row["ray"].get("again", {}).items()}
    assert len(again) == 1
    assert f"({node.node_id[:8]}): " in next(iter(again.values()))


# What is said


@pytest.mark.slow
def test_exceptions_carry_their_traceback_and_prints_reach_standard_error(cluster, data, capsys):
    with pytest.raises(ClientFailed, match=r"client 2: RuntimeError: no luck at 2") as caught:
        fit(data, "ray", Speaks())
    assert "lossy.py" in caught.value.__cause__.traceback
    assert "client 4 speaks\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engine.address": "127.0.0.1:1"}, r'"127.0.0.1:1": no Ray cluster answers there \(Connection refused\)'),
        ({"engine.address": "ray://h:10001"}, "connections through Ray Client are not possible"),
        ({"engine.address": "h"}, 'engine.address = "h": must be "host:port"'),
        ({"engine.address": "h:x"}, 'engine.address = "h:x": must be "host:port"'),
        ({"engine.threads": 64}, "has no node with 64 CPU, which engine.threads needs; the largest has 1"),
        ({"engine.device": "cuda"}, 'no node with 1 GPU, which engine.device = "cuda" needs; the largest has 0'),
    ],
)
def test_wrong_values_are_rejected_in_a_sentence(cluster, values, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        fullrank.run({**VALUES, "engine.name": "ray", **values}, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_the_loss_of_a_worker_that_told_nothing_names_its_node():
    """With the texts of Ray's errors, of a node without fullrank and of one that is gone."""
    starting = SimpleNamespace(node="")
    absent = RuntimeError("ray::RayWorker.__init__() (pid=7, ip=10.0.0.3, actor_id=2)\nNo module named 'fullrank'")
    assert _place(starting, absent) == "node 10.0.0.3"
    assert cause(absent) == "the module fullrank is not installed there"
    gone = RuntimeError("The actor died because its node has died. Node Id: 12\n\tip: 10.0.0.4\n")
    assert (_place(starting, gone), cause(gone)) == ("node 10.0.0.4", "the node was lost")
    assert _place(SimpleNamespace(node="10.0.0.5 (abc)"), gone) == "node 10.0.0.5 (abc)"


def test_an_address_belongs_to_ray():
    with pytest.raises(InputError, match=r'engine.address = "auto": only engine.name = "ray" has an address'):
        Experiment.of({"engine.address": "auto"})


def test_without_ray_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^engine.name = \"ray\" needs Ray; pip install 'fullrank\[ray\]'$"):
        fullrank.run({**VALUES, "engine.name": "ray"}, tmp_path / "run")


def test_a_cluster_without_room_is_not_waited_for_forever(cluster, data, tmp_path, monkeypatch):
    monkeypatch.setattr("fullrank.engine.ray.engine.ROOM_SECONDS", 2.0)
    with occupied(2), pytest.raises(fullrank.errors.RunFailed, match=r"had no room for a worker \(1 CPU\) within 2 s"):
        fit(data, "ray", Speaks())


class occupied:  # noqa: N801
    """CPUs of the cluster that something else uses."""

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        from ray.util.placement_group import placement_group

        self.group = placement_group([{"CPU": 1}] * self.number)
        ray.get(self.group.ready(), timeout=30)

    def __exit__(self, *_):
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self.group)


@pytest.mark.parametrize("local", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_signal_ends_the_run_and_its_workers(cluster, local, tmp_path):
    command = [sys.executable, "-m", "fullrank", "run", "--out", str(tmp_path / "run"), "--set", "train.rounds=100000"]
    keys = ["engine.name=ray", "engine.workers=2", "model.name=mlp"]
    keys += [] if local else [f"engine.address={cluster.address}"]
    command += [part for key in keys for part in ("--set", key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("round 2/"):
            break
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1].startswith("fullrank: stopped; the first ")
    assert children_of_ray(process.pid) == []
    deadline = time.monotonic() + 20
    while not local and ray.available_resources().get("CPU") != 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert local or ray.available_resources()["CPU"] == 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_local_ray_dies_with_its_run(tmp_path):
    """At once, except for two agents of Ray, which notice it after a minute or two."""
    command = [sys.executable, "-m", "fullrank", "run", "--out", str(tmp_path / "run"), "--set", "train.rounds=100000"]
    command += ["--set", "engine.name=ray", "--set", "engine.workers=2", "--set", "model.name=mlp"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if line.startswith("round 2/"):
            break
    everything = children_of_ray(process.pid)
    assert len(everything) > 3
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in everything) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in everything if Path(f"/proc/{pid}").exists()] == []


def children_of_ray(pid):
    """The descendants of a process that are alive, without the agents of a node of Ray."""
    import psutil

    try:
        found = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in found if "Agent" not in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []
