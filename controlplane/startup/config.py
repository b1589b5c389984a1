"""The control plane's settings: one typed tree, read once from a TOML file and the environment.

Nothing is read at import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from controlplane.domain.limits import UserLimits
from controlplane.domain.values import Priority
from controlplane.objects.service import PREFIXES, URLS
from controlplane.store.interface import DEFAULT_QUOTA_BYTES
from nsml.common import settings
from nsml.common.log_files import LONGEST_LOG_BYTES
from nsml.common.settings import SettingsError
from nsml.common.units import lacks_unit, parse_duration
from nsml.spec.checkpoint_retention import KEEP_ALL, retention_of
from nsml.spec.in_place_paths import is_plain

__all__ = ["Settings", "SettingsError", "read_settings"]

ENVIRONMENT_PREFIX = "NSML_CONTROLPLANE_"

LEASE_OF_SEVERAL_S: Final = 2.0
LEASE_ALONE_S: Final = 3.0
"""Default leases of the leader."""

_ANY_HOST: Final = {"0.0.0.0", "[::]"}  # noqa: S104 - compared, not bound
_Rule: TypeAlias = tuple[str, bool, str]
"""A setting, whether its value is valid, and which values are."""
DEFAULT_ADDRESS: Final = "127.0.0.1:18553"

OWN: Final = frozenset(
    {
        *(
            "data",
            "address",
            "socket",
            "listen",
            "listen_agents",
            "listen_relay",
            "listen_ssh",
            "hosts",
            "admin",
            "node",
            "member",
        ),
        *(
            "coordination",
            "etcd_ca",
            "etcd_certificate",
            "etcd_key",
            "etcd_user",
            "etcd_password_file",
        ),
        *(
            "history",
            "objects",
            "s3_endpoint",
            "s3_region",
            "s3_ca",
            "s3_credentials",
            "platform_key",
        ),
        *(
            "gcs_endpoint",
            "gcs_credentials",
            "azure_account",
            "azure_endpoint",
            "azure_credentials",
        ),
        *(
            "http",
            "http_hosts",
            "http_proxies",
            "http_connections",
            "http_sessions",
            "http_refused",
        ),
        *("accept_empty", "metrics_token_file", "visdom_python"),
        *("log_level", "log_file", "log_file_bytes"),
    }
)
"""Settings that may differ between control planes of one platform: of their machines, and of their access to
shared backends, which is checked at the start."""

_CLASSES: Final = {one.name.lower(): one for one in Priority}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one control plane needs to know. A relative path is meant from the settings file."""

    data: Path
    """Our own folder: of the store, the history and the objects where these are not elsewhere; made
    private to its owner."""

    coordination: str = "auto"
    """`embedded`, `etcd` (a child process of ours), URLs of an etcd cluster separated by commas, or
    `auto`: what the data folder was made with; for a fresh one `etcd` where a sound one is on
    PATH, else `embedded`."""

    etcd_ca: Path | None = None
    """PEM of the authority of an etcd cluster's servers; https needs it."""

    etcd_certificate: Path | None = None
    """PEM of our certificate for an etcd cluster that asks for one; with `etcd_key`."""

    etcd_key: Path | None = None
    """PEM of that certificate's key."""

    etcd_user: str = ""
    """User of an etcd cluster with access control; with `etcd_password_file`."""

    etcd_password_file: Path | None = None
    """A file for us alone with that user's password; read at each login, so that it may change."""

    history: str = ""
    """`postgresql://USER@HOST/DATABASE`: the database of the history, for this platform alone. A
    password is best kept in a file: `?passfile=FILE`. Other machines need `sslmode=verify-full`.
    Empty: SQLite in the data folder."""

    objects: str = ""
    """`s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` (Google Cloud Storage), `az://CONTAINER/PREFIX` (Azure Blob Storage), or
    `file:///FOLDER` that every control plane mounts. Empty: the data folder. Keys of a bucket come from where the tools of
    its cloud look for them, never from here."""

    s3_endpoint: str = ""
    """URL of the service that has the bucket, if it is not AWS; AWS_ENDPOINT_URL does as well."""

    s3_region: str = ""
    """Its region; AWS_REGION does as well. Empty: us-east-1."""

    s3_ca: Path | None = None
    """PEM of a private authority of that service, beside those of the system."""

    s3_credentials: Path | None = None
    """A credentials file as the AWS tools have it; empty: theirs, or the environment."""

    gcs_endpoint: str = ""
    """URL of Google Cloud Storage, if not https://storage.googleapis.com."""

    gcs_credentials: Path | None = None
    """The key file of a service account, read at the start. Empty: GOOGLE_APPLICATION_CREDENTIALS, the file of `gcloud auth
    application-default login`, or the service account of the machine."""

    azure_account: str = ""
    """The storage account of the container; AZURE_STORAGE_ACCOUNT does as well, and a connection string names it."""

    azure_endpoint: str = ""
    """URL of its blobs, if not https://ACCOUNT.blob.core.windows.net."""

    azure_credentials: Path | None = None
    """A file for us alone with a connection string (an account key, or a shared access signature). Empty:
    AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN; else AZURE_CLIENT_ID with
    AZURE_TENANT_ID and AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE; else the identity of the machine."""

    direct_reads: bool = False
    """Whether nodes read datasets from the bucket of `objects` themselves, by URLs that count for five minutes: they need to reach
    `s3_endpoint`. Only packs that a node may read as a whole have URLs, but anyone with a URL can read that pack."""

    platform_key: Path | None = None
    """The key under which a shared platform's keys lie in its store; the first control plane makes
    it, each further one gets a copy. Empty: `platform.key` in the data folder."""

    accept_empty: Literal["", "history", "objects"] = ""
    """For one start, in the environment: takes an empty history (or object store) in place of the
    platform's, whose records are lost for good. What agents still keep is recorded in it."""

    history_bytes: int = 0
    """How large the history may become where it is a PostgreSQL database, whose disk the platform does not see: users'
    writes end a little below it. 0: not known."""

    etcd_quota_bytes: int = DEFAULT_QUOTA_BYTES
    """Of an etcd cluster before 3.6, which does not say it: its --quota-backend-bytes. Users' writes end at three
    quarters of it."""

    etcd_root: str = "nsml/"
    """What all our keys in an etcd begin with."""

    address: str = "auto"
    """Listener without TLS for this machine: HOST:PORT on the loopback (port 0: any free one); `auto`:
    127.0.0.1:18553, or none where another listener has that port. Empty: none."""

    socket: str = "auto"
    """Unix socket for this machine: a path; `auto`: `socket` in the data folder, if the path is
    short enough for the kernel. Empty: none."""

    listen: str = ""
    """Listener with TLS for users elsewhere: HOST:PORT. Empty: none."""

    listen_agents: str = ""
    """Listener with mutual TLS for joined agents: HOST:PORT. Empty: none."""

    listen_relay: str = ""
    """Listener of the relay, a process of its own, where clients and agents of other machines meet to exchange the
    bytes of tunnels (nsml sh, ssh, cp, forward), encrypted from one to the other: HOST:PORT. Empty: none, and they pass
    through the control plane."""

    listen_ssh: str = ""
    """Listener of the jump host, a process of its own: by it OpenSSH reaches sessions from machines without nsml, for users
    with a public key (`nsml key add`): HOST:PORT. It needs `socket` or `address`. Empty: none."""

    http: str = ""
    """Listener for /healthz, /readyz and /metrics: HOST:PORT, on the loopback without TLS, elsewhere
    with the platform's. Empty: none."""

    http_hosts: tuple[str, ...] = ()
    """Further host names under which browsers reach that listener, such as the name of a reverse proxy. Addresses,
    `localhost`, the names of this host and those in `hosts` are accepted in any case; under other names nothing is shown,
    because a page of another site could point its own name at us."""

    http_proxies: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies before that listener: what they say in X-Forwarded-For and
    X-Forwarded-Proto is believed, and they may open as many connections as there are."""

    http_connections: int = 100
    """How many connections one address may have open there at once. The loopback and proxies have no such limit."""

    http_sessions: Literal["refused", "answered"] = "refused"
    """Whether programs of sessions on this machine are answered there, as their accounts show (ids from 1900000000 on,
    where the agent is root). /healthz, /readyz and /metrics answer them in any case."""

    http_refused: tuple[str, ...] = ()
    """Addresses and networks that are not answered there either, such as those of nodes, from which sessions come."""

    metrics_token_file: Path | None = None
    """A file for us alone with a token of at least 16 bytes, which reads /metrics and nothing else; read at
    each scrape, so that it may change. Administrators' tokens read them in any case."""

    visdom_python: Path | None = None
    """The Python of an environment with visdom and its scripts, for `nsml visdom`; see docs/results.md. Absent:
    there are no such views."""

    hosts: tuple[str, ...] = ()
    """Names and addresses under which others reach us, beside those of this host: what our
    certificate bears. The first one is what others are told to dial."""

    admin: str = ""
    """Set: `admin.token` in the data folder holds a valid token of an administrator, who is made
    under this name when there is no user at all."""

    node: str = ""
    """Set: `node.token` in the data folder holds a valid token for the agent of this node."""

    member: str = ""
    """Name of this control plane among all of one store; empty: host name and process id."""

    heartbeat_s: float = 2.0
    """Agents say something at least this often."""

    silent_after_s: float = 10.0
    """A node that was not heard for this long is silent: its sessions are UNKNOWN."""

    lease_s: float | None = None
    """Lease of the leader: so long after it fell silent another one decides (one that is dead is deposed
    at once). Absent: 2 for a shared platform, which etcd makes 2 to 2.5; 3 where there is no other."""

    notice_s: float = 60.0
    """How long the program of a session that is to give way has to reach a point at which it can save,
    before it gets SIGTERM. 0: it is not told."""

    half_life_days: float = 7.0
    """After so long what an account used counts half in its fair share, by which the queue is ordered among
    sessions of one priority. 0: only what it holds now counts."""

    least_run_s: float = 300.0
    """For how long an attempt is left alone at least before it gives way to a higher class; one of the class
    `idle` for a minute at most."""

    least_run_in_class_s: float = 1800.0
    """The same before it gives way to one of its own class."""

    give_way_in_class: Literal["nobody", "limits", "service"] = "limits"
    """To whom what can be resumed gives way within its class. `limits`: to accounts that hold less, and
    within its account to those whose time limit says that they need far less. `service`: there also to those
    without a limit that ran far less: they take turns. `nobody`: to higher classes alone."""

    defragment: bool = True
    """Whether what can be resumed is moved to other GPUs where that lets a gang or a wide session of its class, or
    a higher one, start: one that fits in total but on no node. It goes on there at once."""

    time_limits: tuple[str, ...] = ()
    """The most that a session may run, by its class: `["high=24h", "normal=7d"]`. It is also what one gets
    that asks for no time limit. A class that is not named has none. The same on every control plane."""

    archive_logs_after_s: float = 3600.0
    """So long after its end a session's logs move from the history into the object store, in compressed blocks."""

    collect_after_s: float = 86_400.0
    """What nothing refers to (code, checkpoints, media and logs of removed sessions, uploads that were given up) is put aside so
    long after it was sent, and removed so long after that. 0: never. An hour at least: what is being sent must not be taken for it."""

    keep_points_s: float = 0.0
    """So long after its end a session keeps every point that it reported; then their levels stay, of which charts are
    drawn, and what was no number is gone. 0: for good."""

    keep_levels_s: float = 0.0
    """So long it keeps the levels that are finer than a chart of the whole session needs. 0: for good, as everything
    without `keep_points_s`."""

    keep_checkpoints: str = ""
    """Which durable checkpoints of a session are kept, where neither `nsml run --keep` nor its project says so, such as
    `"best:3:val/acc:max last:2"`. Nothing: all. The same on every control plane."""

    keep_files: bool = True
    """Whether sessions keep the files that they made in their working folder (`nsml download`) where their users say
    nothing, as far as `keep_files_by_default_bytes` of their node's agent goes; `--no-keep-files` keeps none. The same on every
    control plane."""

    keep_files_s: float = 0.0
    """How long the files of `nsml run --keep-files` are kept: after that the leader removes them, within an hour. At least
    an hour; 0: as long as their sessions. Files of restored sessions stay."""

    keep_files_by_default_s: float = 14 * 86_400.0
    """The same of files for which nobody asked: see `keep_files`."""

    in_place_roots: tuple[str, ...] = ()
    """Folders of a shared file system below which every user may add datasets in place (`nsml dataset add --in-place`),
    which sessions of whoever sees the dataset read, with the rights of the node's agent: name none that has what some user
    must not read. Nothing: administrators alone, anywhere that nodes have (`shared_roots` of their agents)."""

    idle_percent: float = 1.0
    """A GPU that does no more than this, in percent, does nothing."""

    idle_after_s: float = 600.0
    """For how long a session may do nothing with its GPUs before that is held against it. 0: for ever, and nothing is
    said of processes either that are on them and belong to no session."""

    webhooks_to_private: bool = False
    """Whether users' webhooks may be on this machine and in private networks, and be http:// as well."""

    floor_bytes: int | None = None
    """Room that is kept for the platform itself on the disk of each store that has files here: below it, what users
    bring is refused. Absent: 2 % of the disk, 64 MiB to 2 GiB; 0: none, also of the coordination store's quota."""

    user_sessions: int = 10_000
    """Sessions that a user may have queued and running at one time. 0 is no limit, here and in all below."""

    project_sessions: int = 50_000
    """The same of a project."""

    session_bytes: int = 64 << 10
    """The largest record of one session in the coordination store: arguments, variables, memo."""

    user_stored_bytes: int = 64 << 20
    """What the records of all sessions of a user may take there."""

    project_stored_bytes: int = 256 << 20
    """The same of a project."""

    user_write_bytes: int = 64 << 20
    """What a user may write there at once: submissions, secrets, tokens, memos; etcd keeps each revision for some minutes."""

    user_write_bytes_per_s: int = 256 << 10
    """How fast that refills."""

    user_upload_bytes: int = 1 << 40
    """Content that a user and the user's sessions may send to the object store in a day. An allowance per day refills evenly."""

    user_kept_bytes: int | None = None
    """Distinct bytes that the object store keeps for one user. None: `user_kept_share` of its disk where anybody else has
    an account (10 TiB in a bucket), else no limit. Administrators set another one for a user: nsml admin user set."""

    user_kept_share: float = 0.5
    """Part of what users may fill of the object store's disk that is kept for one user, where user_kept_bytes is not set."""

    user_reported_bytes: int = 64 << 30
    """Records and log text that the sessions of a user may report in a day; what is over it is left out, visibly."""

    session_log_bytes: int = 4 << 30
    """Log text of one session in a day."""

    session_metric_bytes: int = 16 << 30
    """Other records of one session in a day."""

    session_checkpoints: int = 20_000
    """Checkpoints and artifacts that one session may report in a day."""

    session_metric_names: int = 10_000
    """Names of metrics of one session that are counted; five times as many series (names by ranks and attempts) are drawn.
    What is beyond is only in the exported reports. At least 1."""

    user_streams: int = 256
    """Calls of a user that stay open, on each control plane: watches, followed logs, transfers."""

    request_bytes: int = 512 << 20
    """Memory that requests of all users may take together until they have arrived whole, on each control plane. Where there is
    no room, a request of the user with the most of them is refused."""

    user_store_share: float = 0.5
    """Part of the room that the disk of the object store, or of the history, has left above its floor which one user may
    fill in a day, where anybody else has an account."""

    audit_rows: int = 2_000_000
    """Rows of the audit trail that are kept; above it, the oldest rows of the actors with the most are removed. 0: all are kept."""

    audit_bytes: int = 1 << 30
    """Bytes of these rows, about. 0: no limit."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is written to standard error."""

    log_file: Path | None = None
    """The file that standard error is appended to, if it is to be rotated: `nsml up` sets it."""

    log_file_bytes: int = LONGEST_LOG_BYTES
    """Bytes at which that file is renamed to `NAME.1`, in place of the one before, and begun anew."""

    @property
    def shared(self) -> dict[str, str]:
        """Settings that all control planes of a platform should have alike, by name; those alone that are set."""
        return {
            field.name: _text(value)
            for field in msgspec.structs.fields(self)
            if field.name not in OWN and (value := getattr(self, field.name)) != field.default
        }

    @property
    def certificates(self) -> dict[str, Path]:
        """Files with certificates from elsewhere, by the setting that names each."""
        named = {name: getattr(self, name) for name in ("etcd_ca", "etcd_certificate", "s3_ca")}
        query = dict(parse_qsl(urlsplit(self.history).query))
        named |= {
            f"history ({name})": Path(query[name])
            for name in ("sslrootcert", "sslcert")
            if query.get(name, "system") != "system"
        }
        return {name: file for name, file in named.items() if file is not None}

    @property
    def plain_address(self) -> str:
        """`address` as HOST:PORT, "" for none."""
        if self.address != "auto":
            return self.address
        others = (self.listen, self.listen_agents, self.listen_relay, self.listen_ssh, self.http)
        return "" if any(_share_port(DEFAULT_ADDRESS, one) for one in others) else DEFAULT_ADDRESS

    @property
    def limits(self) -> UserLimits:
        """What users, projects and sessions may take of the stores."""
        return UserLimits(
            sessions=self.user_sessions,
            project_sessions=self.project_sessions,
            session_bytes=self.session_bytes,
            stored_bytes=self.user_stored_bytes,
            project_stored_bytes=self.project_stored_bytes,
            write_bytes=self.user_write_bytes,
            write_bytes_per_s=self.user_write_bytes_per_s,
            upload_bytes=self.user_upload_bytes,
            reported_bytes=self.user_reported_bytes,
            session_log_bytes=self.session_log_bytes,
            session_metric_bytes=self.session_metric_bytes,
            session_checkpoints=self.session_checkpoints,
            streams=self.user_streams,
            request_bytes=self.request_bytes,
            store_share=self.user_store_share,
            kept_bytes=self.user_kept_bytes,
            kept_share=self.user_kept_share,
        )

    @property
    def limits_by_class(self) -> dict[Priority, float]:
        """`time_limits` in seconds; raises ValueError where they are none."""
        limits: dict[Priority, float] = {}
        for text in self.time_limits:
            name, _, most = (part.strip() for part in text.partition("="))
            priority = _CLASSES.get(name)
            if priority is None or priority in limits:
                classes = ", ".join(_CLASSES)
                raise ValueError(
                    f"time_limits: {text!r}: CLASS=TIME, of {classes} each once at most"
                )
            if lacks_unit(most):
                raise ValueError(f"time_limits: {text!r}: {most}h, {most}m or {most}s?")
            try:
                limits[priority] = parse_duration(most)
            except ValueError as error:
                raise ValueError(f"time_limits: {text!r}: {error}") from None
            if not limits[priority]:
                raise ValueError(f"time_limits: {text!r}: leave it out for no limit")
        return limits

    def __post_init__(self) -> None:
        """Refuse values that no control plane can work with."""
        rules: list[_Rule] = [
            ("coordination", bool(self.coordination), "embedded, etcd, auto or URLs"),
            (
                "address",
                bool(self.plain_address or self.socket or self.listen),
                "nobody could call",
            ),
            (
                "listen_ssh",
                bool(not self.listen_ssh or self.plain_address or self.socket),
                "the jump host needs socket or address, to call us",
            ),
            *_shared_ports(self),
            ("heartbeat_s", self.heartbeat_s > 0, "more than 0"),
            ("log_file_bytes", self.log_file_bytes > 0, "more than 0"),
            *_scheduling_rules(self),
            *_backend_rules(self),
            *_retention_rules(self),
            ("idle_percent", 0 <= self.idle_percent < 100, "0 to less than 100"),
            (
                "idle_after_s",
                self.idle_after_s == 0 or 60 <= self.idle_after_s <= 604_800,
                "0, or 60 to 604800",
            ),
            ("history_bytes", self.history_bytes >= 0, "0 (not known) or more"),
            ("etcd_quota_bytes", self.etcd_quota_bytes >= 0, "0 (not known) or more"),
            ("floor_bytes", (self.floor_bytes or 0) >= 0, "0 (none) or more"),
            ("audit_rows", self.audit_rows >= 0, "0 (no limit) or more"),
            ("audit_bytes", self.audit_bytes >= 0, "0 (no limit) or more"),
            *_limit_rules(self),
            ("http_connections", 1 <= self.http_connections <= 450, "1 to 450"),
            ("http_proxies", _are_networks(self.http_proxies), "addresses or networks"),
            ("http_refused", _are_networks(self.http_refused), "addresses or networks"),
            ("lease_s", 0.5 <= (self.lease_s or 2.0) <= 60, "between 0.5 and 60"),
        ]
        wrong = [f"{field}: {rule}" for field, is_sound, rule in rules if not is_sound]
        try:
            _ = self.limits_by_class
        except ValueError as error:
            wrong.append(str(error))
        if wrong:
            raise ValueError("; ".join(wrong))


