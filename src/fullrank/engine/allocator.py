"""A setting of the memory allocator with which a process keeps memory that it has freed."""

from __future__ import annotations

import ctypes
import platform

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2
"""The numbers of options of `mallopt`, as in glibc's malloc.h."""
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**28}


def keep_freed_memory() -> bool:
    """Make this process keep memory that it has freed, instead of returning it to the system and asking for it again.

    By default glibc returns the activations of each batch of a large network, and the page faults of the next batch
    take as long as the computation. The results are the same. The setting lasts for the rest of the process, which then
    occupies as much memory as it ever needed at once. The command line and worker processes call it; a program that
    imports the library can call it itself, at any time before its runs.

    Returns:
        Whether the allocator has the setting. Only glibc, on Linux, does.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) == 1 for option, value in KEEP.items())
