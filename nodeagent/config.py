"""The agent's settings: one typed tree, read once by `main` from a TOML file and the environment.

Each field of `Settings` can be overridden by `NSML_AGENT_<FIELD>`; nothing is read at import.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

ENVIRONMENT_PREFIX = "NSML_AGENT_"


class SettingsError(Exception):
    """Settings that cannot be used; the message says which and why."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one agent needs to know. Relative paths are meant from the settings file's folder."""

    node: str
    """Name of this node; the token or certificate must be for it."""

    server: str
    """Control plane: HOST:PORT or unix:PATH. Plaintext only to loopback and Unix sockets."""

    data: Path
    """Folder of replicas, caches and the journal; made private to the agent."""

    token_file: Path | None = None
    """File with the node's bearer token; for a local control plane."""

    authority_file: Path | None = None
    """PEM of the platform's certificate authority; set: the connection is TLS."""

    certificate_file: Path | None = None
    """PEM of the node's certificate; with `key_file`."""

    key_file: Path | None = None
    """PEM of the certificate's key."""

    host: str = ""
    """Name or address under which other nodes reach this one; empty: the host name."""

    pod: str = ""
    """Nodes with the same pod share a fast network."""

    owner: str = ""
    """With isolation none: the user whose sessions this node takes."""

    isolation: Literal["auto", "namespace", "none"] = "auto"
    """How sessions are separated; `auto`: the strongest that this machine allows."""

    simulate_gpus: int = 0
    """Offer so many simulated GPUs instead of the machine's; every screen says so."""

    cpus: float = 0
    """Cores that sessions may use in sum; 0: all of the machine."""

    memory_bytes: int = 0
    """Memory that sessions may use in sum; 0: all of the machine."""

    sample_interval_s: float = 1.0
    """Time between two readings of the node."""

    longest_backoff_s: float = 3.0
    """Longest pause between two attempts to reach the control plane."""

    def __post_init__(self) -> None:
        """Refuse values that no agent can work with."""
        problems = [
            ("node", bool(self.node), "a node needs a name"),
            ("server", bool(self.server), "the address of a control plane is missing"),
            ("simulate_gpus", 0 <= self.simulate_gpus <= 64, "between 0 and 64"),
            ("cpus", self.cpus >= 0, "not negative"),
            ("memory_bytes", self.memory_bytes >= 0, "not negative"),
            ("sample_interval_s", self.sample_interval_s > 0, "more than 0"),
            ("longest_backoff_s", self.longest_backoff_s > 0, "more than 0"),
            (
                "key_file",
                (self.key_file is None) == (self.certificate_file is None),
                "certificate_file and key_file belong together",
            ),
        ]
        for field, is_sound, rule in problems:
            if not is_sound:
                raise ValueError(f"{field}: {rule}")


def read_settings(path: Path, environment: Mapping[str, str]) -> Settings:
    """The settings in the TOML file `path`, overridden by `environment`.

    Raises:
        SettingsError: the file cannot be read, or a value is missing, unknown or out of range.
    """
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    for field in Settings.__struct_fields__:
        if value := environment.get(ENVIRONMENT_PREFIX + field.upper()):
            document[field] = value
    try:
        settings = msgspec.convert(document, Settings, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {error}") from error
    return _with_absolute_paths(settings, path.absolute().parent)


def _decode(wanted: type, value: object) -> object:
    """What msgspec does not know by itself: paths."""
    if wanted is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"a {wanted.__name__} in the settings")


def _with_absolute_paths(settings: Settings, base: Path) -> Settings:
    fields = ("data", "token_file", "authority_file", "certificate_file", "key_file")
    paths = {field: getattr(settings, field) for field in fields}
    return msgspec.structs.replace(
        settings,
        **{field: base / path.expanduser() for field, path in paths.items() if path is not None},
    )
