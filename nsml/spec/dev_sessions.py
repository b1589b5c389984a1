"""Programs of `nsml dev` sessions: they wait for shells, or are a server opened on the user's machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WAITS: Final = ("python", "-c", "import threading; threading.Event().wait()")
"""A session that runs Python gets the environment its code requires, at least a bare Python."""
WAITS_IN_IMAGE: Final = ("sleep", "infinity")
"""For a user's image, which may have no Python."""
JUPYTER_FLAG: Final = "--jupyter"
JUPYTER_SERVICE: Final = "jupyter"
JUPYTER: Final = (
    "python",
    "-c",
    (
        "import os, shutil, sys; run = os.open(os.environ['NSML_RUN_DIR'], os.O_PATH);"
        " os.set_inheritable(run, True);"
        " os.environ.setdefault('SHELL', shutil.which('bash') or 'sh');"
        " os.execv(sys.executable, [sys.executable, '-m', 'jupyter', 'lab', '--no-browser',"
        f" '--allow-root', f'--ServerApp.sock=/proc/self/fd/{{run}}/tunnel/{JUPYTER_SERVICE}'])"
    ),
)
"""The server listens only on a Unix socket of the session. The path through an open folder is always short enough for it."""
CODE_SERVER_FLAG: Final = "--code-server"
CODE_SERVER_SERVICE: Final = "code"
CODE_SERVER_IN_IMAGE: Final = (
    "sh",
    "-c",
    (
        'd=$(mktemp -d) && ln -s "$NSML_RUN_DIR/tunnel" "$d/to"'
        ' && export SHELL="${SHELL:-$(command -v bash || command -v sh)}"'
        f' && exec code-server --socket "$d/to/{CODE_SERVER_SERVICE}" --auth none'
        ' --disable-workspace-trust --disable-telemetry --disable-update-check --user-data-dir "$d" .'
    ),
)
"""Through the link the path of its socket is always short enough. SHELL is for its terminals.

The platform authenticates its users. It does not ask whether to trust the folder, which is the user's.
"""
CODE_SERVER: Final = (
    "python",
    "-c",
    "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])",
    *CODE_SERVER_IN_IMAGE,
)
"""Its terminals have the environment that the code requires, at least a bare Python."""
_COMMAND: Final = ("nsml", "dev")
_FLAGS: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    WAITS: (),
    WAITS_IN_IMAGE: (),
    JUPYTER: (JUPYTER_FLAG,),
    CODE_SERVER: (CODE_SERVER_FLAG,),
    CODE_SERVER_IN_IMAGE: (CODE_SERVER_FLAG,),
}


def dev_words(argv: Sequence[str], command: Sequence[str]) -> list[str] | None:
    """Return how lists show such a session: `dev --jupyter`, `dev -- python -i model.py`; None for all others.

    `command`: the submitter's command line. The running program decides, since a command line may contain anything.
    """
    flags = _FLAGS.get(tuple(argv))
    is_typed = tuple(command[:2]) == _COMMAND
    if flags is None or not (is_typed or argv[0] != WAITS_IN_IMAGE[0]):  # others run it, too
        return None
    words = ["dev", *flags]
    if is_typed and "--" in command:
        words += command[list(command).index("--") :]
    return words
