"""Visits of pages of competitions: when their tickets and cookies hold, and for what."""

from __future__ import annotations

import itertools
from hashlib import sha256

from controlplane.competitions.page_visits import MOST_OF_USER, TICKET_S, VISIT_S, PageVisits
from controlplane.domain.identity import User, UserCaller

CUP, OTHER = "kim/cup", "kim/other"


class ManualClock:
    """A clock that tests put forward."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Visits:
    """Visits with a clock of its own, and credentials that can be revoked."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.valid = {"token-lee": "lee", "token-park": "park"}
        numbers = itertools.count()
        self.visits = PageVisits(
            clock=self.clock,  # type: ignore[arg-type]
            still=self.still,
            new_secret=lambda: f"secret-{next(numbers)}",
            fingerprint=lambda text: sha256(text.encode()).hexdigest(),
        )

    async def still(self, token: str) -> UserCaller | None:
        name = self.valid.get(token)
        return UserCaller(user=User(name=name)) if name is not None else None

    def ticket(self, user: str = "lee") -> str:
        return self.visits.ticket(user, f"token-{user}", CUP)

    async def who(self, cookie: str, page: str = CUP) -> str:
        found = await self.visits.viewer(cookie, page)
        return found.user.name if found is not None else ""


async def test_a_ticket_gives_one_cookie_of_one_page() -> None:
    here = Visits()
    ticket = here.ticket()
    cookie = here.visits.redeem(ticket, CUP)
    assert await here.who(cookie) == "lee"
    assert here.visits.redeem(ticket, CUP) == "", "it is used up"
    assert await here.who(cookie, OTHER) == ""
    assert await here.who(ticket) == "", "a ticket is no cookie"
    assert here.visits.redeem(cookie, CUP) == "", "and a cookie no ticket"
    assert here.visits.redeem(here.ticket(), OTHER) == ""
    for wrong in ("", "secret", "\u00e9"):
        assert (here.visits.redeem(wrong, CUP), await here.who(wrong)) == ("", "")


async def test_both_end_by_time_and_with_the_credential() -> None:
    here = Visits()
    late = here.ticket()
    here.clock.now += TICKET_S + 0.1
    assert here.visits.redeem(late, CUP) == ""
    cookie = here.visits.redeem(here.ticket(), CUP)
    here.clock.now += VISIT_S
    assert await here.who(cookie) == "lee"
    here.clock.now += 0.1
    assert await here.who(cookie) == ""
    cookie = here.visits.redeem(here.ticket(), CUP)
    del here.valid["token-lee"]
    assert await here.who(cookie) == ""


async def test_a_user_who_asks_for_many_drops_own_ones_alone() -> None:
    here = Visits()
    other = here.ticket("park")
    own = [here.ticket() for _ in range(MOST_OF_USER + 1)]
    assert here.visits.redeem(own[0], CUP) == ""
    cookies = [here.visits.redeem(one, CUP) for one in own[1:]]
    assert [await here.who(one) for one in cookies] == ["lee"] * MOST_OF_USER
    assert await here.who(here.visits.redeem(other, CUP)) == "park"
    further = here.visits.redeem(here.ticket(), CUP)
    assert [await here.who(one) for one in (cookies[0], cookies[1], further)] == ["", "lee", "lee"]
