"""Markdown of users in a page: nothing of it runs, is fetched, or is hidden."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from nsml.view.safe_markdown import SCHEMES, clean, rendered

TAGS = {
    *("p", "h3", "h4", "h5", "h6", "em", "strong", "code", "pre", "a", "ul", "ol", "li", "br", "hr"),
    *("blockquote", "table", "thead", "tbody", "tr", "th", "td"),
}  # fmt: skip


class Reader(HTMLParser):
    """What a browser makes of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a <b onclick=alert(1)>b</b>",
    "<!-- --><svg/onload=alert(1)>",
    "[a](javascript:alert(1))",
    "[a](JaVaScript:alert(1))",
    "[a](java&#115;cript:alert(1))",
    "[a](java\u200bscript:alert(1))",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](vbscript:x)",
    "[a](file:///etc/passwd)",
    "[a](//evil.example)",
    "[a](/view/x/sign-out)",
    "<javascript:alert(1)>",
    "[a]: javascript:alert(1)\n\n[a]",
    '[a](https://x.example "\\" onmouseover=alert(1) x=\\"")',
    '[a](https://x.example/"onmouseover=alert(1))',
    "![a](https://x.example/track.png)",
    "![<script>](https://x.example/track.png)",
    "![a][b]\n\n[b]: data:image/png;base64,AAAA",
    "[![a](https://x.example/i.png)](https://x.example)",
    '```"><script>alert(1)</script>\na\n```',
    "# <script>alert(1)</script>",
    "|<script>|\n|:-:|\n|<img src=x>|",
    "</main></body><script>alert(1)</script>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_it_runs_or_is_fetched(text):
    for tag, attributes in Reader(rendered(text)).elements:
        assert tag in TAGS, (tag, text)
        assert {*attributes} <= {"href", "rel", "title", "class", "start"}, attributes
        if tag == "a":
            assert (attributes["href"] or "").startswith(SCHEMES)
            assert attributes["rel"] == "nofollow noopener noreferrer"
        else:
            assert "href" not in attributes


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**no** _data_", "<p><strong>no</strong> <em>data</em></p>\n"),
        ("# A\n\n## B\n\n###### C", "<h3>A</h3>\n<h4>B</h4>\n<h6>C</h6>\n"),
        ("<b>a</b>", "<p>&lt;b&gt;a&lt;/b&gt;</p>\n"),
        (
            "[a](https://x.example/?a=1&b=2)",
            '<p><a href="https://x.example/?a=1&amp;b=2" rel="nofollow noopener noreferrer">a</a></p>\n',
        ),
        ("![a *b*](https://x.example/i.png) c", "<p>a b c</p>\n"),
        ("a\r\n- b", "<p>a</p>\n<ul>\n<li>b</li>\n</ul>\n"),
        ("\ta", "<pre><code>a\n</code></pre>\n"),
        ("", ""),
    ],
)
def test_what_it_says(text, html):
    assert rendered(text) == html


@pytest.mark.parametrize(
    "text",
    ["a\u202eb", "a&#x202e;b", "`a&#8238;\u2066b`", "a\u200b\u2060b", "a&ZeroWidthSpace;b", "[a\u202eb](https://x.example)"],
)  # fmt: skip
def test_nothing_is_hidden_or_reordered(text):
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2060-\u2069]", rendered(text))


def test_text_on_one_line():
    assert clean("a\nb\u202e\u200b\x00c") == "a b\\u202e\u2400c"
    assert clean("안녕 é \U0001f600") == "안녕 é \U0001f600"
