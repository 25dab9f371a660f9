"""One thread for every test, and no GPU but for tests of one: bits are compared, and tests fork.

A child cannot differentiate if its parent did so with a GPU in sight or with several threads.
"""

import os

import torch

torch.set_num_threads(1)


def pytest_configure(config):
    if "gpu" not in config.getoption("markexpr").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
