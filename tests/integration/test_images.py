"""Images on a real engine: found, built once, by whom, from what, and what a build can reach."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import socket
import tarfile
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker.errors
import pytest

from nodeagent.engine.client import Engine, EngineUnreachable
from nodeagent.engine.containers import BUILD_LABEL, containers_of, remove_container
from nodeagent.engine.images import builds_named, find_image, remove_image, tags_of
from nodeagent.environments.build_queue import BuildQueue, QueueLimits
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.image_settings import ImageSettings
from nodeagent.environments.images import Images
from nodeagent.storage.eviction import KeepFree, Store, relieve
from nsml.packages.requirements import Requirements
from tests.engines import required_engine, required_image
from tests.support.living_folders import files_below
from tests.support.wheels import index_of, make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


_BACKEND = """
import zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    wheel = "{name}-1.0-py3-none-any.whl"
    info = "{name}-1.0.dist-info"
    with zipfile.ZipFile(f"{{folder}}/{{wheel}}", "w") as archive:
        archive.writestr(f"{{info}}/METADATA", {metadata!r})
        archive.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{{info}}/RECORD", "")
    return wheel
"""


@dataclass
class Node:
    """One agent's images on the engine of the tests, with a mirror of packages."""

    images: Images
    engine: Engine
    base: str
    mirror: Path
    mark: str
    folder: Path
    pool: ThreadPoolExecutor
    used: list[str] = field(default_factory=list)

    def ask(
        self,
        *lines: str,
        packages: tuple[str, ...] = (),
        said: bytearray | None = None,
        cancelled: threading.Event | None = None,
        image: str = "",
        images: Images | None = None,
    ) -> Future[str]:
        heard = bytearray() if said is None else said
        return self.pool.submit(
            (images or self.images).provide,
            image or self.base,
            Requirements(lines=lines, packages=packages),
            heard.extend,
            cancelled or threading.Event(),
            owner="kim",
            use=self.used.append,
        )

    def runs(self, image: str, code: str) -> str:
        """What a program in `image` prints."""
        made = self.engine.sdk.api.create_container(
            image,
            entrypoint=["python3", "-c", code],
            host_config=self.engine.sdk.api.create_host_config(network_mode="none"),
        )["Id"]
        try:
            self.engine.sdk.api.start(made)
            self.engine.sdk.api.wait(made)
            output: bytes = self.engine.sdk.api.logs(made)
            return output.decode()
        finally:
            self.engine.sdk.api.remove_container(made, force=True)

    def sdist(self, name: str, setup: str) -> None:
        """A package that has only source, whose build does what `setup` says."""
        metadata = f"Metadata-Version: 1.0\nName: {name}\nVersion: 1.0\n"
        files = {
            "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
            "backend.py": f"{setup}\n{_BACKEND.format(name=name, metadata=metadata)}",
            "PKG-INFO": metadata,
        }
        with tarfile.open(self.mirror / f"{name}-1.0.tar.gz", "w:gz") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(f"{name}-1.0/{path}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    engine, _ = required_engine()
    base = required_image()
    mark = uuid.uuid4().hex[:12]
    mirror = Path("/opt") / f"nsml-test-{mark}" if os.access("/opt", os.W_OK) else tmp_path / "m"
    mirror.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mirror))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    folder = tmp_path / "images"
    images = Images(folder, engine, ImageSettings(default=base), mark=mark)
    with ThreadPoolExecutor(16) as pool:
        node = Node(images, engine, base, mirror, mark, folder, pool)

        def our_tags(*which: Any) -> list[str]:
            """The engine has images of others, who did not ask for their removal."""
            return [tag for tag in tags_of(*which) if tag in node.used]

        monkeypatch.setattr("nodeagent.environments.image_builds.tags_of", our_tags)
        yield node
    for name in builds_named(engine, f"nsml-build-{mark}"):
        remove_container(engine, name)
    for record in files_below(tmp_path, "*.json"):  # of other agents, too
        reference = json.loads(record.read_text()).get("reference", "")
        if reference.startswith("nsml-env:"):
            remove_image(engine, reference)
    shutil.rmtree(mirror)


