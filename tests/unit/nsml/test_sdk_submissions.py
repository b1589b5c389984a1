"""`nsml.paused` in the sessions of `nsml submit`: real processes, which always end, with the code of what went wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nsml._install import write_sdk
from nsml.spec.submission_exits import (
    INFER_FAILED,
    LOAD_FAILED,
    MALFORMED,
    NO_PREDICTION,
    NOT_PAUSED,
    PLATFORM_FAILED,
    PREDICTION_TIMEOUT,
    TOO_LARGE,
)
from tests.support.orders_agent import OrdersAgent
from tests.unit.nsml.test_sdk_install import every_python
from tests.unit.nsml.test_sdk_session import records

MAIN = """
import atexit, os, signal, sys, threading, time
import nsml
weight = 0
def save(path, **kwargs):
    open(os.path.join(path, "weight"), "w").write("7")
def load(path, **kwargs):
    global weight
    weight = int(open(os.path.join(path, "weight")).read())
def infer(data, **kwargs):
    return [(0.5, "%s%d" % (one.strip(), weight)) for one in data]
{more}
nsml.bind(save=save, load=load, infer=infer)
nsml.report(summary=True, step=1, loss=0.5)
nsml.image("first", [[0, 1], [1, 0]], 1)
nsml.artifact("prediction", __file__)
nsml.save("best")
atexit.register(time.sleep, 3600)
threading.Thread(target=time.sleep, args=(3600,)).start()
while True:
    try:
        nsml.paused(scope=locals())
    except:
        pass
    print("it came back")
"""
FEEDS = """
import os
import nsml
from nsml import DATASET_PATH
import beside
def feed_infer(output_file, infer_func):
    assert DATASET_PATH == nsml.DATASET_PATH == nsml.constants.DATASET_PATH
    with open(os.path.join(DATASET_PATH, "test", "test_data")) as file:
        rows = infer_func(file.readlines(), phase="test")
    {write}
    with open(output_file, "w") as file:
        file.write("\\n".join(pred for _, pred in rows) + "\\n")
    if os.stat(output_file).st_size == 0:
        raise AssertionError("output result of inference is nothing")
"""
LOADS = """
import os
def test_data_loader(root_path):
    with open(os.path.join(root_path, "test", "test_data")) as file:
        return {data}
