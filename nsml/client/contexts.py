"""The platform and the user of a client: `config.toml` and the environment.

    current = "default"

    [contexts.default]
    server = "gpu.lab:18553"
    servers = ["gpu.lab:18553", "gpu2.lab:18553"]
    ca = "/home/kim/.config/nsml/authorities/default.pem"
    server_name = "nsml-controlplane"
    token_file = "/home/kim/.config/nsml/tokens/default"

    [settings]
    output = "table"

`servers` are the control planes of the platform, `server` the first of them. Tokens are in separate files,
readable only by their owner. NSML_CONTEXT selects a context, NSML_SERVER (one, or several separated by
commas) and NSML_TOKEN_FILE replace its parts, NSML_CONFIG_DIR replaces the folder.

Paths are strings here: importing pathlib would take a fourteenth of a short command's time.
"""

from __future__ import annotations

import os
import re
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from nsml.common.private_files import Exposed, read_private
from nsml.common.shell import shell_word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from random import Random

FILE_NAME = "config.toml"
_CONTEXT_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_PORT = 18553
_OFFERED = 3
"""Most contexts named by an error."""
MOST_SERVERS = 9
"""Most control planes saved for one platform."""


class ContextError(Exception):
    """The configuration does not determine the platform; `advice` says what to do."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


class NoContext(ContextError):
    """No platform is configured yet."""


class DamagedToken(ContextError):
    """The token file contains no token."""


class Context(NamedTuple):
    """One platform and one user's access to it."""

    name: str
    server: str
    """HOST:PORT, or unix:PATH: the control plane to try first."""
    ca: str = ""
    """File of the server's certificate authority, PEM; empty: the system's, or plaintext on loopback."""
    token_file: str = ""
    """File of the secret; empty: none."""
    server_name: str = ""
    """Required name in the server's certificate; empty: the host of `server`. With the platform's
    own authority in `ca` all its listeners have this name, whatever the host's name is here."""
    others: tuple[str, ...] = ()
    """The other control planes of the platform, like `server`: tried if that one is down."""
    server_uid: int | None = None
    """Account of this machine that serves `server` without TLS, seen at login; None: root, or the user's own."""

    @property
    def servers(self) -> tuple[str, ...]:
        """All control planes, in the order of tries."""
        return (self.server, *(one for one in self.others if one != self.server))

    @property
    def places(self) -> str:
        """All control planes, for people."""
        return ", ".join(self.servers)

    def at(self, servers: Sequence[str]) -> Context:
        """Return the context with these addresses."""
        return self._replace(server=servers[0], others=tuple(servers[1:]))

    def token(self) -> str | None:
        """Read the secret; None without a file.

        Raises ContextError for an unreadable file, DamagedToken for one without a token.
        """
        if not self.token_file:
            return None
        try:
            secret = read_private(self.token_file).decode(errors="replace").strip()
        except FileNotFoundError:
            return None
        except Exposed as error:
            raise ContextError(
                f"the token file {self.token_file} may be read by others on this machine",
                advice=f"chmod 600 {shell_word(str(self.token_file))}\nnsml login {self.server}    if somebody may have read it",
            ) from error
        except OSError as error:
            raise ContextError(
                f"cannot read the token file {self.token_file}: {error.strerror}"
            ) from error
        if secret and not is_token(secret):
            raise DamagedToken(
                f"the token file {self.token_file} is damaged",
                advice=f"nsml login {self.server}",
            )
        return secret or None


class Config(NamedTuple):
    """Contents of config.toml. Immutable: a change makes a new one, `save` writes it."""

    folder: str
    current: str = ""
    contexts: Mapping[str, Context] = MappingProxyType({})
    settings: Mapping[str, str] = MappingProxyType({})

    @property
    def file(self) -> str:
        """The file itself; it need not exist."""
        return os.path.join(self.folder, FILE_NAME)

    def with_context(self, context: Context, *, current: bool = True) -> Config:
        """Return a copy with `context` added or replaced, and by default current."""
        check_name(context.name)
        return self._replace(
            contexts={**self.contexts, context.name: context},
            current=context.name if current else self.current,
        )


