"""Looking at a platform in the test's own process: what was asked for once is not asked for again."""

import pytest

from cli.local.ports import Held
from tests.support.in_process import look


def test_a_platform_that_says_that_a_part_is_away_is_not_asked_by_a_program(
    environ, state, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gives_up(_patience: object, error: Exception) -> None:
        raise error

    monkeypatch.setattr("cli.retry.Patience.wait", gives_up)
    state.refuses["ListSessions"] = 1
    done = look(["ps", "-a"], environ)
    assert done is not None
    assert done.returncode == 3
    assert "the platform's history does not answer" in done.stderr


def test_a_platform_that_was_not_reached_is_asked_by_a_program(environ) -> None:
    with Held() as ports:
        assert look(["ps"], {**environ, "NSML_SERVER": f"127.0.0.1:{ports.free()}"}) is None
