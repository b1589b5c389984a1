"""What is said of an installer that fails: why, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.environments import conda_installer, installer
from nodeagent.environments.installer import Refused


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo Resolved; echo 'error: No route' >&2; exit 2", "No route"),
        (
            "echo 'odd end' >&2; exit 3",
            "ended with exit code 3 without an error message (its last line is 'odd end'): try again",
        ),
        ("kill -9 $$", "was killed by signal 9 without an error message (it printed nothing): try"),
    ],
)
def test_a_program_that_fails_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name, text in (
        ("uv", script),
        ("micromamba", script.replace("'error:", "'error libmamba")),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for module, call in (
        (installer, lambda: installer.uv(["install"], str(tmp_path))),
        (conda_installer, lambda: conda_installer._micromamba("create")),
    ):
        monkeypatch.setattr(module, "__file__", str(tmp_path / "installer.py"))
        with pytest.raises(Refused) as refused:
            call()
        assert why in str(refused.value)
