"""`nsml.Visdom` with the real visdom: windows of a session are kept, and no server is waited for."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nsml._install import write_sdk
from tests.support.visdoms import required_visdom
from tests.unit.nsml.test_sdk_session import records

PROGRAM = """
import visdom, nsml
other = nsml.Visdom(visdom=visdom{options})
assert isinstance(other, visdom.Visdom)
other.text('other', win='first')
viz = nsml.Visdom(visdom=visdom, use_incoming_socket=False, env='mine'{options})
for step in range(3):
    viz.line([step * 2.0], [step], win='loss', update='append' if step else None)
viz.text('hello', win='words')
print('done')
"""


def _run(tmp_path: Path, options: str = "") -> subprocess.CompletedProcess[str]:
    write_sdk(tmp_path / "sdk")
    done = subprocess.run(
        [required_visdom(), "-c", PROGRAM.format(options=options)],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(tmp_path / "sdk"),
            "NSML_RUN_DIR": str(tmp_path / "run"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return done


@pytest.mark.long("makes an environment with visdom the first time")
def test_windows_of_a_session_are_its_artifact(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.stderr.count("sessions have no Visdom server") == 1
    (record,) = records(tmp_path / "run", "artifact")
    assert record["name"] == "visdom"
    file = Path(tmp_path, "run/checkpoints", str(record["folder"]), "visdom.log")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(where, said["win"]) for where, said in entries] == [
        ("events", "first"),
        ("events", "loss"),
        ("update", "loss"),
        ("update", "loss"),
        ("events", "words"),
    ]
    assert [said["eid"] for _, said in entries] == ["main", *["mine"] * 4]


@pytest.mark.long("makes an environment with visdom the first time")
def test_a_server_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    done = _run(tmp_path, ", server='http://127.0.0.2', port=9, raise_exceptions=True")
    assert done.stderr.count("Could not connect to server at http://127.0.0.2:9") == 1
    assert [one["name"] for one in records(tmp_path / "run", "artifact")] == ["visdom"]
