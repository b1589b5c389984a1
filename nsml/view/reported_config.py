"""The configuration that programs reported to W&B, MLflow and others: as values by flattened name, words and records. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml.common.text import fit
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsml.v1.sessions_pb2 import ReportedConfig, Session

MOST_SHOWN: Final = 24
"""Most values of one run in words."""
_VALUE_CELLS: Final = 40
_MOST_DEPTH: Final = 64


class RunConfig(NamedTuple):
    """The configuration of one run: `run` is "" for the first of its origin."""

    origin: str
    run: str
    values: Mapping[str, Any]

    @property
    def title(self) -> str:
        """`wandb`, of a further run `wandb second`."""
        return f"{self.origin} {self.run}".rstrip()

    def flattened(self) -> dict[str, Any]:
        """Return its values by name, those of nested objects as `optimizer.lr`; a list is one value."""
        return dict(_flattened("", self.values, _MOST_DEPTH))


def runs_of(config: ReportedConfig) -> list[RunConfig]:
    """Return its runs, by origin and run; of JSON that this version cannot read there is none."""
    found = []
    for one in config.runs:
        try:
            values = json.loads(one.json)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            found.append(RunConfig(one.origin, one.run, values))
    return found


def values_of(config: ReportedConfig) -> dict[str, Any]:
    """Return all values by flattened name, of a further run as `RUN/NAME`, to be compared with another session's.

    Of several origins with different values of a name the others are `NAME (ORIGIN)`.
    """
    found: dict[str, Any] = {}
    for one in runs_of(config):
        for name, value in one.flattened().items():
            key = f"{one.run}/{name}" if one.run else name
            if key in found and value_text(found[key]) != value_text(value):
                key = f"{key} ({one.origin})"
            found.setdefault(key, value)
    return found


def value_text(value: Any) -> str:
    """Return a text as it is, anything else as JSON: `0.1`, `true`, `[64, 64]`."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "…"


def lines(session: Session) -> list[str]:
    """Describe what its programs reported, a line a run: `reported config (wandb): lr=0.1 optimizer.name=adam`."""
    config = session.reported_config
    found = []
    for one in runs_of(config):
        values = one.flattened()
        words = [f"{name}={fit(value_text(value), _VALUE_CELLS)}" for name, value in values.items()]
        more = len(words) - MOST_SHOWN
        words[MOST_SHOWN:] = [f"… {more} more (-j: all)"] if more > 0 else []
        found.append(f"reported config ({one.title}): {' '.join(words)}")
    if config.is_cut:
        found.append("reported config: some values were left out, since it is too large")
    return found


def record(session: Session) -> dict[str, Any] | None:
    """Return it with raw values; None if nothing was reported."""
    if not session.HasField("reported_config"):
        return None
    config = session.reported_config
    return {
        "runs": [
            {"origin": one.origin, "run": one.run or None, "values": one.values}
            for one in runs_of(config)
        ],
        "is_cut": config.is_cut,
    }


def count_text(config: ReportedConfig) -> str:
    """Return `12 values reported to wandb, mlflow`; "" if there are none."""
    runs = runs_of(config)
    count = sum(len(one.flattened()) for one in runs)
    origins = ", ".join(dict.fromkeys(one.origin for one in runs))
    cut = ", others left out" if config.is_cut else ""
    return f"{counted(count, 'value')} reported to {origins}{cut}" if count else ""


def _flattened(before: str, values: Mapping[str, Any], room: int) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{before}.{key}" if before else key
        if isinstance(value, dict) and value and room:
            yield from _flattened(name, value, room - 1)
        else:
            yield name, value
