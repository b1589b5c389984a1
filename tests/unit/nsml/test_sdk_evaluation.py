"""`python -m nsml.evaluation`: the score of a prediction by the owner's program, which runs apart from the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsml._install import write_sdk
from nsml.evaluation import takes_labels
from nsml.spec.submission_exits import (
    EVALUATION_FAILED,
    EVALUATION_TIMEOUT,
    MALFORMED_ROWS,
    NOT_FINITE,
    NOT_SCORED,
    PLATFORM_FAILED,
)
from tests.unit.nsml.test_sdk_install import every_python
from tests.unit.nsml.test_sdk_session import records

ACCURACY = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
parser.add_argument("--test_label_path")
config = parser.parse_args()
given = open(config.prediction).read().split()
labels = open(config.test_label_path).read().split()
sys.stderr.write("evaluating\\n")
print("rows", len(labels))
print(sum(one == other for one, other in zip(given, labels)) / len(labels), end="\\n\\n  \\n")
"""
OLD = """
import argparse, os
from nsml.constants import DATASET_PATH
parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
config = parser.parse_args()
given = open(config.prediction).read().split()
labels = open(os.path.join(DATASET_PATH, "test", "test_label")).read().split()
print(sum(one == other for one, other in zip(given, labels)))
"""


class Scoring:
    """A session of the dataset's owner, with the prediction of somebody else."""

    def __init__(self, root: Path, sdk: Path) -> None:
        self.run, self.app, self.dataset = root / "run", root / "app", root / "data/digits"
        self._sdk = sdk
        self.prediction = root / "data/prediction/prediction"
        for folder in (self.app, self.dataset / "test", self.prediction.parent, root / "tmp"):
            folder.mkdir(parents=True)
        self.labels(*"0123456789")
        self.predicts(*"0123456xxx")
        self.program(ACCURACY)

    def program(self, text: str) -> None:
        (self.app / "evaluation.py").write_text(text)

    def labels(self, *rows: str, name: str = "test_label") -> None:
        (self.dataset / "test" / name).write_text("".join(f"{row}\n" for row in rows))

    def predicts(self, *rows: str) -> None:
        self.prediction.write_text("\n".join(rows))

    def evaluate(
        self, python: str = sys.executable, **more: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self._sdk),
            "TMPDIR": str(self.run.parent / "tmp"),
            "NSML_RUN_DIR": str(self.run),
            "NSML_STAGE": "evaluate",
            "NSML_DATASET_PATH": os.pathsep.join([str(self.dataset), str(self.prediction.parent)]),
            "NSML_DATASET_NAME": "digits:prediction",
            "NSML_PREDICTION_FILE": str(self.prediction),
            "SECRET": "of the owner",
            **more,
        }
        return subprocess.run(
            [python, "-u", "-m", "nsml.evaluation"],
            cwd=self.app,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def result(self, python: str = sys.executable, **more: str) -> dict[str, Any]:
        done = self.evaluate(python, **more)
        assert done.returncode == 0, done.stderr
        return self.saved()

    def saved(self) -> dict[str, Any]:
        (record,) = records(self.run, "artifact")
        assert (record["name"], [name for name, _ in record["files"]]) == (
            "evaluation",
            ["result.json"],
        )
        result: dict[str, Any] = json.loads(
            (self.run / "checkpoints" / record["folder"] / "result.json").read_text()
        )
        return result


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    write_sdk(folder)
    return folder


@pytest.fixture
def scoring(tmp_path: Path, sdk: Path) -> Scoring:
    return Scoring(tmp_path, sdk)


@pytest.mark.parametrize("python", every_python())
def test_the_last_line_is_the_score_and_all_it_says_is_in_the_log(
    scoring: Scoring, python: str
) -> None:
    done = scoring.evaluate(python)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rows 10\n0.7\n\n  \n"
    assert done.stderr.startswith("evaluating\n")
    assert scoring.saved() == {
        "score": "0.7",
        "private": None,
        "standard_error": None,
        "check": None,
        "rows": 10,
    }
    assert list((scoring.run.parent / "tmp").iterdir()) == []


def test_an_old_program_that_knows_its_labels_gets_no_label_file(scoring: Scoring) -> None:
    scoring.program(OLD)
    assert scoring.result()["score"] == "7"


def test_twice_and_it_is_seen_that_it_is_not_the_same(scoring: Scoring) -> None:
    again = scoring.run.parent / "again"
    scoring.program(
        f"import os\nprint(int(os.path.exists({str(again)!r})))\nopen({str(again)!r}, 'w')"
    )
    result = scoring.result(NSML_EVALUATE_TWICE="1")
    assert (result["score"], result["check"]) == ("0", "1")


@pytest.mark.parametrize("header", [None, "label", "digit of the image"])
def test_public_rows_are_scored_apart_from_the_others(scoring: Scoring, header: str | None) -> None:
    first = [header] if header else []
    scoring.labels(*first, *"0123456789")
    scoring.predicts(*first, *"0123456xxx")
    scoring.labels("7", "8", "0", "", name="public_rows")
    scoring.program(ACCURACY.replace(".read().split()", ".read().replace(' ', '_').split()"))
    result = scoring.result()
    extra = 1 if header else 0
    assert float(result["score"]) == (1 + extra) / (3 + extra)
    assert float(result["private"]) == (6 + extra) / (7 + extra)
    assert result["rows"] == 10


def test_a_first_row_that_is_right_is_no_header(scoring: Scoring) -> None:
    scoring.labels("cat", "dog", "cat")
    scoring.labels("0", name="public_rows")
    for given, score in (("cat", "1.0"), ("dog", "0.0")):
        scoring.predicts(given, "dog", "dog")
        done = scoring.evaluate()
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[1] == score


def test_a_header_of_words_above_words_is_said(scoring: Scoring) -> None:
    scoring.labels("animal", "dog", "cat")
    scoring.predicts("animal", "dog", "dog")
    scoring.labels("header", "1", name="public_rows")
    result = scoring.result()
    assert (result["score"], result["private"], result["rows"]) == ("0.5", "1.0", 2)


def test_the_standard_error_is_that_of_random_groups_of_public_rows(scoring: Scoring) -> None:
    labels = [str(row % 7) for row in range(500)]
    scoring.labels(*labels)
    scoring.predicts(*(label if row % 5 else "x" for row, label in enumerate(labels)))
    scoring.labels(*map(str, range(400)), name="public_rows")
    result = scoring.result()
    assert (result["score"], result["rows"]) == ("0.8", 500)
    of_a_mean = (0.8 * 0.2 / 400) ** 0.5
    assert of_a_mean / 2 < result["standard_error"] < of_a_mean * 2


def test_groups_that_cannot_be_scored_leave_no_standard_error(scoring: Scoring) -> None:
    scoring.labels(*["1"] * 200)
    scoring.predicts(*["1"] * 200)
    scoring.labels(*map(str, range(100)), name="public_rows")
    scoring.program(ACCURACY + "assert len(labels) == 100\n")
    done = scoring.evaluate()
    assert (done.returncode, scoring.saved()["standard_error"]) == (0, None)
    assert "no standard error: evaluation.py ended with code 1" in done.stderr


def test_all_rows_public_leaves_no_private_score(scoring: Scoring) -> None:
    scoring.labels(*map(str, range(10)), name="public_rows")
    result = scoring.result()
    assert (result["score"], result["private"]) == ("0.7", None)


LOG_LOSS = """
import argparse, math
parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
parser.add_argument("--test_label_path")
config = parser.parse_args()
given = [float(line) for line in open(config.prediction)]
labels = [int(line) for line in open(config.test_label_path)]
print(-sum(math.log(p if label else 1 - p) for p, label in zip(given, labels)) / len(labels))
"""


@pytest.mark.parametrize("label", ["0", "1"])
def test_a_private_label_makes_no_evaluation_fail(scoring: Scoring, label: str) -> None:
    """Else each submission would ask for one: it predicts 0 for its row, and fails if it is 1."""
    scoring.program(LOG_LOSS)
    scoring.labels("1", "0", label)
    scoring.predicts("0.5", "0.5", "0")
    scoring.labels("0", "1", name="public_rows")
    done = scoring.evaluate()
    assert done.returncode == 0, done.stderr
    result = scoring.saved()
    assert float(result["score"]) == pytest.approx(0.6931, abs=1e-4)
    assert result["private"] == (None if label == "1" else "-0.0")
    told = "nsml: no private score: evaluation.py ended with code 1"
    assert (told in done.stderr) == (label == "1")


def test_two_label_files_are_two_scores(scoring: Scoring) -> None:
    (scoring.dataset / "test/test_label").unlink()
    scoring.labels(*"0123xxxxxx", name="test_label_public")
    scoring.labels(*"0123456xxx", name="test_label_private")
    result = scoring.result()
    assert (result["score"], result["private"], result["rows"]) == ("0.7", "1.0", 10)


KNOWN = "test_label_path = os.path.join(DATASET_PATH, 'test', 'test_label')\n"


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        (OLD, False),
        (OLD + KNOWN, False),
        (OLD + "def evaluate(prediction, test_label_path): pass\n# no --test_label_path\n", False),
        (ACCURACY, True),
        ("for one in ('prediction', 'test_label_path'): parser.add_argument('--' + one)", True),
        ('"""Usage: evaluation.py [--prediction=FILE] [--test_label_path=FILE]"""', True),
        ("import fire\ndef main(prediction, test_label_path): pass\nfire.Fire(main)", True),
        ("from fire import Fire\ndef main(prediction, *, test_label_path): pass\nFire(main)", True),
        ("import tyro\nclass Asked:\n    prediction: str\n    test_label_path: str\n", True),
        ("class Asked:\n    test_label_path: str = '/data/x'\n", False),
        ("print 'an older Python', '--test_label_path'", True),
        ("print 'an older Python', test_label_path", False),
    ],
)
def test_what_takes_the_label_file_is_an_option_of_that_name(source: str, takes: bool) -> None:
    assert takes_labels(source.encode()) is takes


