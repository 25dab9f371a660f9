"""The processes engine: the same bits as the reference, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import fullrank
from engines import result, same
from fullrank import Mean, Method, Sum
from fullrank.config.experiment import Experiment
from fullrank.engine import EngineOptions
from fullrank.engine.processes.engine import Processes
from fullrank.engine.processes.wire import Wire, pack
from fullrank.errors import ClientFailed, InputError
from fullrank.runs.assemble import assemble

VALUES = {
    "data.clients": 5,
    "data.augment": ["crop", "flip"],
    "model.width": 4,
    "model.features": 16,
    "model.norm": "batch",
    "model.dropout": 0.2,
    "train.rounds": 3,
    "train.participation": 3,
    "train.epochs": 1,
    "train.batch_size": 16,
}


@dataclass(frozen=True)
class Remembers(Method):
    """Client state, server state, a broadcast and uploads of both kinds."""

    broadcast = ("total",)

    def server_state(self, server):
        return {"total": {"norm": torch.zeros(3)}}

    def client_state(self, client):
        return {"before": client.w0, "visits": torch.zeros((), dtype=torch.int64)}

    def grad(self, g, b):
        return {name: value + 0.01 * (b.w[name] - b.own["before"][name]) for name, value in g.items()}

    def after(self, client):
        client.own = {"before": client.w, "visits": client.own["visits"] + 1}
        size = torch.stack([value.norm() for value in client.w.values()]).sum()
        return {"norm": Sum({"norm": size.expand(3).clone()}), "mean": Mean({"size": size[None]}, client.n)}

    def aggregate(self, server, new, up):
        server.own = {"total": {"norm": server.own["total"]["norm"] + up["norm"]["norm"]}}
        return new


@dataclass(frozen=True)
class Ends(Method):
    """Kills the process in which the third client trains."""

    def train(self, client):
        if client.id == 2 and os.environ.get("FULLRANK_WORKER_DATA"):
            os.kill(os.getpid(), signal.SIGKILL)
        client.fit()


@dataclass(frozen=True)
class Fails(Method):
    def train(self, client):
        raise RuntimeError(f"no luck at {client.id}")


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    sizes = (30, 21, 50, 17, 44)
    return [
        (torch.randn(n, 1, 8, 8, generator=generator), torch.randint(0, 3, (n,), generator=generator)) for n in sizes
    ]


def fit(data, engine, workers=0, method=None, **rest):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = fullrank.models.build("cnn", 3, 1, norm="batch", width=4, features=16, dropout=0.2)
    method = method or Remembers() + fullrank.methods.build("fedprox+feddecorr")
    settings = {"rounds": 3, "participation": 3, "batch_size": 16, "set": {"engine.workers": workers}} | rest
    return fullrank.fit(net, data, method, engine=engine, **settings)


@pytest.mark.parametrize(
    "workers", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_equal_to_serial_to_the_bit(workers, data):
    """Partial participation, BatchNorm, dropout, client state, and a kept optimiser."""

    def outcome(engine, workers):
        return result(fit(data, engine, workers, set={"engine.workers": workers, "train.optimizer_state": "keep"}))

    reference = outcome("serial", 0)
    assert "optimizer" in next(state for state in reference[2].values() if state)
    assert same(reference, outcome("processes", workers))


def test_a_run_from_a_file_is_equal_and_resumes_in_either_engine(tmp_path):
    whole = fullrank.run({**VALUES, "engine.name": "serial"}, tmp_path / "serial")
    first = {**VALUES, "engine.name": "processes", "engine.workers": 2}
    fullrank.run({**first, "train.rounds": 1}, tmp_path / "mixed")
    mixed = fullrank.run(first, tmp_path / "mixed")
    assert same(result(whole)[0], result(mixed)[0])
    assert same(result(whole)[1], result(mixed)[1])


def test_a_script_needs_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
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
            for engine in ("serial", "processes"):
                run = fullrank.fit(net, clients, Shrink() + fullrank.methods.build("fedprox"), rounds=2, engine=engine,
                                   set={"engine.workers": 1})
                assert type(run.model()) is Own
                weights.append(run.model().state_dict())
            assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
            print("equal")
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "imported\nequal\n"


def test_a_worker_that_dies_names_its_client(data):
    with pytest.raises(ClientFailed, match=r"client 2: WorkerDied: its worker process died \(signal 9\)"):
        fit(data, "processes", 1, Ends(), participation=1.0)


def test_a_dead_worker_is_replaced_when_failures_are_skipped(data):
    settings = {"engine.workers": 1, "run.on_client_error": "skip"}
    run = fit(data, "processes", 1, Ends(), participation=1.0, rounds=2, set=settings)
    assert [list(row["skipped"]) for row in run.metrics] == [["2"], ["2"]]
    assert [len(row["clients"]) for row in run.metrics] == [4, 4]


def test_a_clients_exception_carries_its_traceback(data):
    with pytest.raises(ClientFailed, match=r"client 2: RuntimeError: no luck at 2") as caught:
        fit(data, "processes", 1, Fails(), participation=1.0)
    assert "test_processes.py" in caught.value.__cause__.traceback


def test_what_cannot_be_sent_is_rejected_in_a_sentence(data):
    class Locked(nn.Module):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()
            self.out = nn.Linear(64, 3)

        def __deepcopy__(self, memo):
            return Locked()

        def forward(self, x):
            return self.out(x.flatten(1))

    with pytest.raises(InputError, match=r"cannot be sent to worker processes.*separate module") as caught:
        fullrank.fit(Locked(), data, engine="processes", rounds=1)
    assert "\n" not in str(caught.value)


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_their_parent(number, tmp_path):
    command = [sys.executable, "-m", "fullrank", "run", "--out", str(tmp_path / "run"), "--set", "train.rounds=100000"]
    command += ["--set", "engine.name=processes", "--set", "engine.workers=2"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in parent.stdout:
        if line.startswith("round 2/"):
            break
    workers = children(parent.pid)
    assert len(workers) == 2
    parent.send_signal(number)
    parent.wait(timeout=30)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_results_come_in_the_jobs_order_and_few_wait():
    """The first job is slow: while it runs, no more results may pile up than twice the workers."""
    assembly = assemble(Experiment.of({**VALUES, "data.clients": 40, "data.partition": "iid", "train.steps": 1}))
    engine = Processes(assembly.site, EngineOptions(workers=2, clients=2))
    started = []

    def jobs():
        for client in range(40):
            started.append(client)
            job = assembly.server.job("train", client)
            yield job

    try:
        os.kill(engine._workers[-1].process.pid, signal.SIGSTOP)  # the worker that gets the first job
        results = engine.run(jobs())
        threading.Timer(2.0, os.kill, (engine._workers[-1].process.pid, signal.SIGCONT)).start()
        first = next(results)
        assert first.client == 0
        assert len(started) <= 1 + 2 * 2 + 1
        assert [first.client, *(r.client for r in results)] == list(range(40))
    finally:
        engine.close()


def test_the_shared_file_has_no_name(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    assembly = assemble(Experiment.of(VALUES))
    engine = Processes(assembly.site, EngineOptions(workers=1, clients=1))
    try:
        assert not list(tmp_path.glob("fullrank*"))
    finally:
        engine.close()


def test_wire_carries_every_dtype_and_shape():
    import io

    tensors = {
        "float": torch.randn(3, 4),
        "double": torch.randn(2, dtype=torch.float64),
        "half": torch.randn(5).to(torch.bfloat16),
        "whole": torch.arange(6).reshape(2, 3),
        "truth": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 3),
        "strided": torch.randn(4, 6).t(),
        "parameter": nn.Parameter(torch.randn(2)),
    }
    pipe = io.BytesIO()
    Wire(pipe, pipe).send(tensors)
    pipe.seek(0)
    got = Wire(pipe, pipe).receive()
    for name, tensor in tensors.items():
        assert torch.equal(got[name], tensor), name
        assert got[name].dtype == tensor.dtype
        assert type(got[name]) is type(tensor)
    assert len(pack(torch.randn(1000))[0]) < 1000


def test_a_message_holds_its_bytes_and_no_stream():
    """Python 3.12 crashes at its end if garbage contains a stream of which a message is a view."""
    body, *tensors = pack({"text": 1, "x": torch.ones(3)})
    assert type(body.obj) is bytes
    assert [len(frame) for frame in tensors] == [12]


def test_wire_survives_a_pipe_that_takes_a_part_only():
    """As one does when a signal comes in the middle of a large message."""
    import io

    class Reluctant(io.BytesIO):
        def write(self, data):
            return super().write(bytes(data)[:1000])

    tensors = {"large": torch.randn(4000), "small": torch.randn(3)}
    pipe = Reluctant()
    Wire(pipe, pipe).send(tensors)
    pipe.seek(0)
    got = Wire(pipe, pipe).receive()
    assert all(torch.equal(got[name], tensors[name]) for name in tensors)


def test_fit_never_starts_processes_by_itself(data):
    assert fit(data, "auto").experiment.engine.name == "serial"