def _scheduling_rules(settings: Settings) -> tuple[_Rule, ...]:
    return (
        ("notice_s", 0 <= settings.notice_s <= 3600, "0 to 3600"),
        (
            "half_life_days",
            settings.half_life_days == 0 or 0.04 <= settings.half_life_days <= 366,
            "0, or 0.04 (an hour) to 366",
        ),
        ("least_run_s", 0 <= settings.least_run_s <= 86_400, "0 to 86400"),
        ("least_run_in_class_s", 0 < settings.least_run_in_class_s <= 86_400, "up to 86400"),
        (
            "silent_after_s",
            settings.silent_after_s > 2 * settings.heartbeat_s,
            "over two heartbeats",
        ),
    )


def _backend_rules(settings: Settings) -> tuple[_Rule, ...]:
    return (
        (
            "etcd_key",
            (settings.etcd_key is None) == (settings.etcd_certificate is None),
            "etcd_certificate and etcd_key belong together",
        ),
        (
            "etcd_user",
            bool(settings.etcd_user) == (settings.etcd_password_file is not None),
            "etcd_user and etcd_password_file belong together",
        ),
        (
            "history",
            not settings.history or settings.history.startswith(("postgresql://", "postgres://")),
            "postgresql://USER@HOST/DATABASE, or nothing for SQLite",
        ),
        (
            "objects",
            not settings.objects or settings.objects.startswith(PREFIXES),
            f"{URLS}, or nothing",
        ),
        (
            "direct_reads",
            not settings.direct_reads or "://" in settings.objects.replace("file://", ""),
            "false, unless objects is a bucket",
        ),
    )


