"""Measures of a representation: the dimensions it uses, the geometry of its classes, its similarity between clients.

All are pure functions that return plain numbers. Features are (N, d), NumPy arrays or tensors on any device, in one
piece or, where documented, as a stream of batches, which `Moments` and `Similarity` reduce in O(d²) memory for any
number of samples. All sums are in float64. Undefined values are nan; the only input that is rejected as such is an
empty one.

>>> import numpy as np
>>> z = np.random.default_rng(0).normal(size=(1000, 8)) * [9, 3, 1, 0, 0, 0, 0, 0]
>>> round(effective_rank(z), 1), significant(spectrum(z))
(1.5, 3)
>>> moments = Moments()
>>> for batch in np.split(z, 10):
...     moments.add(batch)
>>> round(effective_rank(moments), 1)
1.5
"""

from fullrank.collapse.classwise import class_accuracy, confusion, recall
from fullrank.collapse.clients import classifier_cosine, classifier_map, classifier_norms, prototype_consistency
from fullrank.collapse.maps import principal_map
from fullrank.collapse.moments import Moments
from fullrank.collapse.neural import nc_error, neural_collapse
from fullrank.collapse.similarity import Similarity, cka, cka_by_layer
from fullrank.collapse.spectra import effective_rank, significant, singular_variance, spectrum, spectrum_gap
from fullrank.collapse.within import class_eigenvalue_variance, mean_class_eigenvalue_variance

__all__ = [
    "Moments",
    "Similarity",
    "cka",
    "cka_by_layer",
    "class_accuracy",
    "class_eigenvalue_variance",
    "classifier_cosine",
    "classifier_map",
    "classifier_norms",
    "confusion",
    "effective_rank",
    "mean_class_eigenvalue_variance",
    "nc_error",
    "neural_collapse",
    "principal_map",
    "prototype_consistency",
    "recall",
    "significant",
    "singular_variance",
    "spectrum",
    "spectrum_gap",
]
