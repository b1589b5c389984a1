"""A site's image settings, and a request for an image by one session, build or pull."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.environments.allowed import ANY

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nodeagent.engine.pulls import Login
    from nodeagent.environments.build_queue import Waits
    from nodeagent.environments.builds import Say

NO_NETWORK = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """A site's rules. Times are seconds; `credentials` is a docker `config.json`.

    `aliases` map retired names, with their tag, to others. `always_pulls`: even if the image is
    present. `allowed`: patterns as in `allowed.py`. `network`: the engine's network for builds.
    `default_packages`: lines of requirements, installed on the default image.
    `image_bytes`: maximum size of a pulled image; `disk_bytes`: the most that a build may write.
    """

    default: str = ""
    default_packages: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    always_pulls: bool = False
    credentials: Path | None = None
    allowed: Sequence[str] = (ANY,)
    network: str = NO_NETWORK
    memory_bytes: int = 8 << 30
    cpus: float = 4.0
    time_limit_s: float = 3600.0
    disk_bytes: int = 50_000_000_000
    image_bytes: int = 100_000_000_000
    pull_time_limit_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """A request for an image; see Images.provide for the fields."""

    owner: str
    say: Say
    cancelled: threading.Event
    waits: Waits
    use: Callable[[str], object]
    built_after: float = 0.0
    built: Callable[[float], object] = lambda _: None
    lock: str = ""
    keeps_whole_lock: bool = False
    installed: Callable[[str], object] = lambda _: None
    logins: Mapping[str, Login] = field(default_factory=dict, repr=False)
