"""--what-if: changed requests of a session, such as `gpus=4,priority=high`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from cli.arguments import (
    CPUS,
    GPU_MODEL,
    GPUS,
    MEMORY,
    NETWORK,
    POD,
    PRIORITY,
    TIME_LIMIT,
    WholeRange,
)
from cli.group import BadValue, near
from nsml.spec.request_limits import MOST_REPLICAS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from nsml.v1.sessions_pb2 import WhatIf

_KINDS: Final[dict[str, click.ParamType[Any]]] = {
    "gpus": GPUS,
    "cpus": CPUS,
    "memory": MEMORY,
    "nodes": WholeRange(1, platform_most=MOST_REPLICAS),
    "priority": PRIORITY,
    "time-limit": TIME_LIMIT,
    "gpu-model": GPU_MODEL,
    "pod": POD,
    "network": NETWORK,
}
"""Each key with its type: as the flag of `nsml run`."""

_MAY_BE_EMPTY: Final = {
    "cpus": 0,
    "memory": 0,
    "time-limit": 0.0,
    "gpu-model": "",
    "pod": "",
    "network": "",
}
"""Keys that accept an empty value: the default, none or any; with its value in the request."""


@dataclass(frozen=True, slots=True)
class Change:
    """The typed words, and the values by key."""

    text: str
    values: dict[str, Any]


class _WhatIf(click.ParamType[Change]):
    name = "what-if"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Change:
        if isinstance(value, Change):
            return value
        values: dict[str, Any] = {}
        for part in str(value).split(","):
            key, equals, text = (word.strip() for word in part.partition("="))
            if not equals or key not in _KINDS:
                self._refuse_key(key, part, param, ctx)
            if key in values:
                raise BadValue(f"{key} is given twice", param, ctx)
            values[key] = self._value(key, text, param, ctx)
        return Change(str(value), values)

    def _value(
        self, key: str, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not text and key in _MAY_BE_EMPTY:
            return _MAY_BE_EMPTY[key]
        try:
            return _KINDS[key].convert(text, param, ctx)
        except click.BadParameter as error:
            why = error.why if isinstance(error, BadValue) else ""
            nearest = error.nearest if isinstance(error, BadValue) else []
            raise BadValue(
                f"{key}: {error.message}",
                param,
                ctx,
                why=why,
                nearest=[f"{key}={one}" for one in nearest],
            ) from error

    def _refuse_key(
        self, key: str, part: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> None:
        nearest = near(key, list(_KINDS))
        raise BadValue(
            f"{part!r} is not KEY=VALUE" if key in _KINDS else f"it has no {key!r}",
            param,
            ctx,
            why=f"keys are {', '.join(_KINDS)}",
            advice=f"--what-if {nearest[0]}=..." if nearest else "--what-if gpus=4,priority=high",
        )

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the remaining keys, and the values of a typed key."""
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",")
        key, equals, start = last.partition("=")
        if equals and key in _KINDS:
            found = _KINDS[key].shell_complete(ctx, param, start)
            return [CompletionItem(f"{before}{comma}{key}={item.value}") for item in found]
        given = {part.partition("=")[0] for part in before.split(",")}
        left = (one for one in _KINDS if one.startswith(last) and one not in given)
        return [CompletionItem(f"{before}{comma}{one}=") for one in left]


WHAT_IF = _WhatIf()


def message_of(change: Change) -> WhatIf:
    """Return the change as a message."""
    from google.protobuf.duration_pb2 import Duration

    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.sessions import network_named, priority_named

    values = change.values
    message = pb.WhatIf(
        gpu_thousandths=values.get("gpus"),
        cpu_thousandths=values.get("cpus"),
        memory_bytes=values.get("memory"),
        replica_count=values.get("nodes"),
        priority=priority_named(values.get("priority", "")),
        gpu_model=values.get("gpu-model"),
        pod=values.get("pod"),
    )
    if "network" in values:
        message.network = network_named(values["network"])
    seconds = values.get("time-limit")
    if seconds is not None:
        message.time_limit.CopyFrom(Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9)))
    return message
