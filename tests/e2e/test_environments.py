"""What code asks for, through the whole product: on nodes with containers and on those without."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from uv import find_uv_bin

from bench.platform import PROGRAMS
from tests.e2e.platforms import contained_platform, without_its_images
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.micromamba import make_micromamba, make_package, make_python
from tests.support.wheels import make_wheel

INSTALLED = re.compile(r"^ \+ [\w-]+==1\.0$|^Successfully installed", re.MULTILINE)
"""How uv and, in images, pip say that they have installed something."""
USES = "import greeting\nprint('user code says', greeting.TEXT)\n"


@pytest.fixture(scope="module")
def mirror():
    """The index of packages that the machine's pip is configured with: a folder."""
    place = Path("/opt" if os.access("/opt", os.W_OK) else "/var/tmp") / f"nsml-{uuid.uuid4().hex}"
    place.mkdir()
    make_wheel(place, "greeting", "TEXT = 'hello'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(place))
        yield place
    shutil.rmtree(place)


@pytest.fixture(
    scope="module", params=["processes", pytest.param("containers", marks=pytest.mark.variant)]
)
def platform(request, mirror):
    if request.param == "processes":
        with Platform(simulate_gpus=2, options=["--isolation", "namespace"]) as running:
            yield running
        return
    with without_its_images(contained_platform()) as running:
        yield running


def code_with(platform, text, **files):
    folder = platform.folder / f"code-{uuid.uuid4().hex}"
    write_program(folder, text)
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content)
    return folder


def test_requirements_are_there_and_their_making_is_in_the_log(platform):
    code = code_with(platform, USES, requirements="greeting==1.0\n")
    said = platform.nsml("run", "-f", cwd=code).stdout
    assert len(INSTALLED.findall(said)) == 1
    assert said.splitlines()[0].startswith("Installing 1 requirement")
    assert said.splitlines()[-1] == "user code says hello"
    again = platform.nsml("run", "-f", cwd=code).stdout
    assert again == "user code says hello\n"


def test_what_was_built_ahead_is_there_when_a_session_starts(platform, mirror):
    name = f"ahead{uuid.uuid4().hex[:8]}"
    make_wheel(mirror, name, "TEXT = 'hello'")
    code = code_with(platform, f"import {name}\nprint({name}.TEXT)\n", requirements=f"{name}\n")
    built = platform.nsml("env", "build", "-j", cwd=code)
    assert "Installing 1 requirement\n" in built.stderr
    assert [one["outcome"] for one in json.loads(built.stdout)["items"]] == ["built"]
    assert "was there" in platform.nsml("env", "build", cwd=code).stderr
    assert platform.nsml("run", "-f", cwd=code).stdout == "hello\n"
    (code / "requirements.txt").write_text("absent-from-everywhere\n")
    failed = platform.nsml("env", "build", cwd=code, check=False)
    assert failed.returncode == 1
    assert "absent-from-everywhere" in failed.stdout


def test_a_fork_has_the_packages_of_its_source_also_in_containers(platform, mirror):
    name, other = (f"{begin}{uuid.uuid4().hex[:8]}" for begin in ("locked", "needed"))
    make_wheel(mirror, other, "TEXT = 'old'")
    make_wheel(mirror, name, f"import {other}", needs=f"Requires-Dist: {other}\n")
    code = code_with(
        platform, f"import {name}, {other}\nprint({other}.TEXT)\n", requirements=f"{name}\n"
    )
    assert platform.nsml("run", "-f", cwd=code).stdout.endswith("old\n")
    lock = platform.nsml("env", "lock", "@last").stdout
    assert [line.partition(" ")[0] for line in lock.splitlines()] == [
        f"{name}==1.0",
        f"{other}==1.0",
    ]
    make_wheel(mirror, other, "TEXT = 'new'", version="2.0")
    said = platform.nsml("fork", "@last", "-f").stdout
    assert said.endswith("old\n")
    assert platform.nsml("env", "lock", "@last").stdout == lock
    assert platform.nsml("run", "--refresh", "-f", cwd=code).stdout.endswith("new\n")
    assert platform.nsml("fork", "@2", "-f").stdout.endswith("old\n"), "though another is there"


