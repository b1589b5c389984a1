"""Text from users and programs, made safe for a terminal and measured in its cells.

Output of a program can have escape sequences that move the cursor, retitle the window, answer
queries as if typed, or reorder text. None of that reaches a terminal: everything but plain
text is shown escaped.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DELETE = 0x7F

# C0 and C1 controls, DEL; line and paragraph separators, direction marks, embeddings, overrides
# and isolates; lone surrogates.
UNSAFE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_SGR = r"\x1b\[([0-9;]*)m"
NO_TEXT = r"\x1b\[[<-?]?[0-9;:]{0,32}[ !\"$']?[ILMSTZcghilnpqrtxy]|\x1b[()][0-9A-Z]|\x1b[=>HNOn|}~]"
"""Terminal modes and queries, scrolling, tab stops, character sets: sequences that print nothing and keep the line."""
_OPEN_ESCAPE = r"\x1b([()]|\[[<-?]?[0-9;:]{0,32}[ !\"$']?)?\Z"
_LAST_C0 = 0x20
_LEAST_FOLDED = 24
_HANGING = 4
"""Indent in cells of continuation lines of a text without a label."""
_COMMAND = r"(?:nsml(?! (?:is|already|here|knows|itself)\b)|nsml-tui|systemctl|sudo|chmod|export|unset|printf|docker) (?=\S)"
"""Start of a command to paste, as opposed to a sentence about nsml."""
_ARGUMENTS = r"""(?:'[^']*'|"[^"]*"|(?!  )[^'",;)])*"""
_LABEL = rf"(?!{_COMMAND})(?:(?:\w{{1,8}} )?\S{{1,12}}:\s+|\S{{1,12}}(?: \S{{1,8}})?\s{{2,}})"
_LEAD = re.compile(rf"[ ]{{0,4}}{_LABEL}|\s*")
"""Indent of continuation lines: the width of a label such as `why: `, `note: ` or `data     `, else of blanks."""
_CONCEAL = "8"
_JOINING = {"Mn", "Me", "Mc", "Cf"}
_JOINER = "\u200d"
_MORE = " …"
_AS_EMOJI = "\ufe0f"
_FIRST_SKIN, _LAST_SKIN = "\U0001f3fb", "\U0001f3ff"


def visible(text: str) -> str:
    """Return `text` on one line, with every control and direction character shown instead of obeyed."""
    if text.isprintable():
        return text
    return re.sub(UNSAFE, _shown, text)


def escaped(json_text: str) -> str:
    """Escape characters in JSON that a terminal would obey or that cannot be encoded; the value stays the same."""
    if json_text.isascii() and "\x7f" not in json_text:
        return json_text
    return re.sub(UNSAFE, lambda match: f"\\u{ord(match[0]):04x}", json_text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] in "\n\t":
        return " "
    if code < _LAST_C0:
        return chr(0x2400 + code)
    if code == _DELETE:
        return "\u2421"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LogText:
    """Converts output of a program to text for a terminal, piece by piece.

    Colours are kept if `keeps_colour`; a carriage return becomes a line end, so that nothing is overwritten;
    modes, such as a hidden cursor, are dropped; all else that is not text is made visible. Invalid
    UTF-8 shows as U+FFFD. For overwritten lines, apply `nsml.view.terminal_output` first.
    """

    def __init__(self, *, keeps_colour: bool) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._keeps_colour = keeps_colour
        self._pending = ""
        self._is_coloured = False
        self._is_mid_line = False

    def feed(self, data: bytes) -> str:
        """Return the text of the next piece; an unfinished sequence is buffered."""
        return self.take(self._decode(data))

    def close(self) -> str:
        """Return the buffered rest; closes colours and an unfinished line."""
        rest = self.whole(self._decode(b"", final=True))
        return rest + "\n" if self._is_mid_line else rest

    def whole(self, text: str) -> str:
        """Convert the last piece; closes colours."""
        text = self.take(text, is_last=True)
        if self._is_coloured:
            self._is_coloured = False
            text += "\x1b[0m"
        return text

    def take(self, text: str, *, is_last: bool = False) -> str:
        """As `feed`, for text."""
        text = self._pending + text
        self._pending = ""
        if not is_last:
            open_end = re.search(_OPEN_ESCAPE, text)
            cut = open_end.start() if open_end else len(text)
            if not open_end and text.endswith("\r"):
                cut -= 1
            text, self._pending = text[:cut], text[cut:]
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        pieces = []
        position = 0
        for match in re.finditer(f"{_SGR}|{NO_TEXT}", text):
            pieces.append(self._plain(text[position : match.start()]))
            pieces.append(self._sgr(match) if match[1] is not None else "")
            position = match.end()
        pieces.append(self._plain(text[position:]))
        return "".join(pieces)

    def _plain(self, text: str) -> str:
        if text:
            self._is_mid_line = not text.endswith("\n")
        return _lines(text)

    def _sgr(self, match: re.Match[str]) -> str:
        if not _is_safe_sgr(match[1]):
            return visible(match[0])
        if not self._keeps_colour:
            return ""
        self._is_coloured = match[1].strip("0;") != ""
        return match[0]


