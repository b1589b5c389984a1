"""Secrets through real gRPC: who sets, sees and removes them, and which node is told a value."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.access.records import SECRETS
from controlplane.access.vault import Vault, make_vault
from controlplane.core.dependencies import Backends
from controlplane.domain.identity import Role
from controlplane.domain.values import SecretUse
from controlplane.secrets.feature import user_secrets
from controlplane.secrets.user_secrets import (
    MOST_SECRET_BYTES,
    MOST_SECRETS,
    OpenedSecret,
    UserSecrets,
)
from controlplane.store.interface import Get, Put, StoreUnavailable, Transaction
from controlplane.stored.etcd_codec import decode_session, encode_session
from nsml.v1 import agents_pb2, resources_pb2, sessions_pb2
from nsml.v1 import secrets_pb2 as pb
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.rig import (
    Rig,
    Stubs,
    one_leads,
    platform,
    report_of,
    serving,
    surroundings,
    until,
)
from tests.unit.controlplane.services.test_sessions import refused

MARK = "s3cret-7f1c"
USE = [sessions_pb2.SecretUse(name="TOKEN", variable="HF_TOKEN")]


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def put(user: Stubs, name: str = "TOKEN", value: bytes = MARK.encode()):
    return user.secrets.SetSecret(pb.SetSecretRequest(name=name, value=value))


def remove(user: Stubs, name: str = "TOKEN", whose: str = ""):
    return user.secrets.RemoveSecret(pb.RemoveSecretRequest(name=name, user=whose))


async def listed(user: Stubs, whose: str = "") -> list[pb.Secret]:
    answer = await user.secrets.ListSecrets(pb.ListSecretsRequest(user=whose))
    assert MARK.encode() not in answer.SerializeToString()
    return list(answer.secrets)


async def names(user: Stubs, whose: str = "") -> list[str]:
    return [one.name for one in await listed(user, whose)]


async def kept(rig: Rig) -> bytes:
    """All that the store holds."""
    items = (await rig.on.store.list("")).items
    return b"\n".join(item.key.encode() + b" " + item.value for item in items)


async def test_set_list_replace_remove(rig: Rig) -> None:
    kim = await rig.user("kim")
    assert await names(kim) == []
    made = (await put(kim)).secret
    assert (made.name, made.size_bytes) == ("TOKEN", len(MARK))
    assert made.created_at == made.updated_at
    await put(kim, "A", b"x")
    again = (await put(kim, value=b"longer than before")).secret
    assert (again.created_at, again.size_bytes) == (made.created_at, 18)
    assert again.updated_at.ToNanoseconds() >= made.updated_at.ToNanoseconds()
    assert await names(kim) == ["A", "TOKEN"]
    await remove(kim)
    assert await names(kim) == ["A"]
    code, _, details = await refused(remove(kim, "B"))
    assert code == "NOT_FOUND"
    assert details["try"]


async def test_who_names_none_of_theirs_is_told_what_there_is(rig: Rig) -> None:
    kim = await rig.user("kim")
    assert (await refused(remove(kim, "NOWHERE")))[2]["why"] == "there is none yet"
    for number in range(7):
        await put(kim, f"KEY_{number}")
    _, _, details = await refused(remove(kim, "NOWHERE"))
    assert details["why"] == "there is KEY_0, KEY_1, KEY_2, KEY_3, KEY_4, and 2 more"
    _, _, details = await refused(remove(kim, "KEY6"))
    assert details["why"] == "there is KEY_6"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("", b"x", "INVALID_ARGUMENT"),
        ("1A", b"x", "INVALID_ARGUMENT"),
        ("A/B", b"x", "INVALID_ARGUMENT"),
        ("../user/root", b"x", "INVALID_ARGUMENT"),
        ("A" * 129, b"x", "INVALID_ARGUMENT"),
        ("A", b"", "INVALID_ARGUMENT"),
        ("A", MARK.encode() + b"\0", "INVALID_ARGUMENT"),
        ("A", MARK.encode() + b"\xff", "INVALID_ARGUMENT"),
        ("A", MARK.encode() + b"x" * MOST_SECRET_BYTES, "RESOURCE_EXHAUSTED"),
    ],
)
async def test_what_is_refused(rig: Rig, name: str, value: bytes, code: str) -> None:
    kim = await rig.user("kim")
    refusal = await refused(put(kim, name, value))
    assert refusal[0] == code
    assert MARK not in repr(refusal)
    assert await names(kim) == []


async def test_there_is_a_most(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    puts = [put(kim, f"A{number}", b"x" * 100) for number in range(MOST_SECRETS + 5)]
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(one, pb.SetSecretResponse) for one in results) == MOST_SECRETS
    assert (await refused(put(kim)))[:2] == ("RESOURCE_EXHAUSTED", "TOO_LARGE")
    await put(lee)
    await put(kim, (await names(kim))[0], b"another value")


async def test_each_has_their_own_and_administrators_only_remove(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    admin = await rig.user("root", role=Role.ADMIN)
    await put(kim)
    assert await names(lee) == []
    assert (await refused(names(lee, "kim")))[0] == "PERMISSION_DENIED"
    assert (await refused(remove(lee, whose="kim")))[0] == "PERMISSION_DENIED"
    assert (await refused(remove(lee)))[0] == "NOT_FOUND"
    spec = sessions_pb2.SessionSpec(argv=["true"], secrets=USE)
    for other in (lee, admin):
        request = sessions_pb2.CreateSessionRequest(request_id="x", spec=spec)
        assert (await refused(other.sessions.CreateSession(request)))[0] == "NOT_FOUND"
    assert await names(admin, "kim") == ["TOKEN"]
    assert (await refused(names(admin, "nobody")))[0] == "NOT_FOUND"
    await remove(admin, whose="kim")
    assert await names(kim) == []


async def test_neither_agents_nor_strangers(rig: Rig) -> None:
    agent, stranger = await rig.agent("a"), Stubs(await rig.channel(), "")
    for user, code in ((agent.stubs, "PERMISSION_DENIED"), (stranger, "UNAUTHENTICATED")):
        assert (await refused(put(user)))[0] == code
        assert (await refused(names(user)))[0] == code
        assert (await refused(remove(user)))[0] == code


async def test_the_nearest_name_is_told(rig: Rig) -> None:
    kim = await rig.user("kim")
    await put(kim, "WANDB_API_KEY")
    for use, told in (("WANDB_API_KEX", "WANDB_API_KEY"), ("OTHER", "nsml secret set OTHER")):
        spec = sessions_pb2.SessionSpec(argv=["true"], secrets=[{"name": use}])
        for only in (True, False):
            request = sessions_pb2.CreateSessionRequest(
                request_id=use, spec=spec, validate_only=only
            )
            code, _, details = await refused(kim.sessions.CreateSession(request))
            assert (code, details["try"]) == ("NOT_FOUND", told)
    code, _, details = await refused(remove(kim, "OTHER"))
    assert (code, details["try"]) == ("NOT_FOUND", "nsml secret ls")


@pytest.mark.parametrize(
    ("uses", "environment", "told"),
    [
        ([("A", "NSML_TOKEN")], {}, "platform"),
        ([("A", "HOME")], {}, "platform"),
        ([("A", "PATH")], {}, "PATH"),
        ([("A", "B"), ("B", "B")], {}, "twice"),
        ([("A", "")], {"A": "x"}, "twice"),
        ([("A", "1")], {}, "not the name"),
        ([("A/B", "A")], {}, "not a secret's name"),
        ([("A", f"V{n}") for n in range(33)], {}, "at most 32"),
    ],
)
async def test_uses_that_cannot_be(rig: Rig, uses, environment, told: str) -> None:
    kim = await rig.user("kim")
    await put(kim, "A")
    await put(kim, "B")
    spec = sessions_pb2.SessionSpec(
        argv=["true"],
        environment=environment,
        secrets=[sessions_pb2.SecretUse(name=name, variable=variable) for name, variable in uses],
    )
    request = sessions_pb2.CreateSessionRequest(request_id="x", spec=spec)
    call = kim.sessions.CreateSession(request)
    with pytest.raises(Exception, match=told):
        await call


async def test_the_value_goes_to_the_node_that_starts_it_and_to_nobody_else(rig: Rig) -> None:
    kim, admin = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    lee = await rig.user("lee")
    a, b = await (await rig.agent("a")).connect(), await (await rig.agent("b")).connect()
    await put(kim)
    await put(lee, value=b"lees own")
    made = await kim.submit(secrets=USE, visibility=resources_pb2.VISIBILITY_PUBLIC)
    await kim.reaches(made.id, "PREPARING")
    node = (await kim.get(made.id)).replicas[0].node
    here, there = (a, b) if node == "a" else (b, a)
    [assignment] = await here.assignments(1)
    [given] = assignment.secrets
    assert (given.variable, given.value, given.problem) == ("HF_TOKEN", MARK, "")
    assert there.orders is None or MARK not in str(there.orders)
    for viewer in (kim, admin, lee):
        shown = await viewer.get(made.id)
        assert list(shown.spec.secrets) == USE
        assert MARK.encode() not in shown.SerializeToString()
    assert MARK.encode() not in await kept(rig)
    assert b"HF_TOKEN" in await kept(rig)


async def test_where_names_do_no_value_is_read(rig: Rig, monkeypatch) -> None:
    kim = await rig.user("kim")
    listing, read = rig.on.store.list, []

    async def seen(prefix: str, **how):
        found = await listing(prefix, **how)
        read.extend(item for item in found.items if prefix.startswith("secret/"))
        return found

    monkeypatch.setattr(rig.on.store, "list", seen)
    await put(kim)
    await put(kim, "OTHER")
    await kim.submit(secrets=USE)
    await remove(kim, "OTHER")
    assert read
    await rig.plane.core.accounts.delete_user("kim")
    assert [item.value for item in read] == [b""] * len(read)


async def test_what_runs_is_not_told_again_and_not_ended(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    await put(kim)
    made = await kim.submit(secrets=USE)
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await kim.reaches(made.id, "RUNNING")
    await remove(kim)
    await kim.submit()
    again = {one.replica.session_id: one for one in await agent.assignments(2)}
    assert list(again[made.id].secrets) == []
    assert not again[made.id].HasField("stop")


async def test_of_many_sessions_all_are_read_at_once(rig: Rig, monkeypatch) -> None:
    kim = await rig.user("kim")
    await put(kim)
    for _ in range(2):
        await kim.submit(secrets=USE)
    await kim.submit(secrets=USE, replica_count=2)
    commit, reading, all_read = rig.on.store.commit, [], asyncio.Event()

    async def together(transaction: Transaction):
        keys = [one.key for one in transaction.success if isinstance(one, Get)]
        if "secret/kim/TOKEN" in keys:
            reading.append(keys)
            if len(reading) == 3:
                all_read.set()
            await all_read.wait()
        return await commit(transaction)

    monkeypatch.setattr(rig.on.store, "commit", together)
    agent = await (await rig.agent(gpus=4)).connect()
    assignments = await agent.assignments(4)
    assert [one.secrets[0].value for one in assignments] == [MARK] * 4


async def test_what_an_agent_obeys_is_not_given_again(rig: Rig) -> None:
    """Each change of its orders would send all values of all that prepare there once more."""
    kim = await rig.user("kim")
    await put(kim)
    agent = await (await rig.agent(gpus=4)).connect()

    async def told(count: int) -> dict[str, list[str]]:
        orders = await agent.assignments(count)
        return {one.replica.session_id: [each.value for each in one.secrets] for one in orders}

    first = (await kim.submit(secrets=USE)).id
    assert await told(1) == {first: [MARK]}
    second = (await kim.submit(secrets=USE)).id
    assert await told(2) == {first: [MARK], second: [MARK]}, "it may not have heard of the first"
    await agent.say(agents_pb2.ControlRequest(orders_accepted=agents_pb2.OrdersAccepted()))
    replica = agent.orders.assignments[0].replica
    await agent.report(replica, "PREPARING")

    async def acknowledged() -> bool:
        return bool(agent.acknowledged)

    await until(acknowledged, "both are heard")
    third = (await kim.submit(secrets=USE)).id
    assert await told(3) == {first: [], second: [], third: [MARK]}
    await agent.close()
    prepares = report_of(replica, "PREPARING")
    agent = await (await rig.agent(gpus=4, replicas=(prepares,))).connect()
    assert await told(3) == {one: [MARK] for one in (first, second, third)}, "it begins anew"


async def test_of_this_moment(rig: Rig) -> None:
    """Set anew while it waits: the program gets the value that it has when it is started."""
    kim = await rig.user("kim")
    await put(kim)
    made = await kim.submit(secrets=USE)
    await put(kim, value=b"the second")
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert assignment.secrets[0].value == "the second"
    assert assignment.replica.session_id == made.id


async def test_removed_meanwhile(rig: Rig) -> None:
    kim = await rig.user("kim")
    await put(kim)
    await kim.submit(secrets=USE)
    await remove(kim)
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    [given] = assignment.secrets
    assert (given.value, given.problem) == ("", "secret TOKEN of kim was removed")


async def test_secrets_go_with_their_user_and_a_later_one_gets_none(rig: Rig) -> None:
    kim = await rig.user("kim")
    await put(kim)
    made = await kim.submit(secrets=USE)
    left = (await rig.on.store.list("secret/")).items
    await rig.plane.core.accounts.delete_user("kim")
    assert (await rig.on.store.list("secret/")).items == ()
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert "kim, who submitted it, was removed" in assignment.secrets[0].problem
    await agent.close()
    again = await rig.user("kim", restore=True)
    assert left
    assert await names(again) == []
    await put(again, value=b"of the second kim")
    agent = await (await rig.agent("a", boot_id="boot1")).connect()
    [assignment] = await agent.assignments(1)
    assert assignment.replica.session_id == made.id
    assert "second kim" not in str(assignment)


async def test_what_a_removal_left_belongs_to_nobody(rig: Rig, monkeypatch) -> None:
    """A crash between the removal of the user and of the secrets."""
    kim = await rig.user("kim")
    await put(kim)

    async def dies(_user: str) -> int:
        return 0

    monkeypatch.setattr(rig.plane.core.accounts, "_remove_secrets", dies)
    await rig.plane.core.accounts.delete_user("kim")
    assert (await rig.on.store.list("secret/")).items
    again = await rig.user("kim", restore=True)
    assert await names(again) == []
    assert (await refused(remove(again)))[0] == "NOT_FOUND"

    async def all_there(*_: object) -> None:
        return

    with monkeypatch.context() as patched:
        patched.setattr(rig.plane.core.shared(user_secrets), "check", all_there)
        early = await again.submit(secrets=USE)
    await put(again, value=b"new")
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert assignment.secrets[0].value == "new"
    assert assignment.replica.session_id == early.id


async def test_what_an_earlier_user_left_opens_for_no_later_one(rig: Rig, monkeypatch) -> None:
    kim = await rig.user("kim")
    await put(kim)

    async def nothing(*_: object) -> int:
        return 0

    monkeypatch.setattr(rig.plane.core.accounts, "_remove_secrets", nothing)
    monkeypatch.setattr(rig.plane.core.shared(user_secrets), "check", nothing)
    await rig.plane.core.accounts.delete_user("kim")
    await (await rig.user("kim", restore=True)).submit(secrets=USE)
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert assignment.secrets[0].problem == "secret TOKEN of kim was removed"
    assert MARK not in str(assignment)


async def test_moved_within_the_store_it_does_not_open(rig: Rig) -> None:
    """Who can write the store cannot hand kim's secret to lee's program."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await put(kim)
    await put(lee, value=b"x")
    [of_kim] = (await rig.on.store.list("secret/kim/")).items
    await rig.on.store.commit(
        Transaction(compares=(), success=(Put(key="secret/lee/TOKEN", value=of_kim.value),))
    )
    await lee.submit(secrets=USE)
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert assignment.secrets[0].value == ""
    assert "cannot be opened" in assignment.secrets[0].problem


