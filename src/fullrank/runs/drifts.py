"""Clients whose weights moved much farther than those of the others in a round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

FAR = 2.0
"""How many times as far as any other client's its weights must have moved for a client to be noted."""
FEWEST = 3
"""The smallest number of clients of a round in which one is noted."""


def far_client(clients: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the client whose drift is more than twice the second largest of the round, or None if there is none.

    The drift of a client is the Euclidean distance between the shared weights that it received and those at the end of
    its training. In rounds of fewer than three clients none is noted.

    Args:
        clients: What is recorded of each client of the round, with the drift after each local epoch.

    Returns:
        The number of the client, its drift, and the second largest drift under `next`.

    >>> drifts = {0: 5.0, 1: 36.0, 2: 5.5}
    >>> far_client({"client": k, "epochs": [{"drift": drift}]} for k, drift in drifts.items())
    {'client': 1, 'drift': 36.0, 'next': 5.5}
    """
    last = {each["client"]: each["epochs"][-1] for each in clients if each.get("epochs")}
    drifts = {client: epoch["drift"] for client, epoch in last.items() if epoch.get("drift") is not None}
    known = sorted((drift, client) for client, drift in drifts.items() if math.isfinite(drift))
    if len(known) < FEWEST:
        return None
    (after, _), (largest, client) = known[-2:]
    return {"client": client, "drift": largest, "next": after} if 0 < FAR * after < largest else None