def _is_safe_sgr(parameters: str) -> bool:
    """Return whether a colour sequence hides nothing: `8` (conceal) only inside 38 and 48."""
    parts = iter(parameters.split(";"))
    for part in parts:
        if part.lstrip("0") == _CONCEAL:
            return False
        if part in {"38", "48"}:
            skip = {"5": 1, "2": 3}.get(next(parts, ""), 0)
            for _ in range(skip):
                next(parts, None)
    return True


def _lines(text: str) -> str:
    if "\x1b" not in text and text.isprintable():
        return text
    return re.sub(UNSAFE, lambda match: match[0] if match[0] in "\n\t" else _shown(match), text)


def width(text: str) -> int:
    """Return the terminal cells of `text`: two for wide East Asian letters and emoji, none for combining characters."""
    if text.isascii():
        return len(text)
    if _JOINER in text or _AS_EMOJI in text:
        return sum(cells for _, cells in graphemes(text))
    return sum(map(_cells, text))


def graphemes(text: str) -> Iterator[tuple[str, int]]:
    """Yield grapheme clusters with their cells: accents, joined emoji and decomposed Hangul stay together."""
    part, cells, is_joined = "", 0, False
    for letter in text:
        size = _cells(letter)
        # Padding after a name that ends with a joiner is not part of its last letter.
        if part and ((is_joined and letter != " ") or not size):
            part += letter
            cells = max(cells, 2) if letter == _AS_EMOJI and cells else cells
        else:
            if part:
                yield part, cells
            part, cells = letter, size
        is_joined = letter == _JOINER
    if part:
        yield part, cells


@lru_cache(maxsize=4096)
def _cells(letter: str) -> int:
    kind = unicodedata.category(letter)
    if kind in _JOINING or _FIRST_SKIN <= letter <= _LAST_SKIN:
        return 0
    if "\u1160" <= letter <= "\u11ff":
        # A vowel or final of a decomposed Hangul syllable, as in file names of macOS.
        return 0
    if kind == "Cn":
        # Unknown to this Python: may be a new emoji.
        return 2 if "\U0001f300" <= letter <= "\U0001faff" else 1
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def fit(text: str, cells: int) -> str:
    """Truncate `text` to at most `cells` cells, with an ellipsis if cut."""
    if width(text) <= cells:
        return text
    return _beginning(graphemes(text), cells - 1) + "…" if cells > 0 else ""


def fit_words(text: str, cells: int) -> str:
    """Like `fit`, cut between words if a word ends in the second half: a cut number would look smaller."""
    if width(text) <= cells:
        return text
    begun = _beginning(graphemes(text), cells - len(_MORE) + 1)
    whole = begun[: begun.rfind(" ") + 1].rstrip()
    return whole + _MORE if 2 * width(whole) >= cells else fit(text, cells)


def _beginning(parts: Iterable[tuple[str, int]], cells: int) -> str:
    kept, used = [], 0
    for part, size in parts:
        used += size
        if used > cells:
            break
        kept.append(part)
    return "".join(kept)


