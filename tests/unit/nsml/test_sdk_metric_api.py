"""NSML_METRIC_API, as programs of 2022 use it: real processes that post to what their environment says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nsml._install import write_sdk
from tests.unit.nsml.test_sdk_install import every_python, run
from tests.unit.nsml.test_sdk_session import records

CALLS = """
import json, os, sys, threading, urllib.error, urllib.request
def call(method, data=None, path=""):
    url = os.environ["NSML_METRIC_API"] + path
    body = None if data is None else data.encode()
    request = urllib.request.Request(url, data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
"""
PROGRAM = (
    CALLS
    + """
assert threading.active_count() == 1 and "http.server" not in sys.modules and "nsml" not in sys.modules
print(call("DELETE"))
for step in range(3):
    print(call("POST", json.dumps({"@step": step, "@epoch": 1, "@time": 5.0, "train/loss": 0.5 * step})))
print(call("POST", json.dumps({"@epoch": 7, "accuracy": float("nan")})))
print(call("DELETE"))
"""
)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    write_sdk(folder)
    return folder


@pytest.mark.parametrize("python", every_python())
def test_what_is_posted_is_reported(sdk: Path, tmp_path: Path, python: str) -> None:
    assert run(["-c", PROGRAM], sdk, tmp_path, python) == "200\n" * 6
    found = records(tmp_path / "run", "metric")
    assert [(one["step"], one["values"], one["summary"]) for one in found] == [
        *((step, {"epoch": 1, "train/loss": 0.5 * step}, True) for step in range(3)),
        (7, {"epoch": 7, "accuracy": "NaN"}, True),
        (None, {"metrics": "begun anew: DELETE of NSML_METRIC_API"}, False),
    ]


def test_what_it_cannot_read_is_answered_and_ends_nothing(sdk: Path, tmp_path: Path) -> None:
    program = CALLS + (
        "said = sys.stderr = __import__('io').StringIO()\n"
        "print(*[call('POST', data) for data in ('no json', '[1]', '', '{\"a\": [[1]]}')])\n"
        "print(call('POST', '{}', '0'), call('DELETE', path='/x'), call('PUT'))\n"
        "print(call('POST', 'no json', '0'), call('POST', '[' * 100000))\n"
        "print(call('POST', ' ' * (1 << 21)) in (413, None))\n"
        "print(call('POST', '{\"loss\": 1}'))\n"
        "assert said.getvalue().count('NSML_METRIC_API') == 4, said.getvalue()\n"
    ).replace("    except urllib.error.HTTPError", "    except urllib.error.HTTPError")
    program = program.replace(
        "        return error.code\n",
        "        return error.code\n    except (ConnectionError, urllib.error.URLError):\n        return None\n",
    )
    answers = run(["-c", program], sdk, tmp_path).split("\n")
    assert answers == ["400 400 400 200", "404 404 501", "404 400", "True", "200", ""]
    assert [one["values"] for one in records(tmp_path / "run", "metric")][-1] == {"loss": 1}


def test_children_post_to_their_parent_or_have_their_own(sdk: Path, tmp_path: Path) -> None:
    child = CALLS + "call('POST', json.dumps({'@step': int(sys.argv[1]), 'loss': 1.0}))\n"
    (tmp_path / "child.py").write_text(child)
    program = (
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, 'child.py', '1'], check=True)\n"
        "assert b'NSML_METRIC_API' in os.environb and os.environ.get('NSML_METRIC_API')\n"
        "subprocess.run([sys.executable, 'child.py', '2'], check=True)\n"
        "if os.fork() == 0:\n    sys.argv.append('3'); exec(open('child.py').read()); os._exit(0)\n"
        "os.wait()\n"
    )
    run(["-W", "ignore", "-c", program], sdk, tmp_path)
    assert sorted(one["step"] for one in records(tmp_path / "run", "metric")) == [1, 2, 3]
    assert len(list((tmp_path / "run/spool").glob("*.records"))) == 2


@pytest.mark.parametrize("python", every_python())
def test_the_environment_is_what_it_was(sdk: Path, tmp_path: Path, python: str) -> None:
    program = (
        "import copy, json, os, pickle, subprocess, sys\n"
        "os.environ['A'] = 'a'\n"
        "assert os.environb[b'A'] == b'a' and os.getenv('B') is None and 'B' not in os.environ\n"
        "os.environb[b'B'] = b'b'; assert os.environ.pop('B') == 'b' and b'B' not in os.environb\n"
        "del os.environ['A']\n"
        "try: os.environ['A']\n"
        "except KeyError as error: assert error.args == ('A',)\n"
        "os.environ.setdefault('C', 'c'); os.environ.update(D='d')\n"
        "assert 'NSML_METRIC_API' not in dict(os.environ) and 'NSML_METRIC_API' not in list(os.environ)\n"
        "seen = subprocess.run(['env'], stdout=subprocess.PIPE, check=True).stdout\n"
        "assert b'C=c' in seen and b'D=d' in seen and b'METRIC_API' not in seen\n"
        "os.execvpe('env', ['env'], {**os.environ, 'E': 'e'})\n"
    )
    lines = run(["-c", program], sdk, tmp_path, python).splitlines()
    assert {"C=c", "D=d", "E=e"} < set(lines)


@pytest.mark.parametrize(
    "given", [{"NSML_RUN_DIR": ""}, {"NSML_STAGE": "predict"}, {"NSML_METRIC_API": "http://own"}]
)
def test_where_there_is_none_or_another(sdk: Path, tmp_path: Path, given: dict[str, str]) -> None:
    program = "import json, os; print(json.dumps(os.environ.get('NSML_METRIC_API')))"
    answer = json.loads(run(["-c", program], sdk, tmp_path, sys.executable, **given))
    assert answer == given.get("NSML_METRIC_API")
