"""Memory that is freed and used again at once."""

import subprocess
import sys

PIECES = """
import resource
from nsml.common.c_memory import keep_freed_memory
keep_freed_memory()
def pass_on():
    for _ in range(200):
        pieces = [bytearray(256 << 10) for _ in range(4)]
pass_on()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
pass_on()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_the_next_pieces_take_the_memory_of_the_last_ones():
    assert faults(PIECES) < 1_000 < faults(PIECES.replace("\nkeep_freed_memory()", "")) / 10
