"""The real parts of an agent: processes, files, sockets, devices."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
import structlog

from nodeagent.collect.file_watcher import Writes
from nodeagent.config import Settings, SettingsError
from nodeagent.dependencies import Dependencies, Machine, MakeEnvironmentOrders, MakeImageOrders
from nodeagent.engine.client import Engine, EngineError
from nodeagent.engine.watch import ANSWERS_WITHIN_S, EngineWatch
from nodeagent.environment_builds import EnvironmentBuilds, InImages, OnMachine, Provide
from nodeagent.environment_orders import EnvironmentOrders, Stored
from nodeagent.environments.conda import DEFAULT_CHANNELS, Conda, Unusable, find_conda
from nodeagent.environments.defaults import Defaults, read_defaults
from nodeagent.environments.downloads import Downloads
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.image_builds import build_prefix
from nodeagent.environments.image_names import ImageNames
from nodeagent.environments.image_settings import ImageSettings
from nodeagent.environments.images import Images
from nodeagent.environments.package_images import PackageImages
from nodeagent.environments.sandbox import BuildLimits, Sandbox
from nodeagent.environments.setups import Setups
from nodeagent.environments.virtualenvs import Environments
from nodeagent.folders import ReplicaFolders, write_atomically
from nodeagent.image_orders import ImageOrders
from nodeagent.journal import Journal
from nodeagent.link.renewal import Renew
from nodeagent.machine.accounts import (
    Accounts,
    AccountsError,
    IdRange,
    build_ids,
    range_on_this_machine,
)
from nodeagent.machine.addresses import interface_of, reachable_host
from nodeagent.machine.meter import HeldDevices, NodeMeter, ReplicaMeter
from nodeagent.network.container_networks import ContainerNetworks
from nodeagent.network.gang_network import HOST, NONE, GangNetwork, interface_variables
from nodeagent.network.host_network import NetworkOffer
from nodeagent.network.pasta import probe_pasta
from nodeagent.network.rules import NetworkRules, NoNetwork
from nodeagent.network.session_network import (
    Firewall,
    NetworkFacts,
    Networks,
    SessionNetwork,
    probe_network,
)
from nodeagent.peers.network import NodeProof, PeerNetwork
from nodeagent.probes.host import HostFacts, HostProbe
from nodeagent.probes.interface import DeviceProbe
from nodeagent.probes.simulated import SimulatedProbe
from nodeagent.replica.assignments import used_things
from nodeagent.replica.preparation_steps import Hook, ImageHook, MakeReaders, PythonHook
from nodeagent.runtimes.containment import (
    PULLED_WITHIN_S,
    NoContainers,
    containers_at_start,
    engine_mark,
    probe_containers,
    pull_default_image,
    tried_in_time,
)
from nodeagent.runtimes.docker import DockerDriver, EnginePlace
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.isolation import (
    IsolationFacts,
    probe_isolation,
    strongest,
    with_containers,
)
from nodeagent.runtimes.launch import Machine as ReplicaMachine
from nodeagent.runtimes.launcher import Launcher
from nodeagent.runtimes.limits import Keeping, LimitFacts, probe_limits
from nodeagent.runtimes.process import ProcessDriver
from nodeagent.runtimes.shims import ShimDriver
from nodeagent.shim.cgroups import CPU, MEMORY, PIDS
from nodeagent.storage.eviction import (
    KeepFree,
    Store,
    is_full,
    lacks_files,
    relieve,
    room_for_builds,
)
from nsml._install import sdk_digest, write_sdk
from nsml.client import calls
from nsml.client.channel import Channel
from nsml.client.connect import check_own_listener
from nsml.client.contexts import is_local
from nsml.client.rpc import HASTY, Rpc, pinging
from nsml.client.trust import SERVER_NAME, NodeFiles, certify, needs_renewal, renew_when_due
from nsml.common.clock import Clock, SystemClock, in_own_thread, in_thread
from nsml.common.private_files import read_private
from nsml.common.private_folders import make_data_folder
from nsml.common.program_logs import write_json_lines
from nsml.packages.requirements import RequirementsRefused
from nsml.v1 import resources_pb2 as resources

log = structlog.get_logger()

_ON_THE_WAY = ("", "replicas", "datasets", "environments", "builds", "sdk")
"""Parents of files that programs may read, where these see the machine's files."""
_NOBODYS_WAY = ("bundles", "downloads", "staging", "trial")
_RULES_LOOKED_AT_S = 30.0
"""Reloading a firewall (nftables.service, firewalld) may drop rules of others."""
_KEEPING = {
    Keeping.NONE: resources.KEEPING_NONE,
    Keeping.WATCHED: resources.KEEPING_WATCHED,
    Keeping.GROUP: resources.KEEPING_GROUP,
}
_Pull = Callable[[threading.Event], None]
"""Pulls the default image until the event is set."""
# Pings detect a control plane that stopped silently, or a cut cable: soon if there is
# another one; else they would only add load to a machine that is busy for a moment.
_PATIENT = pinging(every_s=10, within_s=5)
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
)
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@asynccontextmanager
async def real_parts(settings: Settings) -> AsyncIterator[Dependencies]:
    """Open the parts for these settings, while the context lasts.

    Raises:
        SettingsError: a file is missing, or a setting does not work on this machine.
        JournalLocked: another agent uses the data folder.
        JournalError: the journal cannot be used.
    """
    write_json_lines(file=settings.log_file, most_bytes=settings.log_file_bytes)
    # Private files get their modes where they are created; files of programs are readable by default.
    os.umask(0o022)
    make_data_folder(settings.data, SettingsError)
    journal = await in_thread(lambda: Journal.open(settings.data / "journal.db"))
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    writes = Writes.here()
    try:
        token = None if settings.token_file is None else partial(_token, settings.token_file)
        clock = SystemClock()
        held = HeldDevices(clock)
        probe = _probe(settings, clock, held)
        isolation = await in_thread(lambda: _isolation(settings))
        alone = isolation
        containers = _containers_probe(settings, isolation)
        pull = _pull(settings)
        isolation, engine_place = await _containers(settings, isolation, containers, pull, clock)
        accounts = await in_thread(lambda: _accounts(settings, isolation))
        limits = await in_thread(lambda: _limits(settings))
        networks = await in_thread(lambda: _networks(settings, isolation, engine_place))
        # only now: programs get the original limit
        _open_as_many_files_as_allowed()
        host = HostProbe()
        folders = ReplicaFolders(settings.data / "replicas")
        isolation = replace(isolation, machine=replace(isolation.machine, limits=limits))
        of_builds = build_limits(settings, host.facts().memory_bytes)
        sandbox = await in_thread(
            lambda: _sandbox(settings, of_builds, alone, isolation.machine, networks.network)
        )
        downloads = Downloads(settings.data / "downloads")
        defaults = await in_thread(lambda: _defaults(settings))
        environments = Environments(
            settings.data / "environments",
            sandbox,
            downloads,
            accounts,
            defaults.lines,
            conda=await in_thread(lambda: _conda(settings, sandbox.level)),
        )
        stores = [
            Store(kind="downloads", cache=downloads, place=settings.data),
            Store(kind="environment", cache=environments, place=environments.folder),
        ]
        reader = Setups(sandbox).reader
        hook: Hook = PythonHook(environments, in_own_thread, reader)
        images: Images | None = None
        watch: EngineWatch | None = None
        if engine_place is not None:
            images = await _images(
                settings, of_builds, engine_place, limits.disk_floor_bytes, defaults.lines
            )
            stores.append(Store(kind="image", cache=images, place=engine_place.root))
            watch = EngineWatch(engine_place.engine, clock=clock, run_long=in_own_thread)
            names = _image_names(engine_place, sandbox)
            hook = ImageHook(images, names, in_own_thread, reader, watch)
        ahead = OnMachine(environments) if images is None else InImages(images)
        uses = partial(_uses, folders, ahead)
        async with (
            _rules_kept(networks, folders, clock),
            _runtime(folders, isolation, networks.network, engine_place, clock) as runtime,
            _built_ahead(environments if images is None else images, defaults),
        ):
            yield Dependencies(
                clock=clock,
                rng=random.Random(),  # noqa: S311 - the jitter of pauses
                run=in_thread,
                channel_factory=ChannelMaker(settings),
                runtime=runtime,
                journal=journal,
                machine=_machine(settings, host.facts(), isolation, limits, networks),
                probe=probe,
                load=held.update,
                meter=NodeMeter(host, settings.data),
                measure=ReplicaMeter(clock, host.facts().boot_id).samples,
                token=token,
                renew=_renewal(settings, clock),
                run_long=in_own_thread,
                hooks=[hook],
                relieve=lambda trees: relieve(
                    [*stores, *trees],
                    KeepFree(share=settings.keep_free_share, bytes=settings.keep_free_bytes),
                    uses,
                ),
                disk_floor_bytes=limits.disk_floor_bytes,
                sdk_folder=await in_thread(lambda: _sdk(settings.data / "sdk")),
                accounts=accounts,
                images=None if images is None else images.listed,
                image_orders=None
                if images is None
                else _image_orders(settings, images, uses, clock),
                environment_orders=_environment_orders(
                    _listed(environments, images, ahead),
                    folders,
                    _environment_builds(settings, ahead, reader, clock),
                    clock,
                ),
                writes=writes,
                engine=watch,
                builds_conda=environments.builds_conda and images is None,
                peers=_peers(settings),
                has_grown=_has_containers_now(containers, pull)
                if engine_place is None and settings.isolation == "auto"
                else None,
            )
    finally:
        # an agent restarted in this process finds the original limit
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
        if writes is not None:
            writes.close()
        journal.close()


