"""diff: what is a row, what is said beside it, how it ends."""

import json
import math

import pytest

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.content.packing import pack
from nsml.v1 import sessions_pb2 as pb


@pytest.fixture
def two(state):
    """Two sessions: one argument, the code and a summary differ."""
    found = []
    for number, rate in ((1, "0.02"), (2, "0.01")):
        session = state.add(
            f"kim/mnist/{number}",
            spec=pb.SessionSpec(
                args=["--epochs", "10", "--lr", rate], bundle_digest=f"{number}" * 64
            ),
        )
        session.summary["val/accuracy"] = 0.9 + number / 100
        for step in range(3):
            state.report(session, "val/loss", 3.0 / number - step, step=step)
        found.append(session)
    return found


def test_only_differences_are_rows_and_the_rest_is_one_line(nsml, two):
    shown = nsml("diff", "1", "2")
    assert shown.stdout.count("\n\n") == 2, "a line between the tables"
    lines = [line.split() for line in shown.stdout.splitlines() if line]
    assert lines == [
        ["Argument", "kim/mnist/1", "kim/mnist/2"],
        ["-" * 8, "-" * 11, "-" * 11],
        ["lr", "0.02", "0.01"],
        ["Code", "kim/mnist/1", "kim/mnist/2"],
        ["-" * 4, "-" * 12, "-" * 12],
        ["code", "1" * 12, "2" * 12],
        ["Summary", "kim/mnist/1", "kim/mnist/2"],
        ["-" * 12, "-" * 11, "-" * 11],
        ["val/accuracy", "0.91", "0.92"],
    ]
    assert shown.stderr == (
        "(how the code differs: nsml diff kim/mnist/1 kim/mnist/2 --code)\n"
        "the same (4): epochs=10 gpus=0 nodes=1 priority=normal\n"
    )
    assert "--code" not in nsml("diff", "1", "2", "--ignore", "code").stderr
    everything = nsml("diff", "1", "2", "--all-keys", "--ignore", "val/*")
    assert "epochs" in everything.stdout
    for key in ("lr", "--lr"):  # as it is shown, and as the program gets it
        assert "lr " not in nsml("diff", "1", "2", "--ignore", key).stdout
    assert "val/accuracy" not in everything.stdout
    assert "the same" not in everything.stderr


def test_metrics_with_their_best(nsml, two):
    shown = nsml("diff", "1", "2", "--metrics", "--lower", "val/loss").stdout
    assert shown.splitlines()[-1].split() == ["val/loss", "1", "/", "1", "-0.5", "/", "-0.5", "*"]
    items = json.loads(nsml("diff", "1", "2", "-m", "val/*", "--higher", "*", "-j").stdout)["items"]
    [metric] = [item for item in items if item["kind"] == "metric"]
    assert metric == {
        "kind": "metric",
        "key": "val/loss",
        "differs": True,
        "better": "higher",
        "best": ["kim/mnist/1"],
        "values": {
            "kim/mnist/1": {"last": 1.0, "min": 1.0, "max": 3.0, "count": 3, "not_finite": 0},
            "kim/mnist/2": {"last": -0.5, "min": -0.5, "max": 1.5, "count": 3, "not_finite": 0},
        },
    }


