"""Webhooks through real gRPC: one's own, sealed in the store, never shown, and gone with their user."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from controlplane.domain.errors import StateConflict
from controlplane.domain.identity import Role
from nsml.v1 import accounts_pb2
from nsml.v1 import secrets_pb2 as secrets
from nsml.v1 import webhooks_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_sessions import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.core.webhook_targets import Target

MARK = "s3cret-51aa"
URL = f"https://hooks.example.org/services/{MARK}"


class Post:
    """Takes every message, and answers with `status`; None: it cannot be reached."""

    allows_private = False

    def __init__(self) -> None:
        self.status: int | None = 200
        self.said: list[tuple[str, dict[str, str]]] = []

    async def __call__(self, target: Target, body: bytes, *, owner: str) -> int:
        self.said.append((target.path, json.loads(body)))
        if self.status is None:
            raise StateConflict(f"{target.origin} cannot be reached")
        return self.status


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
async def rig(post: Post) -> AsyncIterator[Rig]:
    async with platform(post=post) as rig:
        yield rig


async def put(user: Stubs, url: str = URL) -> pb.Webhook:
    answer = await user.webhooks.SetWebhook(pb.SetWebhookRequest(url=url))
    return answer.webhook


async def origin(user: Stubs) -> str:
    """Of what is set; "" where nothing is."""
    answer = await user.webhooks.GetWebhook(pb.GetWebhookRequest())
    assert MARK not in str(answer)
    return answer.webhook.origin


def send(user: Stubs):
    return user.webhooks.TestWebhook(pb.TestWebhookRequest())


async def test_one_is_set_tried_replaced_and_removed(rig: Rig, post: Post) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    assert await origin(kim) == ""
    assert (await refused(send(kim)))[0] == "NOT_FOUND"
    assert (await put(kim)).origin == "https://hooks.example.org"
    assert (await origin(kim), await origin(lee)) == ("https://hooks.example.org", "")
    assert (await send(kim)).status == 200
    assert [(path, said["event"]) for path, said in post.said] == [(f"/services/{MARK}", "test")]
    await put(kim, "https://other.example.org:8443/x")
    assert await origin(kim) == "https://other.example.org:8443"
    for _ in range(2):
        await kim.webhooks.RemoveWebhook(pb.RemoveWebhookRequest())
    assert await origin(kim) == ""
    assert len(post.said) == 1


async def test_what_was_answered_is_told_to_who_tries(rig: Rig, post: Post) -> None:
    kim = await rig.user("kim")
    await put(kim)
    post.status = 404
    code, _, details = await refused(send(kim))
    assert code == "FAILED_PRECONDITION"
    assert "2xx" in details["why"]
    post.status = None
    assert (await refused(send(kim)))[0] == "FAILED_PRECONDITION"


async def test_a_bad_url_is_refused_and_the_one_before_stays(rig: Rig) -> None:
    kim = await rig.user("kim")
    await put(kim)
    for url in ("", f"http://hooks.example.org/{MARK}", f"https://u:{MARK}@hooks.example.org/"):
        refusal = await refused(put(kim, url))
        assert refusal[0] == "INVALID_ARGUMENT"
        assert MARK not in repr(refusal)
    assert await origin(kim) == "https://hooks.example.org"


async def test_it_lies_sealed_and_is_none_of_the_secrets(rig: Rig) -> None:
    kim = await rig.user("kim")
    await put(kim)
    items = (await rig.plane.core.backends.store.list("")).items
    assert items
    assert not any(MARK.encode() in item.value for item in items)
    listed = await kim.secrets.ListSecrets(secrets.ListSecretsRequest())
    assert list(listed.secrets) == []
    remove = kim.secrets.RemoveSecret(secrets.RemoveSecretRequest(name="webhook-url"))
    assert (await refused(remove))[0] == "NOT_FOUND"


async def test_a_later_user_of_the_name_has_none(rig: Rig) -> None:
    await put(await rig.user("kim"))
    root = await rig.user("root", role=Role.ADMIN)
    await root.accounts.DeleteUser(accounts_pb2.DeleteUserRequest(name="kim"))
    assert await origin(await rig.user("kim", restore=True)) == ""