class ChannelMaker:
    """Creates channels by the settings: TLS with an authority, plaintext only on this machine.

    Without a certificate only to configured servers: all others require
    one, and any of those servers relays to the leader.

    The files are read for each channel, since certificates are renewed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        if settings.authority_file is not None:
            self._credentials(settings.authority_file)
        for server in settings.servers:
            if settings.authority_file is None and not is_local(server):
                raise SettingsError(
                    f"{server} is another machine: plaintext is for this one only."
                    " Join with `nsml join`, or name an authority_file"
                )

    def __call__(self, address: str, *, is_hasty: bool = False, is_own: bool = False) -> Channel:
        """See ChannelFactory."""
        settings = self._settings
        authority, certificate = settings.authority_file, settings.certificate_file
        if None in {authority, certificate} and address not in settings.servers:
            raise SettingsError(f"{address} is for certificates, and this node has none")
        options = (*_OPTIONS, *(HASTY if is_hasty else _PATIENT))
        options += _OWN_CONNECTION if is_own else ()
        if authority is not None:
            # only listeners of the platform have that name, whatever their host names
            named = ("grpc.ssl_target_name_override", SERVER_NAME)
            return grpc.aio.secure_channel(
                address, self._credentials(authority), options=(*options, named)
            )
        return grpc.aio.insecure_channel(address, options=options)

    def _credentials(self, authority: Path) -> grpc.ChannelCredentials:
        key, certificate = self._settings.key_file, self._settings.certificate_file
        return grpc.ssl_channel_credentials(
            _read(authority),
            None if key is None else _read_secret(key),
            None if certificate is None else _read(certificate),
        )


def _node_files(settings: Settings) -> NodeFiles | None:
    """Return the node's files for control planes and peers, or peers alone; None: it has no certificate."""
    key, certificate, authority = (
        settings.key_file,
        settings.certificate_file,
        settings.authority_file,
    )
    if key is not None and certificate is not None and authority is not None:
        return NodeFiles(key=key, certificate=certificate, authority=authority)
    if settings.peer_trust is not None and settings.token_file is not None:
        return NodeFiles.within(settings.peer_trust)
    return None