def test_what_was_built_from_unpinned_requirements_is_built_anew_on_request(platform, mirror):
    name = f"fresh{uuid.uuid4().hex[:8]}"
    make_wheel(mirror, name, "TEXT = 'old'")
    uses = f"import time\nimport {name}\nprint({name}.TEXT)\ntime.sleep(float(__import__('sys').argv[1]))\n"
    code = code_with(platform, uses, requirements=f"{name}\n")
    platform.nsml("run", "--", "600", cwd=code)
    started = wait_for(
        lambda: platform.nsml("logs", "@last").stdout.endswith("old\n"), what="the first runs"
    )
    assert started
    first = platform.json("ps")["items"][0]["name"]
    make_wheel(mirror, name, "TEXT = 'new'", version="2.0")
    assert platform.nsml("run", "-f", "--", "0", cwd=code).stdout == "old\n"
    refreshed = platform.nsml("run", "--refresh", "-f", "--", "0", cwd=code).stdout
    assert refreshed.count("Installing 1 requirement") == 1
    assert refreshed.endswith("new\n")
    assert platform.nsml("run", "-f", "--", "0", cwd=code).stdout == "new\n"
    assert [one["name"] for one in platform.json("ps")["items"]] == [first], "and runs on"
    platform.nsml("stop", first)
    for ready in (platform.folder / "data" / "agent" / "environments").glob("*.ready"):
        ready.write_text(str(time.time() - 21 * 86_400))
    said = platform.nsml("run", "-f", "--", "0", cwd=code).stdout
    if (platform.folder / "data" / "agent" / "engine.mark").exists():
        return  # an engine says itself when it made an image
    assert said.splitlines()[0] == (
        "nsml: environment: built 21 days ago from unpinned requirements; nsml run --refresh rebuilds it"
    )
    pinned = code_with(platform, uses, requirements=f"{name}==2.0\n")
    platform.nsml("run", "-f", "--", "0", cwd=pinned)
    for ready in (platform.folder / "data" / "agent" / "environments").glob("*.ready"):
        ready.write_text(str(time.time() - 21 * 86_400))
    assert platform.nsml("run", "-f", "--", "0", cwd=pinned).stdout == "new\n"


def test_projects_locks_and_script_blocks_are_environments(platform, mirror):
    name = f"project{uuid.uuid4().hex[:8]}"
    make_wheel(mirror, name, "TEXT = 'old'")
    project = f'[project]\nname = "x"\nversion = "1"\ndependencies = ["{name}"]\n'
    uses = f"import {name}\nprint({name}.TEXT)\n"
    code = code_with(platform, uses)
    (code / "pyproject.toml").write_text(f"{project}requires-python = '>=3.11'\n")
    words = ["--offline", "--no-index", "--find-links", str(mirror)]
    subprocess.run([find_uv_bin(), "lock", "-q", *words], cwd=code, check=True)
    make_wheel(mirror, name, "TEXT = 'new'", version="2.0")
    locked = platform.nsml("run", "--wait", cwd=code)
    assert "environment: from uv.lock (1 package)\n" in locked.stderr
    assert platform.nsml("logs", "@last").stdout.endswith("old\n")
    (code / "uv.lock").unlink()
    assert platform.nsml("run", "-f", cwd=code).stdout.endswith("new\n")
    block = f'# /// script\n# dependencies = ["{name}<2"]\n# ///\n'
    (code / "main.py").write_text(block + uses)
    assert platform.nsml("run", "-f", cwd=code).stdout.endswith("old\n")
    (code / "main.py").write_text(uses)
    here = f"{sys.version_info.major}.{sys.version_info.minor}.*"
    (code / "pyproject.toml").write_text(f"{project}requires-python = '!={here}'\n")
    failed = platform.nsml("run", "--wait", cwd=code, check=False)
    if not (platform.folder / "data" / "agent" / "engine.mark").exists():
        assert failed.returncode == 1
        assert "pyproject.toml requires Python" in platform.nsml("logs", "@last").stdout


def _lock(platform, environment):
    place = platform.folder / "data" / "agent" / "environments" / environment["key"]
    lock = place / "requirements.lock"
    return lock.read_text() if lock.exists() else ""