def _retention_rules(settings: Settings) -> tuple[_Rule, ...]:
    return (
        ("archive_logs_after_s", 0 <= settings.archive_logs_after_s <= 1e9, "0 or more"),
        (
            "collect_after_s",
            settings.collect_after_s == 0 or 3600 <= settings.collect_after_s <= 1e9,
            "0, or 3600 or more",
        ),
        (
            "keep_points_s",
            settings.keep_points_s == 0 or 3600 <= settings.keep_points_s <= 1e9,
            "0 (for good), or 3600 (an hour) to 1e9",
        ),
        (
            "keep_levels_s",
            settings.keep_levels_s == 0
            or 0 < settings.keep_points_s <= settings.keep_levels_s <= 1e9,
            "0 (for good), or as long as keep_points_s at least, which has to be set",
        ),
        ("keep_checkpoints", not (why := _keep_error(settings.keep_checkpoints)), why),
        *(
            (
                name,
                kept_s == 0 or 3600 <= kept_s <= 1e9,
                "0 (as long as their sessions), or an hour to 30 years",
            )
            for name in ("keep_files_s", "keep_files_by_default_s")
            for kept_s in (getattr(settings, name),)
        ),
        (
            "in_place_roots",
            all(map(is_plain, settings.in_place_roots)),
            "absolute paths, without a slash at their end, . or ..",
        ),
    )