@pytest.mark.parametrize("columns", ["120", "80", "60"])
def test_what_is_long_leaves_numbers_and_headers_whole(nsml, state, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for number in (1, 2):
        session = state.add(f"somebody/digits-of-many-hands/{number}")
        for value in (1.23456789e-26 * number, 2345.678):
            state.report(session, "validation/" + "x" * 90 + "/loss", value)
    names = [f"somebody/digits-of-many-hands/{number}" for number in (1, 2)]
    words = ("diff", *names, "--metrics", "--lower", "*")
    lines = nsml(*words, terminal=True, NO_COLOR="1").stdout.splitlines()
    assert max(map(len, lines)) <= int(columns)
    header, row = lines[-3].split(), lines[-1]
    assert header[1] != header[2]
    assert (header[1][-2:], header[2][-2:]) == ("/1", "/2")
    assert "…" not in row.split(maxsplit=1)[1]
    assert row.count("e-26") == 2
    assert row.count(" *") == 1


def test_how_it_ends(nsml, state, two):
    assert nsml("diff", "1", "2").code == 0
    assert nsml("diff", "1", "2", "--exit-code", check=False).code == 1
    state.add("kim/mnist/3", spec=two[0].spec)
    same = nsml("diff", "1", "3", "--args", "--exit-code")
    assert (same.code, same.stdout) == (0, "")
    assert same.stderr.startswith("nothing differs\nthe same (6): epochs=10 lr=0.02 code=1111")


def test_what_was_not_reported_is_told(nsml, two):
    refused = nsml("diff", "1", "2", "-m", "val/los", check=False)
    assert refused.code == 5
    assert "nsml diff kim/mnist/2 ANOTHER -m val/loss" in refused.stderr


def test_what_is_in_no_series_is_told_and_not_denied(nsml, state, two):
    state.left_out_points = 3
    shown = nsml("diff", "1", "2", "-m", "beyond")
    assert "(3 points of kim/mnist/1 in no series: too many metrics" in shown.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1"], "kim/mnist/1 alone cannot be compared"),
        (["1", "kim/mnist/1", "@2"], "kim/mnist/1 alone cannot be compared"),
        (["1", "2", "--args", "--metrics"], "--args excludes results"),
        (["1", "2", "--args", "--lower", "loss"], "--args excludes results"),
        (
            ["1", "2", "--lower", "val/*", "--higher", "val/loss"],
            "val/loss is named by --lower and",
        ),
    ],
)
def test_what_is_refused(nsml, two, words, said):
    refused = nsml("diff", *words, check=False)
    assert refused.code == 2
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lower", "val/los"], "nsml diff ... --metrics --lower val/loss"),
        (["--metrics", "--higher", "nosuch"], "no metric or summary 'nosuch' was reported"),
        (["--rank", "3"], "none of these sessions has replica 3"),
        (["--attempt", "2", "-m", "val/loss"], "none of these sessions has attempt 2"),
    ],
)
def test_what_is_not_there_is_refused(nsml, two, words, said):
    refused = nsml("diff", "1", "2", *words, check=False)
    assert refused.code == 5
    assert said in refused.stderr


def test_less_of_a_metric_is_better_without_a_word_of_metrics(nsml, two):
    assert "val/loss" in nsml("diff", "1", "2", "--lower", "val/loss").stdout
    assert "val/loss" not in nsml("diff", "1", "2", "--higher", "val/acc*").stdout


def test_what_has_no_row_is_told(nsml, state, two):
    state.report(two[0], "phase", json='"warm"')
    said = "(no row of phase: it is no single number; nsml events kim/mnist/1 phase)\n"
    assert said in nsml("diff", "1", "2", "-m", "phase").stderr
    shown = nsml("diff", "1", "2", "-m", "phase", "-m", "val/*", "-m", "nosuch")
    assert said + "(no metric 'nosuch' was reported)\n" in shown.stderr
    assert "val/loss" in shown.stdout
    two[0].spec.replica_count = 4
    assert "nothing reported by rank 3\n" in nsml("diff", "1", "2", "--rank", "3").stderr
    ignored = nsml("diff", "1", "2", "--all-keys", "--ignore", "*")
    assert ignored.stderr == "nothing to compare: every key is ignored\n"


def test_names_do_not_act_on_the_terminal(nsml, state, two):
    state.report(two[0], "bad\x1b[31m\x00name", math.nan)
    shown = nsml("diff", "1", "2", "--metrics", terminal=True)
    assert "\x1b[31m" not in shown.stdout
    assert "no number" in shown.stdout


@pytest.fixture
def coded(state):
    """Gives each session its code: files by name."""

    def give(number, **files):
        entries = []
        for path, data in files.items():
            # Two chunks of a file come as one file.
            parts = [part for part in (data[:4], data[4:]) if part]
            state.blobs |= {digest_of(part): part for part in parts}
            refs = tuple(ChunkRef(digest_of(part), len(part)) for part in parts)
            entries.append(Entry(path=path, mode=0o644, size=len(data), chunks=refs))
        manifest = build(entries)
        state.blobs[manifest.digest] = manifest.encode()
        spec = pb.SessionSpec(bundle_digest=manifest.digest)
        return state.add(f"kim/mnist/{number}", spec=spec)

    return give


