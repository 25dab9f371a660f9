"""Measures of a partition's heterogeneity: counts, entropy, distances, a hash and a picture in text."""

from __future__ import annotations

import hashlib
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fullrank.data.partition import IndexArray, Labels, whole_labels
from fullrank.errors import InputError, printable

CountArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

RAMP = " ·░▒▓█"
MAX_CLIENTS_DRAWN = 40
MAX_NAME = 20
MOST_LISTED = 50_000
"""The largest number of clients times classes whose counts are listed."""
MIN_NAME_WIDTH = 4  # three letters and a space; with fewer, numbers are clearer
_TICK_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def counts(labels: Labels, parts: Sequence[IndexArray], num_classes: int) -> CountArray:
    """Count the samples of each client by class.

    Args:
        labels: The label of each sample of the data set.
        parts: The samples of each client; one that a client has twice counts twice.
        num_classes: The number of classes.

    Returns:
        The counts, of shape (clients, classes).

    Raises:
        InputError: If there are no clients, or labels or indices are out of range.
    """
    if not len(parts):
        raise InputError("the partition has no clients; it needs at least one")
    y = whole_labels(labels)
    if y.min() < 0 or y.max() >= num_classes:
        raise InputError(f"labels are between {y.min()} and {y.max()}; they must be in 0..{num_classes - 1}")
    held = _joined(parts)
    holder = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    outside = np.flatnonzero((held < 0) | (held >= len(y)))
    if len(outside):
        client = holder[outside[0]]
        raise InputError(f"client {client} has indices outside 0..{len(y) - 1}, the range of the samples")
    cells = np.bincount(holder * num_classes + y[held], minlength=len(parts) * num_classes)
    return cells.reshape(len(parts), num_classes)


def label_entropy(counts: CountArray) -> FloatArray:
    """Compute the entropy of each client's labels in nats: 0 for one class (or no sample), log C for C equal ones."""
    shares = _shares(counts)
    return np.asarray(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1) + 0.0)


def earth_movers_distance(counts: CountArray) -> FloatArray:
    """Compute each client's distance to the label distribution of all clients, Σ_c |p_k(c) − p(c)|, in 0..2.

    This is the quantity that Zhao et al. 2018 call the earth mover's distance: with equal distances between all classes
    it is twice the mass to be moved (twice the total variation). The entry of a client without samples is 0.
    """
    everywhere = counts.sum(axis=0) / max(1, counts.sum())
    distances = np.abs(_shares(counts) - everywhere).sum(axis=1)
    return np.where(counts.sum(axis=1) > 0, distances, 0.0)


def partition_hash(parts: Sequence[IndexArray]) -> str:
    """Return the SHA-256 of the clients' sizes and indices as little-endian 64-bit integers; order matters."""
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    return hashlib.sha256(_joined([sizes, *parts]).astype("<i8").tobytes()).hexdigest()


def describe(labels: Labels, parts: Sequence[IndexArray], num_classes: int) -> dict[str, Any]:
    """Compute all measures of this module, in types of JSON. Means are over clients with samples.

    Args:
        labels: The label of each sample of the data set.
        parts: The samples of each client.
        num_classes: The number of classes.

    Returns:
        The measures by name. The counts by client and class are among them unless there are more than `MOST_LISTED`.
    """
    table = counts(labels, parts, num_classes)
    held = np.zeros(len(labels), dtype=bool)
    held[_joined(parts)] = True
    sizes = table.sum(axis=1)
    present = sizes > 0
    entropy, distance = label_entropy(table), earth_movers_distance(table)
    return {
        "hash": partition_hash(parts),
        "clients": len(parts),
        "samples": int(sizes.sum()),
        "unique_samples": int(held.sum()),
        "size": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
        "sizes": sizes.tolist(),
        "entropy": {"mean": _mean(entropy[present]), "per_client": entropy.tolist()},
        "emd": {"mean": _mean(distance[present]), "per_client": distance.tolist()},
        "classes_per_client": _mean((table > 0).sum(axis=1)[present]),
        **({"class_counts": table.tolist()} if table.size <= MOST_LISTED else {}),
    }


