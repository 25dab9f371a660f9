"""Figures about FedMR's paper: the example of §3.2 and the bound of Theorem 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullrank.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILLION, drawing, round_ticks
from fullrank.theory.bound import bound_cases, fedmr_bound
from fullrank.theory.disjoint import CENTRES, OPTIMAL, PRINTED, RADIUS, disjoint_example


def draw_disjoint(path: str | Path) -> None:
    """Draw the discs, the right and the printed optimal weights, and the average over clients with two classes.

    Args:
        path: The file, whose suffix is the format.
    """
    found = disjoint_example()
    right = rf"optimal $w^*$: {found.angle:.0f}° from $\hat w$"
    printed = rf"$w^*$ as printed: {found.printed_angle:.0f}° from $\hat w$"
    arrows: dict[str, tuple[NDArray[np.float64], str, Any]] = {
        right: (OPTIMAL, BLUE, "-"),
        printed: (PRINTED, VERMILLION, (0, (3, 2))),
        r"average $\hat w$ of the clients": (found.averaged, BLACK, "-"),
    }
    with drawing(path, 3.7) as figure:
        from matplotlib.patches import Circle

        axes = figure.subplots()
        for c, (x, y) in enumerate(CENTRES):
            axes.add_patch(Circle((x, y), RADIUS, facecolor="#E4E4E4", edgecolor=GREY, linewidth=0.8))
            text_style: dict[str, Any] = {"ha": "right" if c else "left", "va": "center", "fontsize": 7}
            axes.text(x + (-1 if c else 1) * (RADIUS + 0.1), y, f"class {c + 1}", **text_style)
        for label, (W, colour, style) in arrows.items():
            for c, (x, y) in enumerate(W / np.linalg.norm(W, axis=1, keepdims=True)):
                axes.plot([0, x], [0, y], color=colour, linestyle=style, label=label if c == 0 else None)
                axes.plot([x], [y], marker="o", markersize=3, color=colour)
        for W, colour, style in (arrows[right], arrows[printed]):
            normal = W[0] - W[1]
            along = np.array([normal[1], -normal[0]]) / np.linalg.norm(normal) * -np.sign(normal[0])
            for sign in (1, -1):
                axes.plot([0, 2.2 * along[0]], [0, 2.2 * sign * along[1]], color=colour, linestyle=style, linewidth=0.6)
        axes.plot([], [], color=GREY, linewidth=0.6, label="thin: where class 1 meets the others")
        axes.set(xlim=(-1.9, 2.3), ylim=(-2.4, 2.4), xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        figure.legend(loc="outside upper center", ncols=1, handlelength=2.2, labelspacing=0.25)


def draw_bound(path: str | Path, p: float = 0.25, rounds: int = 8) -> None:
    """Draw FedMR's bound over rounds, for several shares p̂ and margins δ.

    Args:
        path: The file, whose suffix is the format.
        p: The share p of the old error that is kept.
        rounds: The number of rounds.
    """
    t = np.arange(rounds + 1)
    colours = {0.0: GREY, 0.25: ORANGE, 0.5: BLUE, 0.75: GREEN}
    with drawing(path, 2.2) as figure:
        axes = figure.subplots()
        for p_hat, delta in bound_cases(p):
            colour, style = colours[p_hat], (0, (3, 2)) if delta else "-"
            values = [fedmr_bound(p, p_hat, int(each), 1.0, delta) for each in t]
            label = rf"$\hat p$ = {p_hat:g}" + (rf", $\delta$ = {delta:g}" if delta else "")
            axes.plot(t, values, color=colour, linestyle=style, marker=".", markersize=4, label=label)
            limit = fedmr_bound(p, p_hat, math.inf, 1.0, delta)
            axes.axhline(limit, color=colour, linewidth=0.5, linestyle=":", zorder=0)
        axes.set(xlim=(0, rounds), ylim=(-0.05, 2.1), xlabel="round $t$", ylabel="bound on the error, $G$ = 1")
        round_ticks(axes)
        axes.set_title(rf"share kept $p$ = {p:g}; dotted: $t \to \infty$", loc="left")
        figure.legend(loc="outside right center", handlelength=1.8)
