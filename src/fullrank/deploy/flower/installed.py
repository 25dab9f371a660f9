"""The check that Flower is installed."""

from __future__ import annotations

import importlib.util

from fullrank.errors import InputError


def require_flower() -> None:
    """Check that Flower can be imported.

    Raises:
        InputError: If it cannot; the message names the extra to install.
    """
    if importlib.util.find_spec("flwr") is None:
        raise InputError("Flower is not installed; install it with: pip install 'fullrank[flower]'")