def test_code_differs_by_file_and_line(nsml, coded):
    coded(1, main=b"x = 1\n\x1b[2J\n", same=b"s", gone=b"g\n")
    coded(2, main=b"x = 2\n\x1b[2J\n", same=b"s", big=b"\0" * 9)
    shown = nsml("diff", "1", "2", "--code")
    assert shown.stdout.splitlines() == [
        "big: added, no text: 9 Bytes",
        "--- gone\tkim/mnist/1",
        "+++ /dev/null\tkim/mnist/2",
        "@@ -1 +0,0 @@",
        "-g",
        "--- main\tkim/mnist/1",
        "+++ main\tkim/mnist/2",
        "@@ -1,2 +1,2 @@",
        "-x = 1",
        "+x = 2",
        " ␛[2J",
    ]
    assert shown.stderr == "3 files differ: 1 line added, 2 removed; 1 file the same\n"
    assert "\x1b[31m-x = 1\x1b[0m" in nsml("diff", "1", "2", "--code", terminal=True).stdout
    stat = nsml("diff", "1", "2", "--stat").stdout.splitlines()
    assert [line.split()[:4] for line in stat[2:]] == [
        ["big", "added", "-", "-"],
        ["gone", "removed", "0", "1"],
        ["main", "changed", "1", "1"],
    ]
    items = json.loads(nsml("diff", "1", "2", "--code", "--ignore", "g*", "-j").stdout)["items"]
    assert [(one["path"], len(one["diff"])) for one in items] == [("big", 0), ("main", 6)]
    assert "diff" not in json.loads(nsml("diff", "1", "2", "--stat", "-j").stdout)["items"][0]


def test_code_that_is_the_same_or_is_not_there(nsml, state, coded):
    first = coded(1, main=b"x")
    coded(2, main=b"x")
    same = nsml("diff", "1", "2", "--code", "--exit-code")
    assert (same.stdout, same.stderr[:15]) == ("", "0 files differ:")
    state.add("kim/mnist/3")
    state.add("kim/mnist/4")
    added = nsml("diff", "3", "2", "--code", "--exit-code", check=False)
    assert (added.code, added.stdout.splitlines()[0]) == (1, "--- /dev/null\tkim/mnist/3")
    first.spec.bundle_digest = "0" * 64
    for words, code, why in (
        (["3", "4"], 5, "neither kim/mnist/3 nor kim/mnist/4 has code"),
        (["1", "2"], 5, "the code of kim/mnist/1 cannot be read"),
        (["1"], 2, "--code compares two sessions"),
        (["1", "1"], 2, "--code compares two sessions"),
        (["1", "2", "3"], 2, "--code compares two sessions"),
        (["1", "2", "--metrics"], 2, "--code compares files alone"),
        (["1", "2", "--lower", "x"], 2, "--code compares files alone"),
    ):
        refused = nsml("diff", *words, "--code", check=False)
        assert (refused.code, refused.stdout) == (code, "")
        assert why in refused.stderr


