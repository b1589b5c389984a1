"""A dialog, closed with an answer."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.screen import ModalScreen

R = TypeVar("R")


class Modal(ModalScreen[R]):
    """A modal screen that closes only once."""

    shows_behind: ClassVar[bool] = False
    """Whether the screen behind it is visible, and redrawn."""

    def leave(self, answer: R | None) -> None:
        """Close the screen with `answer`, once: an Enter right after an Escape is ignored."""
        if self.is_current:
            self.dismiss(answer)
