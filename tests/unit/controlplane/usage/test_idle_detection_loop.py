"""The owner of a session that wastes its devices is told once, tried again where that may help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.errors import InvalidRequest, NotFound, StateConflict
from controlplane.domain.notices import WebhookEvent
from controlplane.domain.values import Episode, EpisodeKind
from controlplane.usage.idle_detection import Begun
from controlplane.usage.idle_detection_loop import PAUSES_S, Wasting
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock, working

if TYPE_CHECKING:
    from collections.abc import Mapping

EPISODE = Episode(kind=EpisodeKind.IDLE, since=1_000_000.0, reason="none of its GPUs did more")


class Webhooks:
    """Answers with each of these in turn: a status, or an error."""

    def __init__(self, *answers: int | Exception) -> None:
        self.said: list[tuple[str, Mapping[str, object]]] = []
        self._answers = list(answers)

    async def send(self, owner: str, message: Mapping[str, object], event: WebhookEvent) -> int:
        assert event is WebhookEvent.IDLE
        self.said.append((owner, message))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def wasting(webhooks: Webhooks, wastes: Any = None) -> Wasting:
    return Wasting(wastes, webhooks, clock=HandClock())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ((200,), 1),
        ((302,), 1),
        ((404,), 1),
        ((503, 204), 2),
        ((429, 429, 200), 3),
        ((StateConflict("away"), 200), 2),
        ((InvalidRequest("private"),) * len(PAUSES_S), len(PAUSES_S)),
        ((500,) * len(PAUSES_S), len(PAUSES_S)),
        ((NotFound("none is set"),), 1),
    ],
)
async def test_who_does_not_take_it_is_called_again_a_few_times(answers: Any, calls: int) -> None:
    webhooks = Webhooks(*answers)
    await wasting(webhooks).tell(session(owner="kim"), EPISODE)
    assert len(webhooks.said) == calls


async def test_what_is_sent_names_session_time_and_reason() -> None:
    webhooks = Webhooks(200)
    one = session(owner="kim")
    await wasting(webhooks).tell(one, EPISODE)
    assert webhooks.said == [
        (
            "kim",
            {
                "text": f"nsml: {one.name} is idle since 1970-01-12 13:46Z: {EPISODE.reason}",
                "event": "idle",
                "session": one.name,
                "session_id": one.id,
                "since": "1970-01-12T13:46:40Z",
                "reason": EPISODE.reason,
            },
        )
    ]


async def test_each_episode_that_begins_is_told_once() -> None:
    class Wastes:
        found: tuple[Begun, ...] = (Begun(session(owner="kim"), EPISODE),)
        looks = 0

        async def look(self) -> tuple[Begun, ...]:
            self.looks += 1
            found, self.found = self.found, ()
            return found

    wastes, webhooks = Wastes(), Webhooks(200)
    clock = HandClock()
    async with working(Wasting(wastes, webhooks, clock=clock).run()):  # type: ignore[arg-type]
        while wastes.looks < 5 or not webhooks.said:
            await clock.sleep(0)
    assert [owner for owner, _ in webhooks.said] == ["kim"]
