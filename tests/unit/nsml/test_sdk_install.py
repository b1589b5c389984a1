"""The SDK laid out for user code: it wins over the program's own nsml, and runs on every Python."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from nsml._frames import parse
from nsml._install import sdk_digest, sdk_files, write_sdk

ROOT = Path(__file__).parents[3]
OLDEST = (3, 8)


def find_interpreters() -> list[str]:
    """One Python of each minor version from the oldest supported one on, this one included."""
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = {sys.version_info[:2]: sys.executable}
    others = versions.glob("3.*/bin/python") if os.access(versions, os.R_OK | os.X_OK) else ()
    for path in sorted(others):
        version = tuple(int(part) for part in path.parts[-3].split(".")[:2] if part.isdigit())
        if len(version) == 2 and version >= OLDEST and os.access(path, os.X_OK):
            found.setdefault(version, str(path))
    return [found[version] for version in sorted(found)]


def of_python(path: str) -> str:
    """What tests with a Python are named after: its version, or where this one is."""
    return Path(path).parts[-3]


def every_python() -> list[ParameterSet]:
    """Parameters of tests that run with each Python: all but the oldest and this one are variants."""
    found = find_interpreters()
    in_each_run = {found[0], sys.executable}
    return [
        pytest.param(
            path, id=of_python(path), marks=() if path in in_each_run else pytest.mark.variant
        )
        for path in found
    ]


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    write_sdk(folder)
    return folder


def run(
    arguments: list[str], sdk: Path, cwd: Path, python: str = sys.executable, **more: str
) -> str:
    """Standard output of Python in a session whose run folder is `cwd`/run."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(sdk),
        "NSML_RUN_DIR": str(cwd / "run"),
        "NSML_SESSION_NAME": "anna/digits/3",
        **more,
    }
    done = subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


WHERE = "import nsml; print(nsml.__file__); print(nsml.IS_ON_NSML, nsml.constants.SESSION_NAME)\n"


