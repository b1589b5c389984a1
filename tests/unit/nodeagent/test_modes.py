"""An agent that runs as its programs' user reads what they wrote, whatever modes they have set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.nsml.test_sdk_modes import UNPRIVILEGED
from tests.unit.nsml.test_sdk_spool import ROOT

AGENT = """
import asyncio, os, socket, stat, sys, hashlib
from pathlib import Path
from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.storage.media import _checked
from nodeagent.safe_paths import open_folder
from nodeagent.collect.spool import ReplicaSpool
from nodeagent.link.tunnels import connect
from nsml._frames import MAGIC, frame
from nsml.common.clock import SystemClock

place = Path(sys.argv[1])
for part in ("run", "run/spool", "run/media", "run/tunnel"):
    (place / part).mkdir(parents=True, exist_ok=True)
folder = ReplicaFolder(place)
folder.output.write_bytes(b"said")
(folder.run / "spool/1.records").write_bytes(MAGIC + frame(1, b'{"kind":"metric"}'))
shown = hashlib.sha256(b"shown").hexdigest() + "-1"
(folder.run / "media" / shown).write_bytes(b"shown")
server = socket.socket(socket.AF_UNIX)
server.bind(str(folder.run / "tunnel/web"))
server.listen()
for path in (*reversed([*folder.run.rglob("*")]), folder.run, folder.output):
    if path.is_dir() == DIRS or path.is_socket():
        path.chmod(0)
spool = ReplicaSpool(ReplicaId.of_no_session(), folder, {})
print(sum(len(item.records) + len(item.text) for item in spool.read()))
with open_folder(folder.run, ["media"]) as media:
    print(_checked(shown, media, os.getuid()))
asyncio.run(connect(folder.run, "web", SystemClock())).close()
print("connected")
"""


@pytest.mark.parametrize("dirs", [True, False], ids=["folders", "files"])
def test_an_agent_reads_what_its_own_user_closed(tmp_path: Path, dirs: bool) -> None:
    done = subprocess.run(
        [
            *UNPRIVILEGED,
            sys.executable,
            "-c",
            AGENT.replace("DIRS", str(dirs)),
            str(tmp_path / "replica"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["5", "5", "connected"], done.stderr
