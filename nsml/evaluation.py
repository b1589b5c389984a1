"""Evaluates a prediction: `python -m nsml.evaluation`, the program of a submission's second session.

It runs the dataset owner's `evaluation.py`, which lies in the current folder, on the prediction of another user, in a
process of its own. The last line of its output is the score. What came out is saved as the artifact `EVALUATION`; exit
codes are in `nsml.spec.submission_exits`.
"""

from __future__ import annotations

import ast
import json
import math
import os
import random
import re
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress

import nsml
from nsml._session import keep_file
from nsml.spec.submission_exits import (
    EVALUATION,
    EVALUATION_FAILED,
    EVALUATION_TIMEOUT,
    MALFORMED_ROWS,
    NOT_FINITE,
    NOT_SCORED,
    PLATFORM_FAILED,
    PREDICTION,
    RESULT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Set, Tuple

_PROGRAM = "evaluation.py"
_PREDICTION = "/data/prediction/" + PREDICTION
_EVALUATE_S = 3600.0
_LABEL_OPTION = "test_label_path"
_FROM_PARAMETERS = {
    "fire",
    "typer",
    "tyro",
    "tap",
    "jsonargparse",
    "simple_parsing",
    "transformers",
}
"""Packages that make options of the parameters of a function, or of the fields of a class."""
_LONGEST_LINE = 4096
_PIECE_BYTES = 64 << 10
_HEADER = b"header"
_GROUPS = 10
_LEAST_OF_A_GROUP = 10
_DRAIN_S = 5.0
_SHOWN_CHARS = 80
_PASSED_ON = frozenset(
    (
        *("PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("PYTHONPATH", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "CONDA_PREFIX", "OMP_NUM_THREADS"),
        "NSML_SESSION_NAME",
    )
)
"""Variables that `evaluation.py` gets: it reads what strangers wrote."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class EvaluationError(Exception):
    """No score; `code` is the exit code that says why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Evaluation:
    """The evaluation of one prediction.

    Args:
        dataset: the dataset's folder, with all its parts.
        prediction: the file.
        work: an empty folder for copies.
        limit_s: how long each run of `evaluation.py` may take.
    """

    def __init__(self, dataset: str, prediction: str, work: str, limit_s: float) -> None:
        self._dataset = os.path.abspath(dataset)
        self._prediction = os.path.abspath(prediction)
        self._work = work
        self._limit_s = limit_s
        self._app = os.path.join(work, "app")
        self._test = os.environ.get("NSML_TEST_FOLDER") or "test"
        self._label = os.path.join(self._dataset, self._test, "test_label")
        self._public: Set[int] = set()
        self._has_header = False

    def result(self, *, twice: bool) -> Dict[str, Any]:
        """Run it on all rows, or on public and private ones, and return what came out.

        Args:
            twice: run it once more on the same rows, as `check`.

        Raises:
            EvaluationError: there is no score.
        """
        self._prepare()
        parts, rows = self._parts()
        return {
            "score": self._score(*parts[0]),
            "private": self._private_score(parts[1:]),
            "check": self._score(*parts[0]) if twice else None,
            "standard_error": self._standard_error(),
            "rows": rows,
        }

    def _private_score(self, parts: List[Tuple[str, str]]) -> Optional[str]:
        """Return the score of the private rows; None: there are none, or it has none.

        Why is for the owner alone. Where a label makes the evaluation fail, such as log(0), a participant who saw that
        could ask for private labels one by one.
        """
        try:
            return self._score(*parts[0]) if parts else None
        except EvaluationError as error:
            print(f"nsml: no private score: {error}", file=sys.stderr, flush=True)
            return None

    def _standard_error(self) -> Optional[float]:
        """Return the standard error of the public score by random groups of its rows; None if it is not known.

        The groups' scores scatter as those of test sets of their size: their standard deviation over the root of their
        number is the standard error of a score that is a mean of rows, and about that of others.
        """
        if len(self._public) < _GROUPS * _LEAST_OF_A_GROUP:
            return None
        rows = sorted(self._public)
        random.Random(0).shuffle(rows)  # noqa: S311 - the same groups for every prediction
        ends_at = time.monotonic() + self._limit_s
        scores = []
        try:
            for group in range(_GROUPS):
                part = self._copy(f"group-{group}", set(rows[group::_GROUPS]))
                scores.append(float(self._score(*part, ends_at - time.monotonic())))
        except EvaluationError as error:
            print(f"nsml: no standard error: {error}", file=sys.stderr, flush=True)
            return None
        return statistics.stdev(scores) / math.sqrt(_GROUPS)

    def _prepare(self) -> None:
        if not os.path.isfile(_PROGRAM):
            raise EvaluationError(EVALUATION_FAILED, f"the dataset has no {_PROGRAM}")
        try:
            is_file = stat.S_ISREG(os.lstat(self._prediction).st_mode)
        except OSError as error:
            raise EvaluationError(EVALUATION_FAILED, f"the prediction: {error}") from error
        if not is_file:
            raise EvaluationError(MALFORMED_ROWS, "the prediction is no regular file")
        here = os.getcwd()
        # Tried in the dataset's own folder, it needs the programs, not the data.
        is_dataset = os.path.realpath(self._dataset) == os.path.realpath(here)
        shutil.copytree(here, self._app, symlinks=True, ignore=_folders if is_dataset else None)

    def _parts(self) -> Tuple[List[Tuple[str, str]], int]:
        """Return prediction and label file of each run, "" for the label file that it finds itself; and the rows."""
        label = self._label
        if self._test != "test":  # of a dry run; older programs know the path of the other labels
            self._check_option(f"dry run on {self._test}", NOT_SCORED)
        public = os.path.join(self._dataset, self._test, "public_rows")
        two = [f"{label}_public", f"{label}_private"]
        if os.path.isfile(public):
            self._check_option(f"dataset's {self._test}/public_rows")
            return self._cut(public)
        if all(os.path.isfile(one) for one in two):
            self._check_option(f"dataset's {self._test}/test_label_public")
            return [(self._prediction, one) for one in two], _line_count(self._prediction)
        has_label = os.path.exists(label)
        if self._test != "test" and not has_label:  # it would find those of the test set itself
            raise EvaluationError(EVALUATION_FAILED, f"the dataset has no {self._test}/test_label")
        given = label if has_label and self._has_option() else ""
        return [(self._prediction, given)], _line_count(self._prediction)

    def _check_option(self, what: str, code: int = EVALUATION_FAILED) -> None:
        if not self._has_option():
            why = f"{_PROGRAM} has no --test_label_path, which the {what} needs"
            raise EvaluationError(code, why)

    def _has_option(self) -> bool:
        with open(os.path.join(self._app, _PROGRAM), "rb") as file:
            return takes_labels(file.read())

    def _cut(self, public_rows: str) -> Tuple[List[Tuple[str, str]], int]:
        """Write the public and the private rows of both files to files of their own; each keeps the header."""
        label, named = self._label, f"{self._test}/public_rows"
        if not os.path.isfile(label):
            raise EvaluationError(EVALUATION_FAILED, f"{named} has no {self._test}/test_label")
        labels, predictions = _line_count(label), _line_count(self._prediction)
        if labels != predictions:
            why = f"the prediction has {predictions:,} lines, the labels have {labels:,}"
            raise EvaluationError(MALFORMED_ROWS, why)
        public, self._has_header = read_public_rows(public_rows, label, named)
        rows = labels - self._has_header
        self._public = public
        private = set(range(rows)) - public
        parts = [self._copy("public", public)]
        return [*parts, self._copy("private", private)] if private else parts, rows

    def _copy(self, name: str, rows: Set[int]) -> Tuple[str, str]:
        """Write these rows of prediction and labels to files of their own."""
        folder = os.path.join(self._work, name)
        os.mkdir(folder)
        cut = []
        for path in (self._prediction, self._label):
            cut.append(os.path.join(folder, os.path.basename(path)))
            _copy_rows(path, cut[-1], rows, has_header=self._has_header)
        return cut[0], cut[1]

    def _score(self, prediction: str, label: str, limit_s: float = math.inf) -> str:
        """Run it once, and return the last line of its output, a number. Raises EvaluationError."""
        command = [sys.executable, "-u", _PROGRAM, "--prediction", prediction]
        command += ["--test_label_path", label] if label else []
        last = self._last_line(command, max(min(limit_s, self._limit_s), 0.0))
        if not _NUMBER.fullmatch(last) or not math.isfinite(float(last)):
            shown = repr(last[:_SHOWN_CHARS]) if last else "nothing"
            why = f"the last line of {_PROGRAM} has to be a finite number, and was {shown}"
            raise EvaluationError(NOT_FINITE, why)
        return last

    def _last_line(self, command: List[str], limit_s: float) -> str:
        program = subprocess.Popen(
            command,
            cwd=self._app,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        reading = _Reading(program.stdout)  # type: ignore[arg-type] # it is a pipe
        try:
            code = program.wait(limit_s)
        except subprocess.TimeoutExpired:
            why = f"{_PROGRAM} was not done within {self._limit_s:g} seconds"
            raise EvaluationError(EVALUATION_TIMEOUT, why) from None
        finally:
            with suppress(OSError):  # what it has started ends with it
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            reading.end()
        if code:
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            if code == -signal.SIGKILL:
                print(f"nsml: {_PROGRAM} {ended}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)  # out of memory, or by the machine: as it ends
            raise EvaluationError(EVALUATION_FAILED, f"{_PROGRAM} {ended}")
        return reading.last_line()

    def _environment(self) -> Dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED_ON or name.startswith("LC_")
        }
        name = os.environ.get("NSML_DATASET_NAME", "").split(os.pathsep)[0]
        return {**kept, "NSML_DATASET_PATH": self._dataset, "NSML_DATASET_NAME": name}


def takes_labels(source: bytes) -> bool:
    """Return whether an evaluation with this source has the option --test_label_path.

    A variable or a parameter of that name is none: programs that know the path of the labels keep it in one.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # as it will say itself
        return f"--{_LABEL_OPTION}".encode() in source
    parameters: Set[str] = set()
    modules: Set[str] = set()
    for node in nodes:
        # Before Python 3.8 texts had a node of their own.
        text = node.value if isinstance(node, ast.Constant) else getattr(node, "s", None)
        if isinstance(text, str):
            if text.lstrip("-") == _LABEL_OPTION or f"--{_LABEL_OPTION}" in text:
                return True
        elif isinstance(node, ast.arg):
            parameters.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            parameters.add(node.target.id)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return _LABEL_OPTION in parameters and not _FROM_PARAMETERS.isdisjoint(modules)


class _Reading:
    """Passes a program's output on, and keeps its last line that is not blank."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._last = self._line = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait for the end of the output, but not for a process that keeps it open."""
        self._thread.join(_DRAIN_S)

    def last_line(self) -> str:
        """Return it, without blanks around it; cut if it is longer than any number."""
        line = self._line if self._line.strip() else self._last
        return line.decode("utf-8", "replace").strip()

    def _read(self) -> None:
        while True:
            piece = os.read(self._pipe.fileno(), _PIECE_BYTES)
            if not piece:
                return
            with suppress(OSError):
                _write_all(piece)
            *whole, rest = piece.split(b"\n")
            for part in whole:
                line, self._line = (self._line + part)[:_LONGEST_LINE], b""
                self._last = line if line.strip() else self._last
            self._line = (self._line + rest)[:_LONGEST_LINE]


def read_public_rows(
    public_rows: str, label: str, named: str = "test/public_rows"
) -> Tuple[Set[int], bool]:
    """Return the numbers of the public rows, and whether labels and predictions begin with a header.

    Args:
        public_rows: path of the file `test/public_rows`.
        label: path of the file `test/test_label`.
        named: what messages call the first.

    Raises:
        EvaluationError: it names no rows, or ones that the labels do not have.
    """
    public, has_header = _numbers(public_rows, named), _has_header(public_rows, label)
    rows = _line_count(label) - has_header
    if not public:
        raise EvaluationError(EVALUATION_FAILED, f"{named} names no rows")
    if max(public) >= rows:
        why = f"{named} names row {max(public):,}, the last one is {rows - 1:,}"
        raise EvaluationError(EVALUATION_FAILED, why)
    return public, has_header


def _folders(folder: str, names: List[str]) -> List[str]:
    return [name for name in names if os.path.isdir(os.path.join(folder, name))]


def _write_all(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _lines(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file


def _has_header(public_rows: str, label: str) -> bool:
    """Return whether the first line is a header: `public_rows` begins with `header`, or the labels show it.

    The prediction is not asked: its first row may be equal to that of the labels because it is right.
    """
    if next(_lines(public_rows), b"").strip() == _HEADER:
        return True
    lines = _lines(label)
    first, second = next(lines, b""), next(lines, b"")
    return _has_number(second) and not _has_number(first)


def _has_number(line: bytes) -> bool:
    fields = re.split(r"[,;\t ]", line.decode("utf-8", "replace").strip())
    return any(_NUMBER.fullmatch(field.strip(" \"'")) for field in fields)


def _line_count(path: str) -> int:
    """Return the number of lines; the last one may have no end. Pieces at a time: a line may be as long as the file."""
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while True:
            piece = file.read(_PIECE_BYTES)
            if not piece:
                return count + (last != b"\n")
            count, last = count + piece.count(b"\n"), piece[-1:]


def _numbers(path: str, named: str) -> Set[int]:
    """Return the row numbers of `public_rows`, which messages call `named`. Raises EvaluationError."""
    found = set()
    for number, line in enumerate(_lines(path)):
        text = line.strip()
        if not text or (not number and text == _HEADER):
            continue
        if not text.isdigit():
            shown = text[:_SHOWN_CHARS].decode("utf-8", "replace")
            why = f"{named}: {shown!r} is no number of a row, from 0"
            raise EvaluationError(EVALUATION_FAILED, why)
        found.add(int(text))
    return found


def _copy_rows(path: str, there: str, rows: Set[int], *, has_header: bool) -> None:
    with open(there, "wb") as file:
        for number, line in enumerate(_lines(path), -1 if has_header else 0):
            if number < 0 or number in rows:
                file.write(line if line.endswith(b"\n") else line + b"\n")


def _limit_s() -> float:
    try:
        limit_s = float(os.environ.get("NSML_EVALUATE_S") or _EVALUATE_S)
    except ValueError:
        return _EVALUATE_S
    return limit_s if limit_s > 0 else _EVALUATE_S


def _dataset() -> str:
    given: Any = nsml.DATASET_PATH
    return str(given if isinstance(given, str) else given[0])


def main() -> int:
    """Evaluate the prediction of this session; return the exit code."""
    prediction = os.environ.get("NSML_PREDICTION_FILE") or _PREDICTION
    work = tempfile.mkdtemp(prefix="nsml-")
    try:
        began = time.monotonic()
        evaluation = Evaluation(_dataset(), prediction, work, _limit_s())
        result = evaluation.result(twice=os.environ.get("NSML_EVALUATE_TWICE") == "1")
        print(f"nsml: evaluated in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        file = os.path.join(work, RESULT)
        with open(file, "w", encoding="utf-8") as written:
            json.dump(result, written)
        try:
            keep_file(EVALUATION, file)
        except (OSError, ValueError) as error:
            why = f"the platform did not take the result of the evaluation: {error}"
            raise EvaluationError(PLATFORM_FAILED, why) from error
    except EvaluationError as error:
        print(f"nsml: {error}", file=sys.stderr, flush=True)
        return error.code
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
