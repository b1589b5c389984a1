"""Which dataset a name means: one's own before those of others."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from functools import partial

import pytest

from controlplane.content import manifests
from controlplane.content.content import Content
from controlplane.datasets import pushes
from controlplane.datasets.datasets import Datasets
from controlplane.datasets.references import own_dataset, parse_dataset
from controlplane.domain.errors import Denied, InvalidRequest, NotFound, NsmlError, TooLarge
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.values import Visibility
from controlplane.history.sqlite import open_history
from controlplane.history.values import Dataset
from controlplane.state.live_state import LiveState
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.in_place import LIST_NAME
from nsml.content.manifest import ChunkRef, Entry, build
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.workbench import HandClock

KIM = UserCaller(user=User(name="kim"))
PUSHED = [
    ("kim", "pub", Visibility.PRIVATE, 2),
    ("root", "pub", Visibility.PUBLIC, 7),
    ("root", "secret", Visibility.PRIVATE, 1),
    ("root", "only", Visibility.PUBLIC, 3),
    ("root", "both", Visibility.PUBLIC, 1),
    ("lee", "both", Visibility.PUBLIC, 1),
]


@pytest.fixture
async def datasets() -> AsyncIterator[Datasets]:
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline)
    for owner, name, visibility, count in PUSHED:
        dataset = Dataset(owner=owner, name=name, created_at=1.0, visibility=visibility)
        for number in range(count):
            await history.catalogue.put_dataset_version(
                dataset, digest=f"d{number}", size_bytes=1, file_count=1
            )
    state = LiveState(None, clock)  # type: ignore[arg-type]
    content = Content(objects=MemoryObjects(clock), history=history, state=state, clock=clock)
    yield Datasets(history=history, content=content, clock=clock)
    await history.close()


async def offer(datasets: Datasets, chunks: Sequence[bytes], *paths: str) -> str:
    """Send a tree of one file with these chunks, or of some that have the same; its digest."""
    refs = tuple(ChunkRef(digest_of(chunk), len(chunk)) for chunk in chunks)
    size = sum(map(len, chunks))
    manifest = build(
        [Entry(path=one, mode=0o644, size=size, chunks=refs) for one in paths or ("file",)]
    )
    blobs = {digest_of(chunk): chunk for chunk in chunks} | {manifest.digest: manifest.encode()}

    async def parts() -> AsyncIterator[tuple[str, bytes, bool]]:
        for digest, data in blobs.items():
            yield digest, data, True

    await datasets._content.put(KIM, parts())
    return manifest.digest


@pytest.mark.parametrize(
    ("chunks", "is_taken"),
    [
        ([b"x"] * 100, True),  # files of zeros, and copies: small, whatever repeats
        ([b"x"] * 101, False),
        ([bytes([n]) * 20 for n in range(8)], True),
        ([bytes([n]) * 20 for n in range(8)] * 8, True),
        ([bytes([n]) * 20 for n in range(8)] * 8 + [b"\0" * 20], False),
    ],
)
async def test_a_large_version_does_not_repeat_little_data_too_often(
    datasets: Datasets, monkeypatch: pytest.MonkeyPatch, chunks: list[bytes], *, is_taken: bool
) -> None:
    """A chunk of 3 MiB that a manifest of 6 MB lists 80,000 times is 250 GB on a node."""
    monkeypatch.setattr(pushes, "FREELY_REPEATED_BYTES", 100)
    digest = await offer(datasets, chunks)
    push = partial(
        datasets.pushes.create_version, KIM, name="new", digest=digest, visibility=None, message=""
    )
    if is_taken:
        listing, created = await push()
        assert created
        assert listing.version.size_bytes == sum(map(len, chunks))
        return
    with pytest.raises(TooLarge, match="different data") as refused:
        await push()
    assert refused.value.attempt


@pytest.mark.parametrize(
    ("wanted", "version", "found"),
    [
        ("pub", 0, ("kim", 2)),
        ("pub", 1, ("kim", 1)),
        ("root/pub", 7, ("root", 7)),
        ("only", 0, ("root", 3)),
        ("only", 2, ("root", 2)),
    ],
)
async def test_the_version_that_is_meant(
    datasets: Datasets, wanted: str, version: int, found: tuple[str, int]
) -> None:
    listing = await datasets.lookup.find(KIM, parse_dataset(wanted, version))
    assert (listing.dataset.owner, listing.version.number) == found


@pytest.mark.parametrize(
    ("wanted", "version", "says"),
    [
        ("pub", 7, "there is no version 7 of kim/pub"),
        ("only", 9, "there is no version 9 of root/only"),
        ("root/only", 9, "there is no version 9 of root/only"),
        ("secret", 0, "there is no dataset secret"),
        ("root/secret", 0, "there is no dataset root/secret"),
        ("root/secret", 9, "there is no dataset root/secret"),
        ("lee/none", 0, "there is no dataset lee/none"),
    ],
)
async def test_what_is_not_there(datasets: Datasets, wanted: str, version: int, says: str) -> None:
    with pytest.raises(NotFound, match=f"^{re.escape(says)}$"):
        await datasets.lookup.find(KIM, parse_dataset(wanted, version))


async def test_a_name_of_several_others_is_ambiguous(datasets: Datasets) -> None:
    for version in (0, 9):
        with pytest.raises(InvalidRequest, match="2 users have a dataset 'both'") as refused:
            await datasets.lookup.find(KIM, parse_dataset("both", version))
        assert refused.value.why == "lee/both, root/both"


async def test_pages_go_on_where_the_last_one_ended(datasets: Datasets) -> None:
    found: list[str] = []
    cursor, pages = "", 0
    while cursor or not pages:
        page, cursor = await datasets.lookup.page(KIM, "", size=2, cursor=cursor)
        found += [f"{one.dataset.owner}/{one.dataset.name}" for one in page]
        pages += 1
    assert (found, pages) == (["lee/both", "root/both", "root/only", "kim/pub", "root/pub"], 3)
    page, cursor = await datasets.lookup.page(KIM, "*o*", size=3, cursor="")
    assert (len(page), cursor) == (3, "")
    with pytest.raises(InvalidRequest):
        await datasets.lookup.page(KIM, "", size=2, cursor="not/one/of/ours")


async def test_it_is_known_of_manifests_that_are_read_apart(
    datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "SMALL_BYTES", 10)
    digest = await offer(datasets, [b"xx"] * 50 + [b"y"])
    listing = await datasets._content.listing(KIM, digest)
    assert (listing.size, listing.different) == (101, 3)


async def test_what_can_be_restored_is_listed_for_its_owner_and_administrators(
    datasets: Datasets,
) -> None:
    root = UserCaller(user=User(name="root", role=Role.ADMIN))
    for caller, name in ((KIM, "pub"), (root, "only")):
        await datasets.remove(caller, parse_dataset(name))

    async def listed(caller: UserCaller) -> list[str]:
        found: list[str] = []
        page, cursor = await datasets.lookup.removed_page(caller, "", size=2, cursor="")
        while page:
            found += [
                f"{one.version.owner}/{one.version.name}@{one.version.number}" for one in page
            ]
            if not cursor:
                break
            page, cursor = await datasets.lookup.removed_page(caller, "", size=2, cursor=cursor)
        return found

    of_kim = ["kim/pub@1", "kim/pub@2"]
    assert await listed(KIM) == of_kim
    assert await listed(UserCaller(user=User(name="lee"))) == []
    assert await listed(root) == ["root/only@1", "root/only@2", "root/only@3", *of_kim]
    with pytest.raises(InvalidRequest):
        await datasets.lookup.removed_page(KIM, "", size=2, cursor="root/only@x")


def test_a_push_may_name_its_own_user_and_nobody_else() -> None:
    assert own_dataset("kin", "kim") == own_dataset("kim/kin", "kim") == "kin"
    with pytest.raises(Denied, match="dataset lee/kin is lee's"):
        own_dataset("lee/kin", "kim")
    for text in ("kim/", "kim/kin/2", "../kin", "/kin", "kim/" + 65 * "x"):
        with pytest.raises(InvalidRequest, match="dataset"):
            own_dataset(text, "kim")


async def test_only_who_may_lets_nodes_mount_a_folder(datasets: Datasets) -> None:
    root = UserCaller(user=User(name="root", role=Role.ADMIN))

    def refused(caller: UserCaller, path: str) -> type[Exception] | None:
        place = pushes.InPlace(path=path, size_bytes=1, file_count=1)
        try:
            datasets.pushes.check(caller, "big", None, "", in_place=place)
        except NsmlError as error:
            return type(error)
        return None

    assert refused(KIM, "/shared/big") is Denied
    assert refused(root, "/shared/big") is None
    datasets.pushes._in_place_roots = ("/shared",)
    assert refused(KIM, "/shared/big") is None
    assert refused(KIM, "/shared2/big") is Denied
    for caller in (KIM, root):
        for path in ("shared", "/shared/../etc", "/shared//a", "/shared/", f"/shared/{'a' * 2000}"):
            assert refused(caller, path) is InvalidRequest


@pytest.mark.parametrize(
    ("paths", "most_bytes", "is_taken"),
    [
        ([LIST_NAME], 4, True),
        ([LIST_NAME], 3, False),
        (["file"], 4, False),
        ([f"sub/{LIST_NAME}"], 4, False),
        ([LIST_NAME, "z"], 100, False),
    ],
)
async def test_a_version_in_place_has_a_list_that_agents_can_read_and_nothing_else(
    datasets: Datasets,
    monkeypatch: pytest.MonkeyPatch,
    paths: Sequence[str],
    most_bytes: int,
    *,
    is_taken: bool,
) -> None:
    datasets.pushes._in_place_roots = ("/",)
    monkeypatch.setattr(pushes, "MOST_LIST_BYTES", most_bytes)
    made = datasets.pushes.create_version(
        KIM,
        name="big",
        digest=await offer(datasets, [b"list"], *paths),
        visibility=None,
        message="",
        in_place=pushes.InPlace(path="/a", size_bytes=1, file_count=1),
    )
    with nullcontext() if is_taken else pytest.raises(InvalidRequest, match="is not the list"):
        await made


async def test_a_version_in_place_is_another_one_than_its_list_and_is_not_streamed(
    datasets: Datasets,
) -> None:
    datasets.pushes._in_place_roots = ("/",)
    digest = await offer(datasets, [b"list"], LIST_NAME)

    async def put(path: str) -> bool:
        place = pushes.InPlace(path=path, size_bytes=7 << 40, file_count=9) if path else None
        make = datasets.pushes.create_version
        _, created = await make(
            KIM, name="big", digest=digest, visibility=None, message="", in_place=place
        )
        return created

    assert [await put(one) for one in ("", "/a", "/a", "/b")] == [True, True, False, True]
    found = await datasets.lookup.find(KIM, parse_dataset("big"))
    assert (found.version.number, found.version.in_place) == (3, "/b")
    assert (found.version.size_bytes, found.version.file_count) == (7 << 40, 9)
    assert (await datasets.lookup.resolve(KIM.user, parse_dataset("big"))).in_place == "/b"
    with pytest.raises(InvalidRequest, match="in place, and cannot be streamed"):
        await datasets.lookup.resolve(KIM.user, parse_dataset("big", streamed=True))
