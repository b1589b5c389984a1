"""What W&B is given where the user has no account, and that the user's own is left alone: without W&B itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.echoes import Echoed, run_echoed
from tests.unit.nsml.test_sdk_install import every_python

ASK = """
import json, os, subprocess, sys, time, urllib.error, urllib.request
from base64 import b64encode
from nsml._echo._wandb_account import Account

def ours():
    return {name: value for name, value in os.environ.items() if "WANDB" in name}

def ask(path, data, method="POST", key=None):
    key = key or os.environ["WANDB_API_KEY"]
    headers = {"Authorization": "Basic " + b64encode(f"api:{key}".encode()).decode()}
    url = path if "://" in path else os.environ["WANDB_BASE_URL"] + path
    asking = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(asking, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())

def query(text, **variables):
    return ask("/graphql", json.dumps({"query": text, "variables": variables}).encode())

before = ours()
account = Account()
account.check()
"""


def asked(folder: Path, program: str, **more: str) -> Echoed:
    return run_echoed(folder, ASK + program, **more)


ALONE = "assert ours() == before and not account.is_ours, ours()\n"


@pytest.mark.parametrize(
    ("given", "files"),
    [
        ({"WANDB_API_KEY": "k" * 40}, {}),
        ({"WANDB_BASE_URL": "http://wandb.lab"}, {}),
        ({"WANDB_IDENTITY_TOKEN_FILE": "token"}, {}),
        ({"WANDB_MODE": "offline"}, {}),
        ({"WANDB_MODE": "disabled"}, {}),
        ({"WANDB_MODE": "dryrun"}, {}),
        ({}, {".netrc": "machine api.wandb.ai\n  login user\n  password x\n"}),
        ({"NETRC": "other"}, {"other": "machine api.wandb.ai login user password x"}),
        ({}, {".config/wandb/settings": "[default]\nbase_url = http://wandb.lab\n"}),
        ({}, {"wandb/settings": "[default]\napi_key = x\n"}),
    ],
    ids=str,
)
def test_the_users_account_and_choice_are_left_alone(
    tmp_path: Path, given: dict[str, str], files: dict[str, str]
) -> None:
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    done = asked(tmp_path, ALONE + "account.check()\n" + ALONE + "print('ended')\n", **given)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("python", every_python())
def test_an_account_that_comes_later_is_the_users(tmp_path: Path, python: str) -> None:
    program = """
assert account.is_ours and len(os.environ["WANDB_API_KEY"]) == 40
given = ours()
account.check()
assert ours() == given
for name, value in (("WANDB_API_KEY", "k" * 40), ("WANDB_BASE_URL", "http://lab"), ("WANDB_MODE", "offline")):
    kept = os.environ.get(name)
    os.environ[name] = value
    account.check()
    assert ours() == {name: value} and not account.is_ours, ours()
    del os.environ[name]
    account.check()
    assert account.is_ours
assert not account.explicit(None, None) and not account.explicit(os.environ["WANDB_API_KEY"], None)
assert account.explicit("k" * 40, None) and ours() == {}
account.check()
assert account.explicit(None, "http://lab") and ours() == {}
print("ended")
"""
    (tmp_path / ".netrc").write_text("machine example.com login user password x\n")
    done = asked(tmp_path, program, python=python)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_settings_of_the_user_stay(tmp_path: Path) -> None:
    program = """
assert os.environ["WANDB__GRAPHQL_RETRY_MAX"] == "7" and os.environ["WANDB__FILE_STREAM_RETRY_MAX"] == "2"
account.withdraw()
assert ours() == before
print("ended")
"""
    done = asked(tmp_path, program, WANDB__GRAPHQL_RETRY_MAX="7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_children_use_their_parents_while_it_lives(tmp_path: Path) -> None:
    program = """
child = '''
import os, sys, time
from nsml._echo._wandb_account import Account
given = os.environ["WANDB_BASE_URL"]
account = Account()
account.check()
print(os.environ["WANDB_BASE_URL"] == given, account.is_ours, flush=True)
if len(sys.argv) > 1:
    while os.getppid() == int(sys.argv[1]):
        time.sleep(0.05)
    own = Account()
    own.check()
    print(os.environ["WANDB_BASE_URL"] == given, own.is_ours, flush=True)
'''
subprocess.run([sys.executable, "-c", child], check=True)
if os.fork() == 0:
    given = os.environ["WANDB_BASE_URL"]
    account.check()
    print(os.environ["WANDB_BASE_URL"] == given, account.is_ours, flush=True)
    account.withdraw()
    assert ours() == before
    os._exit(0)
