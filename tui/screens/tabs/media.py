"""Media that a session logged: images, embeddings, texts and others."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.widgets import Static

from nsml.client.streams import ENDED_STATES
from nsml.common.clock import in_thread
from nsml.common.shell import operands
from nsml.common.text import visible
from nsml.common.units import counted, size_text
from nsml.v1.media_pb2 import MEDIA_STATE_DURABLE, MEDIA_STATE_LOST
from nsml.view.media import COLUMNS, IN_WORDS, lines, step_text
from tui import appearance
from tui.background import in_background
from tui.model import ContentReceived, Detail, MediaReceived, medium_key
from tui.screens.tabs.split import SplitTab
from tui.sources import Topic
from tui.widgets.canvas import Canvas
from tui.widgets.static import set_text
from tui.widgets.table import Table
from tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.events import Resize

    from nsml.v1.media_pb2 import Media
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.plot import Piece
    from tui.screens.frame import Frame
    from tui.shell import Shell

MOST_BYTES: Final = 16 * 1024 * 1024
"""Limit of downloads to show."""
MOST_LINES: Final = 20_000
MOST_IN_LINE: Final = 2_000
_COLUMNS: Final = {"name", "step", "kind", "size", "rank"}


@dataclass(frozen=True, slots=True)
class _Ready:
    """Content ready to draw: by `paint` for a size, else as lines for `columns`; else `why` not."""

    key: str = ""
    columns: int = 0
    lines: Sequence[str] = ()
    paint: Callable[[int, int], Sequence[Sequence[Segment]]] | None = field(default=None)
    why: str = ""


class MediaTab(SplitTab):
    """All media, the newest first, and the one under the cursor."""

    name_of, key_of = "Media", "media"

    def __init__(self) -> None:
        super().__init__()
        self._ready = _Ready()
        self._preparing: tuple[str, int] | None = None

    def listed(self) -> ComposeResult:
        """The list."""
        columns = [column for column in COLUMNS if column.key in _COLUMNS]
        yield Table(columns, key=medium_key, clock=self.now)

    def shown(self) -> ComposeResult:
        """The one under the cursor."""
        yield Static(classes="head")
        yield Canvas()
        yield TextView()

    @property
    def current(self) -> Media | None:
        """The one under the cursor."""
        found: Media | None = self.query_one(Table).current
        return found

    def details(self, session: Session) -> Sequence[Detail]:  # noqa: ARG002 - the same of all
        """The list, and the visible one."""
        listed, medium = Detail(Topic.MEDIA), self.current
        if medium is None or not self.is_shown or _why_not(medium):
            return (listed,)
        return listed, Detail(Topic.CONTENT, medium_key(medium))

    def on_resize(self, event: Resize) -> None:  # noqa: ARG002 - Textual calls that of SplitTab, too
        """Fit the one under the cursor to its new width, once it is laid out."""
        self.call_after_refresh(self._look)

    def command(self, session: Session) -> Sequence[str]:
        """Shows the one under the cursor, or exports it."""
        words, medium = ["nsml", "media"], self.current
        words += operands(session.name, *([medium.name] if medium is not None else []))
        if medium is not None:
            words += ["--step", step_text(medium)] if medium.HasField("step") else []
            words += [] if medium.kind in IN_WORDS else ["--export", "FOLDER"]
        return words

    def draw(self, frame: Frame, session: Session) -> None:
        """Show both."""
        table, received = self.query_one(Table), frame.model.shown.detail(MediaReceived)
        media = list(reversed(received.media)) if received is not None else []
        nothing = "it showed nothing" if session.state in ENDED_STATES else _NOTHING_YET
        table.none = frame.none(Topic.MEDIA, nothing)
        before = medium_key(self.current) if self.current is not None else ""
        table.show(media)
        if self.current is not None and medium_key(self.current) != before:
            frame.dashboard.subscribe_details(*self.details(session))
        self._content(frame)
        words = [counted(len(media), "medium", "media")] if media else []
        if received is not None and received.left_out:
            words.append(f"{received.left_out:,} older ones left out")
        self.say(frame, session, words, Topic.MEDIA)

    def _content(self, frame: Frame) -> None:
        medium = self.current
        head, ready = "", _Ready()
        if medium is not None:
            ready = self._prepared(frame, medium)
            head = " · ".join(
                (medium.name, f"step {step_text(medium)}", medium.caption or medium.kind)
            )
        set_text(self.query_one(".head", Static), Text(visible(head), "bold"))
        canvas, view = self.query_one(Canvas), self.query_one(TextView)
        canvas.display, view.display = ready.paint is not None, ready.paint is None
        if ready.paint is not None:
            canvas.draw(ready.paint)
        else:
            view.show_text(ready.lines, of=ready.key, none=visible(ready.why))

    def _prepared(self, frame: Frame, medium: Media) -> _Ready:
        """Return it ready to draw, as far as it is; else prepare it in the background."""
        key = medium_key(medium)
        if why := _why_not(medium):
            return _Ready(key, why=why)
        columns = max(self.query_one(TextView).size.width, self.size.width // 2)
        before = self._ready if self._ready.key == key else _Ready(key, why="loading...")
        if before is self._ready and before.columns in {0, columns}:
            return before
        if not columns:  # nothing was laid out yet
            return before
        received = frame.model.shown.detail(ContentReceived)
        if received is None or received.what != key:
            return _Ready(key, why=frame.none(Topic.CONTENT, "loading..."))
        if self._preparing != (key, columns):
            self._preparing = key, columns
            in_background(self, "prepare", partial(self._prepare, medium, received.data, columns))
        return before

    async def _prepare(self, medium: Media, data: bytes, columns: int) -> None:
        is_plain = cast("Shell", self.app).is_without_colours
        found = await in_thread(
            lambda: _ready(medium, data, columns, self._segments, is_plain=is_plain)
        )
        self._ready, self._preparing = found, None
        self._look()

    def _segments(self, pieces: Sequence[Piece]) -> list[Segment]:
        styles = [
            appearance.style(self.app, appearance.LINES[piece.series % len(appearance.LINES)])
            if piece.series is not None
            else Style()
            for piece in pieces
        ]
        return [Segment(piece.text, style) for piece, style in zip(pieces, styles, strict=True)]


_NOTHING_YET = "nothing was shown yet: nsml.image(NAME, pixels) in its code shows a picture here"


def _why_not(medium: Media) -> str:
    """Why it is not shown here; "" if it is."""
    if medium.state == MEDIA_STATE_LOST:
        return f"it is lost: {medium.why_lost}"
    if medium.state != MEDIA_STATE_DURABLE:
        return "it is on its node still, and on its way"
    is_drawn = medium.content_type.startswith("image/")
    if not is_drawn and medium.kind not in IN_WORDS:
        return f"a terminal shows no {medium.kind}: the command below writes it to a file"
    if medium.size_bytes > MOST_BYTES:
        return f"{size_text(medium.size_bytes)} are too much to be shown: the command below writes it to a file"
    return ""


def _ready(
    medium: Media,
    data: bytes,
    columns: int,
    segments: Callable[[Sequence[Piece]], list[Segment]],
    *,
    is_plain: bool,
) -> _Ready:
    """Decode it; this takes a while."""
    from nsml.view.scatter import embedding, scatter
    from tui.pictures import NoPicture, decoded, halves, shades

    key = medium_key(medium)
    try:
        if medium.content_type.startswith("image/"):
            image, draw = decoded(data), shades if is_plain else halves
            return _Ready(key, paint=lambda wide, high: draw(image, columns=wide, rows=high))
        if medium.kind == "embedding":
            found = embedding(data)

            def paint(wide: int, high: int) -> list[list[Segment]]:
                return [segments(line) for line in scatter(found, columns=wide, rows=high)]

            return _Ready(key, paint=paint)
        told = [
            line[:MOST_IN_LINE] for line in islice(lines(medium, data, columns=columns), MOST_LINES)
        ]
    except (NoPicture, ValueError) as error:
        return _Ready(key, why=str(error))
    return _Ready(key, columns, lines=told, why="" if told else "it is empty")
