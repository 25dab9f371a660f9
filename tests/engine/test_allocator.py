"""The allocator of the library's own processes keeps the memory that a batch has freed."""

import json
import platform
import subprocess
import sys

import pytest

MEASURE = """
import json, resource, sys, torch

def faults():
    # Blocks of 64 MiB, like the activations of a large network; the first ones are not counted. A small block between
    # two large ones can send the next one to new pages; memory that is returned to the system is new for every block.
    counted = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2 ** 24)
        counted.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counted[3:])

def stop(*_):
    print(json.dumps([before, faults()]))
    sys.exit()

before = faults()
"""
COMMAND_LINE = "from fullrank.cli import app\napp.answer = stop\napp.main()"
WORKER = "from fullrank.engine.processes import worker\nworker._pipes = stop\nworker.main()"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
@pytest.mark.parametrize("start", [COMMAND_LINE, WORKER], ids=["command line", "worker process"])
def test_freed_memory_is_not_returned_to_the_system(start: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE + start], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    # Transparent huge pages of 2 MiB would make 32 faults of the 64 MiB; pages of 4 KiB make 16,384.
    assert before >= 30
    assert after <= before / 10
