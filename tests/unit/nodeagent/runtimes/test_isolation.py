"""What an agent makes of its trials of isolation: where programs see others, none is kept to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.runtimes import isolation
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.isolation import probe_isolation


@pytest.mark.parametrize("trial_id", [None, 70_000])
@pytest.mark.parametrize("has_pids", [True, False])
def test_without_processes_of_their_own_programs_of_several_users_are_not_kept_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trial_id: int | None, has_pids: bool
) -> None:
    """A command line is read by all who see the process: one with hidden inputs could be the program's own."""

    def tried(_: Path, machine: Any, *__: Any, **___: Any) -> str | None:
        return None if has_pids or not machine.with_pid else "mount proc: not permitted"

    monkeypatch.setattr(isolation, "_tried", tried)
    monkeypatch.setattr(isolation, "_tried_as_user", lambda *_: None)
    found = probe_isolation(tmp_path, trial_id=trial_id)
    assert found.level is Isolation.NAMESPACE
    assert found.machine.with_pid is has_pids
    if has_pids or trial_id is None:  # without accounts all sessions are one person's
        assert found.joined_reason == ""
    else:
        assert "other sessions' processes" in found.joined_reason
        assert "mount proc: not permitted" in found.joined_reason