def _renewal(settings: Settings, clock: Clock) -> Renew | None:
    """Return a function that renews the node's certificate; None without one."""
    files = _node_files(settings)
    if files is None:
        return None

    async def renew(address: str) -> bool:
        return await renew_when_due(address, settings.node, files, now=clock.time())

    async def renew_by_token(address: str) -> bool:
        if files.certificate.exists() and not needs_renewal(files.certificate, now=clock.time()):
            return False
        check_own_listener(address)
        channel = ChannelMaker(settings)(address, is_own=True)
        try:
            token = _token(cast("Path", settings.token_file))
            await certify(calls.Accounts(Rpc(channel, token=token)), files)
        finally:
            await channel.close()  # type: ignore[attr-defined] # of gRPC
        return True

    return renew if settings.certificate_file is not None else renew_by_token


def _peers(settings: Settings) -> PeerNetwork | None:
    """Return the network of peers; None for an agent without a certificate."""
    files = _node_files(settings)
    if files is None or not files.certificate.exists():
        return None

    def proof() -> NodeProof:
        return NodeProof(_read(files.authority), _read_secret(files.key), _read(files.certificate))

    return PeerNetwork(proof)


def _open_as_many_files_as_allowed() -> None:
    """Each program may use a few of the agent's descriptors, and there are many programs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _token(path: Path) -> str:
    return _read_secret(path).decode().strip()


def _read_secret(path: Path) -> bytes:
    try:
        return read_private(str(path))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error


def _isolation(settings: Settings) -> IsolationFacts:
    trial_id, obstacle = _trial_id(settings)
    found = probe_isolation(
        settings.data / "trial", trial_id=trial_id, python=Path(sys.base_prefix)
    )
    no_user = obstacle or found.user_reason
    user_words = no_user and f"level user does not work: {no_user}"
    reasons = "; ".join(filter(None, [found.reason, user_words]))
    if settings.isolation in {"auto", "container"}:
        return replace(found, reason=reasons if _misses_user(found) else found.reason)
    wanted = Isolation(settings.isolation)
    if wanted not in found.levels:
        why = no_user if wanted is Isolation.USER else reasons
        raise SettingsError(f"isolation {wanted.value} does not work here: {why}")
    # shortcomings of a stronger level are irrelevant to a chosen one
    return replace(found, level=wanted, reason=found.reason if wanted is found.level else "")


def _misses_user(found: IsolationFacts) -> bool:
    """Whether the failure of level `user` matters to this machine."""
    if found.level is Isolation.NONE:
        return True
    # it would isolate users, if it worked
    return os.geteuid() == 0 and not found.with_accounts


def _accounts(settings: Settings, isolation: IsolationFacts) -> Accounts | None:
    """Return the users' accounts on this machine; also opens or closes the folders above readable files."""
    is_user = isolation.level is Isolation.USER
    for name in (*_ON_THE_WAY, *_NOBODYS_WAY):
        folder = settings.data / name
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o711 if is_user and name in _ON_THE_WAY else 0o700)
    if isolation.level not in isolation.with_accounts:
        return None
    try:
        return Accounts(settings.data, _ids(settings), by_group=is_user)
    except AccountsError as error:
        raise SettingsError(str(error)) from error


