"""The room that is taken for an exit record: it holds any, and what it holds is on the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.shim import disk_reserve as reserve


@pytest.mark.parametrize(
    "message", ["plain " * 500, "\U0001f600" * 1000, "\0" * 1000, "\udcff" * 999]
)
def test_a_record_is_whole_whatever_its_message(tmp_path: Path, message: str) -> None:
    numbers = dict.fromkeys(map(str, range(20)), 1234567890.123456)
    record = {"why": "START_FAILED", **numbers, "message": message}
    reserve.take(str(tmp_path))
    reserve.spend(str(tmp_path), "exit.json", record)
    read = json.loads((tmp_path / "exit.json").read_bytes())
    assert message.startswith(read["message"])
    assert {**read, "message": message} == record


def test_a_record_and_its_name_are_on_the_disk(
    tmp_path: Path, flushes: Callable[[Path], list[tuple[int, bool]]]
) -> None:
    reserve.take(str(tmp_path))
    record = tmp_path / "exit.json"
    flushed = flushes(record)
    reserve.spend(str(tmp_path), "exit.json", {"message": ""})
    assert flushed == [(record.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
