"""How the ends of programs are told."""

from __future__ import annotations

from nodeagent.link.reports import exit_of
from nodeagent.runtimes.interface import ExitRecord, ExitWhy


def ended(message: str) -> str:
    record = ExitRecord(
        why=ExitWhy.EXITED,
        exit_code=1,
        signal=None,
        message=message,
        started_at=1.0,
        ended_at=2.0,
        duration_s=1.0,
    )
    return exit_of(record, None).message


def test_who_lacks_a_package_is_told_the_line_to_add() -> None:
    lacks = "ModuleNotFoundError: No module named 'cv2'"
    assert (
        ended(lacks)
        == f"{lacks}; add to requirements.txt (or pyproject.toml): opencv-python-headless"
    )
    for message in ("ModuleNotFoundError: No module named 'utils'", "ValueError: cv2", ""):
        assert ended(message) == message