def test_a_program_that_keeps_the_path_of_the_labels_in_a_variable_does_not_get_it(
    scoring: Scoring,
) -> None:
    scoring.program(OLD.replace("labels =", KNOWN + "labels ="))
    assert scoring.result()["score"] == "7"


def test_a_dry_run_is_scored_by_the_labels_of_its_own_folder(scoring: Scoring) -> None:
    folder = scoring.dataset / "test_submit"
    folder.mkdir()
    (folder / "test_label").write_text("0\n1\n")
    scoring.predicts("0", "x")
    found = scoring.result(NSML_TEST_FOLDER="test_submit")
    assert (found["score"], found["rows"]) == ("0.5", 2)


def test_public_rows_of_a_dry_run_are_rows_of_its_own_labels(scoring: Scoring) -> None:
    """A dry run counts for no limit: compared with labels of the test set, it would ask for one after another."""
    scoring.labels(*"9999999999")
    folder = scoring.dataset / "test_submit"
    folder.mkdir()
    (folder / "test_label").write_text("0\n1\n2\n")
    (folder / "public_rows").write_text("0\n1\n")
    scoring.predicts("0", "x", "2")
    found = scoring.result(NSML_TEST_FOLDER="test_submit")
    assert (found["score"], found["private"], found["rows"]) == ("0.5", "1.0", 3)
    (folder / "public_rows").write_text("3\n")
    done = scoring.evaluate(NSML_TEST_FOLDER="test_submit")
    assert done.returncode == EVALUATION_FAILED
    assert "test_submit/public_rows names row 3, the last one is 2" in done.stderr


