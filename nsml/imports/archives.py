"""The backup of a session that is made of a run of another tool (docs/session-backup.md)."""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from nsml._path_text import recorded_name
from nsml._version import VERSION
from nsml.client.session_backups import message_dict
from nsml.common.units import moment
from nsml.content.session_archives import ArchiveWriter, Header
from nsml.imports.artifact_files import pieces_of
from nsml.imports.runs import Outcome, Recording
from nsml.spec import labels
from nsml.spec.dataset_names import is_dataset_name
from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from nsml.imports.runs import PastRun

_FOLDER: Final = "sessions/1"
_MOST_MEMO_BYTES: Final = 4 << 10
_MOST_WORDS_BYTES: Final = 16 << 10
_MOST_NAME_CHARS: Final = 200
_NO_COMMAND: Final = ("(unknown)",)
_PIECE_BYTES: Final = 1 << 20
_ENDS: Final = {
    Outcome.SUCCEEDED: (
        sessions_pb2.SESSION_STATE_SUCCEEDED,
        sessions_pb2.CAUSE_COMPLETED,
    ),
    Outcome.FAILED: (sessions_pb2.SESSION_STATE_FAILED, sessions_pb2.CAUSE_PROGRAM_FAILED),
    Outcome.STOPPED: (sessions_pb2.SESSION_STATE_STOPPED, sessions_pb2.CAUSE_STOP_REQUESTED),
}


def dataset_of(text: str) -> str:
    """Return a valid name of a dataset that resembles a text; "None" if nothing of it can be in one."""
    found = re.sub("[^A-Za-z0-9_.-]+", "-", text)
    found = re.sub(r"\.{2,}", ".", found).lstrip("_.-")[:64].rstrip("-.")
    return found if is_dataset_name(found) else "None"


def name_of(run: PastRun, dataset: str) -> str:
    """Return the name under which the session says that it was imported: ORIGIN/DATASET/RUN."""
    return f"{run.origin}/{dataset}/{recorded_name(run.name)[:_MOST_NAME_CHARS] or run.id}"


def session_of(run: PastRun, dataset: str) -> sessions_pb2.Session:
    """Return the record of the session, as far as the run is known."""
    state, cause = _ENDS[run.outcome]
    session = sessions_pb2.Session(
        id=run.id,
        name=name_of(run, dataset),
        owner=recorded_name(run.owner)[:_MOST_NAME_CHARS],
        state=state,
        attempt=1,
        memo=_memo(run),
        end=sessions_pb2.SessionEnd(cause=cause, exit_code=run.exit_code),
    )
    session.spec.argv.extend(_words(run.command) or _NO_COMMAND)
    session.spec.labels.update(_labels(run))
    attempt = session.attempts.add(number=1, cause=cause)
    if run.host:
        session.replicas.add(
            node=recorded_name(run.host)[:_MOST_NAME_CHARS], python_version=run.python_version[:40]
        )
    if run.began_at:
        began, ended = (round(at * 1e9) for at in (run.began_at, max(run.began_at, run.ended_at)))
        session.created_at.FromNanoseconds(began)
        session.started_at.FromNanoseconds(began)
        session.ended_at.FromNanoseconds(ended)
        attempt.placed_at.FromNanoseconds(began)
        attempt.ended_at.FromNanoseconds(ended)
    return session


@contextmanager
def recorded(run: PastRun, *, with_artifacts: bool = True) -> Generator[Recording, None, None]:
    """Read a run into a temporary folder. Blocking. Raises OSError, ValueError if it is not readable."""
    scratch = Path(tempfile.mkdtemp(prefix="nsml-import-"))
    try:
        with Recording(
            run.origin, scratch, run.began_at, with_artifacts=with_artifacts
        ) as recording:
            run.read(recording)
            run.began_at = run.began_at or recording.first_at
            run.ended_at = max(run.ended_at or recording.last_at, run.began_at)
            yield recording
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_archive(
    file: IO[bytes], run: PastRun, recording: Recording, *, dataset: str, now: float
) -> None:
    """Write the backup of one session. Blocking. Raises OSError, ValueError if a file changed."""
    session = session_of(run, dataset)
    for name, values in recording.configs.items():
        if values:
            session.reported_config.runs.add(
                origin=run.origin, run=name, json=json.dumps(_json_value(values))
            )
    header = Header(run.origin, VERSION, moment(now), session.owner, (session.name,))
    with ArchiveWriter(file, header, now=now) as archive:
        _add_artifacts(archive, recording)
        _add_media(archive, recording)
        size, pieces = recording.records()
        if size:
            archive.add_pieces(f"{_FOLDER}/records/1-0-1.jsonl", size, pieces)
        if recording.log_bytes.tell():
            _add_file(archive, f"{_FOLDER}/logs/1-0.log", recording.log_bytes)
            _add_file(archive, f"{_FOLDER}/logs/1-0.jsonl", recording.log_index)
        record = {"session": message_dict(session), "left_out": recording.left_out}
        archive.add(f"{_FOLDER}/session.json", json.dumps(record).encode() + b"\n")
        archive.finish()


