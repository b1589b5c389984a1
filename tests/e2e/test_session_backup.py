"""Sessions of one real platform on another one, through an archive."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platforms import user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

TRAINS = """\
import os, pathlib, shutil, sys
import nsml

print("trains with", sys.argv[1:])
here, old = (pathlib.Path(f"/data/{name}/train.csv").read_text().strip() for name in ("digits", "old"))
print(f"has {here} and old {old}")
pathlib.Path("out").mkdir()
for step in range(3):
    nsml.report(summary=True, step=step, loss=1 / (step + 1))
    pathlib.Path("weights").write_bytes(os.urandom(1 << 20))
    nsml.save(f"ck{step}", save_fn=lambda folder: shutil.copy("weights", os.path.join(folder, "w")))
pathlib.Path("out/scores.csv").write_text("a,b\\n")
nsml.artifact("scores", "out")
nsml.text("note", "it went well", step=2)
"""


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.long("two platforms are started, and a session runs on each")
def test_sessions_go_from_one_platform_to_another(tmp_path: Path) -> None:
    code = write_program(tmp_path / "code", TRAINS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.csv").write_text("1,2\n")
    archive = tmp_path / "sessions.tar.zst"
    with Platform(simulate_gpus=1) as old:
        for content in ("1,2\n", "3,4\n"):
            (tmp_path / "data/train.csv").write_text(content)
            old.nsml("dataset", "push", "digits", str(tmp_path / "data"))
        for lr in ("0.1", "0.2"):
            flags = (
                "-d",
                "digits",
                "-d",
                "digits@1=old",
                "-g",
                "0",
                "--keep-files",
                "--wait",
                "-a",
                f"--lr {lr}",
            )
            old.nsml("run", *flags, cwd=code)
        names = [one["name"] for one in old.json("ps", "-a")["items"]][::-1]

        def all_is_kept() -> bool:
            found = [one for name in names for one in old.json("artifact", "ls", name)["items"]]
            return len(found) == 4 and all(one["state"] == "DURABLE" for one in found)

        wait_for(all_is_kept, what="artifacts and files are kept")
        events = [one | {"session": ""} for one in old.json("events", names[0])["items"]]
        log = old.nsml("logs", names[0], "-t", "--utc").stdout
        before = {
            what: files_in(Path(old.nsml(*words, str(tmp_path / "before")).stdout.strip()))
            for what, words in {
                "code": ("pull", names[0]),
                "files": ("download", names[0]),
                "model": ("model", "pull", names[0], "ck1"),
                "artifact": ("artifact", "pull", names[0], "scores@1"),
            }.items()
        }
        other = user_of(old, "eve", tmp_path)
        hidden = old.nsml("backup", names[0], "-o", "stolen", environment=other, check=False)
        assert hidden.returncode == 5
        # What a fork began with is not among its checkpoints where it saved another one of that name.
        old.nsml("fork", names[0], "-c", "ck1", "-g", "0", "--wait")
        names.append(old.json("ps", "-a")["items"][0]["name"])
        words = ("backup", *names, "--with-datasets", "-o", str(archive))
        assert old.json(*words)["left_out"] == {}

    with Platform(simulate_gpus=1) as new:
        lee = user_of(new, "lee", tmp_path)
        new.kill("controlplane")
        assert new.nsml("restore", str(archive), environment=lee, check=False).returncode == 3
        new.up()
        answers = [new.nsml("restore", str(archive), environment=lee).stdout for _ in range(2)]
        assert "was there already" not in answers[0]
        assert answers[1].count("was there already") == 3

        def nsml(*words: str) -> str:
            return new.nsml(*words, environment=lee).stdout

        def listed(*words: str) -> Any:
            return json.loads(nsml(*words, "-j"))

        found = listed("ps", "-a")["items"]
        assert [one["name"] for one in found] == [f"lee/digits/{n}" for n in (3, 2, 1)]
        forked, restored = found[0], found[2]
        assert restored["imported"]["session"] == names[0]
        assert restored["imported"]["owner"] == names[0].split("/")[0]
        assert restored["state"] == "SUCCEEDED"
        assert "restored from" in nsml("status", "--explain", restored["name"])
        found = listed("events", restored["name"])["items"]
        assert [one | {"session": ""} for one in found] == events
        assert nsml("logs", restored["name"], "-t", "--utc") == log
        assert "note" in nsml("media", restored["name"])
        for what, words in {
            "code": ("pull", restored["name"]),
            "files": ("download", restored["name"]),
            "model": ("model", "pull", restored["name"], "ck1"),
            "artifact": ("artifact", "pull", restored["name"], "scores@1"),
        }.items():
            pulled = nsml(*words, str(tmp_path / "after")).strip()
            assert files_in(Path(pulled)) == before[what]
        assert "0.2" in nsml("diff", "lee/digits/1", "lee/digits/2", "--args")
        [made] = listed("dataset", "ls")["items"]
        assert (made["name"].rpartition("/")[2], made["version"]) == ("digits", 2)
        said = new.nsml("fork", forked["name"], "-g", "0", "--wait", environment=lee).stderr
        assert "nothing changed" in said
        assert "begins with checkpoint ck1" in said
        [newest, *_] = listed("ps", "-a")["items"]
        assert (newest["name"], newest["state"]) == ("lee/digits/4", "SUCCEEDED")
        begins = [one["initial_checkpoint"]["digest"] for one in (newest, forked)]
        assert begins[0] == begins[1]
        [loaded] = [line for line in nsml("logs", newest["name"]).splitlines() if "has" in line]
        assert loaded == "has 3,4 and old 1,2"
        assert restored["name"] in {one["name"] for one in listed("storage")["largest"]}
