"""A screen before others, which is left with an answer."""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

R = TypeVar("R")


class Modal(ModalScreen[R]):
    """One that is left once."""

    def leave(self, answer: R | None) -> None:
        """Give the answer, where none was given: an Enter is received of behind an Escape that was pressed after it."""
        if self.is_current:
            self.dismiss(answer)
