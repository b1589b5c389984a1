"""Which constants a property may draw: `tests/support/code_constants.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import nsml.spec.images
from hypothesis.internal.conjecture.providers import HypothesisProvider
from tests.support.code_constants import leave_out_constants_of_code

leave_out_constants_of_code()
print(len(HypothesisProvider(None)._local_constants))
"""


@pytest.mark.parametrize("is_thorough", [False, True])
def test_those_of_the_code_are_drawn_where_there_is_time(is_thorough, tmp_path):
    environment = {**os.environ, "NSML_THOROUGH": "1" if is_thorough else ""}
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (int(done.stdout) > 0) is is_thorough