def test_a_dry_run_without_labels_is_not_compared_with_others(scoring: Scoring) -> None:
    default = f"default={str(scoring.dataset / 'test/test_label')!r}"
    scoring.program(ACCURACY.replace('"--test_label_path"', f'"--test_label_path", {default}'))
    (scoring.dataset / "test_submit").mkdir()
    done = scoring.evaluate(NSML_TEST_FOLDER="test_submit")
    assert done.returncode == EVALUATION_FAILED
    assert "the dataset has no test_submit/test_label" in done.stderr


def test_a_dry_run_needs_a_program_that_takes_labels(scoring: Scoring) -> None:
    scoring.program(OLD)
    done = scoring.evaluate(NSML_TEST_FOLDER="test_submit")
    assert done.returncode == NOT_SCORED
    assert "dry run on test_submit needs" in done.stderr


def test_it_sees_nothing_of_the_owner_and_writes_no_result_itself(scoring: Scoring) -> None:
    """What a prediction makes of it, as a pickle can, is no way to the session's own files but by guessing them."""
    scoring.program(
        "import json, os, nsml\n"
        "assert not nsml.IS_ON_NSML and isinstance(nsml.DATASET_PATH, str)\n"
        "for name in ('SECRET', 'NSML_RUN_DIR', 'NSML_STAGE'): assert name not in os.environ, name\n"
        "open('result.json', 'w').write('{\"score\": \"9\"}')\n"
        "print(json.dumps({'score': '9', 'private': '9'}))\n"
        "print(0.25)\n"
    )
    assert scoring.result()["score"] == "0.25"
    assert sorted(path.name for path in scoring.app.iterdir()) == ["evaluation.py"]


FAILS = {
    "exit": ("import sys; print(1); sys.exit(3)", {}, EVALUATION_FAILED, "ended with code 3"),
    "raises": ("print(1); 1/0", {}, EVALUATION_FAILED, "ended with code 1"),
    "signal": (
        "import os; print(1, flush=True); os.kill(os.getpid(), 11)",
        {},
        EVALUATION_FAILED,
        "was killed by signal 11",
    ),
    "nan": ("print(float('nan'))", {}, NOT_FINITE, "was 'nan'"),
    "infinite": ("print(1e999)", {}, NOT_FINITE, "was 'inf'"),
    "too large": ("print('1e999')", {}, NOT_FINITE, "was '1e999'"),
    "words": ("print('Score: 0.5')", {}, NOT_FINITE, "was 'Score: 0.5'"),
    "python's numbers": ("print('1_000')", {}, NOT_FINITE, "was '1_000'"),
    "other digits": ("print('\\uff11')", {"PYTHONUTF8": "1"}, NOT_FINITE, "finite number"),
    "nothing": ("", {}, NOT_FINITE, "was nothing"),
    "too long": ("print('1' * 9999)", {}, NOT_FINITE, "finite number"),
    "slow": (
        "import subprocess, time; subprocess.Popen(['sleep', '3600']); time.sleep(3600)",
        {"NSML_EVALUATE_S": "0.5"},
        EVALUATION_TIMEOUT,
        "not done within 0.5 seconds",
    ),
}


