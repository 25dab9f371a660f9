"""Collect the results by site of a comparison in one file: `python collect.py RUNS EXPERIMENT.toml RECORD.json`.

RUNS is the folder of the comparison and EXPERIMENT the file that it was started with. The metrics of each round are
copied, compressed, into the folder RECORD. Neither the paths of a machine nor values of single samples are among them.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from fullrank.comparison.by_site import OF_STAGES, by_site
from fullrank.comparison.directories import path_of, runs_in
from fullrank.config.experiment import Experiment
from fullrank.errors import InputError
from fullrank.papers.plan import differing
from fullrank.runs.result import Run

ROOT = Path(__file__).resolve().parents[2]
ABOUT = ("fullrank", "git_commit", "python", "torch", "cpu", "gpu")
"""What is kept about the machine and the code."""


def collect(folder: Path, experiment: Path, record: Path) -> None:
    """Write the record of a comparison, and the metrics of its runs."""
    runs = {(run.experiment.method.name, run.experiment.seed): run for run in runs_in(folder)}
    methods = list(dict.fromkeys(method for method, _ in runs))
    first = next(iter(runs.values()))
    original = Experiment.from_toml(experiment)
    changed = differing([original], [first.experiment])
    changed = {key: value for key, value in changed.items() if not key.startswith("method.")}
    if (rounds := first.experiment.train.rounds) != original.train.rounds:
        changed["train.rounds"] = rounds
    found = {
        "experiment": experiment.resolve().relative_to(ROOT).as_posix(),
        "set": changed,
        "methods": methods,
        "seeds": sorted({seed for _, seed in runs}),
        "environment": {name: json.loads((path_of(first) / "environment.json").read_text())[name] for name in ABOUT},
        "tables": tables(runs, methods),
    }
    record.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    metrics = record.with_suffix("")
    metrics.mkdir(exist_ok=True)
    for (method, seed), run in runs.items():
        content = (path_of(run) / "metrics.jsonl").read_bytes()
        (metrics / f"{method}-seed{seed}.metrics.jsonl.gz").write_bytes(gzip.compress(content, mtime=0))


def tables(runs: dict[tuple[str, int], Run], methods: list[str]) -> list[dict[str, Any]]:
    """Return the tables by site of every stage, of accuracy and of balanced accuracy."""
    found = []
    for measure in ("accuracy", "balanced_accuracy"):
        for stage in OF_STAGES:
            for value in ("final", "validated"):
                try:
                    found.append(by_site(runs, methods, measure, stage, value=value).facts())
                except InputError:  # the runs do not have it
                    continue
    return found


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python collect.py RUNS EXPERIMENT.toml RECORD.json")
    collect(*map(Path, sys.argv[1:]))
