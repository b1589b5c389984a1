"""Values, errors and depths that no loop should have, and that end no training."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsml._session import Session
from tests.unit.nsml.test_sdk_spool import read


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(str(tmp_path), "anna/digits/3")


def recorded(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [one for one in read(folder / "spool/1.records") if one["kind"] == kind]


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("and it does not even say what")

    __repr__ = __str__


def fails(_: object) -> None:
    raise MuteError


class Unpicklable:
    def __reduce__(self) -> Any:
        raise MuteError


def test_an_error_that_cannot_be_told_ends_nothing(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.bind(save=None, load=None, model=Unpicklable())
    session.save("one")
    session.save("two", lambda folder: Path(folder, "w").touch())
    names = {one["name"]: one.get("lost") for one in recorded(tmp_path, "checkpoint")}
    assert names == {"one": "MuteError", "two": None}
    assert "checkpoint one is lost, training goes on: MuteError" in capsys.readouterr().err


def test_a_load_that_cannot_tell_why_it_fails_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Session(str(tmp_path), "s").save("best", lambda folder: Path(folder, "w").touch())
    monkeypatch.setenv("NSML_RESUME", "best")
    Session(str(tmp_path), "s").bind(save=fails, load=fails)
    assert "could not go on from checkpoint best: MuteError" in capsys.readouterr().err


def test_a_report_at_the_depth_of_the_stack_ends_nothing(session: Session, tmp_path: Path) -> None:
    tried = 0

    def descend() -> None:
        nonlocal tried
        session.reporter.report(step=tried, loss=0.5, val={"a": [1, 2]})
        tried += 1
        descend()

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(list(frames())) + 120)
    try:
        with pytest.raises(RecursionError) as raised:
            descend()
    finally:
        sys.setrecursionlimit(limit)
    innermost = [one.frame.code.name for one in raised.traceback][-1]
    assert innermost in {"descend", "report"}, "no call within a report raises"
    session.reporter.report(after=1.0)
    metrics = recorded(tmp_path, "metric")
    assert metrics[-1]["values"] == {"after": 1.0}
    (dropped,) = recorded(tmp_path, "dropped")
    assert dropped["count"] >= 1
    assert "as deep in calls as Python allows" in dropped["reason"]


def frames() -> Iterator[object]:
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def test_structured_values_of_numpy_have_the_names_of_their_fields(
    session: Session, tmp_path: Path
) -> None:
    numpy = pytest.importorskip("numpy")
    kind = [("a", "f4"), ("b", "i8")]
    session.reporter.report(
        scalar=numpy.array((1.5, 2), dtype=kind)[()],
        array=numpy.array((1.5, 2), dtype=kind),
        rows=numpy.array([(1.5, 2), (2.5, 3)], dtype=kind),
    )
    (record,) = recorded(tmp_path, "metric")
    assert record["values"] == {
        "scalar/a": 1.5,
        "scalar/b": 2,
        "array/a": 1.5,
        "array/b": 2,
        "rows/a": [1.5, 2.5],
        "rows/b": [2, 3],
    }


class Meta:
    """As a tensor of torch on the device `meta`."""

    shape = ()
    dtype = "torch.float32"

    def item(self) -> float:
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    tolist = numpy = __float__ = item


def test_a_value_without_data_is_named_and_costs_no_other(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.reporter.report(step=1, loss=0.5, grad=Meta())
    (record,) = recorded(tmp_path, "metric")
    assert record["values"] == {"loss": 0.5}
    assert "cannot be called on meta tensors" in capsys.readouterr().err


def test_an_interrupted_save_leaves_no_files_behind(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by the handler of a timeout, in a loop that then goes on."""
    for moment in ("os.fsync", "os.rename", "nsml._session.Progress.done", "os.chmod"):

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:

            def save(folder: str, moment: str = moment, patch: Any = patch) -> None:
                Path(folder, "w").write_text("much")
                patch.setattr(moment, interrupt)

            with pytest.raises(KeyboardInterrupt):
                session.save("one", save)
        assert [*(tmp_path / "checkpoints").iterdir()] == [], moment
    session.save("one", lambda folder: Path(folder, "w").touch())
    assert len(recorded(tmp_path, "checkpoint")) == 1


def test_ctrl_c_at_any_line_of_a_report_leaves_the_next_ones_whole(
    session: Session, tmp_path: Path
) -> None:
    count = 0
    while True:
        lines = iter(range(count + 1))

        def interrupt(frame: Any, event: str, _: object, lines: Iterator[int] = lines) -> Any:
            if "/nsml/_" not in frame.f_code.co_filename:
                return None
            # Python looks for signals at calls and jumps: not between the assignments of these.
            is_here = event == "line" and frame.f_code.co_name not in {"_write_queue", "settle"}
            if is_here and next(lines, None) is None:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
            return interrupt

        sys.settrace(interrupt)
        try:
            session.reporter.report({"a": 1}, step=count, loss=0.5, rows=[1, 2])
        except KeyboardInterrupt:
            is_through = False
        else:
            is_through = True
        finally:
            sys.settrace(None)
        session.reporter.report(step=count, after=1.0)
        if is_through:
            break
        count += 1
    assert count > 50, "all lines were tried"
    after = [one["step"] for one in recorded(tmp_path, "metric") if "after" in one["values"]]
    assert after == [*range(count + 1)]
