"""What the shim may cost: it is started for every replica, and forked with all it has loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOADED = (
    "import sys; sys.path.append(sys.argv[1])\n"
    "from nodeagent import shim, zygote\n"
    "import json, threading\n"
    "print(json.dumps([sorted(sys.modules), threading.active_count()]))"
)


def test_shim_and_zygote_load_little_and_start_no_thread() -> None:
    command = [sys.executable, "-I", "-S", "-c", LOADED, str(ROOT)]
    modules, threads = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    roots = {name.partition(".")[0] for name in modules}
    assert roots - set(sys.stdlib_module_names) == {"__main__", "nodeagent"}
    assert not roots & {"asyncio", "subprocess", "typing", "pathlib", "logging"}
    assert threads == 1