def test_a_fork_has_the_packages_of_its_origin_whatever_the_index_has(platform, mirror):
    if (platform.folder / "data" / "agent" / "engine.mark").exists():
        return  # images have no locks
    name = f"locked{uuid.uuid4().hex[:8]}"
    make_wheel(mirror, name, "TEXT = 'old'")
    code = code_with(platform, f"import {name}\nprint({name}.TEXT)\n", requirements=f"{name}\n")
    assert platform.nsml("run", "-f", cwd=code).stdout.endswith("old\n")
    first = platform.json("ps", "-a", "-n", "1")["items"][0]["name"]
    lock = platform.nsml("env", "lock", first).stdout
    assert lock.startswith(f"{name}==1.0 --hash=sha256:")
    make_wheel(mirror, name, "TEXT = 'new'", version="2.0")
    assert platform.nsml("run", "--refresh", "-f", cwd=code).stdout.endswith("new\n")
    newer = platform.json("ps", "-a", "-n", "1")["items"][0]["name"]
    found = platform.json("diff", first, newer, "--all")["items"]
    versions = [[*one["values"].values()] for one in found if one["key"] == f"package {name}"]
    assert versions == [["1.0", "2.0"]]
    forked = platform.nsml("fork", first, "--wait")
    assert "not pinned: packages" not in forked.stderr
    again = platform.json("ps", "-a", "-n", "1")["items"][0]["name"]
    assert platform.nsml("logs", again).stdout.endswith("old\n")
    assert platform.nsml("env", "lock", again).stdout == lock
    assert platform.nsml("fork", first, "--refresh", "-f").stdout.endswith("new\n")
    [kept] = [
        one for one in platform.json("env", "ls")["items"] if f"{name}==" in _lock(platform, one)
    ][:1]
    assert (kept["package_count"], kept["sessions"]) == (1, [])
    assert 0 < kept["shared_bytes"] < kept["bytes"]
    platform.nsml("env", "rm", kept["key"], "-y")
    assert kept["key"] not in {one["key"] for one in platform.json("env", "ls")["items"]}
    assert not (platform.folder / "data" / "agent" / "environments" / kept["key"]).exists()
    # It is of the session's record: neither the node's copy nor the other session is needed.
    platform.nsml("rm", "-y", first)
    shutil.rmtree(platform.folder / "data" / "agent" / "environments")
    assert platform.nsml("fork", again, "-f").stdout.endswith("old\n")


def test_what_cannot_be_had_ends_with_the_reason(platform):
    says = "no-such-package"
    code = code_with(platform, "print('not reached')", requirements="no-such-package==3\n")
    done = platform.nsml("run", "-f", cwd=code, check=False)
    assert done.returncode == 1
    assert says in done.stdout.splitlines()[-1]
    assert "not reached" not in done.stdout
    ended = platform.json("ps", "-a")["items"][0]
    assert ended["state"] == "FAILED"
    assert (ended["end"]["cause"], says in ended["end"]["message"]) == ("ENVIRONMENT_FAILED", True)


def test_a_module_that_is_missing_ends_with_the_line_to_add(platform):
    code = code_with(platform, "import cv2\n", requirements="greeting==1.0\n")
    done = platform.nsml("run", "-f", cwd=code, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "ModuleNotFoundError: No module named 'cv2'; add to requirements.txt: opencv-python-headless"
    )


def test_where_a_script_block_counts_the_line_is_to_be_added_to_that(platform):
    block = "# /// script\n# dependencies = ['greeting==1.0']\n# ///\nimport cv2\n"
    code = code_with(platform, block, requirements="opencv-python-headless\n")
    done = platform.nsml("run", "-f", cwd=code, check=False)
    assert done.returncode == 1
    says = "; add to the script block of main.py: opencv-python-headless"
    assert done.stderr.splitlines()[-1].endswith(says)