def _defaults(settings: Settings) -> Defaults:
    try:
        return read_defaults(settings.default_requirements)
    except (RequirementsRefused, OSError) as error:
        raise SettingsError(f"default_requirements: {error}") from error


def _conda(settings: Settings, level: Isolation) -> Conda | None:
    """Return the builder of conda packages; None without one, or without a root of their own for package scripts."""
    try:
        found = find_conda(
            str(settings.micromamba or ""), settings.conda_channels or DEFAULT_CHANNELS
        )
    except Unusable as error:
        # other sessions do not need it
        log.warning("conda.unusable", reason=str(error))
        return None
    if found is not None and level is not Isolation.NAMESPACE:
        log.warning("conda.unusable", reason="builds have no root of their own here")
        return None
    return found


def build_limits(settings: Settings, memory_bytes: int) -> BuildLimits:
    """Return the limits of builds on a machine with `memory_bytes` of memory."""
    each, count = settings.build_memory_bytes, settings.builds_at_once
    limits = BuildLimits(
        memory_bytes=each,
        cpus=settings.build_cpus,
        disk_bytes=settings.build_disk_bytes,
        files=settings.build_files,
        kept_bytes=settings.build_cache_bytes,
        time_s=settings.build_time_limit_s,
        at_once=count,
        per_owner=settings.user_builds_at_once,
        together_bytes=settings.builds_memory_bytes or memory_bytes // 2,
    )
    return replace(limits, together_bytes=min(limits.together_bytes, limits.most_together_bytes))


def _sandbox(
    settings: Settings,
    limits: BuildLimits,
    alone: IsolationFacts,
    machine: ReplicaMachine,
    network: Networks | None,
) -> Sandbox:
    """Return the sandbox of environment builds: by the levels that work here without an engine, whatever sessions use."""
    level = strongest(alone)
    ids: list[int] = []
    if level in alone.with_accounts:
        try:
            ids = build_ids(settings.data, _ids(settings))
        except AccountsError as error:
            raise SettingsError(str(error)) from error
    sandbox = Sandbox(
        settings.data / "builds",
        machine=machine,
        level=level,
        ids=ids,
        # without root builds use the machine's, with package indexes on its loopback
        network=network
        if level is Isolation.NAMESPACE and isinstance(network, SessionNetwork)
        else None,
        limits=limits,
        room=partial(room_for_builds, settings.data, machine.limits.disk_floor_bytes),
    )
    sandbox.tidy()
    return sandbox


