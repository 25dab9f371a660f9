"""The page about HAM10000 is done as it says: on a few images, and on the data set if it is there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pages import DOCS, SHORT_OR_WHOLE, commands_of, run, working_in

ROOT = Path(__file__).parents[1]
SITES = {"rosendahl": "abc", "vidir_modern": "abc", "vienna_dias": "ab"}


def write_small(root):
    """Write images of three sites, of which one lacks a class, two to a lesion."""
    images = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    rows = ["path,group"]
    for site, classes in SITES.items():
        for part, count in (("train", 12), ("test", 6)):
            for name in classes:
                folder = root / site / part / name
                folder.mkdir(parents=True)
                for k in range(count):
                    pixels = rng.integers(0, 100, (32, 32, 3)) + 70 * "abc".index(name)
                    images.fromarray(pixels.astype(np.uint8)).save(folder / f"{k:05}.png")
                    rows.append(f"{site}/{part}/{name}/{k:05}.png,{site}-{part}-{name}-{k // 2}")
    (root / "groups.csv").write_text("\n".join(rows) + "\n")


def run_page(folder, data, changes, capsys, whole=False):
    """Run the commands of the page in a folder, with some settings changed; return what each of them printed."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    printed = {}
    with working_in(folder):
        for line in commands_of((DOCS / "ham10000.md").read_text()):
            trains = "--methods" in line
            further = [piece for change in changes if trains for piece in ("--set", change)]
            command = shlex.join([*shlex.split(line.replace("DATA/ham10000", str(data))), *further])
            printed[line] = run(command, capsys, whole, *(["--jobs", "1"] if trains else []))
    return printed


@SHORT_OR_WHOLE
def test_the_page_runs_on_a_folder_of_the_same_layout(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "cache"))
    write_small(tmp_path / "small")
    short = ["train.rounds=1", "train.epochs=1", "model.width=2"]
    printed = run_page(tmp_path, tmp_path / "small", [] if whole else short, capsys, whole)
    [compared] = [out for command, out in printed.items() if "--methods" in command]
    assert re.search(r"method +rosendahl +vidir_modern +vienna_dias +average", compared)
    for method in ("fedavg", "fedbn", "feddecorr", "fedmr", "fedetf"):
        assert re.search(rf"^{method} +\d", compared, re.MULTILINE)
    recalls = next(out for command, out in printed.items() if "--by class" in command)
    assert re.search(r"^c +\S+ \(\S+\) of 6 .*–$", recalls, re.MULTILINE)  # the third site lacks the class


@pytest.mark.slow
def test_the_page_runs_on_ham10000(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FULLRANK_CACHE", str(tmp_path / "cache"))
    shared = Path(os.environ.get("FULLRANK_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not (shared / "ham10000-sites-32px.npz").is_file():
        pytest.skip("HAM10000 is not at hand")
    subprocess.run([sys.executable, shared / "unpack.py", "ham10000", "--to", tmp_path], check=True)
    printed = run_page(tmp_path, tmp_path / "ham10000", ["train.rounds=1", "train.steps=2"], capsys)
    [compared] = [out for command, out in printed.items() if "--methods" in command]
    assert re.search(r"method +rosendahl +vidir_modern +vidir_molemax +vienna_dias +average", compared)
