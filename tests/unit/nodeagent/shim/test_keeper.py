"""How a container is removed whose engine does not do it at once."""

from __future__ import annotations

from nodeagent.engine.wire import Refused, Unanswered
from nodeagent.shim.keeper import _late_process_limit, _startable, end


class FickleEngine:
    """Refuses to remove a container, then does not answer, then removes it."""

    def __init__(self) -> None:
        self.answers = [Refused("removal is in progress"), Unanswered("it restarts"), None]

    def remove(self) -> bool:
        if (error := self.answers.pop(0)) is not None:
            raise error
        return True


def test_a_container_is_removed_however_often_its_engine_fails() -> None:
    engine = FickleEngine()
    end(engine, -1, may_come=False)  # type: ignore[arg-type]
    assert engine.answers == []


class LateEngine:
    """Comes to making a container after it was asked to remove it."""

    def __init__(self) -> None:
        self.answers = [False, False, True]

    def remove(self) -> bool:
        return self.answers.pop(0)


def test_a_container_that_may_still_come_is_waited_for() -> None:
    engine = LateEngine()
    end(engine, -1, may_come=True)  # type: ignore[arg-type]
    assert engine.answers == []
    engine = LateEngine()
    end(engine, -1, may_come=False)  # type: ignore[arg-type]
    assert len(engine.answers) == 2


def test_a_small_limit_of_processes_counts_from_the_gate_on() -> None:
    """The engine's starter has some threads in the container: with fewer it sometimes fails."""
    config = {"Image": "i", "HostConfig": {"PidsLimit": 2, "Memory": 1}}
    assert _late_process_limit(config) == 2
    assert _startable(config) == {"Image": "i", "HostConfig": {"PidsLimit": 64, "Memory": 1}}
    assert config["HostConfig"]["PidsLimit"] == 2
    for limit in (0, 64, 501):
        config = {"HostConfig": {"PidsLimit": limit}}
        assert (_late_process_limit(config), _startable(config)) == (0, config)
