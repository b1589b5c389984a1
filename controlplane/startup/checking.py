"""`nsml-controlplane --check`: reports all faults of settings, files, stores and ports. It changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from controlplane.access.files import Exposed, read_private
from controlplane.access.listeners import ListenRefused, parse_address, take_port
from controlplane.domain.errors import NsmlError
from controlplane.gateway.scrape_access import SHORTEST_TOKEN
from controlplane.health.warnings import FILE_WARNING_S, file_end
from controlplane.startup.backends import (
    key_file_of,
    open_files,
    reached_store,
    standing_of,
)
from controlplane.startup.ownership import StartRefused
from controlplane.store.filelock import FileLock
from controlplane.store.interface import StoreError, StoreLocked
from controlplane.stored import etcd_codec
from nsml.common.private_folders import foreign, words_of
from nsml.common.units import duration_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from controlplane.startup.config import Settings
    from controlplane.startup.ownership import BackendSettings
    from nsml.common.clock import Clock

WITHIN_S: Final = 10.0
"""Timeout of each check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check; `grade` is `ok`, `warn` or `bad`."""

    grade: str
    subject: str
    found: str

    def __str__(self) -> str:
        return f"{self.grade:<6}{self.subject:<24}{self.found}"


async def check(settings: Settings, clock: Clock) -> list[Finding]:
    """Return all findings, including good ones; raises no error of a start."""
    found = [*_files(settings, clock.time()), *_secrets(settings)]
    is_running = _is_running(settings.data)
    if is_running:
        found.append(Finding("ok", "data", f"a control plane runs in {settings.data}"))
    else:
        found += _data(settings.data)
        found += _ports(settings)
    return [*found, *[one async for one in _stores(settings, clock, is_running=is_running)]]


def _files(settings: Settings, now: float) -> Iterator[Finding]:
    """Check certificates of others."""
    for name, file in settings.certificates.items():
        try:
            left_s = file_end(file) - now
        except OSError as error:
            yield Finding("bad", name, words_of(error))
        except ValueError:
            yield Finding("bad", name, f"{file} has no certificate in PEM")
        else:
            if left_s <= 0:
                yield Finding("bad", name, f"{file} ended {duration_text(-left_s)} ago")
            elif left_s < FILE_WARNING_S:
                yield Finding("warn", name, f"{file} ends in {duration_text(left_s)}")
            else:
                yield Finding("ok", name, f"{file} ends in {duration_text(left_s)}")


def _secrets(settings: Settings) -> Iterator[Finding]:
    """Check private files."""
    names = (
        "etcd_key",
        "etcd_password_file",
        "s3_credentials",
        "gcs_credentials",
        "azure_credentials",
        "metrics_token_file",
    )
    files = {name: getattr(settings, name) for name in names}
    if passfile := dict(parse_qsl(urlsplit(settings.history).query)).get("passfile"):
        files["history (passfile)"] = Path(passfile)
    for name, file in files.items():
        if file is None:
            continue
        try:
            content = read_private(file)
        except Exposed as error:
            yield Finding("bad", name, f"{file}: {error.strerror}")
        except OSError as error:
            yield Finding("bad", name, words_of(error))
        else:
            if content is None:
                yield Finding("bad", name, f"{file}: there is no such file")
            elif name == "metrics_token_file" and len(content.strip()) < SHORTEST_TOKEN:
                yield Finding("bad", name, f"{file} has no token of {SHORTEST_TOKEN} bytes or more")
            else:
                yield Finding("ok", name, str(file))


def _is_running(data: Path) -> bool:
    try:
        if not (data / "lock").exists():
            return False
        with FileLock(str(data / "lock")):
            return False
    except StoreLocked:
        return True
    except OSError:
        return False  # the folder is not ours, which `_data` reports


def _data(data: Path) -> Iterator[Finding]:
    """Check whether the folder exists or can be made."""
    try:
        there = next(one for one in (data, *data.parents) if one.exists())
        problem = foreign(there) if there == data else ""
    except OSError as error:
        yield Finding("bad", "data", words_of(error))
        return
    if problem:
        yield Finding("bad", "data", f"{data}: {problem}")
    elif not there.is_dir():
        yield Finding("bad", "data", f"{there} is no folder")
    elif there != data:
        yield Finding("ok", "data", f"{data} will be made at the start")
    else:
        yield Finding("ok", "data", str(data))


def _ports(settings: Settings) -> Iterator[Finding]:
    places = {
        "address": settings.plain_address,
        "listen": settings.listen,
        "listen_agents": settings.listen_agents,
        "listen_relay": settings.listen_relay,
        "listen_ssh": settings.listen_ssh,
        "http": settings.http,
    }
    for name, place in places.items():
        if not place:
            continue
        try:
            if not parse_address(place).path:
                take_port(place)[1].close()
        except ListenRefused as error:
            yield Finding("bad", name, str(error))
        else:
            yield Finding("ok", name, place)


async def _stores(settings: Settings, clock: Clock, *, is_running: bool) -> AsyncIterator[Finding]:
    try:
        standing = standing_of(settings)
    except StartRefused as error:
        yield Finding("bad", "coordination", str(error))
        return
    kind = standing.coordination.kind
    looks: list[tuple[str, str, Callable[[], Awaitable[str]]]] = []
    if not standing.coordination.is_inside:
        looks.append(("coordination", kind, lambda: _coordination(settings, standing, clock)))
    elif not is_running:
        yield Finding("ok", "coordination", f"{kind}, in the data folder")
    if settings.history:
        looks.append(("history", "PostgreSQL", lambda: _history(settings.history)))
    if settings.objects:
        looks.append(("objects", settings.objects, lambda: _objects(settings)))
    for finding in await asyncio.gather(*(_looked(*one) for one in looks)):
        yield finding


async def _looked(subject: str, fine: str, look: Callable[[], Awaitable[str]]) -> Finding:
    try:
        async with asyncio.timeout(WITHIN_S):
            warning = await look()
    except TimeoutError:
        return Finding("bad", subject, f"no answer within {WITHIN_S:.0f} s")
    except NsmlError as error:
        why = f" ({error.why})" if error.why else ""
        advice = f"; try: {error.attempt}" if error.attempt else ""
        return Finding("bad", subject, f"{error}{why}{advice}")
    except OSError as error:
        return Finding("bad", subject, words_of(error))
    except (StartRefused, StoreError, ValueError) as error:
        return Finding("bad", subject, str(error))
    return Finding("warn", subject, warning) if warning else Finding("ok", subject, fine)


async def _coordination(settings: Settings, standing: BackendSettings, clock: Clock) -> str:
    """Return the problems of an etcd that answers."""
    async with reached_store(settings, standing, clock) as store:
        item = await store.get(etcd_codec.CLUSTER)
        away = await store.members_away()
    if away:
        return "; ".join(f"{member} does not answer: {reason}" for member, reason in away.items())
    cluster = etcd_codec.decode_cluster(item.value) if item else None
    if cluster is not None and cluster.is_shared and not key_file_of(settings).exists():
        raise StartRefused(
            f"the platform {cluster.id} is there, and its key is not: copy platform.key from another "
            f"control plane to {key_file_of(settings)}"
        )
    return ""


async def _history(url: str) -> str:
    from controlplane.history.postgresql import check_postgresql  # noqa: PLC0415

    await check_postgresql(url)
    return ""


async def _objects(settings: Settings) -> str:
    await (await open_files(settings)).mark()
    return ""


def report(findings: list[Finding]) -> str:
    """Format the findings, bad ones last."""
    order = {"ok": 0, "warn": 1, "bad": 2}
    return "\n".join(map(str, sorted(findings, key=lambda one: order[one.grade])))
