"""The agent's settings: one typed tree, read once by `main` from a TOML file and the environment.

Each field of `Settings` can be overridden by `NSML_AGENT_<FIELD>`; nothing is read at import.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from nodeagent.environments.allowed import ANY, is_pattern
from nodeagent.environments.conda import CHANNELS_RULE, are_channels
from nodeagent.environments.defaults import NAMES
from nodeagent.network.gang_network import is_mode
from nodeagent.shim.namespaces import FIRST_OWNER
from nsml.common import settings
from nsml.common.local_peers import FIRST_SESSION_UID, SESSION_UID_COUNT
from nsml.common.log_files import LONGEST_LOG_BYTES
from nsml.common.private_folders import words_of
from nsml.common.settings import SettingsError
from nsml.spec.images import OWN_IMAGE, RULE, is_made_here, is_reference
from nsml.spec.in_place_paths import MOST_SHARED_ROOTS, is_plain

__all__ = ["Settings", "SettingsError", "read_settings", "settings_to_be", "unreadable_files"]

ENVIRONMENT_PREFIX = "NSML_AGENT_"

METADATA_ADDRESSES = (
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.0.23",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fe80::a9fe:a9fe",
)
"""AWS, Google, Azure, Oracle, OpenStack and most others; AWS containers; Tencent; Alibaba; Azure's agent;
Oracle Classic; by IPv6 AWS, its containers, Google, OpenStack."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one agent needs to know. Relative paths are meant from the settings file's folder."""

    node: str
    """Name of this node; the token or certificate must be for it."""

    server: str
    """Control plane: HOST:PORT or unix:PATH, or several with commas between; the agent learns the others
    from the first that answers. Plaintext only to loopback and Unix sockets."""

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
    """Name or address under which other nodes reach this one; empty: the address from which it reaches
    the control plane, or which leads out of the machine."""

    gang_network: str = ""
    """What replicas of gangs get where sessions run in containers: `host`, the machine's own network;
    `overlay:NAME`, a network of the engine; `none`: no gangs here. Empty: none for containers. Without
    them it is the machine's, or `none`. The same on all nodes of a pod."""

    session_network: Literal["auto", "own", "host"] = "auto"
    """What sessions at level `namespace` get that are no gangs: `own`, a network of their own, whose loopback
    nobody else reaches, and the agent does not start where that does not work; `auto`, that where it works
    (root with nftables, or pasta), else the machine's; `host`, the machine's."""

    host_network: Literal["never", "on-request"] = "never"
    """Which sessions that are no gangs have the machine's network though sessions here have networks of their
    own: `never` any; `on-request`, those that ask for it (`nsml run --network host`), of every user, with
    `gang_devices`, `gang_memlock` and `gang_environment`."""

    shared_roots: tuple[str, ...] = ()
    """Folders of a shared file system that this machine has: sessions whose datasets are in place below them
    (`nsml dataset add --in-place`) run here, and have those folders mounted, read-only. The folders above a dataset must
    belong to root or the agent's account, and be writable by nobody else. Only with isolation by containers or
    namespaces."""

    session_subnet: str = "198.18.0.0/15"
    """Where the addresses of such networks come from; a free part of it is taken, and seen on this machine only."""

    session_ports: tuple[int, ...] = ()
    """TCP ports of this machine that sessions with a network of their own reach."""

    session_connections: int = 8192
    """Connections to other machines that such a session, or a container, may have open at a time."""

    session_nameservers: tuple[str, ...] = ()
    """IPv4 addresses of resolvers for such sessions; empty: those of the machine."""

    metadata_addresses: tuple[str, ...] = METADATA_ADDRESSES
    """Addresses and ranges that no session reaches, but for names: metadata services of clouds, which give
    the machine's credentials away. Kept where the agent is root and sessions have ids or networks of their own,
    or containers of a network with a bridge on the machine."""

    gang_devices: tuple[str, ...] = ()
    """Nodes or folders of /dev that gangs get, for example /dev/infiniband; see `host_network`."""

    gang_memlock: bool = False
    """Whether gangs in containers may lock as much memory as they like, as RDMA needs."""

    gang_environment: tuple[str, ...] = ()
    """NAME=VALUE for every gang, for example NCCL_SOCKET_IFNAME=eth1; a session's own stand."""

    pod: str = ""
    """Nodes with the same pod share a fast network."""

    mps_folder: Path | None = None
    """Pipe folder of a running MPS control daemon (its CUDA_MPS_PIPE_DIRECTORY): sessions with a part
    of a GPU become its clients, which keeps them to it. None: they are told their part only."""

    owner: str = ""
    """The user whose sessions this node takes where it cannot keep users apart: without isolation, and
    where its agent has neither root nor a container engine."""

    isolation: Literal["auto", "container", "namespace", "user", "none"] = "auto"
    """How sessions are separated; `auto`: the strongest that this machine allows, containers also where
    their engine comes up after the agent."""

    uid_first: int = FIRST_SESSION_UID
    """First of the ids that an agent with root gives its users on this machine, and caches of theirs."""

    uid_count: int = SESSION_UID_COUNT
    """How many such ids there are."""

    engine_socket: Path = Path("/var/run/docker.sock")
    """Unix socket of the container engine (Docker) on this machine. `nsml up` and `nsml join` take that of
    `DOCKER_HOST=unix:///PATH` from their environment."""

    simulate_gpus: int = 0
    """Offer so many simulated GPUs instead of the machine's; every screen says so."""

    cpus: float = 0
    """Cores that sessions may use in sum; 0: all of the machine."""

    memory_bytes: int = 0
    """Memory that sessions may use in sum; 0: all of the machine."""

    default_image: str = OWN_IMAGE
    """In containers: the image of sessions that name none; `deploy/image` makes this one, another is
    pulled where it is missing."""

    default_requirements: str = ""
    """The requirements file (a path, or `cpu` or `cuda`, which are maintained with nsml) of the packages of sessions
    that name none. Those of sessions that name some are added to them. In containers: upon the default image, for
    sessions that name no image."""

    micromamba: Path | None = None
    """Without containers: the program micromamba (2.2 or newer), which builds the environment of sessions with an
    `environment.yml`; absent: that on the PATH of the agent, if there is one. If it does not run, the agent starts
    without it and its log says why (`conda.unusable`)."""

    conda_channels: dict[str, str] = {}
    """The channels that `environment.yml` may name, and where this node fetches each: an https URL (a mirror, for example)
    or `file:///FOLDER`, without user and password. Empty: `conda-forge` alone, from conda.anaconda.org."""

    image_aliases: dict[str, str] = {}
    """In containers: names of images that are retired, and those that take their place."""

    image_pull: Literal["missing", "always"] = "missing"
    """When an image is asked of its registry: where it is not here, or each time."""

    registry_config: Path | None = None
    """A docker `config.json` with the credentials for registries; read for each pull."""

    image_bytes: int = 100_000_000_000
    """The most that an image may have which a session names; a larger one is not pulled, or removed."""

    image_pull_time_limit_s: float = 3600
    """The longest that one pull of an image may take."""

    allowed_images: tuple[str, ...] = (ANY,)
    """Images that sessions may name: `*`, those of all public registries; `NAME` of Docker Hub;
    `HOST[:PORT]/NAME`, also of registries with a port or a private address; `local:NAME`, on the node and
    from no registry. `*` in a name stands for anything. The default image and aliases always may."""

    container_network: str = ""
    """In containers: the engine's network of sessions. Empty: one of the agent's own, in which they do
    not reach one another, or `none` where the engine cannot keep them apart. `host` is the machine's own,
    with all that listens on its loopback."""

    build_network: str = ""
    """The engine's network that builds of images use; empty: as `container_network` does."""

    build_disk_bytes: int = 50_000_000_000
    """What one build of an image or an environment may write, its downloads included."""

    build_memory_bytes: int = 8 << 30
    """Memory that one build of an image or an environment may use."""

    build_cpus: float = 4
    """Cores that one build of an image or an environment may use."""

    build_time_limit_s: float = 3600
    """The longest that one build of an image or an environment may take."""

    builds_at_once: int = 4
    """Builds of environments and images that run on this node at once; others wait."""

    user_builds_at_once: int = 2
    """Of these, how many of one user."""

    builds_memory_bytes: int = 0
    """Memory that all builds of this node may use together; 0: half of the machine's, and never more than
    `builds_at_once` of them may use. Where this is less than twice `build_memory_bytes`, a build gets half."""

    build_files: int = 500_000
    """Files and folders that one build of an environment may make."""

    build_cache_bytes: int = 10_000_000_000
    """What may be kept of each user's downloads for their next build of an environment; 0: nothing."""

    keep_free_share: float = 0.05
    """Environments, images, datasets and code that nobody uses go while less of their disk is free than this
    share, of bytes or of files,"""

    keep_free_bytes: int = 20_000_000_000
    """and, of bytes, less than this; 0 keeps them all."""

    user_cache_share: float = 0.5
    """The part (0 to 1) of the room for datasets and code on this node that the sessions of one user may
    have: what is free for them, and what those take that are here. 0: no limit."""

    stream_cache_bytes: int = 100_000_000_000
    """How much of the datasets that sessions stream (`nsml run --stream`) is kept on the node's disk, least recently
    used first to go."""

    listen_peers: str = ""
    """Where peers (other nodes of the platform) may fetch datasets that this one has (HOST:PORT, mutual TLS), instead of
    from the control plane: `0.0.0.0:18558`, for example. For nodes with a certificate (`nsml join`, `nsml up --listen`).
    Empty: nowhere."""

    shared_cache: Path | None = None
    """Folder on a file system that several agents mount, for instance those of a pod: they keep the datasets of their sessions there,
    each fetched once for all, instead of in `data`. Only with isolation by containers or namespaces; each of them trusts the
    others with the content. Never made: it may not be mounted."""

    peer_trust: Path | None = None
    """Folder with the certificate by which peers know this node, if it reaches the control plane with `token_file`;
    `nsml up --listen` makes it, and the agent renews it."""

    peer_bytes_per_s: int = 250_000_000
    """The most that peers get from this one in a second, all together; 0: no limit."""

    shm_bytes: int = 1 << 30
    """Size of /dev/shm in a session that asks for none."""

    disk_bytes: int = 0
    """What a session that asks for none may have on disk at one time; 0: no limit of its own."""

    disk_floor_bytes: int | None = None
    """Room that sessions leave free on the disk of `data`: below it, what fills the disk is ended.
    Absent: 2 % of the disk, at most 2 GiB; 0: none."""

    processes: int = 0
    """Processes and threads of a session that asks for none; 0: 4096, more on over 32 cores."""

    control_groups: bool = True
    """Keep limits by control groups where that works; false: shims watch, about once a second."""

    replicas_unit: str = ""
    """The unit of systemd beside the agent's own that replicas get their control groups in; it must not
    be restarted with the agent's. `deploy/systemd/nsml-agent.service` sets it. Empty: there is none."""

    keep_files_bytes: int = 1 << 30
    """How many bytes of the files in its working folder are kept of an attempt (`nsml run --keep-files`); what is over
    that is named."""

    keep_files_by_default_bytes: int = 100 << 20
    """The same where nobody asked for it, and the platform or the project keeps files by default."""

    node_shell: bool = False
    """Whether administrators of the platform may start shells and programs on this machine, as the agent's account
    (`nsml node sh`)."""

    sample_interval_s: float = 1.0
    """Time between two readings of the node."""

    log_bytes_per_s: int = 8 << 20
    """How fast the log of one replica is sent, in the long run: a flood waits in its file. 0: as fast as it goes."""

    longest_backoff_s: float = 3.0
    """Longest pause between two attempts to reach the control plane."""

    log_file: Path | None = None
    """The file that standard error is appended to, if it is to be rotated: `nsml up` and `nsml join` set it."""

    log_file_bytes: int = LONGEST_LOG_BYTES
    """Bytes at which that file is renamed to `NAME.1`, in place of the one before, and begun anew."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The configured control planes."""
        found = [self.server] if self.server.startswith("unix:") else self.server.split(",")
        return tuple(one.strip() for one in found if one.strip())

    @property
    def names_default_image(self) -> bool:
        """Whether an administrator chose one, which a registry may have: ours is in none."""
        return bool(self.default_image) and not is_made_here(self.default_image)

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        problems = [
            ("node", bool(self.node), "a node needs a name"),
            ("server", bool(self.servers), "the address of a control plane is missing"),
            ("simulate_gpus", 0 <= self.simulate_gpus <= 64, "between 0 and 64"),
            ("uid_first", 1000 <= self.uid_first < 1 << 31, "between 1000 and 2147483647"),
            (
                "uid_count",
                2 <= self.uid_count <= FIRST_OWNER - self.uid_first,
                f"at least 2, and no id over {FIRST_OWNER - 1}",
            ),
            ("cpus", self.cpus >= 0, "not negative"),
            ("memory_bytes", self.memory_bytes >= 0, "not negative"),
            ("default_image", _is_image(self.default_image), RULE),
            (
                "default_requirements",
                self.default_requirements in ("", *NAMES)
                or Path(self.default_requirements).is_absolute(),
                f"{', '.join(NAMES)} or an absolute path",
            ),
            (
                "micromamba",
                self.micromamba is None or self.micromamba.is_absolute(),
                "an absolute path",
            ),
            ("conda_channels", are_channels(self.conda_channels), CHANNELS_RULE),
            (
                "image_aliases",
                all(map(is_reference, (*self.image_aliases, *self.image_aliases.values()))),
                f"names of images: {RULE}",
            ),
            ("image_bytes", self.image_bytes > 0, "more than 0"),
            ("image_pull_time_limit_s", self.image_pull_time_limit_s > 0, "more than 0"),
            (
                "allowed_images",
                all(map(is_pattern, self.allowed_images)),
                "*, NAME[:TAG], HOST[:PORT]/NAME[:TAG] or local:NAME[:TAG]",
            ),
            (
                "container_network",
                _is_network_name(self.container_network),
                "the name of a network",
            ),
            ("build_network", _is_network_name(self.build_network), "the name of a network"),
            ("build_disk_bytes", self.build_disk_bytes >= 64 << 20, "at least 64 MiB"),
            ("build_memory_bytes", self.build_memory_bytes >= 64 << 20, "at least 64 MiB"),
            ("builds_at_once", self.builds_at_once >= 1, "at least 1"),
            ("user_builds_at_once", self.user_builds_at_once >= 1, "at least 1"),
            (
                "builds_memory_bytes",
                not self.builds_memory_bytes or self.builds_memory_bytes >= 256 << 20,
                "0, or at least 256 MiB",
            ),
            ("build_cpus", self.build_cpus >= 0.01, "at least 0.01"),
            ("build_time_limit_s", self.build_time_limit_s > 0, "more than 0"),
            ("build_disk_bytes", self.build_disk_bytes >= 64 << 20, "at least 64 MiB"),
            ("build_cache_bytes", self.build_cache_bytes >= 0, "not negative"),
            ("build_files", self.build_files >= 10_000, "at least 10000"),
            ("keep_free_share", 0 <= self.keep_free_share < 1, "at least 0 and less than 1"),
            ("keep_free_bytes", self.keep_free_bytes >= 0, "not negative"),
            (
                "stream_cache_bytes",
                self.stream_cache_bytes >= 1 << 26,
                "at least 67108864 (64 MiB)",
            ),
            ("user_cache_share", 0 <= self.user_cache_share <= 1, "between 0 and 1"),
            (
                "gang_network",
                not self.gang_network or is_mode(self.gang_network),
                "host, none or overlay:NAME",
            ),
            (
                "session_subnet",
                _is_network(self.session_subnet, version=4, longest=20),
                "an IPv4 range of at least 4096 addresses, such as 198.18.0.0/15",
            ),
            (
                "shared_roots",
                len(self.shared_roots) <= MOST_SHARED_ROOTS
                and all(map(is_plain, self.shared_roots)),
                f"at most {MOST_SHARED_ROOTS} absolute paths, without a slash at their end, . or ..",
            ),
            (
                "session_ports",
                all(0 < port < 1 << 16 for port in self.session_ports),
                "between 1 and 65535",
            ),
            ("session_connections", self.session_connections > 0, "more than 0"),
            (
                "session_nameservers",
                all(
                    _is_network(one, version=4) and "/" not in one
                    for one in self.session_nameservers
                ),
                "IPv4 addresses",
            ),
            (
                "metadata_addresses",
                all(map(_is_network, self.metadata_addresses)),
                "addresses and ranges, such as 169.254.169.254 or fd00:ec2::/64",
            ),
            (
                "gang_devices",
                all(re.fullmatch(r"/dev/[\w/-]+", path) for path in self.gang_devices),
                "paths below /dev",
            ),
            (
                "gang_environment",
                all(re.fullmatch(r"[A-Za-z_]\w*=.*", one) for one in self.gang_environment),
                "NAME=VALUE",
            ),
            (
                "listen_peers",
                not self.listen_peers or _is_listener(self.listen_peers),
                "HOST:PORT",
            ),
            ("peer_bytes_per_s", self.peer_bytes_per_s >= 0, "not negative"),
            ("shm_bytes", self.shm_bytes > 0, "more than 0"),
            ("disk_bytes", self.disk_bytes >= 0, "not negative"),
            ("disk_floor_bytes", (self.disk_floor_bytes or 0) >= 0, "not negative"),
            ("processes", self.processes >= 0, "not negative"),
            (
                "replicas_unit",
                not self.replicas_unit or re.fullmatch(r"[\w@:.-]+\.service", self.replicas_unit),
                "the name of a unit, NAME.service",
            ),
            ("sample_interval_s", 0 < self.sample_interval_s <= 10, "more than 0, at most 10"),
            ("log_file_bytes", self.log_file_bytes > 0, "more than 0"),
            ("log_bytes_per_s", self.log_bytes_per_s >= 0, "not negative"),
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


def _is_network(text: str, *, version: int | None = None, longest: int = 128) -> bool:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return False
    return network.version == (version or network.version) and network.prefixlen <= longest


def _is_listener(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and int(port) < 65536


def _is_network_name(name: str) -> bool:
    return not name or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", name) is not None


def _is_image(name: str) -> bool:
    return not name or is_reference(name)


def read_settings(path: Path, environment: Mapping[str, str]) -> Settings:
    """Return the settings in the TOML file `path`, overridden by `environment`; raises SettingsError."""
    return settings.read_settings(Settings, path, environment, prefix=ENVIRONMENT_PREFIX)


def settings_to_be(path: Path, environment: Mapping[str, str]) -> Settings:
    """Return an agent's settings here: as `read_settings`, also on machines that have not joined."""
    if not path.exists():
        to_come = {f"{ENVIRONMENT_PREFIX}{name}": "-" for name in ("NODE", "SERVER", "DATA")}
        environment = to_come | dict(environment)
    return settings.read_settings(
        Settings, path, environment, prefix=ENVIRONMENT_PREFIX, may_be_absent=True
    )


def unreadable_files(settings: Settings) -> list[str]:
    """Return the files in the settings that this user cannot read, each with the reason."""
    found = []
    for name in ("token_file", "authority_file", "certificate_file", "key_file", "registry_config"):
        file: Path | None = getattr(settings, name)
        if file is None:
            continue
        try:
            file.open("rb").close()
        except OSError as error:
            found.append(f"{name}: {words_of(error)}")
    return found