def _trial_id(settings: Settings) -> tuple[int | None, str]:
    """Return the id for testing users' ids; or None, and why they cannot be used."""
    is_root = os.geteuid() == 0
    obstacle = range_on_this_machine(_ids(settings)) if is_root else "the agent is not root"
    return (None if obstacle else _ids(settings).trial), obstacle


def _ids(settings: Settings) -> IdRange:
    return IdRange(settings.uid_first, settings.uid_count)


def _only_owner(isolation: IsolationFacts) -> str:
    """Return why this node accepts only its owner's sessions, or "" if it isolates users."""
    if isolation.level is Isolation.NONE:
        return "it runs sessions without isolation"
    if isolation.level is Isolation.CONTAINER or isolation.level in isolation.with_accounts:
        return ""
    if os.geteuid():
        return "its agent has neither root nor a container engine"
    return "its agent has root and cannot run users under ids of their own"


def _containers_probe(settings: Settings, found: IsolationFacts) -> Callable[[], EnginePlace]:
    """Return a test of containers by the settings; blocking, raises NoContainers."""
    _, most_open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    trial_id, obstacle = _trial_id(settings)

    def probe() -> EnginePlace:
        place = probe_containers(
            Engine(settings.engine_socket),
            found.machine,
            settings.data / "trial",
            node=settings.node,
            mark=engine_mark(settings.data),
            default_image=settings.default_image,
            most_open_files=most_open_files,
            container_network=settings.container_network,
            trial_id=trial_id,
        )
        if place.network_reason:
            log.warning(
                "containers.no_own_network",
                reason=place.network_reason,
                sessions=place.container.network,
                builds=settings.build_network or place.container.network,
            )
        if os.geteuid() == 0 and obstacle:
            log.warning("containers.run_as_root", reason=obstacle)
        return place

    return probe


def _pull(settings: Settings) -> _Pull | None:
    """Return a function that pulls an administrator's default image; None: there is none."""
    if not settings.names_default_image:
        return None

    def pull(cancelled: threading.Event) -> None:
        pull_default_image(
            Engine(settings.engine_socket),
            settings.default_image,
            credentials=settings.registry_config,
            cancelled=cancelled,
        )

    return pull


async def _containers(
    settings: Settings,
    found: IsolationFacts,
    probe: Callable[[], EnginePlace],
    pull: _Pull | None,
    clock: Clock,
) -> tuple[IsolationFacts, EnginePlace | None]:
    """Return the facts with containers, and their engine; else why there are none.

    Raises:
        SettingsError: containers are required, and do not work.
    """
    if settings.isolation not in {"auto", "container"}:
        return found, None
    starting = settings.data / "starting.json"

    def tell(awaits: str, within_s: float) -> None:
        """Report to `nsml up`, which waits for this agent."""
        words = {"pid": os.getpid(), "awaits": awaits, "within_s": within_s}
        write_atomically(starting, json.dumps(words).encode())

    def tell_and_pull(fetch: _Pull, cancelled: threading.Event) -> None:
        tell(f"pulling image {settings.default_image}", PULLED_WITHIN_S)
        fetch(cancelled)

    try:
        place = await containers_at_start(
            probe,
            settings.data,
            awaits=lambda why, s: tell(f"sessions ran in containers here, and {why}", s),
            clock=clock,
            run_long=in_own_thread,
            pull=pull and partial(tell_and_pull, pull),
        )
    except NoContainers as reason:
        if settings.isolation == "container":
            raise SettingsError(f"isolation container does not work here: {reason}") from reason
        reasons = [f"no containers: {reason}", found.reason]
        found = replace(found, reason="; ".join(filter(None, reasons)))
        if not settings.names_default_image:
            log.info("containers.unused", reason=str(reason))
            return found, None
        log.warning("containers.unused", reason=str(reason), default_image=settings.default_image)
        return replace(found, unmet=f"default_image is set, and no containers: {reason}"), None
    finally:
        starting.unlink(missing_ok=True)
    found = with_containers(found, trial_id=_trial_id(settings)[0])
    if place.network_reason and not settings.container_network:
        why = f"sessions have no network: {place.network_reason} (container_network chooses one)"
        found = replace(found, reason="; ".join(filter(None, [found.reason, why])))
    return found, place