@pytest.fixture(params=["nsml.py", "nsml/__init__.py", "none"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program's folder, with an nsml of its own as many public repositories carry one."""
    if request.param != "none":
        own = tmp_path / request.param
        own.parent.mkdir(exist_ok=True)
        own.write_text("raise SystemExit('the stub of the program was imported')\n")
        if request.param == "nsml/__init__.py":
            (tmp_path / "nsml/constants.py").write_text("raise SystemExit('and its constants')\n")
    (tmp_path / "main.py").write_text(WHERE)
    (tmp_path / "spawn.py").write_text(
        "import multiprocessing, nsml\n"
        "def where(number):\n"
        "    import nsml, nsml.constants\n"
        "    nsml.report(number=number)\n"
        "    return nsml.__file__\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        print(*pool.map(where, range(2)), sep='\\n')\n"
    )
    return tmp_path


@pytest.mark.parametrize("arguments", [["main.py"], ["-u", "main.py"], ["-m", "main"]])
def test_the_platforms_sdk_wins(project: Path, sdk: Path, arguments: list[str]) -> None:
    answer = run(arguments, sdk, project).split("\n")
    assert answer == [str(sdk / "nsml/__init__.py"), "True anna/digits/3", ""]


def test_in_a_command_given_as_text(project: Path, sdk: Path) -> None:
    assert str(sdk / "nsml/__init__.py") in run(["-c", WHERE], sdk, project)


def test_in_spawned_processes(project: Path, sdk: Path) -> None:
    assert run(["spawn.py"], sdk, project) == f"{sdk}/nsml/__init__.py\n" * 2
    files = list((project / "run/spool").glob("*.records"))
    assert files
    assert sum(len(parse(path.read_bytes())[0]) for path in files) == 2


def test_pythonpath_alone_would_lose(project: Path, sdk: Path, tmp_path: Path) -> None:
    """Why there is a finder: without it, this program gets its own stub."""
    if not any(project.glob("nsml*")):
        pytest.skip("this program has no stub")
    bare = tmp_path / "bare"
    for folder in ("spec", "_echo"):
        (bare / "nsml" / folder).mkdir(parents=True)
    for path, content in sdk_files().items():
        if path.startswith("nsml/"):
            (bare / path).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=project,
        env={"PYTHONPATH": str(bare)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the stub of the program was imported" in done.stderr


def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path, sdk: Path) -> None:
    image = tmp_path / "image"
    image.mkdir()
    (image / "sitecustomize.py").write_text("import builtins; builtins.of_the_image = __file__\n")
    answer = run(
        ["-c", "import sitecustomize, nsml; print(of_the_image, sitecustomize.__file__)"],
        sdk,
        tmp_path,
        PYTHONPATH=f"{sdk}{os.pathsep}{image}",
    )
    assert answer.split() == [str(image / "sitecustomize.py")] * 2


def test_a_broken_sitecustomize_of_the_environment_is_reported_and_costs_nothing(
    tmp_path: Path, sdk: Path
) -> None:
    image = tmp_path / "image"
    image.mkdir()
    (image / "sitecustomize.py").write_text("raise ValueError('broken image')\n")
    done = subprocess.run(
        [sys.executable, "-c", WHERE],
        env={"PYTHONPATH": f"{sdk}{os.pathsep}{image}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(sdk) in done.stdout
    assert "broken image" in done.stderr


def test_only_what_user_code_needs_is_laid_out(sdk: Path) -> None:
    found = {
        str(path.relative_to(sdk)) for path in sdk.rglob("*.py") if "__pycache__" not in path.parts
    }
    assert found == set(sdk_files())
    assert "nsml/_install.py" not in found
    assert "nsml/common/clock.py" not in found


def test_laying_out_again_touches_nothing_and_repairs_what_is_broken(tmp_path: Path) -> None:
    write_sdk(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    write_sdk(tmp_path)
    assert before == {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()
    }
    (tmp_path / "nsml/constants.py").write_text("broken = True\n")
    write_sdk(tmp_path)
    assert "IS_ON_NSML" in (tmp_path / "nsml/constants.py").read_text()
    assert run(["-c", WHERE], tmp_path, tmp_path)
    assert len(sdk_digest()) == 16


SMOKE = """
import json, math, os, pickle, sys
import nsml
from nsml import *
from nsml.constants import DATASET_PATH, HAS_DATASET
import nsml.encoder, nsml.decoder

state = {"n": 1}
def save(path, **kwargs):
    with open(os.path.join(path, "state"), "wb") as file:
        pickle.dump(state, file)
def load(path, **kwargs):
    with open(os.path.join(path, "state"), "rb") as file:
        nsml.copy(pickle.load(file), state)

nsml.bind(save=save, load=load, infer=lambda data: data, real=True)
assert nsml.DATASET_PATH[0] == DATASET_PATH[0] == "/data/a", DATASET_PATH
assert HAS_DATASET and GPU_NUM == 1 and nsml.infer(4) == 4
for epoch in range(3):
    nsml.report(summary=True, step=epoch, train__loss=math.nan, scope=locals())
class Tensor:
    shape = (2,)
    def tolist(self):
        return [1.5, math.inf]
nsml.report(step=3, grads=Tensor())
nsml.save("best")
state["n"] = 2
nsml.load("best")
assert state["n"] == 1
with nsml.strict():
    try:
        nsml.report(loss=object())
    except TypeError:
        pass
    else:
        raise AssertionError("no TypeError")
nsml.report(val={"ok": True, 1: Tensor()}, step=4)
sys.argv += ["--iteration", "best"]
nsml.paused(scope=locals())
assert list(nsml.steps(2)) == [0, 1]
child = os.fork()
if child == 0:
    nsml.report(child=1)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("python", find_interpreters(), ids=of_python)
def test_it_runs_on_this_python(python: str, sdk: Path, tmp_path: Path) -> None:
    answer = run(
        ["-W", "error", "-c", SMOKE],
        sdk,
        tmp_path,
        python,
        NSML_DATASET_PATH="/data/a:/data/b",
        NSML_GPU_NUM="0.5",
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert answer == "Paused.\n"
    kinds = [
        [json.loads(payload)["kind"] for _, payload in parse(path.read_bytes())[0]]
        for path in sorted((tmp_path / "run/spool").glob("*.records"))
    ]
    own = ["metric"] * 4 + ["checkpoint", "metric", "state", "state", "progress", "progress"]
    assert kinds == [own, ["metric"]]


def test_the_sdk_keeps_to_the_grammar_of_the_oldest_python() -> None:
    for path, content in sdk_files().items():
        ast.parse(content, path, feature_version=OLDEST)


def test_it_loads_nothing_but_the_standard_library(sdk: Path, tmp_path: Path) -> None:
    listing = (
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    program = f"import sys; before = set(sys.modules)\n{SMOKE}\n{listing}"
    answer = run(["-c", program], sdk, tmp_path, NSML_DATASET_PATH="/data/a:", NSML_GPU_NUM="1")
    loaded = set(json.loads(answer.splitlines()[-1]))
    assert "nsml" in loaded
    assert loaded - set(sys.stdlib_module_names) == {"nsml"}


def test_importing_it_loads_next_to_nothing(sdk: Path, tmp_path: Path) -> None:
    program = (
        "import sys; before = set(sys.modules); import nsml; print(*set(sys.modules) - before)"
    )
    outside = run(["-c", program], sdk, tmp_path, NSML_RUN_DIR="")
    assert outside.split() == ["nsml"]
    inside = run(["-c", program], sdk, tmp_path)
    assert "nsml._session" in inside.split(), "loaded before anything can interrupt it"


def test_names_that_are_not_there_are_attribute_errors(sdk: Path, tmp_path: Path) -> None:
    program = (
        "import nsml; print(hasattr(nsml, 'nothing'), hasattr(nsml, 'clock'), len(dir(nsml)) > 20)"
    )
    assert run(["-c", program], sdk, tmp_path) == "False False True\n"


@pytest.mark.parametrize(
    ("environment", "expression", "value"),
    [
        ({}, "nsml.DATASET_PATH, nsml.DATASET_NAME, nsml.HAS_DATASET", ("", "", False)),
        ({}, "nsml.GPU_NUM, nsml.MY_RANK, nsml.PARALLEL_WORLD", (0, 0, [])),
        ({"NSML_DATASET_PATH": "/data/a"}, "nsml.DATASET_PATH, nsml.IS_DATASET", ("/data/a", True)),
        ({"NSML_DATASET_NAME": "a:b"}, "nsml.DATASET_NAME", ["a", "b"]),
        ({"NSML_GPU_NUM": "0"}, "bool(nsml.GPU_NUM), int(nsml.GPU_NUM)", (False, 0)),
        ({"NSML_GPU_NUM": "0.5"}, "nsml.GPU_NUM", 1),
        ({"NSML_GPU_NUM": "many"}, "nsml.GPU_NUM", 0),
        ({"NSML_PARALLEL_WORLD": "h1,h2"}, "nsml.PARALLEL_WORLD", ["h1", "h2"]),
        ({"NSML_PARALLEL_PORTS": "5,6", "NSML_RANK": "1"}, "nsml.PARALLEL_PORTS", ["5", "6"]),
        ({"NSML_RUN_DIR": ""}, "nsml.IS_ON_NSML", False),
    ],
)
def test_constants(
    environment: dict[str, str], expression: str, value: Any, sdk: Path, tmp_path: Path
) -> None:
    answer = run(["-c", f"import nsml; print(repr(({expression})))"], sdk, tmp_path, **environment)
    assert ast.literal_eval(answer) == value