def test_many_sessions_on_a_small_terminal_are_lines_with_what_differs_as_columns(
    nsml, state, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    rates = ["0.01", "0.02", "0.03", "0.1", "0.2", "0.3", "1", "2", "3"]
    for number, rate in enumerate(rates, start=1):
        session = state.add(f"kim/mydata/{number}", summary={"train/loss": number / 8})
        session.spec.args[:] = ["--lr", rate, "--epochs", "30"]
        state.put(session)
    names = [f"mydata/{number}" for number in range(1, 10)]
    lines = nsml("diff", *names, terminal=True, NO_COLOR="1").stdout.splitlines()
    heads, rule, *rows = lines
    assert heads.split()[-2:] == ["lr", "train/loss"]
    assert set(rule) == {"-", " "}
    assert [row.split()[0] for row in rows] == [f"kim/{name}" for name in names]
    assert [row.split()[-2:] for row in rows] == [
        [rate, f"{number / 8:.4g}"] for number, rate in enumerate(rates, start=1)
    ]
    piped = nsml("diff", *names).stdout.splitlines()
    assert piped[0].startswith("Argument  kim/mydata/1")


def test_metrics_that_have_no_room_beside_one_another_are_further_tables_with_whole_numbers(
    nsml, state, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["train/loss", "val/accuracy", "val/loss"]
    for number in range(1, 5):
        session = state.add(f"kim/mydata/{number}")
        for name in names:
            for value in (9.87654321, 0.12345678, number + 0.12345678):
                state.report(session, name, value)
    shown = nsml("diff", "mydata/*", "--metrics", terminal=True, NO_COLOR="1").stdout
    tables = [part.splitlines() for part in shown.split("\n\n")]
    assert [name for table in tables for name in table[0].split()[1:]] == names
    for table in tables:
        assert max(map(len, table)) <= 80
        assert table[-1].split()[0] == "kim/mydata/1"
        assert table[-1].count("1.123 (0.1235 .. 9.877)") == len(table[0].split()) - 1


def sent(state, folder, **files):
    """The digest of code that the platform has."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    packed = pack(folder)
    state.blobs[packed.manifest.digest] = packed.manifest.encode()
    for blob in packed.manifest.blobs():
        state.blobs[blob] = packed.source.read(blob)
    return packed.manifest.digest


def test_everything_in_one_output(nsml, state, two, tmp_path):
    first, second = two
    packages = {"requirements__txt": "numpy==2.1.0\ntorch\n"}
    first.spec.bundle_digest = sent(state, tmp_path / "a", main__py="print(1)\n", **packages)
    packages = {"requirements__txt": "numpy==2.2.0\ntorch\n"}
    second.spec.bundle_digest = sent(state, tmp_path / "b", main__py="print(2)\n", **packages)
    first.spec.datasets.add(name="mnist", version=1)
    second.spec.datasets.add(name="mnist", version=2)
    first.git.CopyFrom(pb.GitFacts(commit="a" * 40, branch="main"))
    second.git.CopyFrom(pb.GitFacts(commit="b" * 40, branch="main", dirty=True))
    first.replicas.add(node="n").devices.add(model="A100")
    second.replicas.add(node="n", python_version="3.12.4").devices.add(
        model="H100", driver_version="550.54.14", cuda_version="12.4"
    )
    change = second.changes.add(
        number=1, kind=pb.PROGRAM_CHANGE_KIND_SET, phase=pb.PROGRAM_CHANGE_PHASE_APPLIED
    )
    change.values["lr"], change.at = "0.003", 5000
    items = json.loads(nsml("diff", "1", "2", "--all", "-j").stdout)["items"]
    assert [(one["kind"], one["key"]) for one in items] == [
        *(("argument", "--lr"), ("code", "code"), ("code", "git"), ("code", "file main.py")),
        *(("code", "file requirements.txt"), ("data", "datasets")),
        *(("environment", "package numpy"), ("environment", "ran on")),
        *(("environment", "GPU driver"), ("environment", "Python"), ("knob", "set live lr")),
        *(("summary", "val/accuracy"), ("metric", "val/loss")),
    ]
    by_key = {one["key"]: list(one["values"].values()) for one in items}
    assert by_key["package numpy"] == ["numpy==2.1.0", "numpy==2.2.0"]
    assert by_key["git"] == ["a" * 12 + " main", "b" * 12 + " main, changed"]
    assert by_key["set live lr"] == ["0.003 at step 5,000"]
    shown = nsml("diff", "1", "2", "--all").stdout
    titles = [line.split()[0] for line in shown.splitlines() if "kim/mnist/1" in line]
    assert titles == ["Argument", "Code", "Data", "Environment", "Knob", "Summary", "Metric"]


def test_packages_are_those_that_ran_where_locks_are_kept(nsml, state, two, tmp_path):
    for session, version in zip(two, ("2.1.0", "2.2.0"), strict=True):
        packages = {"requirements__txt": "numpy\n"}
        session.spec.bundle_digest = sent(state, tmp_path / version, main__py="", **packages)
        session.environment_lock.digest, session.environment_lock.package_count = version * 12, 2
        state.locks[session.id] = "".join(
            f"{line} --hash=sha256:{'a' * 64}\n" for line in (f"numpy=={version}", "six==1.16.0")
        )
    state.locks[two[1].id] += f"zstd==1.0 --hash=sha256:{'b' * 64}\n"
    items = json.loads(nsml("diff", "1", "2", "--all", "-j").stdout)["items"]
    found = {one["key"]: one["values"] for one in items if one["kind"] == "environment"}
    assert [*found["package numpy"].values()] == ["2.1.0", "2.2.0"]
    assert found["package zstd"] == {two[1].name: "1.0"}
    assert found.keys() == {"package numpy", "package zstd", "ran with"}
    del state.locks[two[0].id]
    told = nsml("diff", "1", "2", "--all")
    assert f"(no lock of {two[0].name} is kept: packages are compared as the code" in told.stderr
    assert "package numpy" not in told.stdout


def test_code_that_is_not_kept_is_said_and_the_rest_compared(nsml, state, two):
    told = nsml("diff", "1", "2", "--all")
    assert "(the code of kim/mnist/1 cannot be read: its files are not compared)" in told.stderr
    assert "lr " in told.stdout


def test_of_many_files_the_first_are_shown_to_people(nsml, state, two, tmp_path):
    first, second = two
    first.spec.bundle_digest = sent(state, tmp_path / "a", main__py="")
    files = {f"f{number}__py": "" for number in range(30)}
    files["\x1b[2J"] = ""
    second.spec.bundle_digest = sent(state, tmp_path / "b", **files)
    told = nsml("diff", "1", "2", "--all", terminal=True, NO_COLOR="1")
    assert "(12 more files differ: nsml diff kim/mnist/1 kim/mnist/2 --stat)" in told.stderr
    assert "\x1b[2J" not in told.stdout + told.stderr


def configure(session, values, origin="wandb", run=""):
    session.reported_config.runs.add(origin=origin, run=run, json=json.dumps(values))


def test_reported_configurations_are_compared_in_a_section_of_their_own(nsml, two):
    for session, rate in zip(two, (0.1, 0.00012345678), strict=True):
        optimizer = {"lr": rate, "betas": [0.9, 0.999], "name": "adam"}
        configure(session, {"optimizer": optimizer, "seed": 1, "amp": rate < 0.01})
    configure(two[1], {"depth": None, "lr\x1b": "x"}, run="second")
    shown = nsml("diff", "1", "2")
    tables = shown.stdout.split("\n\n")
    assert [line.split() for line in tables[1].splitlines()] == [
        ["Reported", "config", "kim/mnist/1", "kim/mnist/2"],
        ["-" * 15, "-" * 11, "-" * 13],
        ["amp", "false", "true"],
        ["optimizer.lr", "0.1", "0.00012345678"],
        ["second/depth", "-", "null"],
        ["second/lr␛", "-", "x"],
    ]
    assert [table.split()[0] for table in tables] == ["Argument", "Reported", "Code", "Summary"]
    assert (
        "the same (7): epochs=10 gpus=0 nodes=1 priority=normal and 3 values of the reported config"
        in shown.stderr
    )
    assert "Reported" not in nsml("diff", "1", "2", "--args").stdout
    assert "optimizer" not in nsml("diff", "1", "2", "--ignore", "optimizer.*").stdout
    everything = nsml("diff", "1", "2", "--all-keys").stdout
    assert "[0.9, 0.999]" in everything


def test_numbers_in_names_of_a_configuration_are_ordered_by_value(nsml, two):
    configure(two[0], {f"layers.{n}.width": n for n in (10, 9, 1)} | {"layers": 3, "layer²": 1})
    rows = json.loads(nsml("diff", "1", "2", "-j").stdout)["items"]
    keys = [row["key"] for row in rows if row["kind"] == "config"]
    assert keys == ["layers", "layers.1.width", "layers.9.width", "layers.10.width", "layer²"]


def test_reported_configurations_for_programs(nsml, two):
    configure(two[0], {"lr": 0.1, "layers": [1, 2], "name": "a"})
    configure(two[1], {"lr": 0.2, "layers": [1, 2], "name": "a"})
    configure(two[1], {"lr": "0.2", "name": "b"}, origin="mlflow")
    items = json.loads(nsml("diff", "1", "2", "--all-keys", "-j").stdout)["items"]
    found = {item["key"]: item for item in items if item["kind"] == "config"}
    assert found["lr"]["values"] == {"kim/mnist/1": 0.1, "kim/mnist/2": 0.2}
    assert found["lr"]["differs"]
    assert not found["layers"]["differs"]
    assert found["layers"]["values"]["kim/mnist/1"] == [1, 2]
    assert found["name (mlflow)"]["values"] == {"kim/mnist/2": "b"}
    assert "lr (mlflow)" not in found, "the same value"


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 9999, '{"a": ' * 200 + "1" + "}" * 200])
def test_a_configuration_that_cannot_be_read_ends_no_command(nsml, two, text):
    two[0].reported_config.runs.add(origin="wandb", json=text)
    assert nsml("diff", "1", "2").code == 0
    assert nsml("status", "--explain", "1").code == 0
    assert nsml("status", "--explain", "1", "-j").code == 0


def test_the_status_of_a_session_has_its_reported_configuration(nsml, two):
    assert "reported" not in nsml("status", "--explain", "1").stdout
    assert json.loads(nsml("status", "--explain", "1", "-j").stdout)["reported_config"] is None
    values = {
        "lr": 0.1,
        "opt": {"name": "adam"},
        "text": "x" * 500,
        **{f"k{n}": n for n in range(30)},
    }
    configure(two[0], values)
    configure(two[0], {"a": 1}, origin="mlflow", run="eval")
    two[0].reported_config.is_cut = True
    shown = nsml("status", "--explain", "1").stdout
    assert "  reported config (wandb): lr=0.1 opt.name=adam text=xxx" in shown
    assert "x" * 60 not in shown
    assert " … 9 more (-j: all)\n" in shown
    assert "  reported config (mlflow eval): a=1\n" in shown
    assert "some values were left out" in shown
    record = json.loads(nsml("status", "--explain", "1", "-j").stdout)["reported_config"]
    assert record["is_cut"]
    assert record["runs"] == [
        {"origin": "wandb", "run": None, "values": values},
        {"origin": "mlflow", "run": "eval", "values": {"a": 1}},
    ]