def _has_containers_now(
    probe: Callable[[], EnginePlace], pull: _Pull | None
) -> Callable[[], Awaitable[bool]]:
    """Return a check whether they work by now."""

    async def look() -> bool:
        try:
            await tried_in_time(probe, in_own_thread, pull=pull)
        except NoContainers:
            return False
        return True

    return look


def _networks(
    settings: Settings, isolation: IsolationFacts, place: EnginePlace | None = None
) -> NetworkFacts:
    """Return the networks of sessions and their rules, applied from now on.

    Raises:
        SettingsError: networks of their own are required, and do not work.
    """
    is_wanted = settings.session_network != "host" and isolation.level is Isolation.NAMESPACE
    if os.geteuid() == 0:
        has_ids = isolation.level in isolation.with_accounts
        ids = _ids(settings)
        containers = place and ContainerNetworks(place.engine, settings, place.own_network)
        found = probe_network(
            settings.data,
            rules=NetworkRules(
                uids=(ids.first, ids.trial) if has_ids else None,
                metadata=settings.metadata_addresses,
                ports=settings.session_ports,
                connections=settings.session_connections,
            ),
            subnet=settings.session_subnet,
            nameservers=settings.session_nameservers,
            is_wanted=is_wanted,
            engines=containers.bridges if containers else tuple,
        )
        if containers and found.firewall is not None:
            found = replace(found, open_reason=containers.open_reason(has_ids=has_ids))
    elif is_wanted:
        found = probe_pasta(
            settings.data,
            subnet=settings.session_subnet,
            nameservers=settings.session_nameservers,
            metadata=settings.metadata_addresses,
        )
    else:
        reason = "the agent is not root"
        found = NetworkFacts(reason=reason, open_reason=reason)
    is_engines = isolation.level is Isolation.CONTAINER  # whose networks are their own, too
    if settings.session_network == "own" and found.network is None and not is_engines:
        why = found.reason or f"sessions have isolation {isolation.level.value}, not namespace"
        raise SettingsError(f"session_network own does not work here: {why}")
    # without root a node accepts only its owner's sessions: nobody has to act
    tell = log.info if os.geteuid() and not is_engines else log.warning
    if is_wanted and found.network is None:
        tell("network.shared", reason=found.reason)
    if settings.metadata_addresses and found.open_reason:
        tell("network.metadata_open", reason=found.open_reason)
    return found


def _network_note(settings: Settings, isolation: IsolationFacts, found: NetworkFacts) -> str:
    """Return a note for administrators on the networks of sessions here."""
    words = []
    if isolation.level is Isolation.NAMESPACE and found.network is None:
        is_chosen = settings.session_network == "host" or not found.reason
        why = "session_network = host" if is_chosen else found.reason
        words.append(f"sessions share the machine's network: {why}")
    elif isolation.level is Isolation.NAMESPACE and os.geteuid():
        words.append("sessions have networks of their own, by pasta")
    if isolation.level is Isolation.NAMESPACE and isolation.joined_reason:
        words.append(f"--network none is not offered: {isolation.joined_reason}")
    if _only_owner(isolation):
        return "; ".join(words)  # all sessions belong to one person, as does the metadata
    if settings.metadata_addresses and found.open_reason:
        whom = "containers" if isolation.level is Isolation.CONTAINER else "them"
        words.append(f"metadata services are open to {whom}: {found.open_reason}")
    return "; ".join(words)


@asynccontextmanager
async def _built_ahead(
    environments: Environments | Images, defaults: Defaults
) -> AsyncIterator[None]:
    """Meanwhile rebuild the environment of the default packages, or the image, if their file is newer."""
    cancelled = threading.Event()

    async def build() -> None:
        make = partial(
            environments.build_default,
            lambda _: None,
            cancelled,
            built_after=defaults.changed_at,
        )
        try:
            await in_own_thread(make)
        except EnvironmentCancelled:
            return
        except (EnvironmentFailed, EngineError, OSError) as error:
            log.warning("environment.default_not_built", reason=str(error))

    building = asyncio.create_task(build()) if defaults.lines else None
    try:
        yield
    finally:
        cancelled.set()
        if building is not None:
            building.cancel()


