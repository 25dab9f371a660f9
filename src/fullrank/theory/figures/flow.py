"""Figures about linear networks: Theorem 1's two forms, growing singular values, alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fullrank.report.style import BLACK, BLUE, GREY, ORANGE, VERMILLION, drawing
from fullrank.theory.growing import Growth
from fullrank.theory.theorem import Rates


def draw_theorem(found: Mapping[int, Sequence[Rates]], path: str | Path) -> None:
    """Draw the predictions of both forms of Theorem 1, by depth, against the exact speeds of singular values.

    Args:
        found: The speeds of several examples for each depth.
        path: The file, whose suffix is the format.
    """
    markers = {1: ("o", BLUE), 2: ("^", ORANGE), 3: ("s", VERMILLION)}
    titles = {"formal": "appendix: product\noutside the root", "printed": "main text: product\nunder the root"}
    with drawing(path, 2.2) as figure:
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, (form, title) in zip(panels, titles.items(), strict=True):
            limit, complex_ones = 0.0, 0
            for depth, rates in found.items():
                exact = np.concatenate([each.exact for each in rates])
                predicted = np.concatenate([getattr(each, form) for each in rates])
                marker, colour = markers.get(depth, ("D", BLACK))
                shown = {"s": 9, "marker": marker, "facecolors": "none", "edgecolors": colour, "linewidths": 0.7}
                axes.scatter(exact, predicted, label=f"L = {depth}", **shown)
                complex_ones += int(np.isnan(predicted).sum())
                limit = max(limit, float(np.nanmax(np.abs([*exact, *predicted]))))
            ends = np.array([-limit, -1, 0, 1, limit])
            axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
            axes.set_xscale("symlog", linthresh=1)
            axes.set_yscale("symlog", linthresh=1)
            axes.set_xticks([-100, 0, 100])
            axes.set_yticks([-100, -10, 0, 10, 100])
            axes.set_title(title)
            if complex_ones:
                axes.text(0.97, 0.03, f"{complex_ones} not real", transform=axes.transAxes, ha="right", fontsize=7)
        panels[0].set_ylabel(r"predicted d$\sigma_k$/d$t$")
        panels[0].legend(loc="upper left", handletextpad=0.1, borderpad=0.1, labelspacing=0.2)
        figure.supxlabel(r"exact d$\sigma_k$/d$t$", fontsize=8)


def draw_growth(found: Mapping[str, Growth], path: str | Path) -> None:
    """Draw the singular values of Π over time, with one panel for each division of the classes.

    Args:
        found: The growth for each division, by its name.
        path: The file, whose suffix is the format.
    """
    with drawing(path, 2.0) as figure:
        panels = np.atleast_1d(figure.subplots(1, len(found), sharex=True, sharey=True))
        for axes, (name, grown) in zip(panels, found.items(), strict=True):
            final = grown.singular[-1]
            large = final > 0.5 * final[0]
            for k in range(grown.singular.shape[1]):
                axes.plot(grown.times, grown.singular[:, k], color=BLUE if large[k] else GREY, linewidth=0.9)
            axes.set_title(f"{name}\n{int(large.sum())} grow, rank of z {grown.effective_rank[-1]:.1f}")
            axes.set_xlim(0, grown.times[-1])
        panels[0].set_ylim(bottom=0)
        panels[0].set_ylabel(r"singular values $\sigma_k$ of $\Pi$")
        figure.supxlabel("time of the gradient flow", fontsize=8)


def draw_alignment(found: Mapping[int, NDArray[np.float64]], path: str | Path) -> None:
    """Draw ICLR Fig. 6: |u_kᵀ v_k'| as pixels, dark for 1, with one panel per epoch.

    Args:
        found: A (C, C) matrix for each epoch, as `alignment` returns them.
        path: The file, whose suffix is the format.
    """
    rows = -(-len(found) // 2)
    with drawing(path, 0.5 + 1.25 * rows) as figure:
        panels = figure.subplots(rows, min(2, len(found)), sharex=True, sharey=True, squeeze=False)
        for axes in panels.flat[len(found) :]:
            axes.set_visible(False)
        for axes, (epoch, table) in zip(panels.flat, found.items(), strict=False):
            number = len(table)
            image = axes.imshow(table, cmap="Greys", vmin=0, vmax=1, extent=(0.5, number + 0.5, number + 0.5, 0.5))
            ticks = [1, *range(5, number + 1, 5)]
            axes.set(title=f"epoch {epoch}", xticks=ticks, yticks=ticks)
            axes.spines[["top", "right"]].set_visible(True)
        figure.supxlabel(r"$k$: left singular vectors of $\Pi$", fontsize=8)
        figure.supylabel(r"$k'$: right singular vectors of $W_3$", fontsize=8)
        scale = figure.colorbar(image, ax=panels, shrink=0.8, aspect=25, pad=0.03)
        scale.set_label(r"$|u_k^\top v_{k'}|$")
        scale.outline.set_linewidth(0.6)
