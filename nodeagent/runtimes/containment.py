"""Tests whether containers work on this machine: by a trial at the agent's start, and again if not.

An engine may come up after the agent, or be away for a moment: if the last agent of a data folder
had containers (`containers.used` in it), the next waits for them before it continues without. The site's
default image is pulled before containers are given up for lack of it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from nodeagent.engine.client import EngineError, EngineRefused, EngineUnreachable, NotThere
from nodeagent.engine.containers import remove_container
from nodeagent.engine.images import stored_image
from nodeagent.engine.networks import OWN_NETWORK, own_network
from nodeagent.engine.pulls import pull_image
from nodeagent.engine.watch import ANSWERS_WITHIN_S, COMES_WITHIN_S
from nodeagent.folders import ReplicaFolder, ReplicaId, write_atomically
from nodeagent.runtimes.container import ContainerPlace, container_name
from nodeagent.runtimes.docker import EnginePlace, container_content
from nodeagent.runtimes.interface import ExitWhy, Isolation, ReplicaSpec
from nodeagent.runtimes.launcher import start_directly
from nodeagent.runtimes.records import read_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.engine.client import Engine
    from nodeagent.runtimes.launch import Machine
    from nsml.common.clock import Clock, Offload

PULLED_WITHIN_S = 600.0
_AGAIN_S = 2.0
_TELL_EVERY_S = 10.0
_TRIAL_LIMIT_S = 20.0
_MARK = "engine.mark"
_USED = "containers.used"
_NETWORK = "engine.network"

log = structlog.get_logger()


class NoContainers(Exception):
    """Containers do not work here; the message gives the reason, and advice."""


class EngineAway(NoContainers):
    """No engine answers: it may be starting."""


class NoDefaultImage(NoContainers):
    """The engine lacks the default image: a registry may have it."""


async def tried_in_time(
    probe: Callable[[], EnginePlace],
    run_long: Offload,
    *,
    pull: Callable[[threading.Event], object] | None = None,
) -> EnginePlace:
    """Return the result of `probe`, after `pull` if only the default image was missing.

    A hanging engine must not block the node. `pull` has a timeout of its own; the event is set when
    its result is no longer needed.

    Raises:
        NoContainers: they do not work.
    """
    try:
        return await _tried(probe, run_long)
    except NoDefaultImage:
        if pull is None:
            raise
    cancelled = threading.Event()
    try:
        await run_long(partial(pull, cancelled))
    finally:
        cancelled.set()
    return await _tried(probe, run_long)


async def _tried(probe: Callable[[], EnginePlace], run_long: Offload) -> EnginePlace:
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            return await run_long(probe)
    except TimeoutError:
        raise EngineAway(f"no engine answers within {ANSWERS_WITHIN_S:g} s") from None


async def containers_at_start(
    probe: Callable[[], EnginePlace],
    data: Path,
    *,
    awaits: Callable[[str, float], object],
    clock: Clock,
    run_long: Offload,
    pull: Callable[[threading.Event], object] | None = None,
) -> EnginePlace:
    """Return the final result of `probe`, and note for the next agent of the data folder whether it succeeded.

    `pull` is for a missing default image, as in `tried_in_time`.

    If the last agent had containers, this waits for an engine that does not answer, up to
    COMES_WITHIN_S; `awaits` is called with the reason and that, once.

    Raises:
        NoContainers: they do not work.
    """
    used, began = data / _USED, clock.monotonic()
    is_awaited = False
    while True:
        try:
            place = await tried_in_time(probe, run_long, pull=pull)
        except NoContainers as reason:
            has_time = clock.monotonic() - began < COMES_WITHIN_S
            if not (isinstance(reason, EngineAway) and used.exists() and has_time):
                used.unlink(missing_ok=True)
                raise
            if not is_awaited:
                log.warning("engine.awaited", reason=str(reason), within_s=COMES_WITHIN_S)
                awaits(str(reason), COMES_WITHIN_S)
            is_awaited = True
        else:
            write_atomically(used, b"", is_durable=True)
            return place
        await clock.sleep(_AGAIN_S)


def pull_default_image(
    engine: Engine, image: str, *, credentials: Path | None, cancelled: threading.Event
) -> None:
    """Pull `image` from its registry, and log that. Blocking.

    Raises:
        NoContainers: it failed, took over `PULLED_WITHIN_S`, or `cancelled` was set.
    """
    ends_at, told_at = time.monotonic() + PULLED_WITHIN_S, time.monotonic()

    def look() -> None:
        if cancelled.is_set() or time.monotonic() > ends_at:
            raise NoContainers(
                f"image {image} was not pulled within {PULLED_WITHIN_S:g} s (docker pull {image})"
            )

    log.info("image.pulling", image=image, within_s=PULLED_WITHIN_S)
    try:
        for progress in pull_image(engine, image, credentials=credentials, look=look):
            if time.monotonic() > told_at + _TELL_EVERY_S:
                told_at = time.monotonic()
                log.info("image.pulling", image=image, progress=progress.text())
    except EngineRefused as error:
        raise NoContainers(
            f"image {image} is not on this node and cannot be pulled: {error}; is the name right"
            " (default_image)?"
        ) from error
    except EngineUnreachable as error:
        raise EngineAway(str(error)) from error
    log.info("image.pulled", image=image)


def engine_mark(data: Path) -> str:
    """Return the mark of this agent's containers: random, stored in its data folder."""
    place = data / _MARK
    try:
        return place.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        mark = base64.b32encode(os.urandom(5)).decode().lower()
        write_atomically(place, mark.encode(), is_durable=True)
        return mark


