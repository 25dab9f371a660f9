"""The memory of this machine, so that what cannot fit is rejected before it is allocated."""

from __future__ import annotations

import os
import sys

from fullrank.errors import InputError


def memory_limit() -> int:
    """Return the bytes that this process can have: the memory of the machine, or less if the process is limited."""
    limits = [sys.maxsize]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        limits += [soft] if soft != resource.RLIM_INFINITY else []
    return min(limit for limit in limits if limit > 0)


def reject_too_large(what: str, needed: int, hint: str) -> None:
    """Reject what needs more bytes than there are; the message begins with `what`, and `hint` says what to do."""
    if needed > memory_limit():
        there = memory_limit() / 2**30
        raise InputError(f"{what} would take {needed / 2**30:.4g} GiB of memory, and there are {there:.4g}; {hint}")