"""


class Submission:
    """A session whose checkpoint, program and dataset lie in folders of the test."""

    def __init__(self, root: Path, sdk: Path) -> None:
        self.run, self.app, self.dataset = root / "run", root / "app", root / "data/digits"
        self._sdk = sdk
        model = self.run / "checkpoints/1-best/model"
        for folder in (model, self.app, self.dataset / "train", self.dataset / "test"):
            folder.mkdir(parents=True)
        (root / "tmp").mkdir()
        (model / "weight").write_text("7")
        (self.dataset / "test/test_data").write_text("".join(f"row{one}\n" for one in range(25)))
        (self.dataset / "beside.py").touch()
        (self.app / "data_loader.py").write_text("raise SystemExit('the copy of the program')\n")
        self.write()
        self.loads(FEEDS.format(write=""))

    def write(self, more: str = "") -> None:
        (self.app / "main.py").write_text(MAIN.format(more=more))

    def loads(self, text: str) -> None:
        (self.dataset / "data_loader.py").write_text(text)

    def run_it(
        self, stage: str = "predict", python: str = sys.executable, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-u", "main.py", "--mode", "test", "--pause", "1"],
            cwd=self.app,
            env=self.environment(stage, **more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def environment(self, stage: str, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self._sdk),
            "TMPDIR": str(self.run.parent / "tmp"),
            "NSML_RUN_DIR": str(self.run),
            "NSML_SESSION_NAME": "anna/digits/3",
            "NSML_DATASET_PATH": str(self.dataset),
            "NSML_DATASET_NAME": "digits",
            "NSML_RESUME": "best",
            "NSML_ATTEMPT": "1",
            "NSML_STAGE": stage,
            **more,
        }

    def predicted(self) -> str:
        """The prediction, which is all that the session has kept."""
        (record,) = records(self.run, "artifact")
        assert [name for name, _ in record["files"]] == ["prediction"]
        assert record["name"] == "prediction"
        for kind in ("metric", "checkpoint", "media"):
            assert records(self.run, kind) == []
        return Path(self.run, "checkpoints", str(record["folder"]), "prediction").read_text()


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    write_sdk(folder)
    return folder


@pytest.fixture
def submission(tmp_path: Path, sdk: Path) -> Submission:
    return Submission(tmp_path, sdk)


def rows(count: int, suffix: str = "7") -> str:
    return "".join(f"row{one}{suffix}\n" for one in range(count))


@pytest.mark.parametrize("python", every_python())
def test_the_owners_loader_feeds_the_program_and_its_file_is_the_prediction(
    submission: Submission, python: str
) -> None:
    done = submission.run_it(python=python)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "Paused."
    assert lines[1].startswith(".load nsml model takes 0.")
    assert lines[2] == (".Infer test set. The inference should be completed within 3600 seconds.")
    assert lines[3].startswith(".Infer test set takes 0.")
    assert len(lines) == 4
    assert submission.predicted() == rows(25)
    assert list((submission.run.parent / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("data", "more", "expected"),
    [
        ("file.readlines()", "", rows(25)),
        ("file.readlines(), 3", "def infer(data, other): return [(0, (one[:-1], other)) for one in data]", None),
        ("iter(file.readlines())", "", rows(25)),
        ("file.readlines()", "def infer(data): return ((1, len(data)) for _ in data[:1])", "25\n"),
    ],
)  # fmt: skip
def test_without_feed_infer_its_data_goes_to_infer_and_each_prediction_is_a_line(
    submission: Submission, data: str, more: str, expected: str | None
) -> None:
    submission.loads(LOADS.format(data=data))
    submission.write(more)
    done = submission.run_it()
    assert done.returncode == 0, done.stderr
    assert submission.predicted() == expected or "".join(f"('row{one}', 3)\n" for one in range(25))


def test_a_loader_that_expects_the_test_folder_gets_it(submission: Submission) -> None:
    submission.loads(LOADS.format(data="file.readlines()").replace('"test", ', ""))
    done = submission.run_it()
    assert done.returncode == 0, done.stderr
    assert submission.predicted() == rows(25)


def test_batches(submission: Submission) -> None:
    submission.loads(LOADS.format(data="file.readlines()"))
    submission.write("def infer(data): return [(1, len(data))] * len(data)")
    done = submission.run_it(NSML_BATCH="10")
    assert done.returncode == 0, done.stderr
    assert "infer returned" not in done.stdout
    assert submission.predicted() == "10\n" * 20 + "5\n" * 5


@pytest.mark.parametrize(("stage", "inputs"), [("predict", 25), ("predict-test", 10)])
@pytest.mark.parametrize("data", ["file.readlines()", "iter(file.readlines())"])
def test_another_number_of_predictions_than_of_inputs_is_said_and_fails_nothing(
    submission: Submission, stage: str, inputs: int, data: str
) -> None:
    submission.loads(LOADS.format(data=data))
    submission.write("def infer(data): return [(1, 'one'), (1, 'two')]")
    done = submission.run_it(stage, NSML_TEST_FOLDER="test")
    assert done.returncode == 0, done.stderr
    assert submission.predicted() == "one\ntwo\n"
    is_counted = stage == "predict-test" or data == "file.readlines()"  # not an iterator
    said = f"infer returned 2 predictions for {inputs} inputs" in done.stdout
    assert said == is_counted, done.stdout


@pytest.mark.parametrize("loader", [FEEDS.format(write=""), LOADS.format(data="file.readlines()")])
def test_a_test_submission_sees_the_small_set_as_test(submission: Submission, loader: str) -> None:
    (submission.dataset / "test").rename(submission.dataset / "test_submit")
    (submission.dataset / "test_submit/test_data").write_text("small\n" * 12)
    submission.loads(loader)
    before = sorted(path.name for path in submission.dataset.iterdir())
    submission.dataset.chmod(0o555)
    done = submission.run_it("predict-test", NSML_TEST_FOLDER="test_submit")
    submission.dataset.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert submission.predicted() == "small7\n" * 12
    assert (submission.dataset / "test_submit/test_data").is_file()
    assert list((submission.run.parent / "tmp").iterdir()) == []
    assert [name for name in before if name != "__pycache__"] == [
        path.name for path in sorted(submission.dataset.iterdir()) if path.name != "__pycache__"
    ]


def test_in_a_dry_run_a_program_reads_the_small_set_at_the_path_it_took_when_it_began(
    submission: Submission,
) -> None:
    (submission.dataset / "test").rename(submission.dataset / "test_submit")
    (submission.dataset / "test_submit/test_data").write_text("small\n" * 12)
    submission.loads(LOADS.format(data="[]"))
    submission.write(
        "import subprocess\n"
        "PATH = nsml.DATASET_PATH\n"
        "def infer(data, **kwargs):\n"
        "    return [(1, len(one)) for one in open(PATH + '/test/test_data')]\n"
        "command = [sys.executable, '-c', 'import nsml; print(nsml.DATASET_PATH)']\n"
        "assert subprocess.check_output(command, text=True).strip() == PATH\n"
    )
    done = submission.run_it("predict-test", NSML_TEST_FOLDER="test_submit")
    assert done.returncode == 0, done.stderr
    assert list((submission.run.parent / "tmp").iterdir()) == []


@pytest.mark.parametrize("data", ["file.readlines()", "iter(file.readlines())"])
def test_without_a_small_set_a_test_submission_has_ten_items(
    submission: Submission, data: str
) -> None:
    submission.loads(LOADS.format(data=data))
    done = submission.run_it("predict-test", NSML_TEST_FOLDER="test")
    assert done.returncode == 0, done.stderr
    assert submission.predicted() == rows(10)


@pytest.mark.parametrize("loader", [FEEDS.format(write=""), LOADS.format(data="file.readlines()")])
def test_a_dry_run_whose_dataset_has_no_open_test_set_says_so(
    submission: Submission, loader: str
) -> None:
    submission.loads(loader)
    shutil.rmtree(submission.dataset / "test")
    told = "The dataset has no test_submit"
    ended = submission.run_it("predict-test")
    assert ended.returncode == INFER_FAILED
    assert told in ended.stdout + ended.stderr
    assert "test_data'" in ended.stdout + ended.stderr, "which file it asked for"
    real = submission.run_it()
    assert real.returncode == INFER_FAILED
    assert told not in real.stdout + real.stderr


def test_a_dry_run_that_misses_another_file_does_not_blame_the_test_set(
    submission: Submission,
) -> None:
    submission.write(more="def infer(data, **kwargs): open('/nowhere')")
    ended = submission.run_it("predict-test")
    assert ended.returncode == INFER_FAILED
    output = ended.stdout + ended.stderr
    assert "no test_submit" not in output
    assert ("traceback is above" in output, "nsml submit --test" in output) == (True, False)


def test_of_several_datasets_the_first_is_the_one(submission: Submission, tmp_path: Path) -> None:
    submission.write("assert nsml.DATASET_PATH[1] == '/data/other'")
    paths = os.pathsep.join([str(submission.dataset), "/data/other"])
    done = submission.run_it(NSML_DATASET_PATH=paths, NSML_DATASET_NAME="digits:other")
    assert done.returncode == 0, done.stderr
    assert submission.predicted() == rows(25)


FAILS: dict[str, tuple[dict[str, Any], int, str]] = {
    "load raises": (
        {"more": "def load(path): raise ValueError('broken weights')"},
        LOAD_FAILED,
        "ValueError: broken weights\nError: Error occurred while loading model\n",
    ),
    "load exits": ({"more": "def load(path): sys.exit(0)"}, LOAD_FAILED, "SystemExit: 0"),
    "no load": ({"more": "load = None"}, LOAD_FAILED, "nothing to load with"),
    "another checkpoint": ({"environment": {"NSML_RESUME": ""}}, LOAD_FAILED, "no checkpoint"),
    "infer raises": (
        {"more": "def infer(data, **kwargs): raise KeyError('x')"},
        INFER_FAILED,
        "KeyError: 'x'\nAn error occurred somewhere in your code.",
    ),
    "infer exits": ({"more": "def infer(data, **kwargs): exit()"}, INFER_FAILED, "SystemExit"),
    "infer is none": ({"more": "infer = None"}, INFER_FAILED, "nothing to infer with"),
    "infer returns none": (
        {"more": "def infer(data): pass", "loader": LOADS.format(data="[1]")},
        INFER_FAILED,
        "TypeError: object of type 'NoneType' has no len()",
    ),
    "infer returns numbers": (
        {"more": "def infer(data): return [3.25 for _ in data]", "loader": LOADS.format(data="[1]")},
        INFER_FAILED,
        "(probability, prediction) for each input, such as [(1.0, 3.2), ...]: it returned 3.25 in place",
    ),
    "infer returns words": (
        {"more": "def infer(data): return ['cat']", "loader": LOADS.format(data="[1]")},
        INFER_FAILED,
        "it returned 'cat' in place of a pair",
    ),
    "infer returns short pairs": (
        {"more": "def infer(data): return [(1.0,)]", "loader": LOADS.format(data="[1]")},
        INFER_FAILED,
        "it returned (1.0,) in place of a pair",
    ),
    "the loader raises": ({"loader": "1/0"}, INFER_FAILED, "ZeroDivisionError"),
    "no function in the loader": ({"loader": ""}, INFER_FAILED, "neither feed_infer nor"),
    "empty": (
        {"more": "def infer(data, **kwargs): return []", "write": "open(output_file, 'w'); return"},
        NO_PREDICTION,
        "output result of inference is nothing",
    ),
    "the owner finds it empty": (
        {"write": "raise AssertionError('output result of inference is nothing')"},
        NO_PREDICTION,
        "output result of inference is nothing",
    ),
    "nothing": ({"write": "return"}, NO_PREDICTION, "no prediction was written"),
    "link": ({"write": "os.symlink('/etc/passwd', output_file); return"}, MALFORMED, "regular"),
    "pipe": ({"write": "os.mkfifo(output_file); return"}, MALFORMED, "no regular file"),
    "folder": ({"write": "os.mkdir(output_file); return"}, MALFORMED, "no regular file"),
    "too large": ({"environment": {"NSML_PREDICTION_BYTES": "9"}}, TOO_LARGE, "more than 9 bytes"),
    "holes": (
        {"write": "open(output_file, 'w').truncate(1 << 40); return"},
        TOO_LARGE,
        "more than 1,073,741,824 bytes",
    ),
    "too large while it is written": (
        {
            "write": "open(output_file, 'w').write('x' * 99); import time; time.sleep(3600)",
            "environment": {"NSML_PREDICTION_BYTES": "9"},
        },
        TOO_LARGE,
        "more than 9 bytes",
    ),
    "it is not taken": (
        {
            "more": "def infer(data, **kwargs):\n    import shutil; at = os.environ['NSML_RUN_DIR'] + '/checkpoints'\n    shutil.rmtree(at); open(at, 'w'); return [(1, '1')]"
        },
        PLATFORM_FAILED,
        "the platform did not take the prediction: this is no fault of the program",
    ),
    "too slow": (
        {
            "more": "def infer(data, **kwargs):\n    while True:\n        try: time.sleep(3600)\n        except: pass",
            "environment": {"NSML_PREDICT_S": "0.5"},
        },
        PREDICTION_TIMEOUT,
        "not completed within 0.5 seconds",
    ),
    "load is too slow": (
        {
            "more": "def load(path): time.sleep(3600)",
            "environment": {"NSML_PREDICT_S": "0.5"},
        },
        PREDICTION_TIMEOUT,
        "not completed within 0.5 seconds",
    ),
    "not paused": (
        {"more": "time.sleep(3600)", "environment": {"NSML_PAUSED_WITHIN_S": "0.5"}},
        NOT_PAUSED,
        "'nsml.paused()' is called should be less than 0.5 seconds.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILS)
def test_each_failure_has_its_code_and_its_reason(submission: Submission, case: str) -> None:
    how, code, why = FAILS[case]
    submission.write(how.get("more", ""))
    submission.loads(how.get("loader", FEEDS.format(write=how.get("write", ""))))
    done = submission.run_it(**how.get("environment", {}))
    assert (done.returncode, "it came back" in done.stdout) == (code, False), done.stderr
    assert why in done.stderr
    for kind in ("artifact", "metric", "checkpoint"):
        assert records(submission.run, kind) == []


@pytest.mark.parametrize(
    ("refusal", "code"),
    [("FAILED", PLATFORM_FAILED), ("UNAVAILABLE", PLATFORM_FAILED), ("NOT_FOUND", LOAD_FAILED)],
)
def test_a_checkpoint_that_the_platform_does_not_hand_out_is_no_fault_of_the_program(
    submission: Submission, refusal: str, code: int
) -> None:
    shutil.rmtree(submission.run / "checkpoints")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(submission.run / "socket"))
        listener.listen()
        threading.Thread(target=refuse, args=(listener, refusal), daemon=True).start()
        done = submission.run_it()
    assert done.returncode == code, done.stderr
    assert ("no fault of the program" in done.stderr) == (code == PLATFORM_FAILED)


def refuse(listener: socket.socket, code: str) -> None:
    """Answer one request with an error, as an agent."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as lines:
        assert json.loads(lines.readline())["op"] == "load"
        lines.write(json.dumps({"ok": False, "error": code, "message": "no"}).encode() + b"\n")


