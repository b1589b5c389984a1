"""Ways to write a value in a Dockerfile, and what Docker makes of each: asked of an engine where there is one."""

from __future__ import annotations

from typing import Final

VARIABLES: Final = {"X": "x", "E": "", "S": "a  b", "Q": "'q\""}
"""Those that are set; U is not."""

FORMS: Final = {
    r"'${X%x}'": "${X%x}",
    r"\${X%x}": "${X%x}",
    r'"\${X/x/y}"': "${X/x/y}",
    r"'${X:?}'${X}": "${X:?}x",
    r"'$X'": "$X",
    r'"$X"': "x",
    r'"\$X"': "$X",
    r'"\\$X"': "\\x",
    r"\$X": "$X",
    r"\\$X": "\\x",
    r'"a\b"': "a\\b",
    r"a\b": "ab",
    r"a\ b": "a b",
    r'"\"q\""': '"q"',
    r"\'q\'": "'q'",
    r"${U:-y}${E:-y}${X:-y}": "yyx",
    r"${X:+y}${U:+y}${E:+y}": "y",
    r"${U:-$X}${U:-${E:-z}}": "xz",
    r'"${U:-a b}"': "a b",
    r'"${U:-"q"}"': "q",
    r"${U:-'$X'}": "$X",
    "\"${U:-'$X'}\"": "$X",
    r"${U:-\}}": "}",
    r"${U:-a}b}": "ab}",
    r"${U:--}${U:-:-}": "-:-",
    r"${X:?none}": "x",
    '${X:+"a b"}': "a b",
    "$S": "a  b",
    "$Q": "'q\"",
    r"a$": "a$",
    r"a$$b$1c$@d$.e": "abcd$.e",
    r"$(id)": "$(id)",
    r"${1}": "",
    '""': "",
    "$X=$X": "x=x",
    r"x\\": "x\\",
}
"""By what is written: the value. The last one ends a line."""

WHOLE_FORMS: Final = {
    "${U:-hello world}": "hello world",
    "${X:+a  b} $X": "a  b x",
    "${U:-'/my dir'}/${E:-z z}": "/my dir/z z",
}
"""As FORMS, where spaces end no value: `ENV NAME VALUE`, WORKDIR and USER."""

REFUSED: Final = [
    "it's",
    '"open',
    "${",
    "${X",
    "${}",
    "${X:",
    "${X%x}",
    '"${X#x}"',
    "${X@U}",
    "${!X}",
    "${U:?none}",
]
"""What Docker's builder before BuildKit refuses, too."""