def draw_text(
    counts: CountArray,
    class_names: Sequence[str] | None = None,
    width: int = 80,
    client_names: Sequence[str] = (),
) -> str:
    """Draw a partition as text, one line per client: its number or name, its size and a shaded cell for each class.

    The shade is the class's share of the client's samples, relative to the largest share drawn.

    Args:
        counts: The samples of each client by class, as :func:`counts` returns them.
        class_names: The names of the classes; numbers by default.
        width: The number of characters of a line. Adjacent classes share a cell if they would not fit otherwise.
        client_names: The names of the clients, used for up to 40 clients and shortened if they are long.

    Raises:
        InputError: If there are not as many class names as classes.
    """
    clients = client_labels(counts, client_names)
    side = "<" if client_names else ">"
    client_width = max(len("client"), *map(len, clients))
    drawn = counts[:MAX_CLIENTS_DRAWN]
    sizes = drawn.sum(axis=1)
    size_width = max(len("size"), len(str(sizes.max())))
    room = max(1, width - client_width - size_width - 4)
    labels, cell, per_cell = _lay_out(counts, class_names, room)
    shares = np.add.reduceat(_shares(drawn), np.arange(0, counts.shape[1], per_cell), axis=1)
    darkest = shares.max()

    lines = [f"{'client':<{client_width}}  {'size':>{size_width}}  {_header(labels, cell)}"]
    for client, size, row in zip(clients, sizes, shares, strict=False):
        blocks = (_shade(share, darkest) * max(1, cell - 1) for share in row)
        lines.append(
            f"{client:{side}{client_width}}  {size:>{size_width}}  {''.join(block.ljust(cell) for block in blocks)}"
        )
    if len(counts) > len(drawn):
        lines.append(f"and {len(counts) - len(drawn)} more clients")
    lines += textwrap.wrap(_legend(darkest, per_cell), max(width, 1))
    return "\n".join(line.rstrip() for line in lines)


def client_labels(counts: CountArray, client_names: Sequence[str] = ()) -> list[str]:
    """Return the names of a table's clients, shortened, or their numbers if there are no names or many clients.

    >>> client_labels(np.ones((2, 3)), ["north", "st-bartholomew-the-great"])
    ['north', 'st-bartholomew-the-…']
    """
    if not client_names or len(counts) > MAX_CLIENTS_DRAWN:
        return [str(client) for client in range(len(counts))]
    names = map(printable, client_names)
    return [name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…" for name in names]


def class_labels(counts: CountArray, class_names: Sequence[str] | None) -> list[str]:
    """Return the names of a table's classes, or their numbers if there are no names.

    Args:
        counts: The samples of each client by class.
        class_names: The names, or None.

    Raises:
        InputError: If there are not as many names as classes.
    """
    classes = counts.shape[1]
    if class_names is not None and len(class_names) != classes:
        raise InputError(f"{len(class_names)} class names for {classes} classes; give one for each class")
    return [str(name) for name in (range(classes) if class_names is None else class_names)]


def _lay_out(counts: CountArray, class_names: Sequence[str] | None, room: int) -> tuple[list[str], int, int]:
    """Return the cells' labels, the width of a cell and the number of classes in it, for ``room`` columns."""
    names = class_labels(counts, class_names)
    per_cell = math.ceil(len(names) / room)
    widest = room // math.ceil(len(names) / per_cell)
    if class_names is None or widest < MIN_NAME_WIDTH:
        labels = class_labels(counts, None)[::per_cell]
    else:
        labels = [name[: widest - 1] for name in names]
    return labels, min(widest, max(3, *(len(label) + 1 for label in labels))), per_cell


def _joined(parts: Sequence[IndexArray]) -> IndexArray:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def _shares(counts: CountArray) -> FloatArray:
    """Return each client's distribution of labels; zeros for a client without samples."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _shade(share: float, darkest: float) -> str:
    """Return a blank for a share of 0, else a shade in equal steps up to the largest share."""
    return RAMP[math.ceil(share / darkest * (len(RAMP) - 1))] if share > 0 else RAMP[0]


def _header(labels: Sequence[str], cell: int) -> str:
    """Return labels above their cells, or only every second, fifth, tenth … so that they do not overlap."""
    longest = max(map(len, labels))
    step = next((step for step in _TICK_STEPS if step * cell > longest), len(labels))
    return "".join(label.ljust(step * cell) for label in labels[::step])


def _legend(darkest: float, per_cell: int) -> str:
    steps = len(RAMP) - 1
    bounds = " ".join(f"{RAMP[i]}≤{100 * darkest * i / steps:.3g}%" for i in range(1, steps + 1))
    together = f"; a cell is {per_cell} neighbouring classes together" if per_cell > 1 else ""
    return f"share of its samples: {bounds}, blank none{together}"
