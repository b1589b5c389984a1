"""A text input."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING
from unicodedata import category

from textual.widgets import Input
from textual.widgets.input import Selection

from nsml.common.text import graphemes, visible

if TYPE_CHECKING:
    from textual.events import Key


class Field(Input):
    """Enters, passes and deletes whole graphemes, of any number of code points.

    Textual skips characters that are not printed alone, such as the joiner in an emoji of a family.
    """

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Accept joiners, too."""
        return _is_joining(character) or super().check_consume_key(key, character)

    async def _on_key(self, event: Key) -> None:
        if event.character is not None and _is_joining(event.character):
            event.stop()
            event.prevent_default()
            self.replace(event.character, *sorted(self.selection))

    def _before(self, place: int) -> int:
        """Return where the previous letter begins."""
        return max((begin for begin in self._begins() if begin < place), default=0)

    def _behind(self, place: int) -> int:
        """Return where the next letter begins."""
        return min((begin for begin in self._begins() if begin > place), default=len(self.value))

    def _begins(self) -> list[int]:
        return [0, *accumulate(len(letter) for letter, _ in graphemes(self.value))]

    def action_cursor_left(self, select: bool = False) -> None:
        """Move a letter left."""
        anchor, place = self.selection
        if select:
            self.selection = Selection(anchor, self._before(place))
        elif self.selection.is_empty:
            self.cursor_position = self._before(place)
        else:
            super().action_cursor_left()

    def action_cursor_right(self, select: bool = False) -> None:
        """Move a letter right; at the end accept the suggestion."""
        anchor, place = self.selection
        if select:
            self.selection = Selection(anchor, self._behind(place))
        elif self.selection.is_empty and not self.cursor_at_end:
            self.cursor_position = self._behind(place)
        else:
            super().action_cursor_right()

    def action_delete_left(self) -> None:
        """Delete the letter before the cursor."""
        if self.selection.is_empty:
            self.delete(self._before(self.cursor_position), self.cursor_position)
        else:
            super().action_delete_left()

    def action_delete_right(self) -> None:
        """Delete the letter under the cursor."""
        if self.selection.is_empty:
            self.delete(self.cursor_position, self._behind(self.cursor_position))
        else:
            super().action_delete_right()


def _is_joining(character: str | None) -> bool:
    """Whether it is invisible alone and part of letters: no control, and nothing that changes the direction."""
    return (
        character is not None
        and len(character) == 1
        and category(character) == "Cf"
        and visible(character) == character
    )
