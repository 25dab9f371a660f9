"""The memory that this process can have, to reject what cannot fit before it is allocated."""

from __future__ import annotations

import os
import sys

from fullrank.errors import InputError


def memory_limit() -> int:
    """Return the number of bytes that this process can have: the memory of the machine, or the limit of the process."""
    limits = [sys.maxsize]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        limits += [soft] if soft != resource.RLIM_INFINITY else []
    return min(limit for limit in limits if limit > 0)


def reject_too_large(what: str, needed: int, hint: str) -> None:
    """Raise an error if something needs more memory than there is.

    Args:
        what: What needs the memory; the message begins with it.
        needed: The number of bytes.
        hint: What the user can do about it.

    Raises:
        InputError: If `needed` is above the limit.
    """
    if needed > memory_limit():
        there = memory_limit() / 2**30
        raise InputError(f"{what} would take {needed / 2**30:.4g} GiB of memory, and there are {there:.4g} GiB; {hint}")
