"""A round of a Flower deployment: fullrank's FedAvg and Flower's own, at two SuperNodes with TLS on loopback.

Run `.venv-flower/bin/python benchmarks/flower_round.py`. Both train the same small CNN for as many local steps; one
SuperLink serves all runs, which alternate. Bytes and the time of the apps' processes are those that Flower reports.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path

import flwr
import torch

from fullrank.deploy.flower import write_app
from fullrank.files import read_lines

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from flower_deployment import Deployment, deployed  # noqa: E402

SITES, STEPS, BATCH = 2, 10, 32
OVERRIDES = (
    *(f"train.steps={STEPS}", f"train.batch_size={BATCH}", "method.name=fedavg", "data.partition=iid"),
    *("data.holdout=0", "evaluate.personal=never"),
)


def cost(net: Deployment, seconds: list[float], rounds: int) -> dict[str, float]:
    """The costs per client and round of the newest run; the first round, with its set-up, is not in the seconds."""
    newest = net.runs()[0]
    per = SITES * rounds
    traffic = newest["network-traffic"]
    assert traffic["inbound-bytes"] > traffic["outbound-bytes"] / 2, f"the sites sent no models\n{net.log}"
    return {
        "seconds": statistics.mean(seconds[1:]),
        "client_seconds": newest["compute-time"]["clientapp-seconds"] / per,
        "server_seconds": newest["compute-time"]["serverapp-seconds"] / per,
        "down": traffic["outbound-bytes"] / per,
        "up": traffic["inbound-bytes"] / per,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"Flower's FedAvg": [], "fullrank, fedavg": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_app(folder / "ours", "fedavg", SITES)
        with deployed(folder / "net", SITES) as net:
            for repeat in range(given.repeats):
                times = folder / f"{repeat}.json"
                status = net.run(HERE / "foreign" / "flower_app", times, rounds=given.rounds, steps=STEPS, batch=BATCH)
                assert status == "finished:completed", net.log
                found["Flower's FedAvg"].append(cost(net, json.loads(times.read_text()), given.rounds))
                out = folder / f"run{repeat}"
                status = net.run(folder / "ours", out, [*OVERRIDES, f"train.rounds={given.rounds}"])
                assert status == "finished:completed", net.log
                rows = [row["training_seconds"] for row in read_lines(out / "metrics.jsonl")]
                found["fullrank, fedavg"].append(cost(net, rows, given.rounds))
                print(f"{repeat + 1} of {given.repeats}", file=sys.stderr, flush=True)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, flwr {flwr.__version__}"
    print(f"{platform.machine()}, {versions}; {SITES} SuperNodes")
    print(f"medians of {given.repeats} interleaved runs of {given.rounds} rounds [lowest, highest]\n")
    heads = ("", "seconds a round", "app at a site, s", "app at the server, s", "bytes down", "bytes up")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, runs in found.items():
        cells = [spread([run[key] for run in runs], 2) for key in ("seconds", "client_seconds", "server_seconds")]
        cells += [spread([run[key] for run in runs], 0) for key in ("down", "up")]
        print(f"| {name} | {' | '.join(cells)} |")


def spread(values: list[float], digits: int) -> str:
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} [{low}, {high}]"


if __name__ == "__main__":
    main()