async def test_another_key_and_a_damaged_record_are_told(rig: Rig) -> None:
    kim = await rig.user("kim")
    await put(kim)
    await kim.submit(secrets=USE)
    rig.plane.core.shared(user_secrets)._vault = make_vault(os.urandom)
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert "set it again" in assignment.secrets[0].problem


async def test_secrets_are_sealed_anew_with_the_first_key(monkeypatch) -> None:
    old, new = os.urandom(32), os.urandom(32)
    other = Vault([os.urandom(32)], os.urandom)
    async with surroundings(vault=Vault([old], os.urandom)) as on:
        async with serving(on) as rig:
            kim = await rig.user("kim")
            made = (await put(kim)).secret
            await put(kim, "SET_MEANWHILE")
            await put(kim, "FOREIGN")
            rig.plane.core.shared(user_secrets)._vault = other
            await put(kim, "FOREIGN")
        both = replace(on, vault=Vault([new, old], os.urandom))
        secrets = UserSecrets(on.store, both.vault, clock=on.clock)
        commit, faults = on.store.commit, [StoreUnavailable("down")]

        async def other_first(transaction: Transaction):
            changed = [one.key for one in transaction.success if isinstance(one, Put)]
            if faults and any(key.startswith("secret/") for key in changed):
                raise faults.pop()
            if changed == ["secret/kim/SET_MEANWHILE"]:
                monkeypatch.setattr(on.store, "commit", commit)
                await secrets.put("kim", "SET_MEANWHILE", b"another")
            return await commit(transaction)

        monkeypatch.setattr(on.store, "commit", other_first)
        async with serving(both):
            await until(lambda: _sealed_by(on, both.vault, 2), "all that opens is sealed anew")
        async with serving(replace(on, vault=Vault([new], os.urandom))) as rig:
            await until(lambda: one_leads(rig), "it leads")
            token = await rig.plane.core.accounts.create_token("kim", 3600)
            kim = Stubs(await rig.channel(), token.secret.text)
            [kept] = [one for one in await listed(kim) if one.name == "TOKEN"]
            assert kept == made, "its value is no newer"
            names_of = ("TOKEN", "SET_MEANWHILE", "FOREIGN")
            uses = [sessions_pb2.SecretUse(name=name, variable=name) for name in names_of]
            await kim.submit(secrets=uses)
            agent = await (await rig.agent()).connect()
            [assignment] = await agent.assignments(1)
            told = {one.variable: (one.value, one.problem) for one in assignment.secrets}
            assert told["TOKEN"] == (MARK, "")
            assert told["SET_MEANWHILE"] == ("another", "")
            assert "set it again" in told["FOREIGN"][1]