def probe_containers(
    engine: Engine,
    machine: Machine,
    scratch: Path,
    *,
    node: str,
    mark: str,
    default_image: str,
    most_open_files: int,
    container_network: str = "",
    trial_id: int | None = None,
) -> EnginePlace:
    """Run a program in a container of `default_image`; blocks for about a second.

    `trial_id` is the uid and gid to run it as, if the agent is root and its users have ids of
    their own; None: the agent's own user.
    `container_network` is the site's choice; "": one that isolates sessions from one another, else none.
    `scratch` is a folder of the agent for the trial's replica folder. Without a default image there is
    no trial: images named by sessions are checked at their start.

    Raises:
        NoDefaultImage: only the image is missing.
        NoContainers: they do not work, or this agent cannot use them.
    """
    try:
        facts = engine.facts()
        if not facts.filters_calls:
            raise NoContainers(
                "the engine runs containers without a seccomp profile: start it without"
                " --seccomp-profile=unconfined, on a kernel with seccomp"
            )
        if not facts.has_init:
            raise NoContainers("the engine has no docker-init (package tini, or docker-ce)")
        own, reason = _own_network(engine, default_image, scratch.parent, mark)
        place = EnginePlace(
            engine=engine,
            api=facts.api,
            container=ContainerPlace(
                node=node,
                mark=mark,
                user=f"{os.geteuid()}:{os.getegid()}",
                open_files=(machine.open_files, most_open_files),
                network=container_network or own,
            ),
            default_image=default_image or None,
            root=Path(facts.root),
            own_network=own,
            network_reason=reason,
        )
        if default_image:
            _try(place, machine, scratch, trial_id)
    except NotThere as error:
        raise NoDefaultImage(f"{error} (nsml doctor node says what to do)") from error
    except EngineUnreachable as error:
        raise EngineAway(str(error)) from error
    except EngineError as error:
        raise NoContainers(str(error)) from error
    return place


def _own_network(engine: Engine, image: str, data: Path, mark: str) -> tuple[str, str]:
    """Return the network of sessions and builds, and why it is none. Raises EngineError."""
    try:
        reason = own_network(engine, image, data / _NETWORK, f"nsml-build-{mark}-network")
    except NotThere:
        raise  # the image
    except EngineRefused as error:
        reason = str(error)
    return ("none", reason) if reason else (OWN_NETWORK, "")


def _try(place: EnginePlace, machine: Machine, scratch: Path, account: int | None) -> None:
    """Return when a program ran to its end in a container like those of sessions."""
    replica_id = ReplicaId.of_no_session()
    folder = ReplicaFolder(scratch / str(replica_id))
    test = f"test -w /app && test -w /nsml && test -w /tmp && test ! -e {folder.spec}"
    if account is not None:
        test += f" && test $(id -u) = {account}"
    spec = ReplicaSpec(
        replica_id=replica_id,
        argv=["/bin/sh", "-c", test],
        isolation=Isolation.CONTAINER,
        time_limit_s=_TRIAL_LIMIT_S,
        grace_s=0.0,
        uid=account,
        gid=account,
    )
    image = stored_image(place.engine, place.default_image or "")
    folder.create()
    try:
        if account is not None:
            folder.give(account, account)
        content = container_content(spec, folder, machine, place, image)
        write_atomically(folder.spec, json.dumps(content).encode())
        shim = start_directly(folder)
        os.close(shim.pidfd)
        if shim.child is not None:
            try:
                shim.child.wait(_TRIAL_LIMIT_S)
            except subprocess.TimeoutExpired:
                shim.child.kill()
                shim.child.wait()
        record = read_exit(folder)
    except OSError as error:
        raise NoContainers(f"a first container could not be tried: {error}") from error
    finally:
        folder.remove()
    if record is None:
        remove_container(place.engine, container_name(replica_id, place.container.mark))
        raise NoContainers(f"a first container did not end within {_TRIAL_LIMIT_S:g} s")
    if record.why is not ExitWhy.EXITED or record.exit_code != 0:
        raise NoContainers(record.message or f"a first container ended with {record.exit_code}")