def test_a_dataset_without_a_loader_says_so(submission: Submission) -> None:
    (submission.dataset / "data_loader.py").unlink()
    done = submission.run_it()
    assert done.returncode == INFER_FAILED
    assert "the dataset has no data_loader.py" in done.stderr


def test_a_worker_that_imports_nsml_is_not_watched_and_may_be_the_one_that_predicts(
    submission: Submission,
) -> None:
    """Started by `multiprocessing`, it is no first process: only that one has to get to `paused`."""
    text = (submission.app / "main.py").read_text()
    (submission.app / "task.py").write_text(text)
    (submission.app / "main.py").write_text(
        "import multiprocessing, sys, time, nsml\n"
        "def work():\n    time.sleep(1)\n    import task\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start(); process.join(); sys.exit(process.exitcode)\n"
    )
    done = submission.run_it(NSML_PAUSED_WITHIN_S="120")
    assert done.returncode == 0, done.stderr
    assert submission.predicted() == rows(25)


def test_a_log_that_nobody_reads_keeps_no_process(submission: Submission) -> None:
    submission.write("def infer(data, **kwargs): sys.stderr.write('x' * (1 << 20))")
    read, write = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-u", "main.py"],
        cwd=submission.app,
        env=submission.environment("predict", NSML_PREDICT_S="1"),
        stdout=write,
        stderr=write,
    )
    os.close(write)
    try:
        assert program.wait(120) == PREDICTION_TIMEOUT
    finally:
        program.kill()
        os.close(read)