def test_sessions_at_once_build_once_and_the_next_finds_it(node: Node) -> None:
    make_wheel(node.mirror, "greeting", "TEXT = 'hello'")
    heard = [bytearray() for _ in range(6)]
    made = {one.result(120) for one in [node.ask("greeting==1.0", said=said) for said in heard]}
    assert len(made) == 1
    told = {bytes(said) for said in heard if said}
    assert len(told) == 1
    assert told.pop().count(b" + greeting==1.0\n") == 1
    image = made.pop()
    assert node.runs(image, "import greeting; print(greeting.TEXT)") == "hello\n"
    again = bytearray()
    assert node.ask("greeting==1.0", said=again).result(60) == image
    assert again == b""
    other = Images(node.folder, node.engine, ImageSettings(), mark=node.mark)
    assert node.ask("greeting==1.0", images=other).result(60) == image
    assert builds_named(node.engine, f"nsml-build-{node.mark}") == []
    assert list(node.folder.glob("*.build")) == []


def test_the_image_is_configured_like_its_base_and_keeps_nothing_of_the_build(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(node.mirror, "greeting", "")
    password = uuid.uuid4().hex
    monkeypatch.setenv("PIP_INDEX_URL", f"https://kim:{password}@127.0.0.1:1/")
    image = node.ask("greeting").result(120)
    base, derived = (node.engine.sdk.api.inspect_image(one) for one in (node.base, image))
    for name, otherwise in (("Env", []), ("Cmd", []), ("Entrypoint", []), ("WorkingDir", "/")):
        of_derived, of_base = (one["Config"].get(name) or otherwise for one in (derived, base))
        assert of_derived == of_base
    assert password not in json.dumps([derived, node.engine.sdk.api.history(image)])
    search = (
        "import subprocess as s; print(s.run(['grep', '-rlsa', '--exclude-dir=proc',"
        f" '--exclude-dir=sys', {password!r}, '/'], capture_output=True, text=True).stdout)"
    )
    assert node.runs(image, search).strip() == ""
    assert node.runs(image, "import os; print(os.listdir('/run/nsml-build'))") == "[]\n"


def test_nothing_is_asked_for(node: Node) -> None:
    found = find_image(node.engine, node.base)
    assert found is not None
    said = bytearray()
    assert node.ask(said=said).result(60) == found.id
    assert said == b""


def test_what_does_not_exist_fails_for_all_who_wait(node: Node) -> None:
    asked = [node.ask("no-such-thing==1") for _ in range(4)]
    for one in asked:
        with pytest.raises(EnvironmentFailed, match="no-such-thing was not found"):
            one.result(120)
    make_wheel(node.mirror, "no_such_thing", "")
    with pytest.raises(EnvironmentFailed, match=r"no version of no-such-thing==1\.1"):
        node.ask("no-such-thing==1.1").result(120)


def test_what_needs_a_compiler_says_so(node: Node) -> None:
    node.sdist(
        "native",
        "import sys; sys.stderr.write(\"error: command 'gcc' failed: No such file\\n\"); sys.exit(1)",
    )
    with pytest.raises(EnvironmentFailed, match="build-essential"):
        node.ask("native").result(120)


def test_source_is_built_where_there_are_containers(node: Node) -> None:
    node.sdist("justsource", "import os; os.write(2, b'its code runs\\n')")
    said = bytearray()
    image = node.ask("justsource", said=said).result(120)
    code = "import importlib.metadata as m; print(m.version('justsource'))"
    assert node.runs(image, code) == "1.0\n"


def test_what_the_image_has_is_kept_and_in_the_lock_if_an_index_has_it(
    node: Node, tmp_path: Path
) -> None:
    old = make_wheel(node.mirror, "kept", "TEXT = 'old'")
    with_kept = f"kept-{node.mark}:1"
    node.engine.sdk.api.tag(node.ask("kept").result(120), *with_kept.split(":"))
    make_wheel(node.mirror, "kept", "TEXT = 'new'", version="2.0")
    make_wheel(node.mirror, "other", "", needs="Requires-Dist: kept\n")
    make_wheel(node.mirror, "extra")
    settings = ImageSettings(allowed=("local:*",))
    images = Images(node.folder, node.engine, settings, mark=node.mark)

    def made(
        *lines: str, lock: str = "", base: str = with_kept, keeps_all: bool = False
    ) -> tuple[str, str, bytes]:
        said, locks = bytearray(), list[str]()
        image = images.provide(
            base,
            Requirements(lines=lines),
            said.extend,
            threading.Event(),
            owner="kim",
            use=node.used.append,
            lock=lock,
            keeps_whole_lock=keeps_all,
            installed=locks.append,
        )
        return image, locks[0], bytes(said)

    code = "import kept; print(kept.TEXT)"
    try:
        image, lock, _ = made("other")
        assert node.runs(image, code) == "old\n"
        assert [line.partition(" ")[0] for line in lock.splitlines()] == ["kept==1.0", "other==1.0"]
        assert made("other", lock=lock)[:2] == (image, lock), "which is there"
        on_base, again, _ = made("other", lock=lock, base=node.base)
        assert (node.runs(on_base, code), again) == ("old\n", lock)
        # of a node without containers, which has its default packages beside
        _, extra, _ = made("extra")
        found = "import importlib.util as u; print(u.find_spec('extra') is not None)"
        on_base, again, _ = made("other", lock=lock + extra, base=node.base)
        assert (node.runs(on_base, found), again) == ("False\n", lock)
        on_base, again, _ = made("other", lock=lock + extra, base=node.base, keeps_all=True)
        assert (node.runs(on_base, found), again) == ("True\n", lock + extra)
        on_base, again, said = made("other; python_version < '3'", lock=lock, base=node.base)
        other = found.replace("extra", "other")
        assert (node.runs(on_base, other), again) == ("False\n", "")
        assert b"nothing to install" in said
        with pytest.raises(EnvironmentFailed, match="does not have what this Python needs: kept"):
            made("other", lock=lock.partition("\n")[2], base=node.base)
        _, none, said = made("kept")
        assert (none, b"the image has all of it" in said) == ("", True)
        old.rename(tmp_path / old.name)
        image, none, said = made("other>=1")
        assert (node.runs(image, code), none) == ("old\n", "")
        assert b"note: no lock" in said
        with pytest.raises(EnvironmentFailed, match=r"does not have .* other"):
            made("other", lock=f"gone==1.0 --hash=sha256:{'a' * 64}\n")
    finally:
        remove_image(node.engine, with_kept)


def test_a_lock_is_that_of_the_image_it_was_noted_of(node: Node, tmp_path: Path) -> None:
    make_wheel(node.mirror, "greeting", "TEXT = 'old'")
    another = another_agent(node, tmp_path)

    def made(lock: str = "", images: Images = node.images) -> tuple[str, str]:
        locks = list[str]()
        image = images.provide(
            node.base,
            Requirements(lines=("greeting",)),
            lambda _: None,
            threading.Event(),
            owner="kim",
            use=node.used.append,
            lock=lock,
            installed=locks.append,
        )
        return node.runs(image, "import greeting; print(greeting.TEXT)"), locks[0]

    text, lock = made()
    assert (text, lock.partition(" ")[0]) == ("old\n", "greeting==1.0")
    (tag,) = {one for one in node.used if find_image(node.engine, f"nsml-env:{one}")}
    remove_image(node.engine, f"nsml-env:{tag}")  # as `docker image prune` does
    make_wheel(node.mirror, "greeting", "TEXT = 'new'", version="2.0")
    assert made(lock) == ("old\n", lock), "its packages, not what the index has by now"
    assert made(images=another)[0] == "new\n", "under the name of the one that was removed"
    assert made() == ("new\n", ""), "made by another agent"
    assert made(lock) == ("old\n", lock)


@dataclass
class Defaults:
    """A node whose site has default packages: what a session there gets."""

    node: Node
    images: Images

    def provide(
        self, *lines: str, lock: str = "", built_after: float = 0.0
    ) -> tuple[str, str, str]:
        """The image, the lock of it, and what is said in the session's log."""
        said, locks = bytearray(), list[str]()
        image = self.images.provide(
            self.node.base,
            Requirements(lines=lines),
            said.extend,
            threading.Event(),
            owner="kim",
            use=self.node.used.append,
            lock=lock,
            keeps_whole_lock=True,
            installed=locks.append,
            built_after=built_after,
            has_default_packages=True,
        )
        return image, locks[0] if locks else "", said.decode()

    def packages(self, image: str) -> list[str]:
        """Those of the mirror that are in an image."""
        names = ["large", "needed", "own", "usual"]
        code = (
            "import importlib.metadata as m; found = {d.name: d.version for d in m.distributions()};"
            f"print(*[f'{{n}}=={{found[n]}}' for n in {names} if n in found])"
        )
        return self.node.runs(image, code).split()

    def is_upon(self, image: str, base: str) -> bool:
        """Whether an image is one layer upon another."""
        inspect = self.node.engine.sdk.api.inspect_image
        *below, _ = inspect(image)["RootFS"]["Layers"]
        return bool(below == inspect(base)["RootFS"]["Layers"])


def defaults_on(node: Node, folder: Path, *lines: str) -> Defaults:
    for version in ("1.0", "2.0"):
        make_wheel(node.mirror, "usual", f"V = {version!r}", version=version)
        make_wheel(node.mirror, "needed", version=version)
    make_wheel(node.mirror, "large", needs="Requires-Dist: needed==1.0\n")
    make_wheel(node.mirror, "own")
    settings = ImageSettings(default=node.base, default_packages=lines)
    return Defaults(node, Images(folder, node.engine, settings, mark=node.mark))


def names_of(lock: str) -> list[str]:
    return [line.partition(" ")[0] for line in lock.splitlines()]


@pytest.mark.long("six builds")
def test_default_packages_are_upon_the_image_and_beside_what_code_names(node: Node) -> None:
    site = defaults_on(node, node.folder, "usual<2", "large")
    site.images.build_default(lambda _: None, threading.Event(), built_after=0.0)
    default, lock, said = site.provide(built_after=2e9)
    assert said == "", "it was there before anybody waited, and no user has it made anew for all"
    assert names_of(lock) == ["large==1.0", "needed==1.0", "usual==1.0"]
    assert site.packages(default) == names_of(lock)
    image, of_both, said = site.provide("own", "usual==2.0")
    assert site.packages(image) == ["large==1.0", "needed==1.0", "own==1.0", "usual==2.0"]
    assert names_of(of_both) == site.packages(image)
    assert said.startswith("Installing 2 requirements\n")
    assert site.is_upon(image, default)
    _, same, _ = site.provide("usual")
    assert same == lock, "which the image had before"
    image, alone, said = site.provide("needed==2.0")
    assert (site.packages(image), names_of(alone)) == (["needed==2.0"], ["needed==2.0"])
    assert said.count("note: without the node's default packages: ") == 1
    assert "large" in said
    hashed = next(line for line in of_both.splitlines() if line.startswith("own"))
    image, _, _ = site.provide(hashed)
    assert site.packages(image) == ["own==1.0"], "exactly what has hashes"


@pytest.mark.long("six builds")
def test_a_lock_has_the_default_packages_on_a_node_that_has_others(
    node: Node, tmp_path: Path
) -> None:
    site = defaults_on(node, node.folder, "usual<2", "large")
    default, lock, _ = site.provide()
    image, of_both, _ = site.provide("own")
    assert site.provide(lock=lock)[:2] == (default, lock), "which is there"
    assert site.provide("own", lock=of_both)[:2] == (image, of_both)
    # an index that has more by now, and defaults that changed
    make_wheel(node.mirror, "usual", "V = 'newer'", version="1.5")
    newer = defaults_on(node, tmp_path / "newer", "usual", "own")
    _, of_changed, _ = newer.provide()
    assert names_of(of_changed) == ["own==1.0", "usual==2.0"]
    image, same, _ = newer.provide(lock=lock)
    assert (newer.packages(image), same) == (names_of(lock), lock)
    # upon those that the lock names all, in other versions or not, it has only the rest to install
    more = defaults_on(node, tmp_path / "more", "usual")
    base, _, _ = more.provide()
    image, same, _ = more.provide("own", lock=of_both)
    assert (more.packages(image), same) == (names_of(of_both), of_both)
    assert more.is_upon(image, base)


def test_default_packages_that_cannot_be_had_stop_nobody(node: Node) -> None:
    site = defaults_on(node, node.folder, "absent-from-here")
    found = find_image(node.engine, node.base)
    image, _, said = site.provide()
    assert found is not None
    assert image == found.id
    assert re.search("note: without the node's default packages: .*absent-from-here", said)
    image, lock, _ = site.provide("own")
    assert (site.packages(image), names_of(lock)) == (["own==1.0"], ["own==1.0"])


def test_a_builder_that_is_cancelled_hands_the_build_on(node: Node) -> None:
    gate = node.mirror / "gate"
    node.sdist(
        "slow", f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    )
    cancelled = threading.Event()
    first = bytearray()
    builder = node.ask("slow", cancelled=cancelled, said=first)
    until(lambda: b"Installing" in first)
    second = bytearray()
    waiter = node.ask("slow", said=second)
    until(lambda: b"Installing" in second)
    left = threading.Event()
    leaver = node.ask("slow", cancelled=left)
    left.set()
    with pytest.raises(EnvironmentCancelled):
        leaver.result(60)
    cancelled.set()
    with pytest.raises(EnvironmentCancelled):
        builder.result(60)
    gate.touch()
    image = waiter.result(120)
    assert "slow" in node.runs(
        image, "import importlib.metadata as m; print(m.distribution('slow').name)"
    )
    assert second.count(b" + slow==1.0") == 1


def test_a_build_has_an_end(node: Node) -> None:
    node.sdist("endless", "import time; time.sleep(600)")
    short = Images(node.folder, node.engine, ImageSettings(time_limit_s=3), mark=node.mark)
    with pytest.raises(EnvironmentFailed, match="longer than 3 s"):
        node.ask("endless", images=short).result(120)
    assert builds_named(node.engine, f"nsml-build-{node.mark}") == []


def test_a_build_waits_for_its_turn_and_gets_what_it_was_granted(node: Node) -> None:
    node.sdist("waits", "")
    queue = BuildQueue(QueueLimits(at_once=1, memory_bytes=600 << 20), lambda: 1 << 40)
    images = Images(node.folder, node.engine, ImageSettings(), mark=node.mark, queue=queue)
    reasons: list[str] = []
    limits: list[tuple[int, int]] = []

    def note(_words: bytes) -> None:
        for name in builds_named(node.engine, f"nsml-build-{node.mark}"):
            with contextlib.suppress(docker.errors.NotFound):
                config = node.engine.sdk.api.inspect_container(name)["HostConfig"]
                limits.append((config["Memory"], config["OomScoreAdj"]))

    with queue.ticket("lee", memory_bytes=1, disk_bytes=1, waits=lambda _: None) as other:
        assert other.begin()
        asked = node.pool.submit(
            images.provide,
            node.base,
            Requirements(lines=("waits",)),
            note,
            threading.Event(),
            owner="kim",
            waits=reasons.append,
            use=node.used.append,
        )
        until(lambda: reasons)
        assert not builds_named(node.engine, f"nsml-build-{node.mark}")
    asked.result(120)
    assert len(reasons) == 2
    assert "this node runs 1 at once" in reasons[0]
    assert set(limits) == {(600 << 20, 1000)}


def test_a_build_ends_when_the_disk_is_full(node: Node) -> None:
    node.sdist("filler", "import time; time.sleep(600)")
    said = bytearray()
    full = Images(
        node.folder,
        node.engine,
        ImageSettings(),
        mark=node.mark,
        is_full=lambda: b"Installing" in said,
    )
    with pytest.raises(EnvironmentFailed, match="disk has too little room"):
        node.ask("filler", images=full, said=said).result(120)
    assert builds_named(node.engine, f"nsml-build-{node.mark}") == []


def test_what_a_killed_agent_left_is_removed(node: Node) -> None:
    name = f"nsml-build-{node.mark}-{'0' * 32}"
    node.engine.sdk.api.create_container(node.base, command=["sleep", "600"], name=name)
    node.engine.sdk.api.start(name)
    (node.folder / f"{'0' * 32}.build").mkdir(parents=True)
    with pytest.raises(AssertionError):
        assert not builds_named(node.engine, f"nsml-build-{node.mark}")
    node.images.tidy()
    assert builds_named(node.engine, f"nsml-build-{node.mark}") == []
    assert list(node.folder.glob("*.build")) == []


def test_what_a_rogue_build_reaches(node: Node, tmp_path: Path) -> None:
    """Root in the container, and nothing of the machine: it says what it could do."""
    secret = tmp_path / "agent-secret"
    secret.write_text("the token of the node")
    node.sdist(
        "rogue",
        "import os, json, ctypes\n"
        "def tries(what):\n"
        "    try: return repr(what())[:200]\n"
        "    except BaseException as error: return type(error).__name__\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"found = {{'secret': tries(lambda: open({str(secret)!r}).read()),\n"
        "  'docker': tries(lambda: os.stat('/var/run/docker.sock')),\n"
        "  'mirror': tries(lambda: open(os.path.join("
        f"{str(node.mirror)!r}, 'x'), 'w')),\n"
        "  'recipe': tries(lambda: open('/run/nsml-build/build.sh', 'a')),\n"
        "  'mount': libc.mount(b'none', b'/mnt', b'tmpfs', 0, None),\n"
        "  'mknod': tries(lambda: os.mknod('/disk', 0o60600, os.makedev(8, 0))),\n"
        "  'kernel': tries(lambda: open('/proc/sys/kernel/core_pattern', 'w')),\n"
        "  'pids': sum(name.isdigit() for name in os.listdir('/proc')) < 60,\n"
        "  'agent': 'NSML_CANARY' in os.environ,\n"
        "  'caps': open('/proc/self/status').read().split('CapEff:')[1].split()[0]}\n"
        "print('ROGUE ' + json.dumps(found)); raise SystemExit('error: ' + json.dumps(found))\n",
    )
    os.environ["NSML_CANARY"] = "1"
    said = bytearray()
    try:
        with pytest.raises(EnvironmentFailed):
            node.ask("rogue", said=said).result(120)
    finally:
        del os.environ["NSML_CANARY"]
    line = next(one for one in said.decode().splitlines() if "error: {" in one)
    found = json.loads(line[line.index("{") : line.rindex("}") + 1])
    assert found["secret"] == found["docker"] == "FileNotFoundError"
    assert found["mirror"] == found["recipe"] == found["kernel"] == "OSError"
    assert (found["mount"], found["mknod"]) == (-1, "PermissionError")
    assert (found["pids"], found["agent"]) == (True, False)
    assert int(found["caps"], 16) & ~(1 << 1 | 1 << 3) == 0


@pytest.fixture
def hostile(node: Node) -> Iterator[str]:
    """An image that says of itself whatever could be of use to who made it."""
    tag = f"hostile-{node.mark}:1"
    api = node.engine.sdk.api
    made = api.create_container(node.base, command=["true"])["Id"]
    changes = [
        "WORKDIR /proc/self",
        "VOLUME /vol",
        f"LABEL nsml.agent={node.mark} nsml.replica=s.1.0 other.program=acts",
        "ENV LD_PRELOAD=/none.so NVIDIA_VISIBLE_DEVICES=all",
        "HEALTHCHECK --interval=1s CMD touch /checked",
        "ONBUILD RUN touch /onbuild",
    ]
    try:
        api.commit(made, repository=tag.partition(":")[0], tag="1", changes=changes)
    finally:
        api.remove_container(made)
    yield tag
    remove_image(node.engine, tag)


def test_a_build_is_the_platforms_whatever_its_image_says_and_writes_no_more_than_it_may(
    node: Node, hostile: str
) -> None:
    """It waits at a gate for the test to look at it from outside, and then writes without an end."""
    gate = node.mirror / "gate"
    node.sdist(
        "rogue",
        "import os, json, sys, time\n"
        "one = dict(line.split('=', 1) for line in open('/proc/1/environ').read().split('\\0') if line)\n"
        "found = {'folder': os.readlink('/proc/1/cwd'), 'preload': one.get('LD_PRELOAD'),\n"
        "  'devices': one.get('NVIDIA_VISIBLE_DEVICES'), 'interfaces': os.listdir('/sys/class/net'),\n"
        "  'volume': [l.split()[2] for l in open('/proc/mounts') if l.split()[1] == '/vol'],\n"
        "  'seccomp': open('/proc/self/status').read().split('Seccomp:')[1].split()[0]}\n"
        "open('/found', 'w').write(json.dumps(found))\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
        "file = open('/var/filled', 'wb', buffering=0)\n"
        "while True: file.write(b'x' * (1 << 20)); time.sleep(0.01)\n",
    )
    settings = ImageSettings(disk_bytes=60_000_000, allowed=("local:*",))
    images = Images(node.folder, node.engine, settings, mark=node.mark)
    asked = node.ask("rogue", image=hostile, images=images)
    api = node.engine.sdk.api

    def found() -> dict[str, Any]:
        names = builds_named(node.engine, f"nsml-build-{node.mark}")
        with contextlib.suppress(docker.errors.NotFound, IndexError, ValueError):
            pieces, _ = api.get_archive(names[0], "/found")
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
                content = archive.extractfile("found")
                return dict(json.load(content)) if content is not None else {}
        return {}

    until(found)
    assert found() == {
        "folder": "/",
        "preload": "",
        "devices": "void",
        "interfaces": ["lo"],
        "volume": ["tmpfs"],
        "seccomp": "2",
    }
    assert containers_of(node.engine, node.mark) == [], "it is no session"
    config = api.inspect_container(builds_named(node.engine, f"nsml-build-{node.mark}")[0])
    assert config["Config"]["Labels"]["other.program"] == ""
    assert not config["State"].get("Health")
    assert [one["Type"] for one in config["Mounts"] if one["Type"] == "volume"] == []
    gate.touch()
    with pytest.raises(
        EnvironmentFailed, match=r"the build wrote .* at most 60\.0 MB on this node"
    ):
        asked.result(120)
    assert builds_named(node.engine, f"nsml-build-{node.mark}") == []


def test_the_least_recently_used_go_and_what_is_needed_or_not_ours_stays(node: Node) -> None:
    made = {}
    for name in ("one", "two"):
        make_wheel(node.mirror, name, "")
        node.used.clear()
        made[name] = (node.ask(name).result(120), node.used[-1])
    store = Store(kind="image", cache=node.images, place=node.folder)
    everything = KeepFree(share=0.9999, bytes=1 << 62)
    needed = frozenset({f"image {made['two'][1]}"})
    relieve([store], everything, lambda: needed)
    assert find_image(node.engine, made["one"][0]) is None
    assert find_image(node.engine, made["two"][0]) is not None
    assert find_image(node.engine, node.base) is not None
    relieve([store], everything, frozenset)
    assert find_image(node.engine, made["two"][0]) is None
    assert find_image(node.engine, node.base) is not None
    assert node.ask("one").result(120)


def another_agent(node: Node, tmp_path: Path) -> Images:
    """Of another data folder, on the same engine."""
    folder = tmp_path / f"another-{uuid.uuid4().hex}"
    return Images(folder, node.engine, ImageSettings(), mark=uuid.uuid4().hex[:12])


def test_agents_of_one_engine_share_what_they_build(node: Node, tmp_path: Path) -> None:
    make_wheel(node.mirror, "greeting", "")
    image = node.ask("greeting").result(120)
    said = bytearray()
    other = another_agent(node, tmp_path)
    assert node.ask("greeting", images=other, said=said).result(60) == image
    assert said == b"", "it was built once"


def built_without_a_name(node: Node) -> set[str]:
    """Ids of the images that builds of agents left; other programs of the engine leave some, too."""
    wanted = {"dangling": True, "label": BUILD_LABEL}
    return {one["Id"] for one in node.engine.sdk.api.images(filters=wanted)}


def test_agents_that_build_the_same_at_once_leave_one_image(node: Node, tmp_path: Path) -> None:
    gate = node.mirror / "gate"
    waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    node.sdist("slow", waits)
    before = built_without_a_name(node)
    heard = [bytearray(), bytearray()]
    agents = [node.images, another_agent(node, tmp_path)]
    asked = [
        node.ask("slow", images=one, said=said) for one, said in zip(agents, heard, strict=True)
    ]
    until(lambda: all(b"Installing" in said for said in heard))
    gate.touch()
    assert len({one.result(120) for one in asked}) == 1
    assert built_without_a_name(node) <= before


def test_any_agent_removes_what_nobody_uses_and_nothing_that_another_begins_with(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(node.mirror, "greeting", "")
    image = node.ask("greeting").result(120)
    key = node.used[-1]
    other = another_agent(node, tmp_path)
    assert key in other.stored(), "also what an agent that is gone has left"
    assert not other.remove(key, lambda: False), "its builder may be about to start it"
    assert find_image(node.engine, image) is not None
    # a while later
    monkeypatch.setattr("nodeagent.environments.image_records._ABOUT_TO_START_S", -1e9)
    made = node.engine.sdk.api.create_container(image, command=["true"])["Id"]
    try:
        assert not other.remove(key, lambda: False), "a container has it"
    finally:
        node.engine.sdk.api.remove_container(made)
    assert find_image(node.engine, image) is not None
    assert other.remove(key, lambda: False)
    assert find_image(node.engine, image) is None
    again = node.ask("greeting").result(120)
    assert find_image(node.engine, again) is not None


def test_what_an_agent_had_made_when_it_was_killed_goes_too(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a name of that agent's own until it gets the one by which all find it."""
    make_wheel(node.mirror, "greeting", "")
    image = node.ask("greeting").result(120)
    left = f"{node.used[-1]}-gone"
    node.engine.sdk.api.tag(image, "nsml-env", left)
    node.used.append(left)
    other = another_agent(node, tmp_path)
    assert left in other.stored()
    assert not other.remove(left, lambda: False)
    monkeypatch.setattr("nodeagent.environments.image_records._ABOUT_TO_START_S", -1e9)
    assert other.remove(left, lambda: False)
    assert find_image(node.engine, f"nsml-env:{left}") is None
    assert find_image(node.engine, image) is not None


def test_who_uses_an_image_later_keeps_it_from_others(node: Node, tmp_path: Path) -> None:
    make_wheel(node.mirror, "greeting", "")
    image = node.ask("greeting").result(120)
    key = node.used[-1]
    other = another_agent(node, tmp_path)
    assert node.ask("greeting", images=other).result(60) == image
    assert not node.images.remove(key, lambda: False), "the other begins with it"
    assert node.ask("greeting").result(60) == image
    assert node.images.remove(key, lambda: False), "who used it last knows what needs it"


@pytest.mark.parametrize(
    "option",
    [
        "--index-url",
        *(
            pytest.param(one, marks=pytest.mark.variant)
            for one in ("--extra-index-url", "--find-links")
        ),
    ],
)
def test_requirements_may_name_an_index_of_their_own(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """As in an environment: tests/unit/nodeagent/environments/test_virtualenvs.py."""
    monkeypatch.delenv("PIP_NO_INDEX")
    own = tmp_path / "own"
    own.mkdir()
    name = f"own{uuid.uuid4().hex[:8]}"
    make_wheel(own, name, "TEXT = 'own'")
    images = Images(node.folder, node.engine, ImageSettings(network="host"), mark=node.mark)
    said = bytearray()
    with index_of(own) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/none")
        place = f"{url}/{name}" if option == "--find-links" else url
        lines = (f"{option} {place}", name)
        image = node.ask(*lines, said=said, images=images).result(120)
        for owner, is_same in (("kim", True), ("lee", False)):
            found = images.provide(
                node.base,
                Requirements(lines=lines),
                lambda _: None,
                threading.Event(),
                owner=owner,
                use=node.used.append,
            )
            assert (found == image) is is_same, "what an index gave one user is given to no other"
    assert node.runs(image, f"import {name}; print({name}.TEXT)") == "own\n"
    assert f" + {name}==1.0".encode() in said
    assert b"Looking in" not in said
    assert b"Location" not in said


class _Registry(BaseHTTPRequestHandler):
    """Says no, and notes who asked."""

    asked: list[str] = []  # noqa: RUF012 - one server a test

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization", ""))
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="lab"')
        self.end_headers()

    def log_message(self, *_given: object) -> None:
        """Nothing."""


def test_a_private_registry_gets_its_credentials_and_the_log_does_not(
    node: Node, tmp_path: Path
) -> None:
    registry = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    threading.Thread(target=registry.serve_forever, daemon=True).start()
    host = f"127.0.0.1:{registry.server_port}"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"auths": {host: {"auth": "a2ltOmh1c2gtaHVzaA=="}}}))
    settings = ImageSettings(credentials=config, allowed=(f"{host}/*",))
    images = Images(node.folder, node.engine, settings, mark=node.mark)
    said = bytearray()
    try:
        with pytest.raises(
            EnvironmentFailed, match=f"image {host}/lab/x:1 cannot be pulled"
        ) as why:
            node.ask(image=f"{host}/lab/x:1", images=images, said=said).result(120)
    finally:
        registry.shutdown()
    assert "Basic a2ltOmh1c2gtaHVzaA==" in _Registry.asked
    assert said.startswith(b"Pulling image 127.0.0.1")
    assert not any(word in f"{said!r} {why.value}" for word in ("hush", "a2ltOmh1"))


def test_an_engine_that_is_gone_is_no_fault_of_the_environment(node: Node, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(tmp_path / "engine"))
    images = Images(node.folder, Engine(tmp_path / "engine"), ImageSettings(), mark=node.mark)
    with pytest.raises(EngineUnreachable, match="no engine answers"):
        node.ask(images=images).result(60)


def test_names(node: Node) -> None:
    images = Images(
        node.folder,
        node.engine,
        ImageSettings(default="lab/default:3", aliases={"nsml/ml:cuda9": "lab/ml:12"}),
        mark=node.mark,
    )
    assert images.resolve("a", "b") == ("a:latest", "")
    assert images.resolve("", "b:1") == ("b:1", "")
    assert images.resolve("", None) == ("lab/default:3", "")
    retired = "image nsml/ml:cuda9 is retired: lab/ml:12 takes its place"
    assert images.resolve("", "nsml/ml:cuda9") == ("lab/ml:12", retired)
    assert images.resolve("nsml/ml:cuda9", "b")[0] == "lab/ml:12"
    assert images.resolve("", "nsml/default_ml:latest")[0] == "lab/default:3"
    assert images.resolve("", "nsml/default_ml")[0] == "lab/default:3"
    ours = ("nsml-env:x", "nsml-env", "library/nsml-env:x", "docker.io/library/nsml-env:x")
    for name in (*ours, "x;reboot", "sha256:" + "0" * 64):
        with pytest.raises(EnvironmentFailed):
            images.resolve(name, None)
    nothing = Images(node.folder, node.engine, ImageSettings(), mark=node.mark)
    with pytest.raises(EnvironmentFailed, match="default_image"):
        nothing.resolve("", None)
