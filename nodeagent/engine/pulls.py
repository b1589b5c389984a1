"""Pulling images through the engine; blocking.

Answers of a registry are never shown to users: the user chooses the host that the engine contacts from
the node's network. They get one of a few categories; the engine's own message is in the
agent's log.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import json
import re
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import structlog

from nodeagent.engine.client import EngineRefused, translated
from nodeagent.engine.streams import looked_after
from nsml.spec.images import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from nodeagent.engine.client import Engine

_LONGEST_DETAIL = 500
_LONGEST_LINE = 1 << 20

log = structlog.get_logger()


class PullProblem(enum.StrEnum):
    """Why an image was not pulled, in words for its user."""

    ABSENT = (
        "its registry has no such image, or gives you no access"
        " to it (nsml image login REGISTRY, or registry_config in the agent's settings)"
    )
    LIMITED = "its registry's rate limit is reached: try again later"
    UNANSWERED = (
        "its registry cannot be reached from this node, or is not a registry"
        " (the agent's log has the details)"
    )
    NO_SPACE = "the node's disk is full"
    PLATFORM = "it is built for another platform"
    TOO_LARGE = "it is over this node's size limit (image_bytes in the agent's settings)"


class PullFailed(EngineRefused):
    """An image was not pulled; the message is that of its `problem`."""

    def __init__(self, problem: PullProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


# Matched in this order against the engine's message, which may include a registry's.
_SIGNS = (
    (PullProblem.NO_SPACE, r"no space left on device|disk quota exceeded"),
    (PullProblem.LIMITED, r"toomanyrequests|too many requests|rate limit"),
    (PullProblem.PLATFORM, r"no matching manifest for|image operating system|exec format"),
    (PullProblem.ABSENT, r"manifest unknown|manifest for \S+ not found|not found: manifest"),
    (PullProblem.ABSENT, r"repository .*does not exist|pull access denied|denied: "),
    (PullProblem.ABSENT, r"unauthorized|no basic auth credentials"),
)


def problem_of(words: str) -> PullProblem:
    """Return the category of the engine's message about a failed pull."""
    for problem, signs in _SIGNS:
        if re.search(signs, words, re.IGNORECASE):
            return problem
    return PullProblem.UNANSWERED


@dataclass(slots=True)
class PullProgress:
    """Progress of a pull; `layers` is bytes (done, whole) of each layer being fetched."""

    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)

    @property
    def whole_bytes(self) -> int:
        """Bytes of all layers of known size."""
        return sum(size for _, size in self.layers.values())

    def text(self) -> str:
        """Describe it: "3 of 7 layers, 120 of 900 MB"."""
        here = sum(done for done, _ in self.layers.values()) / 1e6
        whole = self.whole_bytes / 1e6
        return f"{len(self.done)} of {len(self.known)} layers, {here:.0f} of {whole:.0f} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user's login at a registry; `version` differs for each one set."""

    registry: str
    user: str
    password: str = field(repr=False)
    version: int


def pull_image(
    engine: Engine,
    reference: str,
    *,
    credentials: Path | None,
    login: Login | None = None,
    look: Callable[[], object],
    most_bytes: int | None = None,
) -> Iterator[PullProgress]:
    """Pull `reference`, with `login`, or else with the credentials for its registry in a docker `config.json`.

    The engine aborts a pull when its client disconnects. `most_bytes`: limit of its layers, compressed.

    Raises:
        PullFailed: the engine or the registry refused, or the image exceeds `most_bytes`.
        EngineUnreachable: the engine does not answer.
    """
    name, tag, digest = parts_of(reference)
    query = urlencode({"fromImage": name, "tag": digest or tag or "latest"})
    path = f"/v{engine.sdk.api.api_version}/images/create?{query}"
    progress = PullProgress()
    connection = _Connection(str(engine.socket))
    try:
        with translated(engine.socket):
            connection.connect()
            answers = _answers(connection, path, _access(name, credentials, login))
            for answer in looked_after(answers, look):
                _note(progress, answer, most_bytes)
                yield progress
    except PullFailed:
        raise
    except EngineRefused as error:
        log.warning("image.not_pulled", image=reference, detail=str(error)[:_LONGEST_DETAIL])
        raise PullFailed(problem_of(str(error))) from None
    finally:
        connection.cut()


