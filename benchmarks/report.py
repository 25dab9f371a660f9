"""What a report costs: seconds to build it and its size, for 3 and for 100 runs of 100 rounds, and to open it.

    python benchmarks/report.py [--runs 3,100] [--rounds 100] [--probes]

One run is trained; the others are copies of its directory with other seeds and, of 100 runs, with 10 learning rates, so
that the page has 10 methods of 10 seeds. Chromium opens the page if it is installed, with Playwright.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import fullrank
from fullrank.config.experiment import Experiment
from fullrank.files import sealed_text

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
SEEDS = 10


def settings(rounds: int, probes: bool) -> dict[str, Any]:
    return {
        "model.name": "mlp",
        "model.width": 32,
        "data.holdout": 0.2,
        "data.share": 0.5,
        "train.rounds": rounds,
        "train.epochs": 2,
        "evaluate.metrics": ["accuracy", "calibration"],
        "run.checkpoint_every": rounds,
        **({"probe.every": 10} if probes else {}),
    }


def copies(run: Path, number: int, folder: Path) -> Path:
    """Copy a run as many times, with other seeds and learning rates."""
    experiment = Experiment.from_toml(run / "experiment.toml")
    for k in range(number):
        to = folder / f"run-{k:03d}"
        shutil.copytree(run, to)
        changed = experiment.but(seed=k % SEEDS, train__lr=experiment.train.lr * (1 + k // SEEDS))
        (to / "experiment.toml").write_text(sealed_text(changed.as_toml()))
    return folder


def seconds_to_open(page: Path) -> float | None:
    """Return the seconds until Chromium has drawn all charts."""
    path = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if path is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        start = time.perf_counter()
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready]", timeout=120_000)
        found = time.perf_counter() - start
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="3,100")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--probes", action="store_true", help="probe every 10 rounds")
    asked = parser.parse_args()
    print("runs  build, s  size, MB  open, s")
    with tempfile.TemporaryDirectory(prefix="fullrank-bench-") as scratch:
        run = Path(scratch) / "run"
        fullrank.run(settings(asked.rounds, asked.probes), run, progress=False)
        for number in map(int, asked.runs.split(",")):
            folder = copies(run, number, Path(scratch) / f"of-{number}")
            start = time.perf_counter()
            page = fullrank.write_report(folder)
            seconds = time.perf_counter() - start
            opened = seconds_to_open(page)
            shown = "-" if opened is None else f"{opened:.1f}"
            print(f"{number:4}  {seconds:8.1f}  {page.stat().st_size / 1e6:8.2f}  {shown:>7}", flush=True)


if __name__ == "__main__":
    main()