@asynccontextmanager
async def _rules_kept(
    found: NetworkFacts, folders: ReplicaFolders, clock: Clock
) -> AsyncIterator[None]:
    """Keep the network rules; remove all at the end, unless sessions are left."""

    async def keep(firewall: Firewall) -> None:
        while True:
            await clock.sleep(_RULES_LOOKED_AT_S)
            try:
                await in_thread(firewall.restore)
            except NoNetwork as error:
                log.warning("firewall.not_restored", reason=str(error))

    keeping = None if found.firewall is None else asyncio.create_task(keep(found.firewall))
    try:
        yield
    finally:
        if keeping is not None:
            keeping.cancel()
        if found.network is not None:
            found.network.close()
        if all(folders.of(one).exit.exists() for one in folders.ids()):
            try:
                await in_thread(found.remove)
            except OSError as error:
                log.warning("network.not_removed", reason=str(error))


def _runtime(
    folders: ReplicaFolders,
    isolation: IsolationFacts,
    network: Networks | None,
    place: EnginePlace | None,
    clock: Clock,
) -> ShimDriver:
    if place is None:
        return ProcessDriver(
            folders,
            machine=isolation.machine,
            levels=isolation.levels,
            launcher=Launcher(in_thread),
            clock=clock,
            run=in_thread,
            run_long=in_own_thread,
            network=network,
        )
    return DockerDriver(
        folders,
        machine=isolation.machine,
        place=place,
        launcher=Launcher(in_thread),
        clock=clock,
        run=in_thread,
        run_long=in_own_thread,
    )


async def _images(
    settings: Settings,
    limits: BuildLimits,
    place: EnginePlace,
    floor_bytes: int,
    default_packages: Sequence[str],
) -> Images:
    """Return the images of this agent; leftovers of earlier builds are removed."""
    images = Images(
        settings.data / "images",
        place.engine,
        ImageSettings(
            default=settings.default_image,
            default_packages=default_packages,
            aliases=settings.image_aliases,
            always_pulls=settings.image_pull == "always",
            credentials=settings.registry_config,
            allowed=settings.allowed_images,
            image_bytes=settings.image_bytes,
            pull_time_limit_s=settings.image_pull_time_limit_s,
            network=settings.build_network or place.container.network,
            disk_bytes=limits.disk_bytes,
            memory_bytes=limits.memory_bytes,
            cpus=limits.cpus,
            time_limit_s=limits.time_s,
        ),
        mark=place.container.mark,
        is_full=lambda: is_full(place.root, floor_bytes) or lacks_files(place.root),
        queue=limits.queue(partial(room_for_builds, place.root, floor_bytes)),
    )
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            await in_own_thread(images.tidy)
    except (EngineError, OSError, TimeoutError) as error:
        log.warning("images.not_tidied", error=str(error))
    return images


def _image_orders(
    settings: Settings, images: Images, uses: Callable[[], frozenset[str]], clock: Clock
) -> MakeImageOrders:
    def make(answered: Callable[[], object], changed: Callable[[], object]) -> ImageOrders:
        return ImageOrders(
            images,
            most=(settings.builds_at_once, settings.user_builds_at_once),
            is_used=lambda key: f"image {key}" in uses(),
            answered=answered,
            changed=changed,
            clock=clock,
            run_long=in_own_thread,
        )

    return make


def _uses(folders: ReplicaFolders, ahead: OnMachine | InImages) -> frozenset[str]:
    """Return the needs of replicas, and of builds without a waiting session."""
    return used_things(folders) | ahead.uses()


def _environment_builds(
    settings: Settings, provide: Provide, reader: MakeReaders, clock: Clock
) -> EnvironmentBuilds:
    return EnvironmentBuilds(
        provide,
        most=(settings.builds_at_once, settings.user_builds_at_once),
        reader=reader,
        clock=clock,
        run_long=in_own_thread,
    )


def _listed(
    environments: Environments, images: Images | None, ahead: OnMachine | InImages
) -> Mapping[str, Stored]:
    """Return the environments visible to users: also those from before the node had containers."""
    if images is None:
        return {"environment": environments}
    of_images = PackageImages(images, lambda key: f"image {key}" in ahead.uses())
    return {"environment": environments, "image": of_images}


def _environment_orders(
    environments: Mapping[str, Stored],
    folders: ReplicaFolders,
    builds: EnvironmentBuilds,
    clock: Clock,
) -> MakeEnvironmentOrders:
    return lambda answered: EnvironmentOrders(
        environments, folders, builds, answered=answered, clock=clock, run_long=in_own_thread
    )


def _image_names(place: EnginePlace, sandbox: Sandbox) -> ImageNames:
    mark = place.container.mark
    return ImageNames(place.engine, sandbox, prefix=f"{build_prefix(mark)}names-", mark=mark)