async def _sealed_by(on: Backends, vault: Vault, count: int) -> bool:
    items = (await on.store.list("secret/")).items
    return sum(SECRETS.stored(item).value.key_id == vault.key_id for item in items) == count


async def test_one_damaged_record_costs_one_secret(rig: Rig) -> None:
    kim = await rig.user("kim")
    await put(kim)
    damaged = Put(key="secret/kim/BAD", value=b"\xff\xff\xff")
    await rig.on.store.commit(Transaction(compares=(), success=(damaged,)))
    assert await names(kim) == ["BAD", "TOKEN"]
    await kim.submit(secrets=[sessions_pb2.SecretUse(name="BAD", variable="BAD"), *USE])
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    told = {one.variable: (one.value, one.problem) for one in assignment.secrets}
    assert told["HF_TOKEN"] == (MARK, "")
    assert "set it again" in told["BAD"][1]
    made = (await put(kim, "BAD")).secret
    assert made.created_at == made.updated_at
    await rig.on.store.commit(Transaction(compares=(), success=(damaged,)))
    await remove(kim, "BAD")
    assert await names(kim) == ["TOKEN"]


async def test_orders_wait_for_a_store_that_does_not_answer(rig: Rig, monkeypatch) -> None:
    kim = await rig.user("kim")
    await put(kim)
    opened = rig.plane.core.shared(user_secrets).for_orders
    tries = []

    async def silent(orders, **how):
        tries.append(orders)
        if len(tries) < 3:
            raise StoreUnavailable("no answer")
        return await opened(orders, **how)

    monkeypatch.setattr(rig.plane.core.shared(user_secrets), "for_orders", silent)
    await kim.submit(secrets=USE)
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert assignment.secrets[0].value == MARK
    assert len(tries) >= 3


async def test_two_control_planes_with_one_key() -> None:
    async with surroundings() as on, serving(on) as one, serving(on) as other:
        kim = await one.user("kim")
        await until(lambda: one_leads(one, other), "one leads")
        token = await other.plane.core.accounts.create_token("kim", 3600)
        there = Stubs(await other.channel(), token.secret.text)
        await put(kim)
        assert await names(there) == ["TOKEN"]
        leader = one if one.plane.core.committer.is_leading else other
        agent = await (await leader.agent()).connect()
        await there.submit(secrets=USE)
        [assignment] = await agent.assignments(1)
        assert assignment.secrets[0].value == MARK


@given(st.text(min_size=1))
def test_a_value_is_in_no_repr(value: str) -> None:
    shown = repr(OpenedSecret(variable="A", value=value + MARK))
    assert MARK not in shown


def test_names_are_kept_with_the_session() -> None:
    one = session(spec={"secrets": (SecretUse(name="TOKEN", variable="HF_TOKEN"),)})
    assert decode_session(encode_session(one)) == one
