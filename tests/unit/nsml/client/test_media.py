"""What a session showed, as it grows: only what may change is asked for again."""

from types import SimpleNamespace

from nsml.client.media import Followed, literally
from nsml.v1.media_pb2 import (
    MEDIA_STATE_DURABLE,
    MEDIA_STATE_SAVED,
    ListMediaResponse,
    Media,
)


class Pages:
    """A platform that lists two at a time."""

    def __init__(self):
        self.media = []
        self.asked = []

    def add(self, name, state=MEDIA_STATE_DURABLE):
        self.media.append(Media(name=name, file=name, state=state))

    async def page(self, request):
        start = int(request.cursor or 0)
        self.asked.append(start)
        more = start + 2 < len(self.media)
        return ListMediaResponse(
            media=self.media[start : start + 2], next_cursor=str(start + 2) if more else ""
        )


async def test_what_is_there_for_good_is_read_once_and_the_last_are_kept():
    pages = Pages()
    for name in "abcde":
        pages.add(name)
    followed = Followed(SimpleNamespace(media=pages), "s1", most=4)
    found, left_out = await followed.again()
    assert ([one.name for one in found], left_out, pages.asked) == (list("bcde"), 1, [0, 2, 4])
    pages.add("f")
    pages.add("g", MEDIA_STATE_SAVED)
    found, left_out = await followed.again()
    assert ([one.name for one in found], left_out, pages.asked[3:]) == (list("defg"), 3, [4, 6])
    pages.media[6].state = MEDIA_STATE_DURABLE
    pages.add("h")
    pages.add("i")
    found, _ = await followed.again()
    assert pages.asked[5:] == [6, 8]
    assert found[-3].state == MEDIA_STATE_DURABLE


async def test_one_that_is_on_its_way_is_asked_for_until_it_is_there():
    pages = Pages()
    pages.add("a", MEDIA_STATE_SAVED)
    for name in "bcd":
        pages.add(name)
    followed = Followed(SimpleNamespace(media=pages), "s1", most=9)
    await followed.again()
    pages.media[0].state = MEDIA_STATE_DURABLE
    found, _ = await followed.again()
    assert pages.asked == [0, 2, 0, 2]
    assert found[0].state == MEDIA_STATE_DURABLE
    await followed.again()
    assert pages.asked[4:] == [2]


def test_a_glob_takes_a_name_as_it_is():
    assert literally("a*[b]?") == "a[*][[]b][?]"