def test_what_no_node_installs_is_refused_before_the_queue(platform):
    code = code_with(platform, "print('not reached')", requirements="-r ../outside.txt\n")
    done = platform.nsml("run", "-f", cwd=code, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "leads out of the folder of the code" in done.stderr


def test_an_agent_that_is_killed_while_it_builds_says_everything_once(platform, mirror):
    """The second agent builds again, behind what was said: no byte is lost, moved or repeated."""
    name = f"slow{uuid.uuid4().hex}"
    wheel = mirror / f"{name}-1.0-py3-none-any.whl"
    os.mkfifo(wheel)  # who opens it waits
    code = code_with(platform, f"import {name}\nprint('user code')\n", requirements=f"{name}\n")
    session = platform.nsml("run", "-o", "name", cwd=code).stdout.strip()
    following = subprocess.Popen(
        [str(PROGRAMS / "nsml"), "logs", "-f", session],
        env=platform.environment,
        stdout=subprocess.PIPE,
    )
    wait_for(lambda: "Installing" in platform.nsml("logs", session).stdout, what="it is built")
    platform.kill("agent")
    wheel.unlink()
    (mirror / "made").mkdir()
    make_wheel(mirror / "made", name, "")
    (mirror / "made" / wheel.name).rename(wheel)
    (mirror / "made").rmdir()
    platform.up()
    live, _ = following.communicate(timeout=120)
    whole = platform.nsml("logs", session).stdout
    assert live.decode() == whole
    assert whole.count("Installing 1 requirement") == 2
    assert len(INSTALLED.findall(whole)) == 1
    assert whole.endswith("\nuser code\n")


def test_builds_of_one_user_wait_for_each_other_and_leave_when_stopped(mirror):
    """Each says what it waits for; what is stopped while it waits ends, and the next one is built."""
    os.mkfifo(mirror / "endless-1.0-py3-none-any.whl")  # a build that reads it goes on for ever
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NSML_AGENT_USER_BUILDS_AT_ONCE", "1")
        with Platform(simulate_gpus=2, options=["--isolation", "namespace"]) as platform:

            def run(requirement):
                code = code_with(platform, USES, requirements=f"{requirement}\n")
                return platform.nsml(
                    "run", "-o", "name", "-g", "0", "-c", "0.5", "--memory", "1G", cwd=code
                ).stdout.strip()

            def log(session):
                return platform.nsml("logs", session).stdout

            endless = run("endless")
            wait_for(lambda: "Installing" in log(endless), what="the first build has begun")
            waiting, stopped = run("greeting"), run("greeting==1.0")
            for session in (waiting, stopped):
                wait_for(
                    lambda session=session: (
                        "nsml: waiting for other builds: 1 build of your own" in log(session)
                    ),
                    what="it says what it waits for",
                )
            wait_for(
                lambda: platform.nsml("ps").stdout.count("waiting for other builds") == 2,
                what="the list says so, too",
            )
            platform.nsml("stop", stopped)
            wait_for(lambda: "Stopped" in platform.nsml("ps", "-a").stdout, what="it has ended")
            assert "Installing" not in log(stopped)
            platform.nsml("stop", endless)
            wait_for(lambda: "user code says hello" in log(waiting), what="the next is built")
    (mirror / "endless-1.0-py3-none-any.whl").unlink()


@pytest.mark.long("two starts of a platform, and two builds of an environment between them")
def test_packages_of_conda_on_a_node_that_gets_micromamba(mirror):
    with Platform(simulate_gpus=1, options=["--isolation", "namespace"]) as running:
        of_conda = "import os, sys\nassert os.environ['CONDA_PREFIX'] == sys.prefix\n"
        code = code_with(running, of_conda + USES)
        lists = "channels:\n- defaults\ndependencies:\n- greeting\n- pip:\n  - other\n"
        (code / "environment.yml").write_text(lists)
        refused = running.nsml("run", "-f", cwd=code, check=False)
        assert "no node has micromamba" in refused.stderr
        channel = running.folder / "channel"
        make_python(channel)
        facts = b"Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"
        files = {
            "site-packages/greeting.py": b"TEXT = 'conda'\n",
            "site-packages/greeting-1.0.dist-info/METADATA": facts,
        }
        make_package(channel, "greeting", files=files, depends=["python"])
        make_wheel(mirror, "other", needs="Requires-Dist: greeting\n")
        program = make_micromamba(running.folder / "micromamba")
        (running.folder / "data" / "agent.site.toml").write_text(
            f'micromamba = "{program}"\n[conda_channels]\nconda-forge = "{channel.as_uri()}"\n'
        )
        running.nsml("down", "--keep-sessions")
        running.nsml("up", "--simulate-gpus", "1", "--isolation", "namespace")
        said = running.nsml("run", "-f", cwd=code).stdout
        assert said.splitlines()[-1] == "user code says conda"
        assert "packages of channel defaults are taken from conda-forge" in said
        lock = running.nsml("env", "lock", "@last").stdout
        assert "\n@EXPLICIT\nhttps://conda.anaconda.org/conda-forge/" in lock
        assert "\n# pip other==1.0 --hash=sha256:" in lock
        newer = {**files, "site-packages/greeting.py": b"TEXT = 'newer'\n"}
        make_package(channel, "greeting", "2.0", newer, depends=["python"])
        again = running.nsml("fork", "@last", "-f").stdout
        assert again.splitlines()[-1] == "user code says conda"
        assert running.nsml("env", "lock", "@last").stdout == lock
