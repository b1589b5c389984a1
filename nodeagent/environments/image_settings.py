"""What a site sets about images, and what is asked of them for one session, build or pull."""

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

    `aliases` lead from names that are retired, with their tag, to others. `always_pulls`: also what is
    here already. `allowed`: patterns as in `allowed.py`. `network`: the engine's network of builds.
    `default_packages`: lines of requirements, upon the default image.
    `image_bytes` is the most that a pulled image may have, `disk_bytes` the most that a build may write.
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
    """Who waits for an image; see Images.provide for the fields."""

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
