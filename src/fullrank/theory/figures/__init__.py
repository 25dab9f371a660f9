"""Figures of the theory, drawn with Matplotlib."""

from fullrank.theory.figures.disjoint import draw_bound, draw_disjoint
from fullrank.theory.figures.flow import draw_alignment, draw_growth, draw_theorem
from fullrank.theory.figures.spheres import draw_toy_sphere, draw_unit_sphere

__all__ = [
    "draw_alignment",
    "draw_bound",
    "draw_disjoint",
    "draw_growth",
    "draw_theorem",
    "draw_toy_sphere",
    "draw_unit_sphere",
]