def _keep_error(text: str) -> str:
    """Return why a retention of checkpoints is invalid, "" if it is not."""
    try:
        retention_of(text or KEEP_ALL)
    except ValueError as error:
        return str(error)
    return ""


def _shared_ports(settings: Settings) -> Iterator[_Rule]:
    """Two listeners on one port: the second could not start, and the system would not report why."""
    names = ("listen", "listen_agents", "listen_relay", "listen_ssh", "http")
    places = {"address": settings.plain_address} | {one: getattr(settings, one) for one in names}
    for (name, place), (other, taken) in combinations(places.items(), 2):
        yield (
            other,
            not _share_port(place, taken),
            f"{taken} has the port of {name} ({place}): give each a port of its own",
        )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _share_port(one: str, other: str) -> bool:
    """Return whether two HOST:PORT exclude each other; port 0 is any free one."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    hosts = {host, other_host}
    return port == other_port not in {"", "0"} and (len(hosts) == 1 or bool(hosts & _ANY_HOST))


def _limit_rules(settings: Settings) -> Iterator[_Rule]:
    names = (
        "user_sessions",
        "project_sessions",
        "session_bytes",
        "user_stored_bytes",
        "project_stored_bytes",
        "user_write_bytes",
        "user_write_bytes_per_s",
        "user_upload_bytes",
        "user_reported_bytes",
        "session_log_bytes",
        "session_metric_bytes",
        "session_checkpoints",
        "user_streams",
        "request_bytes",
    )
    for name in names:
        yield name, getattr(settings, name) >= 0, "0 (no limit) or more"
    yield (
        "user_write_bytes_per_s",
        bool(settings.user_write_bytes_per_s) or not settings.user_write_bytes,
        "more than 0 where user_write_bytes is",
    )
    yield "session_metric_names", settings.session_metric_names >= 1, "1 or more"
    yield "user_kept_bytes", (settings.user_kept_bytes or 0) >= 0, "0 (no limit) or more"
    yield "user_kept_share", 0 <= settings.user_kept_share <= 1, "0 (no limit) to 1"
    yield "user_store_share", 0 <= settings.user_store_share <= 1, "0 (no limit) to 1"


def _are_networks(texts: Sequence[str]) -> bool:
    try:
        for text in texts:
            ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def read_settings(path: Path, environment: Mapping[str, str]) -> Settings:
    """Return the settings in the TOML file `path`, overridden by `environment`; raises SettingsError."""
    return settings.read_settings(Settings, path, environment, prefix=ENVIRONMENT_PREFIX)