def test_infer_waits_for_inputs_one_after_the_other_and_an_error_ends_nothing(
    submission: Submission,
) -> None:
    submission.write(
        "from nsml import bind, paused\n"
        "def infer(data, app_type=''): return 'late' if data is None and time.sleep(3600) else [data, app_type, weight]"
    )
    with OrdersAgent(submission.run) as agent:
        program = subprocess.Popen(
            [sys.executable, "-u", "main.py", "--mode", "test", "--pause", "1"],
            cwd=submission.app,
            env=submission.environment("infer"),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdout is not None
            assert [program.stdout.readline() for _ in range(2)] == [
                "Paused.\n",
                "Ready: nsml exec SESSION 'nsml.infer(...)'\n",
            ]
            for text in ("nsml.infer('a')", "nsml.infer(1/0)", "import sys; sys.exit()"):
                agent.order(text)
            agent.order("nsml.infer(None)", limit_s=0.2)
            agent.order("nsml.infer([1], app_type='list')")
            for _ in range(6):  # one order is taken at a time
                agent.call()
                time.sleep(0.1)
            agent.wait(lambda: len(agent.answers) >= 4)
            values = [(one["value"], one["error"].splitlines()[-1:]) for one in agent.answers]
            assert values[0] == ("['a', '', 7]", [])
            assert values[1] == (None, ["ZeroDivisionError: division by zero"])
            assert values[2] == (None, ["SystemExit"])
            assert agent.answers[3]["is_late"]
            assert program.poll() is None
        finally:
            program.kill()
            program.wait()
    assert [one["state"] for one in records(submission.run, "state")] == ["PAUSED", "RUNNING"]
    assert records(submission.run, "checkpoint") == records(submission.run, "metric") == []


def test_infer_whose_load_fails_ends_as_any_program(submission: Submission) -> None:
    submission.write("def load(path): os._exit(5)")
    assert submission.run_it("infer").returncode == 5
    text = (submission.app / "main.py").read_text()
    text = text[: text.index("atexit.register")] + "nsml.paused()\n"
    (submission.app / "main.py").write_text(text.replace("os._exit(5)", "raise ValueError('w')"))
    done = submission.run_it("infer")
    assert done.returncode == 1
    assert "ValueError: w" in done.stderr