def ask_registry(
    engine: Engine,
    reference: str,
    *,
    credentials: Path | None,
    login: Login | None,
    look: Callable[[], object],
) -> None:
    """Return if the registry of a reference with a digest sends its manifest, with `login` or else with the credentials.

    A pull does not prove that: an engine that has the manifest of a digest does not ask for it.

    Raises:
        PullFailed: it does not, or the engine refused.
        EngineUnreachable: the engine does not answer.
    """
    api = engine.sdk.api

    def asked() -> Iterator[None]:
        with translated(engine.socket):
            answer = api._get(  # noqa: SLF001 - its own method takes credentials from files of this account
                api._url("/distribution/{0}/json", reference),  # noqa: SLF001
                headers=_access(parts_of(reference)[0], credentials, login),
            )
            api._raise_for_status(answer)  # noqa: SLF001
        yield None

    try:
        for _ in looked_after(asked(), look):
            pass
    except EngineRefused as error:
        log.warning("image.not_given", image=reference, detail=str(error)[:_LONGEST_DETAIL])
        raise PullFailed(problem_of(str(error))) from None


class _Connection(http.client.HTTPConnection):
    """A connection to the engine; `cut` aborts a pull whose registry sends nothing, from any thread."""

    def __init__(self, path: str) -> None:
        super().__init__("engine")
        self._path = path
        self._way: socket.socket | None = None

    def connect(self) -> None:
        self._way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._way.connect(self._path)
        self.sock = self._way

    def cut(self) -> None:
        if self._way is not None:
            with contextlib.suppress(OSError):
                self._way.shutdown(socket.SHUT_RDWR)


def _answers(
    connection: _Connection, path: str, headers: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the engine's messages about a pull, until its end; each may block, also the first.

    Raises OSError and EngineRefused.
    """
    try:
        connection.request("POST", path, headers=dict(headers))
        answer = connection.getresponse()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise EngineRefused(answer.read(_LONGEST_LINE).decode(errors="replace"))
        while line := answer.readline(_LONGEST_LINE):
            if line.strip():
                yield dict(json.loads(line))
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"its answer makes no sense: {error!r}") from error
    finally:
        connection.close()


def _access(name: str, credentials: Path | None, login: Login | None) -> dict[str, str]:
    """Return the header with the login, or the file's credentials for the registry of `name`; empty without any."""
    if credentials is None and login is None:
        return {}
    import docker.auth  # noqa: PLC0415 - see Engine.sdk

    if login is not None:
        shown = {
            "username": login.user,
            "password": login.password,
            "serveraddress": login.registry,
        }
        return {"X-Registry-Auth": docker.auth.encode_header(shown).decode("ascii")}
    config = docker.auth.load_config(str(credentials))
    registry, _ = docker.auth.resolve_repository_name(name)
    found = dict(config.resolve_authconfig(registry) or {})
    return {"X-Registry-Auth": docker.auth.encode_header(found).decode("ascii")} if found else {}


def _note(progress: PullProgress, answer: dict[str, Any], most_bytes: int | None) -> None:
    """Process a message of the engine. Raises EngineRefused for an error, PullFailed."""
    if "error" in answer:
        raise EngineRefused(" ".join(str(answer["error"]).split()))
    layer, status = answer.get("id", ""), str(answer.get("status", ""))
    if not layer or status.startswith("Pulling from"):
        return
    progress.known.add(layer)
    detail = answer.get("progressDetail") or {}
    if status == "Downloading" and detail.get("total"):
        progress.layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
    elif status in {"Download complete", "Pull complete", "Already exists"}:
        _, whole = progress.layers.get(layer, (0, 0))
        progress.layers[layer] = (whole, whole)
    if status in {"Pull complete", "Already exists"}:
        progress.done.add(layer)
    if most_bytes is not None and progress.whole_bytes > most_bytes:
        raise PullFailed(PullProblem.TOO_LARGE)
