"""Settings of competitions as JSON."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from controlplane.domain.boards.values import PublicScore, SubmissionLimit
from controlplane.domain.competitions.values import CompetitionSettings, Phase
from controlplane.domain.values import Visibility

if TYPE_CHECKING:
    from collections.abc import Callable


def encode_settings(settings: CompetitionSettings) -> str:
    """Encode as JSON."""
    values = _plain(settings)
    values["phases"] = [
        {
            **_plain(phase),
            "limit": None if phase.limit is None else [phase.limit.count, phase.limit.window_s],
        }
        for phase in settings.phases
    ]
    return json.dumps(values, separators=(",", ":"))


def decode_settings(text: str) -> CompetitionSettings:
    """Decode; what a newer version wrote and this one does not know is left out."""
    found = json.loads(text)
    phases = tuple(_read(Phase, one) for one in found.pop("phases", ()))
    settings: CompetitionSettings = _read(CompetitionSettings, {**found, "phases": phases})
    return settings


def _limit(value: Any) -> SubmissionLimit | None:
    return None if value is None else SubmissionLimit(count=int(value[0]), window_s=float(value[1]))


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "visibility": Visibility,
    "public_score": PublicScore,
    "limit": _limit,
}


def _plain(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}


def _read(kind: Any, found: dict[str, Any]) -> Any:
    values = {}
    for one in fields(kind):
        if one.name in found:
            with contextlib.suppress(ValueError, TypeError):
                values[one.name] = _READ.get(one.name, _same)(found[one.name])
    return kind(**values)


def _same(value: Any) -> Any:
    return value
