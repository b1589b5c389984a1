"""Escape sequences of `nsml sh` at the beginning of a line, as in ssh."""

from __future__ import annotations

from typing import Final

_HELP: Final = "\r\n~.  disconnect; the program gets SIGHUP\r\n~~  type ~\r\n~?  show this list\r\n"
_TILDE: Final = ord("~")
_ENDS: Final = frozenset(b"\r\n")


class Leave(Exception):
    """The user disconnects."""


class Escapes:
    """Filters the typed input, piece by piece. `said` is the message to the user after each piece."""

    def __init__(self) -> None:
        self._is_at_start = True
        self._has_tilde = False
        self.said = ""

    def taken(self, data: bytes) -> bytes:
        """Return the input for the program. Raises Leave."""
        passed = bytearray()
        self.said = ""
        for byte in data:
            if self._has_tilde:
                self._has_tilde = False
                if byte == ord("."):
                    raise Leave
                if byte == ord("?"):
                    self.said = _HELP
                    self._is_at_start = True
                    continue
                passed += b"~" if byte == _TILDE else bytes((_TILDE, byte))
            elif self._is_at_start and byte == _TILDE:
                self._has_tilde = True
                continue
            else:
                passed.append(byte)
            self._is_at_start = byte in _ENDS
        return bytes(passed)
