"""Numerical checks of the papers' theory, and of errors in its printed form.

Functions return plain numbers and arrays. `fullrank theory NAME --out FILE.pdf` draws a figure of each study.
"""

from fullrank.theory.aligning import alignment, singular_alignment
from fullrank.theory.bound import fedmr_bound, fedmr_recursion
from fullrank.theory.disjoint import DisjointExample, disjoint_example
from fullrank.theory.growing import Growth, growth
from fullrank.theory.identities import effective_ranks, proposition_1, representation_covariance, spread_of_eigenvalues
from fullrank.theory.linear import balanced_start, flow, imbalance, product, velocity
from fullrank.theory.panels import Sphere, smallest_angle, sphere
from fullrank.theory.sphere_study import UnitSphere, unit_sphere
from fullrank.theory.theorem import Rates, aligned_example, aligned_forever, dropped_share, rates
from fullrank.theory.toy_study import toy_sphere

__all__ = [
    "DisjointExample",
    "Growth",
    "Rates",
    "Sphere",
    "UnitSphere",
    "aligned_example",
    "aligned_forever",
    "alignment",
    "balanced_start",
    "disjoint_example",
    "dropped_share",
    "effective_ranks",
    "fedmr_bound",
    "fedmr_recursion",
    "flow",
    "growth",
    "imbalance",
    "product",
    "proposition_1",
    "rates",
    "representation_covariance",
    "singular_alignment",
    "smallest_angle",
    "sphere",
    "spread_of_eigenvalues",
    "toy_sphere",
    "unit_sphere",
    "velocity",
]
