"""What a shim makes of an engine that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.engine.wire import Refused, Unanswered
from nodeagent.shim.contained import Contained, _remove

if TYPE_CHECKING:
    from pathlib import Path

CREATED = {"Id": "c", "State": {"Running": False, "Pid": 0, "ExitCode": 0}}


class LateEngine:
    """Starts a container when it comes to it, which is after the shim gave up waiting."""

    def __init__(self) -> None:
        self.is_there = False

    def create(self, config: dict[str, object]) -> None:
        self.is_there = True

    def start(self) -> None:
        raise Unanswered("it accepts connections and does not answer")

    def inspect(self) -> dict[str, object] | None:
        return CREATED if self.is_there else None

    def remove(self) -> None:
        self.is_there = False


def test_a_start_that_was_not_answered_is_over_when_the_container_is_removed(
    tmp_path: Path,
) -> None:
    plan = {"config": {}, "image": "i", "socket": "s", "api": "1.41", "name": "n"}
    program = Contained(str(tmp_path), {"container": plan, "secrets": {}})
    program._container = LateEngine()  # type: ignore[assignment]
    with pytest.raises(Unanswered):
        program.start()
    assert not program.is_gone(), "the engine may start it in a moment"
    program.kill()
    assert program.is_gone()
    assert program.outcome() == (None, None, None)


class FickleEngine:
    """Refuses to remove a container, then does not answer, then removes it."""

    def __init__(self) -> None:
        self.answers = [Refused("removal is in progress"), Unanswered("it restarts"), None]

    def remove(self) -> None:
        if (error := self.answers.pop(0)) is not None:
            raise error

    def inspect(self) -> dict[str, object] | None:
        raise Unanswered("it restarts")


def test_a_container_is_removed_however_often_its_engine_fails() -> None:
    engine = FickleEngine()
    _remove(engine)  # type: ignore[arg-type]
    assert engine.answers == []
