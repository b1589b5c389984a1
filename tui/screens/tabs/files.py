"""The code of a session, file by file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.widgets import Static

from nsml.common.text import visible
from nsml.common.units import counted, size_text
from nsml.view.code import ENTRY_COLUMNS
from tui.model import Detail, FileReceived, FilesReceived
from tui.screens.tabs.split import SplitTab
from tui.sources import Topic
from tui.widgets.static import set_text
from tui.widgets.table import Table
from tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from nsml.content.manifest import Entry
    from nsml.v1.sessions_pb2 import Session
    from tui.screens.frame import Frame


class FilesTab(SplitTab):
    """Its files, and the lines of the one under the cursor."""

    name_of, key_of = "Files", "files"

    def listed(self) -> ComposeResult:
        """The files."""
        yield Table(ENTRY_COLUMNS, key=lambda entry: entry.path, clock=self.now)

    def shown(self) -> ComposeResult:
        """The lines."""
        yield Static(classes="head")
        yield TextView()

    @property
    def current(self) -> Entry | None:
        """The file under the cursor."""
        found: Entry | None = self.query_one(Table).current
        return found

    def details(self, session: Session) -> Sequence[Detail]:  # noqa: ARG002 - the same of all
        """The files, and the visible one."""
        files, entry = Detail(Topic.FILES), self.current
        if entry is None or not self.is_shown:
            return (files,)
        return files, Detail(Topic.FILE, entry.path)

    def draw(self, frame: Frame, session: Session) -> None:
        """Show both."""
        table, received = self.query_one(Table), frame.model.shown.detail(FilesReceived)
        files = received.files if received is not None else ()
        has_code = bool(session.spec.bundle_digest)
        nothing = "there is no file in its code" if has_code else "it was started without code"
        table.none = frame.none(Topic.FILES, nothing)
        before = self.current
        table.show(files)
        if self.current is not before:
            frame.dashboard.subscribe_details(*self.details(session))
        self._lines(frame)
        size = size_text(sum(entry.size for entry in files))
        words = [f"{counted(len(files), 'file')}, {size}"] if files else []
        self.say(frame, session, words, Topic.FILES)

    def _lines(self, frame: Frame) -> None:
        view, entry = self.query_one(TextView), self.current
        received = frame.model.shown.detail(FileReceived)
        lines: Sequence[str] = ()
        note, none = "", "" if entry is None else frame.none(Topic.FILE, "loading...")
        if entry is not None and received is not None and received.what == entry.path:
            lines, note, none = (
                received.lines,
                received.note,
                frame.words(Topic.FILE) or received.note,
            )
        path = "" if entry is None else visible(entry.path)
        head = Text(" · ".join(filter(None, (path, note if lines else ""))), "bold")
        set_text(self.query_one(".head", Static), head)
        view.show_text(lines, of=path, none=visible(none))