def folded(line: str, cells: int) -> list[str]:
    """Wrap a line `  name: words` to at most `cells`, between words, with continuation lines under the first word.

    Words longer than a line stay whole, and so do commands: they are to be pasted.
    """
    lead = _LEAD.match(line)
    begin = lead.end() if lead else 0
    # Continuation lines are always indented more: a name in the text must not pass for a label such as `try: ...`.
    indent = max(begin, _HANGING)
    if width(line) <= cells or cells - indent < _LEAST_FOLDED:
        return [line]
    lines: list[str] = []
    for word in _unbroken(line[begin:]):
        here = cells - (begin if len(lines) == 1 else indent)
        if lines and width(lines[-1]) + 1 + width(word) <= here:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    first, *rest = lines
    return [line[:begin] + first, *[" " * indent + one for one in rest]]


def _unbroken(text: str) -> list[str]:
    """Split a text into words, with commands unsplit: a text that starts with one, else each up to a comma or the like."""
    if re.match(_COMMAND, text):
        return [text]
    parts: list[str] = []
    end = 0
    for found in re.finditer(
        rf"(?<=: ){_COMMAND}{_ARGUMENTS}|(?<= )nsml [a-z]+(?: --?[a-z-]+)*", text
    ):
        parts += [*text[end : found.start()].rstrip(" ").split(" "), found[0]]
        end = found.end()
        rest, _, _ = text[end:].partition(" ")  # such as a bracket
        parts[-1] += rest
        end += len(rest) + 1
    return [*parts, *text[end:].split(" ")] if end <= len(text) else parts


def wrapped(text: str, cells: int) -> list[str]:
    """Wrap `text` to lines of at most `cells`, between words, with the first line's indent."""
    words = text.lstrip()
    lead = text[: len(text) - len(words)]
    room = cells - len(lead)
    lines: list[str] = []
    for word in words.split():
        if lines and width(lines[-1]) + 1 + width(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(fit(word, room))
    return [lead + line for line in lines]


def in_lines(text: str, cells: int) -> list[str]:
    """Wrap all of `text` to lines of at most `cells`, between words, and within words longer than a line."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and width(lines[-1]) + 1 + width(word) > cells:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
        while width(lines[-1]) > cells and (begun := _beginning(graphemes(lines[-1]), cells)):
            lines[-1:] = [begun, lines[-1][len(begun) :]]
    return lines


def fit_coloured(text: str, cells: int) -> str:
    """Like `fit`, for text with colours: they take no cells, and are closed at the end."""
    parts = re.split(r"(\x1b\[[0-9;]*m)", text)
    plain = "".join(parts[::2])
    kept = fit(plain, cells)
    if kept == plain:
        return text
    left = len(kept) - 1
    for place in range(0, len(parts), 2):
        parts[place] = parts[place][:left]
        left -= len(parts[place])
    return "".join(parts) + "…"


def fit_middle(text: str, cells: int) -> str:
    """Like `fit`, but cut in the middle: both ends stay."""
    if width(text) <= cells or cells < 3:
        return fit(text, cells)
    head = fit(text, cells // 2 + 1)
    letters = [*graphemes(text)]
    left = cells - width(head)
    tail: list[str] = []
    for part, size in reversed(letters):
        if size > left:
            break
        tail.append(part)
        left -= size
    return head + "".join(reversed(tail))


def fit_around(text: str, begin: int, length: int, cells: int) -> str:
    """Like `fit`, around `length` characters from `begin` on, which stay from their start."""
    if width(text) <= cells:
        return text
    found = fit(text[begin : begin + length], cells)
    # Equal context on both sides; the rest goes to the other side if one is short.
    half = max(cells - width(found), 0) // 2
    before, behind = text[:begin], text[begin + length :]
    room = max(half, cells - width(found) - width(behind))
    before = fit_end(before, room)
    return before + found + fit(behind, max(cells - width(before) - width(found), 0))


def fit_end(text: str, cells: int) -> str:
    """Like `fit`, but cut at the start: the end stays."""
    if width(text) <= cells:
        return text
    kept, left = "", cells - 1
    for part, size in reversed([*graphemes(text)]):
        left -= size
        if left < 0:
            break
        kept = part + kept
    return f"…{kept}" if cells > 0 else ""


def pad(text: str, cells: int) -> str:
    """Pad `text` with spaces to `cells` cells."""
    return text + " " * (cells - width(text))
