"""What a caller may not see is answered like what is not there: the same code, words and work."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory

from controlplane.access.access_table import TABLE, AllowedCallers
from controlplane.domain.identity import Role
from nsml.v1 import projects_pb2, resources_pb2
from tests.unit.controlplane.rig import Rig, Stubs, platform

ABSENT = "kim/None/9"


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


class Counting:
    """Something of which is counted what is asked of it."""

    def __init__(self, inner: Any, done: Counter[str], *names: str) -> None:
        self._inner = inner
        self._done = done
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            self._done[name] += 1
        return getattr(self._inner, name)


def counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the search for a session asks of the store and of the history."""
    done: Counter[str] = Counter()
    references = rig.plane.core.references
    catalogue = Counting(references._history.catalogue, done, "session", "session_by_name")
    monkeypatch.setattr(references, "_history", SimpleNamespace(catalogue=catalogue))
    state = Counting(references._state, done, "renewed", "renewed_by_name")
    monkeypatch.setattr(references, "_state", state)
    return done


def of_field(*names: str) -> list[tuple[str, str]]:
    """Methods for users with such a field in the request, and the field."""
    pool = descriptor_pool.Default()
    found = []
    for method, row in TABLE.items():
        service, _, name = method.removeprefix("/").partition("/")
        if service.startswith("nsml.") and row.doors & AllowedCallers.USER:
            fields = pool.FindServiceByName(service).methods_by_name[name].input_type.fields_by_name
            found += [
                (method, field) for field in names if field in fields and names_it(fields[field])
            ]
    return found


def names_it(field: Any) -> bool:
    """Whether a field is a name or an id, or a message that has one, and not a whole session."""
    inner = field.message_type
    return inner is None or (
        "session" in inner.fields_by_name and names_it(inner.fields_by_name["session"])
    )


async def outcome(
    channel: Any, method: str, request: Any, stubs: Stubs, thing: str
) -> tuple[str, str, bytes]:
    service, _, name = method.removeprefix("/").partition("/")
    shape = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    kinds = {True: "stream", False: "unary"}
    kind = f"{kinds[shape.client_streaming]}_{kinds[shape.server_streaming]}"
    call = getattr(channel, kind)(method, request_serializer=lambda one: one.SerializeToString())
    try:
        given = iter([request]) if shape.client_streaming else request
        made = call(given, metadata=stubs.metadata, timeout=30)
        if shape.server_streaming:
            async for _ in made:
                pass
        else:
            await made
    except grpc.aio.AioRpcError as error:
        details = b"".join(
            value if isinstance(value, bytes) else value.encode()
            for key, value in error.trailing_metadata() or ()
            if key != "nsml-revision"
        )
        words = (error.details() or "").replace(thing, "THING")
        return error.code().name, words, details.replace(thing.encode(), b"THING")
    return "OK", "", b""


def asking(method: str, field: str, thing: str) -> Any:
    service, _, name = method.removeprefix("/").partition("/")
    shape = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    request = message_factory.GetMessageClass(shape.input_type)()
    if shape.input_type.fields_by_name[field].message_type is not None:
        getattr(request, field).session = thing
    elif shape.input_type.fields_by_name[field].is_repeated:
        getattr(request, field).append(thing)
    else:
        setattr(request, field, thing)
    return request


async def test_sessions_of_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent(gpus=1)).connect()
    ended = await kim.submit(visibility=resources_pb2.VISIBILITY_PRIVATE)
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(ended.id, "SUCCEEDED")
    live = await kim.submit(visibility=resources_pb2.VISIBILITY_PRIVATE)
    channel, work = await rig.channel(), counted(rig, monkeypatch)
    methods = of_field("session", "sessions", "target", "log")
    assert len(methods) > 10
    for method, field in methods:
        found: dict[str, Any] = {}
        for thing in (live.name, ended.name, ABSENT, live.id, ended.id, "s" + "a" * 16):
            work.clear()
            answer = await outcome(channel, method, asking(method, field, thing), lee, thing)
            found[thing] = (*answer, dict(work))
        for alike in (live.name, ended.name), (live.id, ended.id):
            absent = ABSENT if alike[0] == live.name else "s" + "a" * 16
            for thing in alike:
                assert found[thing] == found[absent], (method, thing)
        if method.endswith("/GetSession"):
            looked = {"session_by_name": 2, "renewed_by_name": 1}
            assert (found[ABSENT][0], found[ABSENT][-1]) == ("NOT_FOUND", looked)


async def test_projects_and_accounts_of_others(rig: Rig) -> None:
    root, lee = await rig.user("root", role=Role.ADMIN), await rig.user("lee")
    await rig.user("kim")
    settings = projects_pb2.ProjectSettings(owner="kim")
    await root.projects.CreateProject(
        projects_pb2.CreateProjectRequest(name="vision", settings=settings)
    )
    channel = await rig.channel()
    for method, field in of_field("project", "user", "name", "id", "view"):
        known = "kim" if field == "user" or "Secret" in method else "vision"
        found = []
        for thing in (known, "nosuch"[: len(known)]):
            request = asking(method, field, thing)
            if method.endswith("CreateSession"):
                request.request_id = f"r-{thing}"
                request.spec.argv.append("true")
            found.append(await outcome(channel, method, request, lee, thing))
        assert found[0] == found[1], method