def config_folder(environ: Mapping[str, str]) -> str:
    """Return this user's configuration folder; it need not exist."""
    chosen = environ.get("NSML_CONFIG_DIR")
    if chosen:
        return chosen
    platform: str = sys.platform  # annotated: mypy would take the other branch for dead
    if platform.startswith("linux"):
        home = os.path.expanduser(environ.get("HOME") or "~")
        return os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "nsml")
    # Imported only here: it costs more than the rest of the module.
    from platformdirs import user_config_dir

    return user_config_dir("nsml", appauthor=False)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return this user's cache folder; it need not exist."""
    from pathlib import Path

    base = environ.get("XDG_CACHE_HOME") or environ.get("LOCALAPPDATA")
    return Path(base or Path(environ.get("HOME") or "~").expanduser() / ".cache") / "nsml"


def load(environ: Mapping[str, str]) -> Config:
    """Read config.toml; an empty configuration when there is none.

    Raises ContextError for an invalid file.
    """
    from nsml.common.text_files import toml_of

    empty = Config(folder=config_folder(environ))
    file = empty.file
    try:
        with open(file, "rb") as opened:
            tree = toml_of(opened.read())
    except FileNotFoundError:
        return empty
    except OSError as error:
        raise ContextError(f"cannot read {file}: {error}") from error
    except UnicodeDecodeError as error:
        raise ContextError(f"{file} is not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:  # also too long numbers or deep nesting
        raise ContextError(f"{file} is not sound TOML: {error}") from error
    return _filled(empty, tree)


def _filled(empty: Config, tree: Mapping[str, Any]) -> Config:
    file = empty.file
    contexts: dict[str, Context] = {}
    for name, entry in _table(file, tree, "contexts").items():
        if not isinstance(entry, dict) or not {"server", "servers"} & entry.keys():
            raise ContextError(f"{file}: [contexts.{name}] has no server")
        servers = _texts(file, entry, "servers") or (_text(file, entry, "server"),)
        contexts[name] = Context(
            name=name,
            server=servers[0],
            others=servers[1:],
            ca=_text(file, entry, "ca"),
            token_file=_text(file, entry, "token_file"),
            server_name=_text(file, entry, "server_name"),
            server_uid=_number(file, entry, "server_uid"),
        )
    settings = _table(file, tree, "settings")
    return empty._replace(
        current=_text(file, tree, "current"),
        contexts=contexts,
        settings={key: _text(file, settings, key) for key in settings},
    )


def _table(file: str, tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = tree.get(key, {})
    if not isinstance(found, dict):
        raise ContextError(f"{file}: {key} is not a table")
    return found


def _text(file: str, tree: Mapping[str, Any], key: str) -> str:
    found = tree.get(key, "")
    if not isinstance(found, str):
        raise ContextError(f"{file}: {key} is not text in quotes")
    return found


def _number(file: str, tree: Mapping[str, Any], key: str) -> int | None:
    found = tree.get(key)
    if found is not None and type(found) is not int:
        raise ContextError(f"{file}: {key} is not a number")
    return found


def _texts(file: str, tree: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = tree.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ContextError(f"{file}: {key} is not a list of texts in quotes")
    return tuple(found)


def known_servers(
    known: Sequence[str], told: Sequence[str], rng: Random | None = None
) -> tuple[str, ...]:
    """Merge the known servers of a platform with those reported by its control planes.

    The first server stays first; new ones are shuffled, so that users fail over to different ones. A
    missing one may be back when all others are gone, so it is kept, last.
    """
    fresh = [one for one in dict.fromkeys(told) if one not in known]
    if rng is not None:
        rng.shuffle(fresh)
    kept = [one for one in known[1:] if one in told]
    rest = [one for one in known[1:] if one not in told]
    return (*known[:1], *kept, *fresh, *rest)[:MOST_SERVERS]


def save(config: Config) -> None:
    """Write config.toml, atomically."""
    from pathlib import Path

    write_private(Path(config.file), _to_toml(config))


def _to_toml(config: Config) -> str:
    lines = [f"current = {_quoted(config.current)}"]
    for name, context in sorted(config.contexts.items()):
        lines += ["", f"[contexts.{_quoted(name)}]", f"server = {_quoted(context.server)}"]
        if context.others:
            lines.append(f"servers = [{', '.join(map(_quoted, context.servers))}]")
        if context.ca:
            lines.append(f"ca = {_quoted(context.ca)}")
        if context.server_name:
            lines.append(f"server_name = {_quoted(context.server_name)}")
        if context.token_file:
            lines.append(f"token_file = {_quoted(context.token_file)}")
        if context.server_uid is not None:
            lines.append(f"server_uid = {context.server_uid}")
    if config.settings:
        lines += ["", "[settings]"]
        lines += [f"{key} = {_quoted(value)}" for key, value in sorted(config.settings.items())]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Format a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner; OSError names the file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise


def chosen_name(config: Config, environ: Mapping[str, str], name: str | None = None) -> str:
    """Return the name of the context that `choose` uses; "" for none."""
    return name or environ.get("NSML_CONTEXT") or config.current


def choose(config: Config, environ: Mapping[str, str], name: str | None = None) -> Context:
    """Return the context to use: `name`, else NSML_CONTEXT, else the current one.

    NSML_SERVER and NSML_TOKEN_FILE replace its parts. Raises ContextError if there is none.
    """
    wanted = chosen_name(config, environ, name)
    found = config.contexts.get(wanted)
    if found is None and (name or environ.get("NSML_CONTEXT")):
        known = ", ".join(sorted(config.contexts)) or "none"
        raise ContextError(f"no context {wanted!r} (known: {known})", advice="nsml context ls")
    servers = _servers_in(environ)
    if found is None:
        if not servers:
            offered = [
                f"nsml context use {shell_word(one)}" for one in sorted(config.contexts)[:_OFFERED]
            ]
            raise NoContext(
                "no platform is chosen yet",
                advice="\n".join(
                    [
                        *offered,
                        "nsml up          start one on this machine",
                        "nsml login HOST  use one that runs elsewhere",
                    ]
                ),
            )
        found = Context(name="environment", server="").at(servers)
    elif servers:
        # Never send a platform's token to servers of another one, unless requested.
        is_its = set(servers) <= set(found.servers)
        found = found.at(servers)._replace(token_file=found.token_file if is_its else "")
    token_file = environ.get("NSML_TOKEN_FILE")
    return found._replace(token_file=token_file) if token_file else found


def _servers_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    chosen = environ.get("NSML_SERVER", "")
    # The path of a socket may contain commas: it is the only server.
    found = [chosen] if chosen.startswith("unix:") else chosen.split(",")
    return tuple(one.strip() for one in found if one.strip())


def is_token(text: str) -> bool:
    """Whether this can be a token: visible ASCII, as required in headers."""
    return bool(text) and text.isascii() and text.isprintable()


def check_name(name: str) -> None:
    """Raise ContextError unless `name` is valid for a context and its token file."""
    if not re.fullmatch(_CONTEXT_NAME, name):
        raise ContextError(f"{name!r} cannot name a context: letters, digits, '.', '_', '-'")


def parse_server(text: str) -> str:
    """Normalize HOST, HOST:PORT, [V6]:PORT or unix:PATH to the form of `Context.server`.

    Raises ContextError for anything else. The default port is 18553.
    """
    if text.startswith("unix:"):
        return text
    rest = re.sub(r"\A(https?|grpcs?)://", "", text).rstrip("/")
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?", rest)
    if match is None or int(match[2] or _PORT) > 0xFFFF:
        raise ContextError(f"{text!r} is not HOST, HOST:PORT or unix:PATH")
    return f"{match[1]}:{match[2] or _PORT}"


def split_server(server: str) -> tuple[str, int]:
    """Return host, without brackets, and port of a parsed server; not for unix:PATH."""
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


def server_at(host: str, port: int) -> str:
    """Format HOST:PORT, or [V6]:PORT: the inverse of `split_server`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def may_be_ours(context: Context) -> bool:
    """Whether `nsml up` may start the platform of a context: its servers are on this machine."""
    is_here = any(server.startswith("unix:") for server in context.servers)
    # A plaintext port of this machine may be ours too; one with an authority is somebody else's.
    return is_here or (not context.ca and all(map(is_local, context.servers)))


def is_local(server: str) -> bool:
    """Whether the server is reached without a network: only then plaintext is allowed."""
    if server.startswith("unix:"):
        return True
    host = server.rsplit(":", 1)[0].strip("[]").lower()
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None
