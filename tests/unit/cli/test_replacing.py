"""A folder takes another's place: whenever that fails or is interrupted, the old one or the new one is there, whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cli import replacing as module
from cli.exits import CommandError
from cli.fetching import fetching_to

OLD = {"same": "old", "part/a": "old", "part/b": "old", "mine": "mine", "one": "old"}
NEW = {"same": "new", "part/a": "new", "one": "new", "fresh/c": "new"}


def lay_out(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(params=["exchanged", "renamed twice"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is there, where names can be exchanged and where they cannot."""
    if request.param == "renamed twice":
        monkeypatch.setattr(module, "_exchanged", lambda *_: False)
    lay_out(tmp_path / "kim_mnist_3/code", OLD)
    return tmp_path / "kim_mnist_3/code"


def replace(target: Path, *only: str, files: dict[str, str] = NEW) -> None:
    path = target.parent.parent
    with fetching_to(path, target, replaces=True, only=only) as place:
        assert place.parent.parent.samefile(target.parent), "on the file system of the target"
        lay_out(place / target.relative_to(path), files)


class Failing:
    """Raises at the step of this number, and maybe at all after it; before or after it is done."""

    def __init__(self, at: int, *, is_done: bool, goes_on: bool) -> None:
        self._at, self._is_done, self._goes_on = at, is_done, goes_on
        self.steps = 0

    def step(self, does: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*given: Any, **named: Any) -> Any:
            self.steps += 1
            fails = self.steps == self._at or (self._goes_on and self.steps > self._at)
            if fails and not self._is_done:
                raise KeyboardInterrupt
            found = does(*given, **named)
            if fails:
                raise KeyboardInterrupt
            return found

        return stepping


@contextmanager
def failing(one: Failing) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for what, name in ((os, "rename"), (module, "_exchanged")):
            patch.setattr(what, name, one.step(getattr(what, name)))
        yield


@pytest.mark.parametrize("only", [(), ("part", "one", "fresh/c")])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["once", "from then on"])
def test_whatever_is_interrupted_loses_nothing(
    target: Path, *, only: tuple[str, ...], is_done: bool, goes_on: bool
) -> None:
    whole = {**OLD, **NEW} if only else NEW
    if only:
        whole = {**whole, "same": "old"}
        del whole["part/b"]
    for at in range(1, 20):
        one = Failing(at, is_done=is_done, goes_on=goes_on)
        with failing(one), suppress(KeyboardInterrupt):
            replace(target, *only)
        left = [path.name for path in target.parent.iterdir()]
        texts = sorted(path.read_text() for path in target.parent.rglob("*") if path.is_file())
        is_kept = [text for text in texts if text != "new"] == sorted(OLD.values())
        assert is_kept or files_of(target) == whole
        if not goes_on:
            assert left == ["code"], "a name has always something, and nothing else is left"
            assert files_of(target) in (OLD, whole)
        if one.steps < at:
            assert files_of(target) == whole, "nothing failed"
            return
        for name in left:
            shutil.rmtree(target.parent / name)
        lay_out(target, OLD)
    raise AssertionError("it never ends")


def test_only_some_paths_of_a_folder_are_replaced(target: Path) -> None:
    replace(target, "part", "part/a", "one", "fresh", "absent", "../absent")
    assert files_of(target) == {
        "same": "old",
        "part/a": "new",
        "mine": "mine",
        "one": "new",
        "fresh/c": "new",
    }
    assert [path.name for path in target.parent.iterdir()] == ["code"]


@pytest.mark.parametrize(
    ("files", "only"), [({"part": "1", "one": "1"}, "part"), ({"one/x": "1"}, "one/x")]
)
def test_a_folder_and_a_file_do_not_replace_each_other(
    target: Path, files: dict[str, str], only: str
) -> None:
    with pytest.raises(CommandError, match="is there and is no "):
        replace(target, only, "mine", files={**files, "mine": "theirs"})
    assert files_of(target) == OLD
    assert [path.name for path in target.parent.iterdir()] == ["code"]


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_is_no_folder_is_not_replaced(target: Path, kind: str) -> None:
    elsewhere = target.parent / "elsewhere"
    target.rename(elsewhere)
    if kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to("elsewhere" if kind == "link" else "nothing")
    with pytest.raises(CommandError, match="is there and is "):
        replace(target)
    assert files_of(elsewhere) == OLD
    assert os.path.lexists(target)


def test_a_link_above_a_target_is_followed(target: Path, tmp_path: Path) -> None:
    (tmp_path / "kim_mnist_3").rename(tmp_path / "elsewhere")
    (tmp_path / "kim_mnist_3").symlink_to("elsewhere")
    replace(target)
    assert files_of(tmp_path / "elsewhere/code") == NEW
