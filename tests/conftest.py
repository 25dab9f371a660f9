"""One thread for every test, and no GPU but for tests of one: bits are compared, and tests fork.

A child cannot differentiate if its parent did so with a GPU in sight or with several threads. Repetitions that
`sweeps.IN_CI` does not keep are marked slow.
"""

import gc
import os

import pytest
import torch

from sweeps import IN_CI, left_out

torch.set_num_threads(1)


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()  # what is imported stays
    gc.set_threshold(20_000, 20, 20)


def pytest_configure(config):
    if "gpu" not in config.getoption("markexpr").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


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