os.wait()
last = subprocess.Popen([sys.executable, "-c", child, str(os.getpid())], stdout=subprocess.PIPE)
print(last.stdout.readline().decode().strip(), flush=True)
file = os.dup(last.stdout.fileno())
os.set_inheritable(file, True)
if os.fork() == 0:
    os.execvp("cat", ["cat", f"/dev/fd/{file}"])
os._exit(0)
"""
    done = asked(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["True True"] * 3 + ["False True"]


def test_answers_to_w_and_b(tmp_path: Path) -> None:
    program = """
bucket = query("mutation UpsertBucket ($name: String) { x }", name="r", project="p")[1]["data"]["upsertBucket"]["bucket"]
assert (bucket["name"], bucket["displayName"], bucket["project"]["name"]) == ("r", "r", "p")
for operation, files in (("CreateRunFiles", ["a.png", "../../etc/passwd"]), ("RunUploadUrls", ["b"])):
    data = query(f"mutation {operation}", run="r", files=files)[1]["data"]
    if operation == "CreateRunFiles":
        urls = [one["uploadUrl"] for one in data["createRunFiles"]["files"]]
    else:
        urls = [one["node"]["url"] for one in data["model"]["bucket"]["files"]["edges"]]
    assert len(urls) == len(files) and all(".." not in url for url in urls)
    assert ask(urls[0], b"x" * 5_000_000, "PUT", "none")[0] == 200
assert query("query Viewer { viewer }") == query("{ viewer { id } }")
assert query("query RunResumeStatus", name="r")[1]["data"]["model"] is None
account.must_exist.add("r")
assert query("query RunResumeStatus", name="r")[1]["data"]["model"]["bucket"]["name"] == "r"
made = query("mutation CreateArtifact", input={"artifactCollectionName": "m", "aliases": [{"alias": "best"}, 7]})
identity = made[1]["data"]["createArtifact"]["artifact"]["id"]
found = query("query ArtifactByID", id=identity)[1]["data"]["artifact"]
assert found["artifactSequence"]["name"] == "m" and [one["alias"] for one in found["aliases"]] == ["best"]
assert ask(found["currentManifest"]["file"]["directUrl"], None, "GET")[1]["contents"] == {}
status, unknown = query("mutation DropEverything { x }")
assert status == 200 and unknown["data"] is None and "DropEverything: this session has no W&B" in unknown["errors"][0]["message"]

history = {"files": {"wandb-history.jsonl": {"offset": -5, "content": ["no json", "{}", 7]}, "../x": None}}
for offset in (0, 0, 10**30, -1):
    history["files"]["wandb-history.jsonl"]["offset"] = offset
    assert ask("/files/e/p/r/file_stream", json.dumps(history).encode()) == (200, {})
assert ask("/files/../../../etc/passwd", b"NaN") == (200, {})

assert query("query X {" + " " * (10 << 20) + "}")[1]["data"] is None
assert query("query X {" + " " * (17 << 20) + "}")[0] == 413
for bad in (b"", b"[]", b"{}", b'{"query": 7}', b'{"query": "query ' + b"x" * 1000 + b'"}', b"NaN"):
    assert ask("/graphql", bad)[0] in (200, 400), bad
for variables in ([], "x", 7, None, {"files": "abc"}, {"files": {"a": 1}}, {"input": []}, {"input": {"aliases": "x"}}):
    for operation in ("UpsertBucket", "CreateRunFiles", "RunUploadUrls", "CreateArtifact", "ArtifactByID", "UseArtifact"):
        data = json.dumps({"query": f"mutation {operation}", "variables": variables}).encode()
        assert ask("/graphql", data)[0] == 200, (operation, variables)
assert ask("/graphql", b"{}", key="x" * 40)[0] == 404
print("ended")
"""
    done = asked(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and "sdk" not in path.parts]
    assert [path.name for path in kept] == ["main.py"]


def test_without_a_port_or_thread_w_and_b_is_offline(tmp_path: Path) -> None:
    program = """
account.withdraw()
from nsml._echo import _receiver

def refuse(*_):
    raise OSError("no port")

_receiver.Receiver.address = refuse
account.check()
assert os.environ["WANDB_MODE"] == "offline" and account.is_ours and "WANDB_API_KEY" not in os.environ
account.check()
assert os.environ["WANDB_MODE"] == "offline" and account.is_ours
account.withdraw()
assert ours() == before
print("ended")
"""
    done = asked(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
