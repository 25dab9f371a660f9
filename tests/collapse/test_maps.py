"""Maps in two dimensions, compared with a singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fullrank.collapse import principal_map
from fullrank.errors import InputError


def test_the_map_is_the_projection_on_the_leading_right_singular_vectors():
    z = np.random.default_rng(0).normal(size=(50, 7)) * [5, 1, 9, 1, 1, 1, 1] + 3
    left, size, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
    found, expected = principal_map(z), left[:, :2] * size[:2]
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-9)


def test_equal_features_have_equal_maps_in_any_dtype():
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(20, 5)))
    np.testing.assert_array_equal(principal_map(z), principal_map(z.clone()))
    np.testing.assert_allclose(principal_map(z.float()), principal_map(z), atol=1e-5)


def test_features_of_one_dimension_or_without_variance():
    assert principal_map([[1.0], [3.0]]).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert principal_map([[1.0, 2.0]] * 3).tolist() == [[0.0, 0.0]] * 3


def test_what_is_not_finite_has_no_map():
    assert np.isnan(principal_map([[1.0, 2.0], [np.nan, 1.0]])).all()


def test_no_samples_are_rejected():
    with pytest.raises(InputError, match="no samples"):
        principal_map(np.zeros((0, 3)))
