"""Which quota a competition's teams have, and until when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.domain.competitions.phases import last_end
from controlplane.domain.competitions.team_quota import team_quota
from controlplane.domain.competitions.values import CompetitionState
from tests.unit.controlplane.domain.competitions.facts import facts


def test_an_open_competition_has_one_until_its_last_phase_is_over() -> None:
    known = facts(gpu_thousandths=2500).competition
    until = last_end(known)
    found = team_quota(known, {}, until - 0.001)
    assert found is not None
    assert (found.competition_id, found.competition) == (known.id, known.name)
    assert found.gpu_thousandths == 2500
    phases = known.settings.phases
    assert set(found.datasets) == {f"{one.dataset_owner}/{one.dataset}" for one in phases}
    assert team_quota(known, {}, until) is None
    assert team_quota(replace(known, closed_at=until / 2), {}, until - 0.001) is None


@pytest.mark.parametrize("state", [CompetitionState.DRAFT, CompetitionState.CLOSED])
def test_one_that_is_not_open_has_none(state: CompetitionState) -> None:
    known = facts(gpu_thousandths=2500).competition
    assert team_quota(replace(known, state=state), {}, 0.0) is None


def test_without_a_limit_there_is_one_all_the_same() -> None:
    found = team_quota(facts().competition, {}, 0.0)
    assert found is not None
    assert found.gpu_thousandths == 0


def test_mergers_are_followed_to_the_last_team() -> None:
    merged = {"a": "b", "b": "d", "c": "d"}
    found = team_quota(facts().competition, merged, 0.0)
    assert found is not None
    assert dict(found.merged) == {"a": "d", "b": "d", "c": "d"}
    assert (found.present("a"), found.present("x")) == ("d", "x")