@pytest.mark.parametrize("case", FAILS)
def test_no_score_has_a_code_and_a_reason(scoring: Scoring, case: str) -> None:
    program, environment, code, why = FAILS[case]
    scoring.program(program)
    done = scoring.evaluate(**environment)
    assert done.returncode == code, done.stderr
    assert why in done.stderr
    assert records(scoring.run, "artifact") == []


def test_an_evaluation_that_is_killed_ends_the_session_as_killed(scoring: Scoring) -> None:
    """Out of memory, for one: the platform tells it from a failure of the program by the signal."""
    scoring.program("import os; os.kill(os.getpid(), 9)")
    assert scoring.evaluate().returncode == -9
    assert records(scoring.run, "artifact") == []


def test_a_process_that_it_leaves_behind_keeps_no_session(scoring: Scoring) -> None:
    scoring.program("import subprocess; subprocess.Popen(['sleep', '3600']); print(5)")
    assert scoring.result()["score"] == "5"


@pytest.mark.parametrize(
    ("public", "predicted", "code", "why"),
    [
        ("0", "012345678", MALFORMED_ROWS, "the prediction has 9 lines, the labels have 10"),
        ("10", "0123456789", EVALUATION_FAILED, "names row 10, the last one is 9"),
        ("-1", "0123456789", EVALUATION_FAILED, "'-1' is no number of a row"),
        ("", "0123456789", EVALUATION_FAILED, "names no rows"),
    ],
)
def test_rows_that_do_not_fit(
    scoring: Scoring, public: str, predicted: str, code: int, why: str
) -> None:
    scoring.labels(public, name="public_rows")
    scoring.predicts(*predicted)
    done = scoring.evaluate()
    assert (done.returncode, why in done.stderr) == (code, True), done.stderr


def test_public_rows_need_a_program_that_takes_labels(scoring: Scoring) -> None:
    scoring.program(OLD)
    scoring.labels("0", name="public_rows")
    done = scoring.evaluate()
    assert done.returncode == EVALUATION_FAILED
    assert "evaluation.py has no --test_label_path" in done.stderr


@pytest.mark.parametrize("what", ["program", "prediction"])
def test_what_is_missing_is_named(scoring: Scoring, what: str) -> None:
    (scoring.app / "evaluation.py" if what == "program" else scoring.prediction).unlink()
    done = scoring.evaluate()
    assert done.returncode == EVALUATION_FAILED
    assert ("no evaluation.py" if what == "program" else "the prediction: ") in done.stderr


def test_a_prediction_that_is_a_link_is_not_followed(scoring: Scoring) -> None:
    scoring.prediction.unlink()
    scoring.prediction.symlink_to("/etc/passwd")
    done = scoring.evaluate()
    assert (done.returncode, "no regular file" in done.stderr) == (MALFORMED_ROWS, True)


def test_an_owner_tries_it_in_the_datasets_folder(scoring: Scoring) -> None:
    (scoring.app / "evaluation.py").rename(scoring.dataset / "evaluation.py")
    (scoring.dataset / "prediction").write_text("0\n1\n")
    scoring.labels("0", "7")
    done = subprocess.run(
        [sys.executable, "-m", "nsml.evaluation"],
        cwd=scoring.dataset,
        env={
            "PYTHONPATH": str(scoring._sdk),
            "NSML_DATASET_PATH": ".",
            "NSML_PREDICTION_FILE": "prediction",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[2:]) == (0, ["0.5"]), done.stderr
    result = next((scoring.dataset / ".nsml/artifacts").glob("*/model/result.json"))
    assert json.loads(result.read_text())["score"] == "0.5"


def test_a_result_that_the_platform_does_not_take_is_no_fault_of_the_evaluation(
    scoring: Scoring,
) -> None:
    scoring.run.mkdir(exist_ok=True)
    (scoring.run / "checkpoints").touch()
    done = scoring.evaluate()
    assert done.returncode == PLATFORM_FAILED, done.stderr
    assert "the platform did not take the result of the evaluation" in done.stderr
    assert list((scoring.run.parent / "tmp").iterdir()) == []
