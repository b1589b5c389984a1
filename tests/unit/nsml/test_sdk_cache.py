"""`nsml.cache` in real processes: what one session wrote comes back in the next, if nothing it depends on has changed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nsml._install import write_sdk
from tests.unit.nsml.test_sdk_install import every_python
from tests.unit.nsml.test_sdk_session import records

MAIN = """
import os, sys, nsml
def preprocess(output_path, scale, **kwargs):
    print("preprocessing")
    folder, file, nothing = output_path
    os.makedirs(os.path.join(folder, "deep"))
    open(os.path.join(folder, "deep", "rows"), "w").write(str(3 * scale))
    open(file, "w").write("counts")
    {more}
nsml.cache(preprocess, output_path=["./out", "made/counts", "never"], scale={scale})
print(open("out/deep/rows").read(), open("made/counts").read(), os.path.exists("never"))
"""
WROTE = "6 counts False\n"


class Platform:
    """An agent that has the artifacts of earlier sessions, as told by their records."""

    def __init__(self, root: Path, sdk: Path) -> None:
        self._root, self._sdk = root, sdk
        self._kept: dict[str, Path] = {}
        self._number = 0
        self.refuses = ""
        self.asked: list[str] = []

    def session(
        self,
        text: str = "",
        more: dict[str, str] | None = None,
        python: str = sys.executable,
        together: int = 1,
    ) -> list[str]:
        """Run a session; return what its processes print."""
        self._number += 1
        folder = self._root / str(self._number)
        app, run = folder / "app", folder / "run"
        (app / "made").mkdir(parents=True)
        run.mkdir()
        (app / "main.py").write_text(text or MAIN.format(scale=2, more=""))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self._sdk),
            "NSML_RUN_DIR": str(run),
            "NSML_DATASET_NAME": "digits",
            "NSML_DATASET_DIGEST": "abc",
            **(more or {}),
        }
        with self._listening(run):
            programs = [
                subprocess.Popen(
                    [python, "-u", "main.py"],
                    cwd=app,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for _ in range(together)
            ]
            said = [program.communicate(timeout=60) for program in programs]
        assert [program.returncode for program in programs] == [0] * together, said
        self.log = "".join(err for _, err in said)
        for record in records(run, "artifact"):
            self._kept[str(record["name"])] = run / "checkpoints" / str(record["folder"])
        assert not list(run.glob("loads/*"))
        return [out for out, _ in said]

    def _listening(self, run: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(run / "socket"))
        listener.listen()
        threading.Thread(target=self._serve, args=(listener, run), daemon=True).start()
        return listener

    def _serve(self, listener: socket.socket, run: Path) -> None:
        with suppress(OSError):
            while True:
                program, _ = listener.accept()
                with program, program.makefile("rwb") as stream:
                    for line in stream:
                        answer = self._answer(json.loads(line), run)
                        stream.write(json.dumps(answer).encode() + b"\n")
                        stream.flush()

    def _answer(self, message: dict[str, Any], run: Path) -> dict[str, Any]:
        if message["op"] == "artifact":
            self.asked.append(message["name"])
            if self.refuses:
                return {"ok": False, "error": self.refuses, "message": "not now"}
            if message["name"] not in self._kept:
                return {"ok": False, "error": "NOT_FOUND", "message": "there is none"}
            shutil.copytree(self._kept[message["name"]], run / message["target"])
            return {"ok": True, "folder": message["target"], "session": "anna/digits/1"}
        return {"ok": False, "error": "UNSUPPORTED", "message": "no such request"}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    write_sdk(folder)
    return folder


@pytest.fixture
def platform(tmp_path: Path, sdk: Path) -> Platform:
    return Platform(tmp_path, sdk)


@pytest.mark.parametrize("python", every_python())
def test_the_next_session_has_the_files_and_runs_nothing(platform: Platform, python: str) -> None:
    assert platform.session(python=python) == ["preprocessing\n" + WROTE]
    assert platform.log == ""
    assert platform.session(python=python) == [WROTE]
    assert "./out, made/counts, never as in anna/digits/1" in platform.log
    assert len(set(platform.asked)) == 1


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        (MAIN.format(scale=2, more="print('changed')"), {}),
        (MAIN.format(scale=4, more=""), {}),
        ("", {"NSML_DATASET_DIGEST": "def"}),
    ],
)
def test_whatever_it_depends_on_has_changed_it_runs_again(
    platform: Platform, text: str, environment: dict[str, str]
) -> None:
    platform.session()
    assert platform.session(text, environment)[0].startswith("preprocessing\n")
    assert len(set(platform.asked)) == 2


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        (MAIN.format(scale="2, data=lambda: 1", more=""), {}),
        ("def around(x):\n" + MAIN.replace("\n", "\n    ").format(scale=2, more="x") + "\naround(1)", {}),
        ("", {"NSML_DATASET_DIGEST": ""}),
    ],
)  # fmt: skip
def test_where_a_change_could_not_be_seen_it_runs_each_time(
    platform: Platform, text: str, environment: dict[str, str]
) -> None:
    for _ in range(2):
        assert platform.session(text, environment) == ["preprocessing\n" + WROTE]
        assert "nsml.cache runs its function each time: " in platform.log
    assert platform.asked == []


@pytest.mark.parametrize("code", ["UNSUPPORTED", "UNAVAILABLE"])
def test_an_agent_that_cannot_only_costs_time(platform: Platform, code: str) -> None:
    platform.session()
    platform.refuses = code
    assert platform.session() == ["preprocessing\n" + WROTE]


def test_of_several_processes_of_a_replica_one_runs_it(platform: Platform) -> None:
    said = platform.session(together=3)
    assert sorted(said) == [WROTE, WROTE, "preprocessing\n" + WROTE]
    assert len(platform.asked) == 1


def test_what_the_function_raises_is_raised_and_nothing_is_kept(platform: Platform) -> None:
    failing = MAIN.format(scale=2, more="raise KeyError('rows')").replace(
        "nsml.cache(", "try: nsml.cache("
    )
    failing = failing.replace("scale=2)\n", "scale=2)\nexcept KeyError: sys.exit()\n")
    for _ in range(2):
        assert platform.session(failing) == ["preprocessing\n"]
