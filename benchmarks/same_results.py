"""Compare the results of two checkouts of this repository, to the bit.

    python benchmarks/same_results.py --with PATH

runs twelve small experiments of different methods, models and engines with this checkout and with the one in PATH, each
in a new process on a CPU, and compares every weight and every value of the metrics that both have, except for times.
Every key of the experiments is written out by the checkout in PATH, so that a changed default changes nothing here. A
table is printed, and the exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COMMON = {"data.clients": 5, "data.alpha": 0.5, "train.rounds": 3, "train.batch_size": 16, "train.lr": 0.05}
SMALL = {"model.width": 4, "model.features": 16, "train.steps": 5}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "fedavg, serial": {**SMALL, "engine.name": "serial", "data.validation": 0.1},
    "fedprox+feddecorr, processes": {**SMALL, "method.name": "fedprox+feddecorr", "engine.name": "processes"},
    "scaffold, vectorised": {"model.name": "mlp", "method.name": "scaffold", "engine.name": "vectorised"},
    "moon, auto": {"model.name": "mlp", "method.name": "moon", "data.clients": 12, "train.participation": 0.7},
    "fedmr, batch norm": {**SMALL, "model.norm": "batch", "method.name": "fedmr", "engine.name": "serial"},
    "fedetf, personalised": {
        **SMALL,
        "method.name": "fedetf",
        "method.fedetf.repeats": 1,
        "data.holdout": 0.2,
        "engine.name": "serial",
    },
    "fedrepopt": {
        "model.name": "repghost-0.5",
        "model.mode": "repopt",
        "method.name": "fedrepopt",
        "train.steps": 3,
        "engine.name": "serial",
    },
    "fedbn, augmented": {
        **SMALL,
        "model.norm": "batch",
        "method.name": "fedbn",
        "data.augment": ["crop", "flip"],
        "data.holdout": 0.2,
        "evaluate.personal": "every",
        "engine.name": "serial",
    },
    "feddyn, kept momentum": {
        **SMALL,
        "method.name": "feddyn",
        "train.optimizer_state": "keep",
        "train.participation": 3,
        "engine.name": "serial",
    },
    "ccvr+fedadam, adam": {**SMALL, "method.name": "ccvr+fedadam", "train.optimizer": "adam", "engine.name": "serial"},
    "ditto, probes": {**SMALL, "method.name": "ditto", "probe.every": 1, "data.holdout": 0.2, "engine.name": "serial"},
    "dropout, clipped": {**SMALL, "model.dropout": 0.3, "train.clip_norm": 0.5, "engine.name": "serial"},
}

WRITE = """
import json, sys, fullrank
for name, table in json.load(sys.stdin).items():
    fullrank.Experiment.of(table).resolved().to_toml(sys.argv[1] + "/" + name + ".toml")
"""
RUN = """
import json, pathlib, sys, fullrank
from safetensors.torch import load_file
import hashlib
run = fullrank.run(sys.argv[1], sys.argv[2])
found = {}
for file in sorted(run.path.rglob("*.safetensors")):
    for name, tensor in load_file(file).items():
        found[str(file.relative_to(run.path)) + " " + name] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
def walk(path, value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if not key.endswith(("seconds", "checksum")):
                walk(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            walk(f"{path}.{number}", inner)
    else:
        found[path] = value
walk("metrics", run.metrics)
walk("summary", run.summary())
print(json.dumps(found))
"""


def python(checkout: Path, code: str, *arguments: str, stdin: str = "") -> str:
    """Return the output of a piece of Python that imports fullrank from a checkout."""
    around = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], input=stdin, env=around, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="other", type=Path, required=True, help="another checkout of this repository")
    other, here = parser.parse_args().other.resolve(), Path(__file__).resolve().parent.parent
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        tables = {str(number): {**COMMON, **table} for number, table in enumerate(EXPERIMENTS.values())}
        python(other, WRITE, folder, stdin=json.dumps(tables))
        for number, name in enumerate(EXPERIMENTS):
            file = f"{folder}/{number}.toml"
            there, mine = (
                json.loads(python(checkout, RUN, file, f"{folder}/{who}-{number}"))
                for who, checkout in (("other", other), ("here", here))
            )
            both = there.keys() & mine.keys()
            odd = sorted(key for key in both if there[key] != mine[key])
            lost = sorted(there.keys() - mine.keys())
            differ |= bool(odd or lost)
            said = (
                "the same" if not odd and not lost else f"{len(odd)} differ, {len(lost)} are missing: {(odd + lost)[0]}"
            )
            print(f"{name:32} {len(both):6} values  {said}", flush=True)
    raise SystemExit(int(differ))


if __name__ == "__main__":
    main()
