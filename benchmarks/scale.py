"""Time and memory of a round with growing numbers of registered clients, of which the same number always takes part.

Either none of the clients has taken part before, or all have. Rounds of the sizes are interleaved, so that other work
of the machine affects all sizes alike; the last column is a size's median time in units of the smallest size's.
"""

import argparse
import platform
import statistics
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fullrank import Method
from fullrank.config.experiment import Experiment
from fullrank.data import DataSet, Pipeline, Split
from fullrank.data.federation import divide_by_sizes
from fullrank.engine import open_engine
from fullrank.runs.assemble import assemble
from fullrank.runs.callbacks import Callbacks
from fullrank.runs.directory import RunDirectory
from fullrank.runs.prober import Prober
from fullrank.runs.resume import begin
from fullrank.runs.run import _one_round, all_callbacks

SIZES = (1_000, 10_000, 100_000)
SAMPLES = 8


@dataclass(frozen=True)
class Stateless(Method):
    pass


@dataclass(frozen=True)
class Stateful(Method):
    def client_state(self, client):
        return {"rounds": torch.tensor(0)}

    def train(self, client):
        client.own = {"rounds": client.own["rounds"] + 1}
        client.fit()


class Session:
    """A run in a directory, round by round."""

    def __init__(self, clients: int, taking_part: int, method: Method, path: Path):
        start = time.perf_counter()
        x = torch.randn(SAMPLES * clients, 20)
        y = torch.randint(0, 10, (SAMPLES * clients,))
        data = DataSet("given", Split(x, y), Split(x[:1000], y[:1000]), tuple("0123456789"))
        table = {
            "data": {"name": "given", "partition": "given", "clients": clients},
            "model": {"name": "given"},
            "method": {"name": f"given:{method.name}"},
            "train": {"rounds": 10**6, "participation": taking_part},
            "engine": {"name": "serial"},
        }
        self.assembly = assemble(
            Experiment(**table).resolved(),
            federation=divide_by_sizes(data, Pipeline(), [SAMPLES] * clients),
            module=nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)),
            method=method,
        )
        self.directory = RunDirectory(path)
        self.directory.open()
        prober = Prober(self.assembly, path)
        begun = begin(self.assembly, self.directory, prober, {})
        begun.write()
        self.rows = begun.rows
        self.engine = open_engine("serial", self.assembly.site)
        self.callbacks = all_callbacks(Callbacks([]), self.assembly, self.directory, prober)
        self.started = time.perf_counter() - start

    def all_took_part(self) -> None:
        """Put the run into the state after many rounds: all clients have taken part, and their states are in a
        checkpoint."""
        server, stateful = self.assembly.server, self.assembly.composition.defined("client_state")
        for first in range(0, server.clients, 1000):
            for client in range(first, min(first + 1000, server.clients)):
                server.store.meet(client, 0)
                if stateful:
                    server.store.put(client, {stateful[0].name: {"rounds": torch.tensor(0)}})
            server.round += 1
            self.directory.save(server, keep=1)

    def round(self) -> float:
        start = time.perf_counter()
        _one_round(self.assembly, self.engine, self.rows, self.callbacks)
        return time.perf_counter() - start

    def memory(self, rounds: int) -> tuple[float, float]:
        """Return the KiB of Python and NumPy: the peak above the start of a round, and what remains after a round."""
        tracemalloc.start()
        self.round()
        peaks, left = [], []
        for _ in range(rounds):
            start = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            self.round()
            now, peak = tracemalloc.get_traced_memory()
            peaks.append(peak - start)
            left.append(now - start)
        tracemalloc.stop()
        return statistics.median(peaks) / 1024, statistics.median(left) / 1024


def compare(method: Method, met: bool, taking_part: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sessions = {size: Session(size, taking_part, method, Path(folder) / str(size)) for size in SIZES}
        times: dict[int, list[float]] = {size: [] for size in SIZES}
        for session in sessions.values():
            if met:
                session.all_took_part()
            session.round()
        for _ in range(rounds):
            for size, session in sessions.items():
                times[size].append(session.round())
        for size, session in sessions.items():
            median = statistics.median(times[size])
            peak, left = session.memory(5)
            print(
                f"{method.name:<10}{'all' if met else 'none':<11}{size:>10,}{session.started:>9.2f}"
                f"{1000 * median:>10.1f}{peak:>10.0f}{left:>10.1f}{median / statistics.median(times[SIZES[0]]):>8.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--taking-part", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}; one checkpoint a round")
    print(f"{arguments.taking_part} clients of {SAMPLES} samples take part; median of {arguments.rounds} rounds\n")
    print(f"{'':<10}{'took part':<11}{'':>10}{'start':>9}{'ms a':>10}{'peak':>10}{'left a':>10}{'':>8}")
    print(f"{'method':<10}{'before':<11}{'clients':>10}{'s':>9}{'round':>10}{'KiB':>10}{'round KiB':>10}{'ratio':>8}")
    for method in (Stateless(), Stateful()):
        for met in (False, True):
            compare(method, met, arguments.taking_part, arguments.rounds)


if __name__ == "__main__":
    main()
