"""Wheels without an index of packages: what is installed here, packed again, and made ones, hostile ones too."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import http.server
import io
import threading
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path


def repacked(name: str, folder: Path) -> Path:
    """The wheel in `folder` that an installed package came from; this machine can install it."""
    found = distribution(name)
    # What pip made of it here, such as programs and bytecode, it makes again.
    files = [
        file
        for file in found.files or ()
        if ".." not in file.parts
        and file.suffix != ".pyc"
        and file.name not in {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    ]
    facts = (found.read_text("WHEEL") or "").splitlines()
    tag = next(line.removeprefix("Tag: ") for line in facts if line.startswith("Tag: "))
    place = folder / f"{found.name.replace('-', '_')}-{found.version}-{tag}.whl"
    record = next(file for file in found.files or () if file.name == "RECORD")
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(
        [(str(file), "", "") for file in [*files, record]]
    )
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(place, "w") as wheel:
        for file in files:
            wheel.write(str(file.locate()), str(file))
        wheel.writestr(str(record), rows.getvalue())
    return place


def make_wheel(
    folder: Path,
    name: str,
    body: str = "",
    needs: str = "",
    *,
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
    modes: Mapping[str, int] | None = None,
) -> Path:
    """A wheel with one module, without any build.

    `needs` are further lines of its metadata, `files` further files by their path in the archive, whatever
    that is; `modes` are their modes there, of a link or a set-id program, too.
    """
    info = f"{name}-{version}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    content = {
        f"{name}.py": body.encode(),
        **(files or {}),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    rows = io.StringIO()
    lines = csv.writer(rows, lineterminator="\n")
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.writerow((path, f"sha256={digest}", len(data)))
    lines.writerow((f"{info}/RECORD", "", ""))
    content[f"{info}/RECORD"] = rows.getvalue().encode()
    place = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (modes or {}).get(path, 0o100644) << 16
            archive.writestr(entry, data)
    return place


@contextlib.contextmanager
def index_of(folder: Path) -> Iterator[str]:
    """The URL of an index on this machine with the wheels of a folder; its pages are made as they are asked for."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").rpartition("/")[2]
            wheel = folder / name
            if wheel.suffix == ".whl" and wheel.is_file():
                content = wheel.read_bytes()
            else:
                wheels = sorted(folder.glob(f"{name.replace('-', '_')}-*.whl"))
                links = [f'<a href="/{one.name}">{one.name}</a>' for one in wheels]
                content = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
            self.send_response(200)
            is_page = wheel.suffix != ".whl"
            self.send_header("Content-Type", "text/html" if is_page else "application/zip")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 - the name that it is called by

        def log_message(self, *_given: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
