"""What a server of a deployment costs per client and round, with 10, 100 and 1,000 sites in one process.

Run `python benchmarks/deployment_server.py`. Sites answer at once, with the weights that they received, over the
in-memory channel; their time is left out, and so is that of a network and of Flower's SuperLink. What remains is what
fullrank does at the server: jobs to bytes, bytes to results, checks, sums, rows, checkpoints. Each number of sites is
measured in a separate process, because of its peak of memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fullrank.channels import Mean, Sum
from fullrank.config.experiment import Experiment
from fullrank.deploy.sites import Message, serve
from fullrank.deploy.sites.channel import InMemory
from fullrank.deploy.sites.states import Receipt
from fullrank.federated.codec import pack, unpack
from fullrank.federated.site import Result
from fullrank.runs.callbacks import Callback

SIZES = (10, 100, 1_000)
ROUNDS = 4
SAMPLES = 100
METHODS = ("fedavg", "scaffold")


class Sites:
    """All sites of a federation: each answers with what it received, and the CPU time of all is counted."""

    def __init__(self, method: str):
        self.method, self.seconds = method, 0.0

    def node(self, client: int):
        def answer(content: bytes) -> bytes:
            start = time.process_time()
            found = self.answer(client, Message.from_bytes(content)).to_bytes()
            self.seconds += time.process_time() - start
            return found

        return answer

    def answer(self, client: int, request: Message) -> Message:
        if request.kind == "join":
            own = {"client": client, "name": f"site {client}", "samples": SAMPLES, "holdout": 0, "test": 0}
            form = {"name": "sites", "classes": list("0123456789"), "input_shape": [1, 28, 28], "dtype": "uint8"}
            form |= {"mean": None, "std": None, "augment": []}
            return Message({"kind": "joined", "release": "", "clients": [own], "data": form})
        job = unpack(request.values["job"], request.tensors)
        w, buffers = job.broadcast["w"], job.broadcast["buffers"]
        upload = {"": {"w": Mean(w, SAMPLES), "buffers": Mean(buffers, SAMPLES)}}
        receipt = None
        if self.method == "scaffold":
            upload["scaffold"] = {"change": Sum(job.broadcast["sent"]["scaffold"]["c"])}
            receipt = [job.round, Receipt(job.round, client).token]
        metrics = {"samples": SAMPLES, "steps": 1, "skipped_batches": 0, "epochs": [{"criterion": 1.0, "drift": 0.0}]}
        packed = pack(Result(client, SAMPLES, upload, metrics=metrics))
        return Message({"kind": "result", "result": packed.form, "receipt": receipt}, packed.tensors)


class Clock(Callback):
    """Notes the CPU time of the server, and what went over the channel, after each round."""

    def __init__(self, sites: Sites, channel: InMemory):
        self.sites, self.channel, self.notes = sites, channel, []
        self.note()

    def note(self) -> None:
        seconds = time.process_time() - self.sites.seconds
        self.notes.append((seconds, self.channel.bytes_down, self.channel.bytes_up, peak()))

    def round_done(self, row) -> None:
        self.note()


def peak() -> float:
    """The largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(clients: int, method: str) -> dict:
    """Run a few rounds; return the costs per client and round, and the peak of memory."""
    torch.set_num_threads(1)
    sites = Sites(method)
    channel = InMemory({100 + k: sites.node(k) for k in range(clients)})
    experiment = Experiment.of(
        {
            "data.clients": clients,
            "data.name": "digits",
            "model": {"name": "cnn"},
            "method.name": method,
            "train.rounds": ROUNDS,
            "evaluate.personal": "never",
            "engine.workers": 64,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        before = peak()
        clock = Clock(sites, channel)
        run = serve(experiment, channel, Path(folder) / "run", wait=600, callbacks=[clock])
        model = sum(value.numel() * value.element_size() for value in run.model().state_dict().values())
    steps = [
        [(now - then) / clients for then, now in zip(first, second, strict=True)]
        for first, second in zip(clock.notes[1:], clock.notes[2:], strict=False)
    ]
    cpu, down, up, _ = (statistics.median(column) for column in zip(*steps, strict=True))
    return {
        "clients": clients,
        "method": method,
        "model_bytes": model,
        "cpu_ms": 1000 * cpu,
        "bytes_down": down,
        "bytes_up": up,
        "start_mib": before,
        "peak_mib": peak(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--one", nargs=2, metavar=("CLIENTS", "METHOD"), help="Measure one and print it as JSON.")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(int(given.one[0]), given.one[1])))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, one thread\n")
    print("| method | sites | CPU ms | bytes down | bytes up | peak MiB (at the start) |\n|---|---|---|---|---|---|")
    for method in METHODS:
        for clients in map(int, given.sizes.split(",")):
            command = [sys.executable, __file__, "--one", str(clients), method]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found = json.loads(printed.splitlines()[-1])
            size = f"{found['bytes_down']:,.0f} | {found['bytes_up']:,.0f}"
            memory = f"{found['peak_mib']:.0f} ({found['start_mib']:.0f})"
            print(f"| {method} | {clients} | {found['cpu_ms']:.1f} | {size} | {memory} |", flush=True)
    print(f"\nper client and round; the model has {found['model_bytes']:,} bytes")


if __name__ == "__main__":
    main()