def _add_artifacts(archive: ArchiveWriter, recording: Recording) -> None:
    rows = []
    for one in recording.artifacts.found:
        tree = f"{_FOLDER}/artifacts/{one.tree}"
        for file in one.files:
            archive.add_pieces(
                f"{tree}/{file.path}",
                file.size,
                pieces_of(one, file),
                is_executable=file.is_executable,
            )
        artifact = {
            "name": one.name,
            "version": one.version,
            "state": "ARTIFACT_STATE_DURABLE",
            "size_bytes": one.size,
            "file_count": len(one.files),
            "saved_at": moment(one.saved_at or recording.last_at),
            "attempt": 1,
        }
        rows.append(json.dumps({"artifact": artifact, "path": tree}).encode() + b"\n")
    if rows:
        archive.add(f"{_FOLDER}/artifacts.jsonl", b"".join(rows))


def _add_media(archive: ArchiveWriter, recording: Recording) -> None:
    if not recording.media_files:
        return
    folders = sorted(recording.scratch.glob("media-*"), key=lambda one: int(one.name[6:]))
    for folder in folders:
        for path in sorted(folder.iterdir()):
            with path.open("rb") as file:
                pieces = iter(partial(file.read, _PIECE_BYTES), b"")
                archive.add_pieces(
                    f"{_tree(int(folder.name[6:]))}/{path.name}", path.stat().st_size, pieces
                )
    with tempfile.TemporaryFile() as rows:
        for row in _media_rows(recording):
            rows.write(json.dumps(row).encode() + b"\n")
        _add_file(archive, f"{_FOLDER}/media.jsonl", rows)


def _media_rows(recording: Recording) -> Iterator[dict[str, Any]]:
    recording.media_rows.seek(0)
    for line in recording.media_rows:
        found = json.loads(line)
        media = {
            "name": found["name"],
            "kind": found["type"],
            "time": moment(found["time"]),
            "attempt": 1,
            "content_type": found["content_type"],
            "caption": found["caption"],
            "facts": found["facts"],
            "size_bytes": found["size"],
            "file": found["file"],
        }
        if found["step"] is not None:
            media["step"] = float(found["step"])
        yield {"media": media, "path": _tree(found["tree"])}


def _tree(number: int) -> str:
    return f"{_FOLDER}/media/1-0" + (f"-{number + 1}" if number else "")


def _add_file(archive: ArchiveWriter, path: str, file: IO[bytes]) -> None:
    size = file.seek(0, 2)
    file.seek(0)
    archive.add_pieces(path, size, iter(partial(file.read, _PIECE_BYTES), b""))


def _memo(run: PastRun) -> str:
    text = run.name if not run.notes else f"{run.name}: {run.notes}"
    return (
        recorded_name(text.replace("\n", " ")).encode()[:_MOST_MEMO_BYTES].decode("utf-8", "ignore")
    )


def _words(words: tuple[str, ...]) -> list[str]:
    found, left = [], _MOST_WORDS_BYTES
    for word in words:
        text = recorded_name(word)
        left -= len(text.encode()) + 1
        if left < 0:
            break
        found.append(text)
    return found if found and found[0] else []


def _labels(run: PastRun) -> dict[str, str]:
    found = {}
    for key, value in run.labels.items():
        text = "".join(one if one.isprintable() else " " for one in value)
        text = text.strip()[: labels.MOST_CHARACTERS].strip()
        if labels.is_key(key) and text and not labels.value_error(text):
            found[key] = text
    return dict(list(found.items())[: labels.MOST_LABELS])


def _json_value(value: Any) -> Any:
    """Return a value without numbers and texts that JSON lacks."""
    if isinstance(value, dict):
        return {recorded_name(key): _json_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