def _probe(settings: Settings, clock: Clock, held: HeldDevices) -> DeviceProbe:
    if settings.simulate_gpus:
        events = settings.data / "simulated-gpus"
        return SimulatedProbe(
            settings.node, settings.simulate_gpus, clock, held.loads, events=events
        )
    from nodeagent.probes.nvml import NvmlProbe  # noqa: PLC0415 - not for simulated devices

    return NvmlProbe()


def _limits(settings: Settings) -> LimitFacts:
    return probe_limits(
        settings.data,
        disk_floor_bytes=settings.disk_floor_bytes,
        with_groups=settings.control_groups,
        unit=settings.replicas_unit,
    )


def _kept(isolation: Isolation, limits: LimitFacts) -> resources.KeptLimits:
    """Return the node's limits; an engine enforces those of containers by its own groups."""
    if isolation is Isolation.CONTAINER:
        memory = cpus = processes = resources.KEEPING_GROUP
        note = ""
    else:
        memory, cpus, processes = (_KEEPING[limits.keeping(one)] for one in (MEMORY, CPU, PIDS))
        note = limits.reason
    return resources.KeptLimits(
        memory=memory, cpus=cpus, processes=processes, disk=resources.KEEPING_WATCHED, note=note
    )


_WITH_ROOT = {Isolation.CONTAINER, Isolation.NAMESPACE}


def _machine(
    settings: Settings,
    facts: HostFacts,
    isolation: IsolationFacts,
    limits: LimitFacts,
    networks: NetworkFacts,
) -> Machine:
    host = settings.host or reachable_host(settings.servers[0], facts.host)
    interface = interface_of(host)
    gangs = _gangs(settings, isolation.level, interface)
    return Machine(
        boot_id=facts.boot_id,
        host=host,
        isolation=isolation.level,
        only_owner=_only_owner(isolation),
        gangs=gangs,
        networks=_offer(settings, isolation, networks, gangs, interface),
        isolation_note="; ".join(
            filter(None, [isolation.reason, _network_note(settings, isolation, networks)])
        ),
        setting_note=isolation.unmet,
        capacity=resources.Resources(
            cpu_thousandths=round(1000 * (settings.cpus or facts.cpus)),
            memory_bytes=settings.memory_bytes or facts.memory_bytes,
        ),
        limits=_kept(isolation.level, limits),
        # elsewhere nothing is mounted, and a program could write to its inputs
        shared_roots=settings.shared_roots if isolation.level in _WITH_ROOT else (),
    )


def _gangs(settings: Settings, isolation: Isolation, interface: str) -> GangNetwork:
    mode = NONE if settings.gang_network == NONE else HOST
    if isolation is Isolation.CONTAINER:
        mode = settings.gang_network or NONE
    return GangNetwork(
        mode=mode,
        devices=settings.gang_devices,
        unlimited_memlock=settings.gang_memlock,
        environment={
            **interface_variables(mode, interface),
            **dict(one.split("=", 1) for one in settings.gang_environment),
        },
    )


def _offer(
    settings: Settings,
    isolation: IsolationFacts,
    found: NetworkFacts,
    gangs: GangNetwork,
    interface: str,
) -> NetworkOffer:
    """Return the networks offered to sessions without a gang: the host network if allowed, or if all use it."""
    level = isolation.level
    has_none = level is Isolation.CONTAINER
    if level is Isolation.CONTAINER:
        has_own = settings.container_network != HOST
    else:
        has_own = level is Isolation.NAMESPACE and found.network is not None
        has_none = level is Isolation.NAMESPACE and not isolation.joined_reason
    if settings.host_network == "never":
        host = None if has_own else GangNetwork(mode=HOST)
        return NetworkOffer(has_own=has_own, host=host, has_none=has_none)
    # those for an overlay name interfaces that the machine lacks
    chosen = {} if gangs.is_overlay else gangs.environment
    environment = {**interface_variables(HOST, interface), **chosen}
    host = replace(gangs, mode=HOST, environment=environment)
    return NetworkOffer(has_own=has_own, host=host, has_none=has_none)


def _sdk(folder: Path) -> Path:
    """Return this version's SDK; running programs keep the one they started with."""
    place = folder / sdk_digest()
    write_sdk(place)
    for path in (place, *place.rglob("*")):  # also files that an earlier agent kept private
        path.chmod(0o755 if path.is_dir() else 0o644)
    return place
