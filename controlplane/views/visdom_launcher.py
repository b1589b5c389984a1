"""Starts a visdom server for one view, with the interpreter of an environment that has it.

Standard library, tornado and visdom only: nothing of nsml is installed there. `--check` writes one line of
JSON about that environment. Otherwise the order comes on standard input, a line of JSON, and the end of that
input is the end of the server.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import resource
import sys
import threading
from pathlib import Path
from typing import Any

MOST_MEMORY = 1 << 30
_NAMED = re.compile(r"""static_url\(\s*["']([^"']+)["']""")


def found() -> dict[str, Any]:
    """What is there: versions ("" for none), and those of the page's own files that are not."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "visdom": _version("visdom"),
        "tornado": _version("tornado"),
        "missing": _missing(),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _missing() -> list[str]:
    spec = importlib.util.find_spec("visdom")
    if spec is None or not spec.submodule_search_locations:
        return []
    static = Path(spec.submodule_search_locations[0]) / "static"
    try:
        page = (static / "index.html").read_text(encoding="utf-8")
    except OSError:
        return ["index.html"]
    # The style sheet of the user is made by the server, not found in a file.
    names = [name for name in _NAMED.findall(page) if not name.startswith("..")]
    return [name for name in names if not _has_content(static / name)]


def _has_content(file: Path) -> bool:
    """A download that failed may have left an empty file."""
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


def serve(order: dict[str, Any]) -> None:
    """Answer on the Unix socket of the order until the process ends."""
    import tornado.httpserver  # noqa: PLC0415 - `--check` needs none of it
    import tornado.ioloop  # noqa: PLC0415
    import tornado.netutil  # noqa: PLC0415
    from visdom.server import app  # noqa: PLC0415

    # It would look for changes of its own source, and start itself anew after one.
    app.tornado_settings["autoreload"] = False
    application = app.Application(
        base_url=order["prefix"],
        env_path=None,  # nothing is written to disk
        readonly=True,
        use_frontend_client_polling=True,
    )
    # What went wrong is for its own log, not for pages.
    application.settings.update(debug=False, serve_traceback=False)
    server = tornado.httpserver.HTTPServer(application)
    server.add_socket(tornado.netutil.bind_unix_socket(order["socket"], mode=0o600))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads further
    tornado.ioloop.IOLoop.current().start()


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def main() -> None:
    """See the module."""
    if sys.argv[1:] == ["--check"]:
        print(json.dumps(found()))  # noqa: T201 - the answer
        return
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    # Whoever looks can ask for as many environments as they like.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    # A line for each request that is refused would fill the log.
    logging.disable(logging.CRITICAL)
    serve(order)


if __name__ == "__main__":
    main()
