"""How the ends of programs are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder
from nodeagent.link.reports import exit_of
from nodeagent.runtimes.interface import ExitRecord, ExitWhy


def ended(message: str, folder: Path) -> str:
    record = ExitRecord(
        why=ExitWhy.EXITED,
        exit_code=1,
        signal=None,
        message=message,
        started_at=1.0,
        ended_at=2.0,
        duration_s=1.0,
    )
    return exit_of(record, None, ReplicaFolder(folder)).message


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("", "requirements.txt (or pyproject.toml)"),
        ("the script block of main.py", "the script block of main.py"),
        ("setup.py and requirements.txt", "setup.py or requirements.txt"),
        ("uv.lock", "pyproject.toml and uv.lock (uv add)"),
        ("Dockerfile", "Dockerfile"),
    ],
)
def test_who_lacks_a_package_is_told_the_line_to_add_and_where(
    source: str, place: str, tmp_path: Path
) -> None:
    if source:
        ReplicaFolder(tmp_path).requirements.write_text(source)
    lacks = "ModuleNotFoundError: No module named 'cv2'"
    assert ended(lacks, tmp_path) == f"{lacks}; add to {place}: opencv-python-headless"
    for message in ("ModuleNotFoundError: No module named 'utils'", "ValueError: cv2", ""):
        assert ended(message, tmp_path) == message
