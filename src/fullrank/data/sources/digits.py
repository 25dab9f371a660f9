"""The handwritten digits that come with the library."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch

from fullrank.data.dataset import DataSet, Split
from fullrank.data.split import split_off_test


def digits(root: str | Path = "", seed: int = 0) -> DataSet:
    """Load the 8×8 digits of the UCI repository, as in scikit-learn.

    Args:
        root: The folder of the data, which has no effect, because the digits are part of the library.
        seed: The seed, which has no effect: all runs have the same split.

    >>> len(digits().train)
    1437
    """
    with resources.files("fullrank.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        x, y = arrays["x"], arrays["y"]
    grey = np.rint(x * (255 / 16)).astype(np.uint8)
    whole = Split(torch.from_numpy(grey).unsqueeze(1), torch.from_numpy(y))
    # The split does not depend on the seed of the run, as in a data set that has a test set.
    train, test = split_off_test(whole, seed=0)
    return DataSet("digits", train, test, tuple("0123456789"), mean=(0.306,), std=(0.3762,))
