"""Which commit a folder is at, as `nsml run` records it: also of a repository that wants programs run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.sessions import git_commit as module
from cli.sessions.git_commit import git_commit
from nsml.spec.git_facts import is_branch, is_commit, public_remote

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def git(folder, *words):
    who = ("-c", "user.name=kim", "-c", "user.email=kim@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """With time for git, whatever else runs on the machine."""
    monkeypatch.setattr(module, "MOST_S", 60.0)
    folder = tmp_path / "project"
    (folder / "inner").mkdir(parents=True)
    (folder / "main.py").write_text("print(1)\n")
    (folder / "inner" / "train.py").write_text("print(2)\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_commit_branch_remote_and_what_is_changed(repository):
    git(repository, "remote", "add", "origin", "https://kim:KEY@example.org/r.git")
    found = git_commit(repository, ENVIRON)
    assert is_commit(found.commit)
    assert (found.branch, found.remote) == ("main", "https://example.org/r.git")
    assert found.HasField("dirty")
    assert not found.dirty
    (repository / "new.py").write_text("")
    assert not git_commit(repository, ENVIRON).dirty, "what git does not track is not of a commit"
    (repository / "main.py").write_text("print(3)\n")
    assert git_commit(repository, ENVIRON).dirty
    inner = git_commit(repository / "inner", ENVIRON)
    assert (inner.commit, inner.dirty) == (found.commit, False), "of what is sent alone"
    git(repository, "checkout", "-q", "--detach")
    assert git_commit(repository, ENVIRON).branch == ""


def test_where_there_is_nothing_to_tell_nothing_is_told(repository, tmp_path):
    assert git_commit(tmp_path, ENVIRON) is None
    assert git_commit(repository, {"PATH": "/nonexistent"}) is None
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert git_commit(empty, ENVIRON) is None
    shutil.rmtree(empty / ".git")
    (empty / ".git").write_text("gitdir: /nonexistent\n")
    assert git_commit(empty, ENVIRON) is None


def test_nothing_that_the_repository_configures_is_run(repository, tmp_path):
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\ncat\n')
    program.chmod(0o755)
    hooks = repository / ".git" / "hooks"
    for hook in ("post-index-change", "pre-commit", "fsmonitor-watchman"):
        shutil.copy(program, hooks / hook)
    (repository / ".gitattributes").write_text("*.py filter=odd diff=odd\n")
    with (repository / ".git" / "config").open("a") as config:
        config.write(
            f'[filter "odd"]\n\tclean = {program}\n\tprocess = {program}\n\trequired = true\n'
            f"[core]\n\tfsmonitor = {program}\n\tsshCommand = {program}\n\tpager = {program}\n"
            f'[diff "odd"]\n\ttextconv = {program}\n\tcommand = {program}\n'
            f'[remote "origin"]\n\turl = ext::{program}\n\tpromisor = true\n\tuploadpack = {program}\n'
            f"[alias]\n\tstatus = !{program}\n\trev-parse = !{program}\n"
            '[extensions]\n\tpartialClone = origin\n[protocol "ext"]\n\tallow = always\n'
        )
    subprocess.run(["git", "update-index", "--fsmonitor"], cwd=repository, check=False)
    assert ran.exists(), "without this care it runs"
    ran.unlink()
    # Of another time, so that git has to read it, and so to filter it.
    os.utime(repository / "main.py", (1, 1))
    found = git_commit(repository, ENVIRON)
    assert found is not None
    assert found.remote == ""
    assert not ran.exists()
    # The repository lacks what its commit is made of, and would have it fetched.
    for file in (repository / ".git" / "objects").glob("??/*"):
        if file.parent.name + file.name != found.commit:
            file.chmod(0o600)
            file.unlink()
    lacking = git_commit(repository, ENVIRON)
    assert lacking is None or not lacking.HasField("dirty")
    assert not ran.exists()


def test_what_the_user_has_set_for_git_elsewhere_is_not_taken(repository, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    found = git_commit(repository, {**ENVIRON, "GIT_DIR": str(other / ".git")})
    assert found.branch == "main"


def test_a_git_that_does_not_answer_ends_with_its_children(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_S", 0.3)
    folder = tmp_path / "bin"
    folder.mkdir()
    slow = folder / "git"
    slow.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    slow.chmod(0o755)
    assert git_commit(repository, {**ENVIRON, "PATH": f"{folder}:{ENVIRON['PATH']}"}) is None


def test_a_git_of_the_folder_itself_is_not_run(repository, monkeypatch):
    (repository / "git").write_text("#!/bin/sh\ntouch ran\n")
    (repository / "git").chmod(0o755)
    monkeypatch.chdir(repository)
    assert git_commit(Path.cwd(), {**ENVIRON, "PATH": f".:{ENVIRON['PATH']}"}) is None
    assert not (repository / "ran").exists()


def test_it_is_recorded_and_shown(nsml, state, repository, monkeypatch):
    monkeypatch.chdir(repository)
    nsml("run")
    [session] = state.sessions.values()
    assert session.git.branch == "main"
    shown = f"{session.git.commit[:12]} main"
    assert f"  git: {shown}\n" in nsml("status", "--explain", "1").stdout
    assert shown in nsml("ps", "-a", "-o", "wide").stdout
    assert shown not in nsml("ps", "-a").stdout


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://kim:KEY@h.org/r.git?token=KEY#x", "https://h.org/r.git"),
        ("https://KEY@h.org:8443/r", "https://h.org:8443/r"),
        ("https://a@b:KEY@h.org/r", "https://h.org/r"),
        ("SSH://git@h.org/r", "ssh://h.org/r"),
        ("git@h.org:team/r.git", "h.org:team/r.git"),
        ("/home/kim/r", ""),
        ("file:///home/kim/r", ""),
        ("../r", ""),
        ("ext::sh -c id", ""),
        ("https://h.org/\x1b[2J", ""),
        ("https://h.org/" + "a" * 2000, ""),
        ("", ""),
    ],
)
def test_a_remote_is_shown_without_what_is_secret_or_of_this_machine(url, shown):
    assert public_remote(url) == shown
    assert public_remote(shown) == shown


def test_names_of_commits_and_branches():
    assert is_commit("a" * 40)
    assert is_commit("0" * 64)
    assert not is_commit("A" * 40)
    assert not is_commit("a" * 41)
    assert is_branch("feature/ä")
    assert not is_branch("a\x1b[2J")
    assert not is_branch("a" * 300)
