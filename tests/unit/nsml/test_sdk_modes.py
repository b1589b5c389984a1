"""What programs write is kept, whatever umask or modes they have set."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nsml._session import Session
from tests.unit.nsml.test_sdk_spool import ROOT, read

UNPRIVILEGED = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
)
"""Modes mean nothing to root with all its rights."""

PROGRAM = """
import os, nsml
os.umask(0o777)
def save(folder):
    {save}
def load(folder):
    found = []
    for base, folders, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(base, name), folder) for name in names]
        for name in names:
            open(os.path.join(base, name), "rb").read()
    print(sorted(found))
    os.chmod(folder, 0)
nsml.bind(save=save, load=load)
nsml.report(step=1, loss=0.5)
for step in nsml.steps(1):
    nsml.save("best")
nsml.load("best")
nsml.text("words", "some", 1)
if os.fork() == 0:
    nsml.report(step=2, child=1)
    os._exit(0)
os.wait()
"""

SAVES = {
    "umask": "open(folder + '/w', 'wb').write(b'1')",
    "folders": (
        "os.makedirs(folder + '/a', exist_ok=True); os.chmod(folder + '/a', 0o700);"
        " os.mkdir(folder + '/a/b'); open(folder + '/a/w', 'wb').write(b'1')"
    ),
    "beside": (
        "os.mkdir(folder + '.d'); os.chmod(folder + '.d', 0o300); open(folder + '.d/w', 'wb').close();"
        " os.chmod(folder + '.d', 0)"
    ),
    "instead": "os.rmdir(folder); open(folder, 'wb').write(b'1')",
    "open": "global held; held = open(folder + '/w', 'wb'); held.write(b'1'); held.flush()",
    "closed": "open(folder + '/w', 'wb').close(); os.chmod(folder, 0)",
    "read-only": "open(folder + '/w', 'wb').close(); os.link(folder + '/w', 'own'); os.chmod(folder, 0o500)",
    "closed around": "open(folder + '/w', 'wb').close(); os.chmod(os.path.dirname(folder), 0)",
}
FOUND = {"folders": "a/w", "beside": "model.d/w", "instead": "model"}


@pytest.mark.parametrize("is_in_session", [True, False], ids=["session", "alone"])
@pytest.mark.parametrize("case", SAVES)
def test_no_umask_and_no_mode_loses_anything(
    tmp_path: Path, case: str, is_in_session: bool
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("NSML_RUN_DIR", None)
    run = tmp_path / "run"
    if is_in_session:
        run.mkdir()
        environment["NSML_RUN_DIR"] = str(run)
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-c", PROGRAM.format(save=SAVES[case])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"[{FOUND.get(case, 'w')!r}]\n", done.stderr
    assert "lost" not in done.stderr
    assert "dropped" not in done.stderr
    root = run if is_in_session else tmp_path / ".nsml"
    assert not (root / "loads").exists(), "the copy that was lent is removed, whatever its mode"
    assert not list((root / "checkpoints").glob(".tmp-*"))
    if not is_in_session:
        return
    assert len(list((run / "spool").glob("*.records"))) == 2
    for path in run.rglob("*"):
        needed = stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0)
        assert path.lstat().st_mode & needed == needed, (
            "an agent that runs as the same user reads it"
        )
    records = [one for path in (run / "spool").glob("*.records") for one in read(path)]
    kinds = {"checkpoint": 1, "media": 1, "metric": 2, "progress": 2}
    assert Counter(one["kind"] for one in records) == kinds


def test_what_a_program_put_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    precious, run = tmp_path / "precious", tmp_path / "run"
    (precious / "folder").mkdir(parents=True)
    (precious / "folder/file").touch()
    run.mkdir()
    session = Session(str(run), "anna/digits/3")
    session.save("best", lambda folder: Path(folder, "w").touch())

    def instead(folder: Path, *, of: str) -> None:
        place = {"model": folder, "around": folder.parent, "inside": folder / "w"}[of]
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        place.symlink_to(precious)

    for of in ("model", "around", "inside"):
        session.load("best", lambda folder, of=of: instead(Path(folder), of=of))
        session.save("other", lambda folder, of=of: instead(Path(folder), of=of))
        assert (precious / "folder/file").exists(), of
        assert stat.S_IMODE(precious.stat().st_mode) == stat.S_IMODE(
            (precious / "folder").stat().st_mode
        )
    assert not (run / "loads").exists()
    assert not [*(run / "checkpoints").glob(".tmp-*")]


def test_a_folder_of_another_mode_is_used_again(tmp_path: Path) -> None:
    """A second process meets the folder in the moment between its creation and its rights."""
    program = """
import os, nsml
nsml.bind(save=lambda folder: open(folder + '/w', 'w').close())
for part in ('spool', 'checkpoints', 'media'):
    os.mkdir(os.environ['NSML_RUN_DIR'] + '/' + part, 0)
nsml.report(loss=1)
nsml.text('t', 'x')
nsml.save('one')
"""
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NSML_RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert len(read(tmp_path / "spool/1.records")) == 3
