"""What all tests share: one thread, no GPU except for tests of one, and no time spent on what no test needs.

Bits are compared, and tests fork: a child cannot differentiate if its parent did so with a GPU in sight or with several
threads. Repetitions that `sweeps.IN_CI` does not keep are marked slow.
"""

import gc
import os

import pytest
import torch

from sweeps import IN_CI, left_out

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # so that child processes compile the package once
os.fsync = lambda file: None  # tests kill processes, which loses nothing that the system has; only a power cut would


def pytest_configure(config):
    if "gpu" not in config.getoption("markexpr").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish():
    """Keep what is imported out of garbage collections, which are a tenth of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)  # before those that are marked slow are deselected
def pytest_collection_modifyitems(config, items):
    found = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in IN_CI:
            found.setdefault(name, []).append(item)
    for name, repeated in found.items():
        ids = [item.callspec.id if hasattr(item, "callspec") else "" for item in repeated]
        for place in left_out(ids, IN_CI[name]):
            repeated[place].add_marker(pytest.mark.slow)
    # A table that names what is no longer there would let CI grow without notice.
    files = {item.nodeid.partition("::")[0] for item in items}
    whole = {file for file in files if not any(str(argument).partition("::")[2] for argument in config.args)}
    if gone := [name for name in IN_CI if name.partition("::")[0] in whole and name not in found]:
        raise pytest.UsageError(f"tests/support/sweeps.py names tests that are not there: {', '.join(gone)}")
