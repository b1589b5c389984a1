"""A node that an administrator removed: its name is free, its certificate void, its key barred where that was said."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane.access.authority import SignedNode, read_certificate
from controlplane.access.secret import parse_secret
from controlplane.domain.errors import AlreadyExists, Denied, NotSignedIn
from controlplane.domain.identity import AnonymousCaller, NodeCaller

from .conftest import Door
from .test_tls import make_request


async def joined(
    door: Door, node: str, key: ec.EllipticCurvePrivateKey | None = None
) -> SignedNode:
    secret = (await door.joining.create_token("root")).text.partition(".")[0]
    request, _ = make_request(key=key)
    return await door.joining.join(
        AnonymousCaller(), secret=secret, node=node, signing_request=request
    )


async def known(door: Door, node: str, signed: SignedNode) -> NodeCaller:
    who = await door.identities.of_certificate(node, signed.certificate)
    assert isinstance(who, NodeCaller)
    return who


async def test_a_reinstalled_machine_joins_under_its_name(door: Door) -> None:
    old = await joined(door, "gpu-1")
    before = await known(door, "gpu-1", old)
    with pytest.raises(AlreadyExists) as refused:
        await joined(door, "gpu-1")
    assert "nsml node rm gpu-1" in refused.value.attempt
    assert await door.joining.forget("gpu-1", by="kim", bars_key=False)
    assert await door.identities.of_certificate("gpu-1", old.certificate) is None
    new = await joined(door, "gpu-1")
    after = await known(door, "gpu-1", new)
    assert after.id != before.id, "what was the other machine's is not its own"
    assert await door.identities.of_certificate("gpu-1", old.certificate) is None


async def test_a_removed_machine_needs_a_token_to_come_back(door: Door) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    signed = await joined(door, "gpu-1", key)
    who = await known(door, "gpu-1", signed)
    await door.joining.forget("gpu-1", by="kim", bars_key=False)
    request, _ = make_request(key=key)
    with pytest.raises(Denied):  # it was let in a moment before
        await door.joining.join(who, secret="", node="gpu-1", signing_request=request)
    with pytest.raises(NotSignedIn):
        await door.joining.join(AnonymousCaller(), secret="", node="gpu-1", signing_request=request)
    await joined(door, "gpu-1", key)


async def test_a_barred_key_joins_under_no_name(door: Door) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    await joined(door, "gpu-1", key)
    assert await door.joining.forget("gpu-1", by="kim", bars_key=True)
    for name in ("gpu-1", "gpu-2"):
        with pytest.raises(Denied):
            await joined(door, name, key)
    await joined(door, "gpu-1")


@pytest.mark.parametrize("bars_key", [False, True])
async def test_the_control_planes_own_machine_loses_its_token_with_a_barred_key_alone(
    door: Door, bars_key: bool
) -> None:
    token = await door.accounts.create_node_token("here")
    await door.joining.forget("here", by="kim", bars_key=bars_key)
    secret = parse_secret(token.secret.text)
    assert secret is not None
    await door.identities.caught_up((await door.store.list("")).revision)
    found = await door.identities.of_secret(secret, thorough=True)
    assert (found is None) is bars_key


async def test_a_name_that_nobody_has_is_not_forgotten(door: Door) -> None:
    assert not await door.joining.forget("gpu-1", by="kim", bars_key=True)


async def test_the_end_of_a_certificate_is_known_and_follows_its_renewal(door: Door) -> None:
    first = await joined(door, "gpu-1")
    who = await known(door, "gpu-1", first)
    await door.identities.caught_up((await door.store.list("")).revision)
    assert door.identities.certificate_ends("gpu-1") == first.expires_at
    assert read_certificate(first.certificate).expires_at == first.expires_at
    door.clock.advance(3600)
    request, _ = make_request()
    renewed = await door.joining.join(who, secret="", node="gpu-1", signing_request=request)
    await known(door, "gpu-1", renewed)
    await door.identities.caught_up((await door.store.list("")).revision)
    assert door.identities.certificate_ends("gpu-1") == renewed.expires_at > first.expires_at
    assert door.identities.certificate_ends("gpu-2") == 0


async def test_refused_machines_are_counted(door: Door) -> None:
    request, _ = make_request()
    with pytest.raises(NotSignedIn):
        await door.joining.join(
            AnonymousCaller(), secret="x", node="gpu-1", signing_request=request
        )
    assert door.joining.refused == 1
    assert door.joining.refused_at == door.clock.time()
    assert door.joining.last_refusal == "node gpu-1: the join token is not valid"
