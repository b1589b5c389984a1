"""nsml.artifact on a real platform, while its agent and control plane are killed."""

from pathlib import Path

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

SAVES = """\
import os, pathlib, time
import nsml

out = pathlib.Path("out")
out.mkdir()
(out / "passwd").symlink_to("/etc/passwd")
for number in range(12):
    (out / "report.txt").write_text(f"round {number // 2}")
    nsml.report(step=number, loss=1.0)
    nsml.artifact("report", out)
    pathlib.Path("saved").write_text(str(number))
    while number == 6 and not os.path.exists("go-on"):
        time.sleep(0.02)
nsml.artifact("missing", "nowhere")
"""


def test_every_version_arrives_once_whatever_is_killed(tmp_path: Path) -> None:
    with Platform(simulate_gpus=1) as platform:
        folder = write_program(tmp_path / "code", SAVES)
        flags = ("--output-dataset", "reports=out", "--output-dataset", "gone", "--keep-files")
        platform.nsml("run", "-g", "0", *flags, cwd=folder)
        name = platform.nsml("ps", "-o", "name").stdout.split()[0]
        session = platform.nsml("getid", name).stdout.strip()
        replica = platform.folder / "data/agent/replicas" / f"{session}.1.0"

        def saved() -> str:
            file = replica / "app/saved"
            return file.read_text() if file.exists() else ""

        wait_for(lambda: saved() == "6", what="half of them are saved")
        for program in ("agent", "controlplane"):
            platform.kill(program)
        (replica / "app/go-on").touch()
        wait_for(lambda: saved() == "11", what="all are saved while nobody is there")
        platform.up()
        wait_for(
            lambda: platform.json("ps", "-a")["items"][0]["state"] == "SUCCEEDED", what="it ends"
        )
        found = platform.json("artifact", "ls", name)["items"]
        reports = [one for one in found if one["name"] == "report"]
        assert [(one["version"], one["state"]) for one in reports] == [
            (number, "DURABLE") for number in range(1, 7)
        ]
        assert [one["step"] for one in reports] == [0, 2, 4, 6, 8, 10]
        [lost] = [one for one in found if one["name"] == "missing"]
        assert (lost["version"], lost["state"]) == (None, "LOST")
        [made] = platform.json("dataset", "versions", "reports")["items"]
        assert (made["lineage"]["session"], made["lineage"]["attempt"]) == (name, 1)
        assert made["lineage"]["command"][0] == "nsml"
        why = "there is no folder gone in its working folder"
        assert (
            f"not made: a version of gone: {why}"
            in platform.nsml("status", "--explain", name).stdout
        )
        log = platform.nsml("logs", name).stdout
        assert log.count(f"nsml: no version of output dataset gone: {why}\n") == 1
        failed = write_program(tmp_path / "fails", "import sys; sys.exit('no')")
        words = ("run", "-g", "0", "--output-dataset", "gone", "--wait")
        assert platform.nsml(*words, cwd=failed, check=False).returncode == 1
        log = platform.nsml("logs", "@last").stdout
        assert log.endswith(
            "nsml: no version of output dataset gone: the program did not succeed\n"
        )
        told = platform.nsml("status", "--explain", "@last").stdout
        assert "not made: a version of gone: the session did not succeed" in told
        pulled = platform.nsml("dataset", "pull", "reports", str(tmp_path / "data")).stdout.strip()
        assert [path.name for path in Path(pulled).iterdir()] == ["report.txt"]
        files = Path(platform.nsml("download", name, str(tmp_path / "files")).stdout.strip())
        assert sorted(path.name for path in files.iterdir()) == [
            "saved"
        ]  # go-on is not the program's
        for number in (1, 6):
            words = ("artifact", "pull", name, f"report@{number}", str(tmp_path / "pulled"))
            pulled = Path(platform.nsml(*words).stdout.strip())
            assert [path.name for path in pulled.iterdir()] == ["report.txt"]
            assert (pulled / "report.txt").read_text() == f"round {number - 1}"
        platform.nsml("artifact", "rm", name, "report@6", "-y")
        assert platform.json("artifact", "info", name, "report")["version"] == 5
        refused = platform.nsml("artifact", "pull", name, "missing", check=False)
        assert (refused.returncode, "is lost" in refused.stderr) == (5, True)
        # nobody asks for anything: what a program made is kept, and where it made nothing, nothing is sent
        names = []
        deep = "import os; os.makedirs('d/' * 70); open('made', 'w').write('1')"
        for text in (deep, ""):
            code = write_program(tmp_path / f"unasked-{len(names)}", text)
            platform.nsml("run", "-g", "0", "--wait", cwd=code)
            names.append(platform.nsml("ps", "-a", "-o", "name").stdout.split()[0])
        made, none = names
        done = platform.nsml("download", made, str(tmp_path / "files"))
        assert [path.name for path in Path(done.stdout.strip()).iterdir()] == ["made"]
        left_out = f"left out: 1 file or folder that cannot be kept: {'d/' * 24} (deeper than"
        assert left_out in done.stderr
        assert f"nsml: files of the working folder {left_out}" in platform.nsml("logs", made).stdout
        [kept] = platform.json("artifact", "ls", made)["items"]
        assert kept["expires_at"]
        assert not platform.json("artifact", "ls", none)["items"]
        refused = platform.nsml("download", none, check=False)
        assert (refused.returncode, "it made no files" in refused.stderr) == (5, True)


CACHES = """\
import pathlib
import nsml


def preprocess(output_path, scale):
    print("preprocessing", flush=True)
    pathlib.Path(output_path[0]).mkdir()
    pathlib.Path(output_path[0], "rows").write_text(str(3 * scale))


nsml.cache(preprocess, output_path=["processed"], scale=2)
print("rows", pathlib.Path("processed/rows").read_text())
"""


def test_what_one_session_preprocessed_is_there_in_the_next(tmp_path: Path) -> None:
    with Platform(simulate_gpus=1) as platform:
        folder = write_program(tmp_path / "code", CACHES)
        for said in ("preprocessing\nrows 6\n", "rows 6\n"):
            platform.nsml("run", "-g", "0", "--wait", cwd=folder)
            assert platform.nsml("logs", "@last").stdout.endswith(said)
        assert "processed as in" in platform.nsml("logs", "@last").stdout
        first = platform.json("ps", "-a")["items"][-1]["name"]
        found = platform.json("artifact", "ls", first)["items"]
        [kept] = [one["name"] for one in found if one["name"].startswith("nsml.cache")]
        platform.nsml("artifact", "rm", first, f"{kept}@1", "-y")
        platform.nsml("run", "-g", "0", "--wait", cwd=folder)
        assert "preprocessing" in platform.nsml("logs", "@last").stdout
