"""Markdown from users as HTML for a page that strangers open: no raw HTML, no images, and only links that leave."""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any, Final
from unicodedata import category

from markdown_it import MarkdownIt

from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import OptionsDict

SCHEMES: Final = ("http://", "https://", "mailto:")
_TOP: Final = 2
"""A heading of the first level is one of the third: above it are those of the page."""
_MOST_LEVEL: Final = 6
_NO_TEXT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_KEPT: Final = 64


def clean(text: str) -> str:
    """Return text on one line without characters that are hidden or reorder others."""
    shown = _NO_TEXT.sub("\ufffd", visible(text))
    return "".join(letter for letter in shown if category(letter) != "Cf")


@lru_cache(maxsize=_KEPT)
def rendered(text: str) -> str:
    """Return Markdown as HTML. Raw HTML is shown as text; other links than to `SCHEMES` stay as they were written."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.validateLink = _is_allowed  # type: ignore[method-assign]
    markdown.add_render_rule("image", _in_words)
    markdown.add_render_rule("link_open", _link)
    markdown.add_render_rule("heading_open", _heading)
    markdown.add_render_rule("heading_close", _heading)
    markdown.add_render_rule("th_open", _cell)
    markdown.add_render_rule("td_open", _cell)
    # Afterwards again: `&#x202e;` is such a character only then.
    return _clean_lines(markdown.render(_clean_lines(text)))


def _clean_lines(text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join("\t".join(map(clean, one.split("\t"))) for one in lines)


def _is_allowed(url: str) -> bool:
    return url.strip().lower().startswith(SCHEMES)


def _in_words(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    options: OptionsDict,
    env: MutableMapping[str, Any],
) -> str:
    """Show the words for an image: fetching it would tell another site who reads the page."""
    return escape(renderer.renderInlineAsText(tokens[index].children, options, env))


def _link(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    options: OptionsDict,
    env: MutableMapping[str, Any],
) -> str:
    tokens[index].attrSet("rel", "nofollow noopener noreferrer")
    return renderer.renderToken(tokens, index, options, env)


def _heading(
    _renderer: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    _options: OptionsDict,
    _env: MutableMapping[str, Any],
) -> str:
    level = min(int(tokens[index].tag[1:]) + _TOP, _MOST_LEVEL)
    tag = f"h{level}"
    return f"<{tag}>" if tokens[index].nesting > 0 else f"</{tag}>\n"


def _cell(
    _renderer: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    _options: OptionsDict,
    _env: MutableMapping[str, Any],
) -> str:
    """Leave out how a column is aligned: the page allows no style but its own."""
    return f"<{tokens[index].tag}>"
