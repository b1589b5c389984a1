"""Which dataset a name means: one's own before those of others."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from controlplane.domain.errors import InvalidRequest, NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.values import Visibility
from controlplane.history.sqlite import open_history
from controlplane.history.values import Dataset
from controlplane.objects.memory import MemoryObjects
from controlplane.operations.content import Content
from controlplane.operations.datasets import Datasets, parse_dataset
from controlplane.operations.state import LiveState
from nsml.clock import inline
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
    listing = await datasets.find(KIM, parse_dataset(wanted, version))
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
        await datasets.find(KIM, parse_dataset(wanted, version))


async def test_a_name_of_several_others_is_ambiguous(datasets: Datasets) -> None:
    for version in (0, 9):
        with pytest.raises(InvalidRequest, match="2 users have a dataset 'both'") as refused:
            await datasets.find(KIM, parse_dataset("both", version))
        assert refused.value.attempt == "lee/both, root/both"


async def test_pages_go_on_where_the_last_one_ended(datasets: Datasets) -> None:
    found: list[str] = []
    cursor, pages = "", 0
    while cursor or not pages:
        page, cursor = await datasets.page(KIM, "", size=2, cursor=cursor)
        found += [f"{one.dataset.owner}/{one.dataset.name}" for one in page]
        pages += 1
    assert (found, pages) == (["lee/both", "root/both", "root/only", "kim/pub", "root/pub"], 3)
    page, cursor = await datasets.page(KIM, "*o*", size=3, cursor="")
    assert (len(page), cursor) == (3, "")
    with pytest.raises(InvalidRequest):
        await datasets.page(KIM, "", size=2, cursor="not/one/of/ours")
