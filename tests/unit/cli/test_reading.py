"""logs, plot, events: what sessions left, to terminals and to pipes."""

import csv
import io
import json
import math
import sys
import threading
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from cli.app import App
from cli.main import run
from cli.results.charts import flattened
from cli.sessions.logs import LogReader
from nsml.common.clock import SystemClock
from nsml.spec.folders import folder_name
from nsml.v1 import checkpoints_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.view.series import Series
from tests.unit.cli.conftest import Stream
from tests.unit.nsml.client.contract_server import EPOCH

NASTY = b"\x1b]0;t\x07\x1b[31mred\x1b[0m \xff\xfe half\xc3\xa9\n\x1b[2Jend\r\n"


def test_piped_logs_are_the_bytes_of_what_a_terminal_would_show(nsml, state):
    session = state.add("kim/mnist/1")
    state.log(session, NASTY)
    cleared = NASTY.replace(b"\x1b[2Jend\r\n", b"end\n")
    assert nsml("logs", "@last").bytes == cleared
    for is_terminal in (False, True):
        assert nsml("logs", "@last", "--raw", terminal=is_terminal).bytes == NASTY


def test_on_a_terminal_only_colours_survive(nsml, state):
    session = state.add("kim/mnist/1")
    state.log(session, NASTY)
    shown = nsml("logs", "@last", terminal=True).stdout
    assert "\x1b[31mred\x1b[0m" in shown
    assert shown.count("\x1b") == 2
    assert "␛]0;t␇" in shown
    assert "\ufffd\ufffd halfé\n" in shown
    assert "\x1b" not in nsml("logs", "@last", terminal=True, NO_COLOR="1").stdout


def test_lost_bytes_are_told_beside_the_output(nsml, state):
    session = state.add("kim/mnist/1")
    state.log(session, b"rest\n")
    state.lost[session.id, 1] = 1000
    result = nsml("logs", "@last")
    assert result.stdout == "rest\n"
    assert "(lost: 1,000 bytes of the output)" in result.stderr


def test_a_reader_goes_on_where_it_was_left(environ, state):
    session = state.add("kim/mnist/1")
    app = App(environ=environ, stdout=Stream(), stderr=Stream(), stdin=Stream())
    reader = LogReader(app, session)
    for said in (b"one\n", b"two\n"):
        state.log(session, said)
        app.call(lambda client: reader.show(client, follow=False))
    assert app.stdout.raw_bytes == b"one\ntwo\n"


def test_a_tail(nsml, state):
    state.log(state.add("kim/mnist/1"), b"a\nb\nc\n")
    assert nsml("logs", "--tail", "2", "@last").stdout == "b\nc\n"
    assert nsml("logs", "--tail", "0", "@last").stdout == ""


def test_several_sessions_have_prefixes(nsml, state):
    state.log(state.add("kim/mnist/1"), b"one\ntwo")
    state.log(state.add("kim/mnist/20"), b"three\n")
    assert nsml("logs", "kim/mnist/1", "kim/mnist/20").stdout == (
        "kim/mnist/1  | one\nkim/mnist/20 | three\nkim/mnist/1  | two\n"
    )


def test_following_an_ended_session_ends(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, b"done\n")
    result = nsml("logs", "-f", "@last")
    assert (result.stdout, result.stderr) == ("done\n", "session kim/mnist/1 ✔ Succeeded\n")
    alone = nsml("logs", "-f", "@last", "--attempt", "1")
    assert (alone.stdout, alone.stderr) == ("done\n", "")


def test_an_unfinished_line_ends_on_a_terminal_only(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, b"\x1b[31mno end\x1b[0m")
    assert nsml("logs", "@last", terminal=True).stdout == "\x1b[31mno end\x1b[0m\n"
    assert nsml("logs", "@last").bytes == b"\x1b[31mno end\x1b[0m"


def test_a_plot_is_csv_when_piped(nsml, everything):
    rows = list(csv.DictReader(io.StringIO(nsml("plot", "@last").stdout)))
    assert [(row["metric"], row["step"], row["value"]) for row in rows[:2]] == [
        ("train/loss", "0", "1.0"),
        ("train/loss", "1", "0.5"),
    ]
    assert rows[3]["value"] == "café"


def test_a_pipe_is_told_that_it_gets_points_and_they_have_the_names_of_an_export(
    nsml, everything, environ
):
    piped = App(environ=environ, stdout=Stream(), stderr=Stream(is_terminal=True), stdin=Stream())
    assert run(["plot", "@last"], piped) == 0
    assert "(piped: the points as CSV; --chart draws them" in piped.stderr.raw_bytes.decode()
    assert nsml("plot", "@last").stderr == "", "a script asks nobody"
    plotted = nsml("plot", "@last").stdout.splitlines()[0].split(",")
    exported = nsml("export", "@last").stdout.splitlines()[0].split(",")
    assert {*exported} - {*plotted} == {"json"}
    assert {*plotted} <= {*exported}


def test_a_plot_is_drawn_on_a_terminal(nsml, everything, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = nsml("plot", "@last", terminal=True, NO_COLOR="1").stdout
    assert "train/loss  (step)  3 points" in shown
    assert "kim/mnist/1 (simulated)" in shown
    assert any("\u2800" < letter <= "\u28ff" for letter in shown)
    assert max(len(line) for line in shown.splitlines() if "┤" in line) <= 60
    assert "\x1b[36m" in nsml("plot", "@last", terminal=True).stdout


def test_charts_are_read_in_columns(nsml, everything, server, tmp_path):
    for words in (["--chart"], ["--svg", str(tmp_path / "a.svg")]):
        server.state.calls.clear()
        nsml("plot", "@last", *words)
        assert "ReadSeries" in server.state.calls
        assert "ReadMetrics" not in server.state.calls


def test_not_every_one_of_many_metrics_is_drawn(nsml, state, tmp_path):
    session = state.add("kim/mnist/1")
    for number in range(2_000):
        state.report(session, f"layer/{number:04}[*?]", 1.0, step=0)
    state.report(session, "layer/0000[*?]@std", 0.5, step=0)
    for place in "ab":
        state.report(session, f"layer/0001@vector:{place}", 1.0, step=0)
    state.report(session, "layer/0001@stack", json="[1, 2]", step=0)
    result = nsml("plot", "@last", "--chart")
    assert result.stderr == "1,954 metrics left out: -m GLOB says which are drawn\n"
    drawn = [line for line in result.stdout.splitlines() if "(step)" in line]
    assert len(drawn) == 49
    assert "2 points" in next(line for line in drawn if line.startswith("layer/0001@vector"))
    assert "2 points" in next(line for line in drawn if line.startswith("layer/0001@stack"))
    nsml("plot", "@last", "--svg", str(tmp_path / "a.svg"))
    assert "1,954 metrics more, not drawn" in (tmp_path / "a.svg").read_text()
    last = nsml("plot", "@last", "--chart", "-m", "layer/1999*")
    assert (last.stderr, "layer/1999[*?]  (step)  1 point" in last.stdout) == ("", True)


def test_an_average_knows_what_was_before_the_range(nsml, state):
    session = state.add("kim/mnist/1")
    for step in range(40):
        state.report(session, "x", float(step >= 20), step=step)
    said = nsml("plot", "@last", "--table", "--smooth", "0.9", "--range", "20:29").stdout
    average, weight = 0.0, 0.0
    for step in range(30):
        average, weight = 0.9 * average + 0.1 * (step >= 20), 0.9 * weight + 0.1
    assert "stayed 1 -> 1 over 10 points, step 20 to 29; min 1, max 1" in said
    assert said.endswith(f"-> {average / weight:.4g}\n")


def test_a_smooth_chart_says_so_and_has_the_figures_that_were_reported(nsml, everything):
    shown = nsml("plot", "@last", "--chart", "--smooth", "0.6").stdout
    assert "train/loss  (step, smooth 0.6)  3 points" in shown
    assert "reported: last 0.3333  min 0.3333  max 1" in shown
    assert "reported" not in nsml("plot", "@last", "--chart").stdout


@pytest.mark.parametrize("option", [["--smooth", "0.6"], ["--log-y"], ["--width", "50"], ["--height", "5"], ["-x", "wall"]])  # fmt: skip
def test_what_would_change_nothing_is_refused_or_told(nsml, everything, tmp_path, option):
    refused = nsml("plot", "@last", "--csv", *option, check=False)
    assert (refused.code, refused.stdout) == (2, "")
    assert f"{option[0]} would change nothing" in refused.stderr
    piped = nsml("plot", "@last", *option)
    assert piped.stdout == nsml("plot", "@last").stdout
    assert f"without {option[0]}: --chart draws them" in piped.stderr
    assert nsml("plot", "@last", "--chart", *option).stderr == ""
    has_words = option[0] in {"--smooth", "-x"}
    assert nsml("plot", "@last", "--table", *option, check=False).code == (0 if has_words else 2)
    is_of_cells = option[0] in {"--width", "--height"}
    drawn = ("plot", "@last", "--svg", str(tmp_path / "a.svg"), *option)
    assert nsml(*drawn, check=False).code == (2 if is_of_cells else 0)
    assert nsml(*drawn, "--chart", check=False).code == 0
    told = nsml("plot", "@last", *option, terminal=True, NSML_ACCESSIBLE="1")
    assert (f"in words, without {option[0]}" in told.stderr) is not has_words


def test_a_line_that_flattens_the_others_is_told_of():
    def lines(*peaks):
        return [Series(label="", x=[0, 1], y=[0.0, peak]) for peak in peaks]

    groups = {
        "diverged": lines(0.5, 1e266, 2.0),
        "two": lines(1e9, 1.0),
        "alike": lines(1.0, 900.0, 3.0),
        "most of them": lines(1e9, 1e9, 1.0),
        "alone": lines(1e9),
        "nothing": lines(math.nan, math.inf),
        "zeros": lines(0.0, 0.0, 5.0),
    }
    assert flattened(groups) == ["diverged", "two"]


def test_a_picture_and_points_are_two_calls(nsml, everything, tmp_path):
    assert nsml("plot", "@last", "--svg", str(tmp_path / "a.svg"), "--csv", check=False).code == 2
    assert not (tmp_path / "a.svg").exists()
    assert nsml("plot", "@last", "-x", "relative", "--range", "0:1h", "--csv").stderr == ""


def test_a_plot_in_words(nsml, everything):
    words = (
        "train/loss of kim/mnist/1 (simulated) fell 1 -> 0.3333 over 3 points,"
        " step 0 to 2; min 0.3333, max 1\n"
    )
    assert nsml("plot", "@last", "--table").stdout == words
    for variable in ("NSML_ACCESSIBLE", "ACCESSIBLE"):
        assert nsml("plot", "@last", terminal=True, **{variable: "1"}).stdout == words


def test_a_metric_name_cannot_steer_the_terminal(nsml, state):
    session = state.add("kim/mnist/1")
    state.report(session, "\x1b[2Jx", 1.0)
    shown = nsml("plot", "@last", terminal=True, NO_COLOR="1").stdout
    assert "\x1b" not in shown


def test_nothing_that_fits(nsml, everything):
    for terminal in (True, False):
        result = nsml("plot", "@last", "-m", "train/los", terminal=terminal, check=False)
        assert (result.code, result.stdout) == (5, "")
        assert "no metric 'train/los' was reported" in result.stderr
        assert "nsml plot kim/mnist/1 -m train/loss" in result.stderr
    last_part = nsml("plot", "@last", "-m", "loss", check=False).stderr
    assert "try: nsml plot kim/mnist/1 -m train/loss\n" in last_part
    nsml("plot", "@last", "-m", "val/*", "-m", "note")


def test_a_chart_is_words_where_its_letters_cannot_be_shown(environ, everything):
    app = App(environ=environ, stdout=Stream(is_terminal=True), stderr=Stream(), stdin=Stream())
    app.stdout.reconfigure(encoding="euc_kr", errors="replace")
    assert run(["plot", "@last", "-m", "train/loss"], app) == 0
    assert app.stdout.raw_bytes.startswith(b"train/loss of kim/mnist/1 (simulated) fell 1 -> ")


def test_events(nsml, everything):
    assert nsml("events", "@last", "train/*", "--fields", "step,value").stdout == (
        "Step  Value\n----  ------\n0     1\n1     0.5\n2     0.3333\n"
    )
    assert nsml("events", "@last", "--limit", "1", "-o", "csv", "--fields", "value").stdout == (
        "value\ncafé\n"
    )
    assert nsml("events", "@last", "--since-step", "2", "-o", "name").stdout == "train/loss\nnote\n"
    result = nsml("events", "@last", "train/los", check=False)
    assert result.code == 5
    assert "nsml events @last train/loss" in result.stderr


def test_events_say_how_earlier_attempts_ended(nsml, everything):
    ended = everything.attempts.add(
        number=1, cause=pb.CAUSE_PREEMPTED, reason="gives way to kim/mnist/12 (high)", nodes=["a"]
    )
    ended.placed_at.seconds, ended.ended_at.seconds = EPOCH, EPOCH + 90
    everything.attempt = 2
    line = "attempt 1: a for 1m30s; preempted: gives way to kim/mnist/12 (high)"
    simulated = "(kim/mnist/1: the GPUs are simulated)\n"
    assert nsml("events", "@last", "train/*").stderr == f"{simulated}{line}\n"
    assert nsml("events", "@last", "train/*", "-o", "csv").stderr == ""
    assert f"  {line}\n" in nsml("status", "--explain", "@last").stdout
    [attempt] = json.loads(nsml("status", "--explain", "@last", "-j").stdout)["attempts"]
    assert attempt["reason"] == "gives way to kim/mnist/12 (high)"
    everything.attempt = 1
    everything.end.cause = pb.CAUSE_TIME_LIMIT
    assert nsml("events", "@last").stderr == simulated, "the last one's end is the session's"


def test_a_long_metric_fits_the_terminal(nsml, state, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    session = state.add("kim/mnist/1")
    state.report(session, "a" * 100 + "/loss", 1.0)
    for command in ("events", "eventlen"):
        shown = nsml(command, "@last", terminal=True).stdout.splitlines()
        assert max(map(len, shown)) <= 60
        assert "/loss" in shown[2]


@pytest.mark.parametrize("columns", ["100", "80", "60", "40"])
def test_a_number_is_rounded_and_never_cut(nsml, state, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    session = state.add("kim/mnist/1")
    state.report(session, "a" * 30 + "/loss", 4.836898812345678e-26, step=1_234_567)
    table = nsml("events", "@last", terminal=True).stdout.splitlines()
    assert max(map(len, table)) <= int(columns)
    words = table[2].split()
    assert "/loss" in words[0]
    assert words[1] == "1234567"
    assert float(words[2]) == pytest.approx(4.836898812345678e-26, rel=1e-2)


def test_nothing_reported(nsml, everything, state):
    result = nsml("events", "@last", "--since-step", "99")
    assert (result.stdout, result.stderr) == ("", "nothing from step 99 on\n")
    state.add("kim/mnist/2")
    for name in ("events", "eventlen"):
        result = nsml(name, "@last")
        assert (result.stdout, result.stderr) == ("", "nothing reported yet\n")
    assert json.loads(nsml("events", "@last", "-j").stdout)["items"] == []


def test_values_that_json_has_not(nsml, state):
    session = state.add("kim/mnist/1")
    for value in (float("nan"), float("inf"), float("-inf")):
        state.report(session, "x", value)
    assert nsml("events", "@last", "-o", "jsonl", "--fields", "value").stdout == (
        '{"schema_version":1,"value":"NaN"}\n'
        '{"schema_version":1,"value":"Infinity"}\n'
        '{"schema_version":1,"value":"-Infinity"}\n'
    )
    drawn = nsml("plot", "@last", "--chart").stdout
    assert "3 points, 3 of them not a number" in drawn
    assert "kim/mnist/1: no finite value" in drawn


def test_a_model_is_pulled_into_its_folders(nsml, everything, tmp_path):
    target = tmp_path / "out"
    result = nsml("model", "pull", "@last", "@last", str(target))
    pulled = target / "kim_mnist_1" / "best" / "model" / "weights.npy"
    assert pulled.read_bytes() == b"weights"
    assert result.stdout.strip() == str(pulled.parent)
    again = nsml("model", "pull", "@last", "best", str(target), check=False)
    assert again.code == 6
    assert "is there already" in again.stderr


def test_a_model_on_its_way_is_not_pulled_yet(nsml, everything, state, tmp_path):
    [checkpoint] = state.checkpoints[everything.id]
    checkpoint.state = checkpoints_pb2.CHECKPOINT_STATE_SAVED
    result = nsml("model", "pull", "@last", "best", str(tmp_path / "out"), check=False)
    assert (result.code, (tmp_path / "out").exists()) == (3, False)
    assert "not in the object store yet" in result.stderr


@pytest.mark.parametrize("digest", ["", "ab" * 32])
def test_a_model_that_is_lost_says_so_everywhere(nsml, everything, state, tmp_path, digest):
    [checkpoint] = state.checkpoints[everything.id]
    blobs, checkpoint.digest = checkpoint.digest, digest
    checkpoint.state = checkpoints_pb2.CHECKPOINT_STATE_LOST
    checkpoint.why_lost = "weights.npy was changed after it was saved"
    everything.checkpoint_count, everything.lost_checkpoint_count = 0, 1
    target = tmp_path / "out"
    result = nsml("model", "pull", "@last", "best", str(target), check=False)
    assert (result.code, target.exists()) == (5, False)
    assert "checkpoint best is lost" in result.stderr
    assert "weights.npy was changed after it was saved" in result.stderr
    assert ("--earlier" in result.stderr) == bool(digest)
    assert nsml("model", "pull", "@last", "@last", str(target), check=False).code == 5
    result = nsml("model", "ls", "@last")
    assert "lost: weights.npy was changed" in result.stdout
    assert "checkpoint best is lost: weights.npy was changed" in result.stderr
    [record] = json.loads(nsml("model", "ls", "@last", "-j").stdout)["items"]
    assert (record["state"], record["why_lost"]) == ("LOST", checkpoint.why_lost)
    [listed] = json.loads(nsml("ps", "-a", "-j").stdout)["items"]
    assert (listed["checkpoint_count"], listed["lost_checkpoint_count"]) == (0, 1)
    assert "1 checkpoint lost" in nsml("ps", "-a", "-o", "wide").stdout
    assert "0 (1 lost)" in nsml("ps", "-a", "-o", "wide").stdout
    assert "1 checkpoint lost: nsml model ls" in nsml("status", "--explain", "@last").stdout
    assert "1 checkpoint lost: nsml model ls" in nsml("events", "@last").stderr
    if digest:
        checkpoint.digest = blobs
        nsml("model", "pull", "--earlier", "@last", "best", str(target))
        assert (target / "kim_mnist_1/best/model/weights.npy").read_bytes() == b"weights"


def test_all_checkpoints_are_listed_page_by_page(nsml, everything, state):
    made = state.checkpoints[everything.id]
    for name in ("second", "third"):
        made.append(checkpoints_pb2.Checkpoint())
        made[-1].CopyFrom(made[0])
        made[-1].name = name
    listed = json.loads(nsml("model", "ls", "@last", "-j").stdout)["items"]
    assert [one["name"] for one in listed] == ["best", "second", "third"]


def test_checkpoint_names_never_leave_the_folder():
    assert folder_name("../../etc") == "..%2F..%2Fetc"
    assert folder_name("..") == "%2E%2E"
    assert folder_name("epoch_3 best") == "epoch_3 best"
    assert "\\" not in folder_name("a\\b")


def test_a_dataset_is_pushed_once(nsml, state, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("1,2\n")
    push = ["dataset", "push", "digits", str(tmp_path / "data")]
    assert nsml(*push, "--team").stdout == "Dataset kim/digits is at version 1\n"
    assert nsml(*push).stdout == "Dataset kim/digits already is at version 1\n"
    (tmp_path / "data" / "train.csv").write_text("3,4\n")
    assert nsml(*push).stdout == "Dataset kim/digits is at version 2\n"
    shown = nsml("dataset", "info", "digits").stdout.splitlines()
    assert "Visibility     team" not in shown
    assert "Size           4 Bytes" in shown
    assert "Version        1" in nsml("dataset", "info", "digits@1").stdout


def test_pictures(nsml, everything, tmp_path):
    words = ("plot", "@last", "--svg", str(tmp_path / "a.svg"), "--png", str(tmp_path / "a.png"))
    for more in ([], ["--log-y", "--smooth", "0.5", "-x", "wall"], ["--range", "1:"]):
        result = nsml(*words, *more, terminal=True)
        assert result.stdout.splitlines() == [str(tmp_path / "a.svg"), str(tmp_path / "a.png")]
        root = ET.parse(tmp_path / "a.svg").getroot()
        shown = [element.text for element in root.iter() if element.tag.endswith("}text")]
        assert {"train/loss", "train", "kim/mnist/1 (simulated)"} <= set(shown)
        image = Image.open(tmp_path / "a.png")
        assert image.size == (2 * float(root.get("width")), 2 * float(root.get("height")))
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
        assert (0, 114, 178) in {colour for _, colour in image.getcolors(1 << 16)}


def test_pictures_that_are_refused(nsml, everything, tmp_path, monkeypatch):
    result = nsml("plot", "@last", "--svg", "a.png", check=False)
    assert result.code == 2
    assert "nsml plot --svg a.svg" in result.stderr
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = nsml("plot", "@last", "--png", "a.png", check=False)
    assert (result.code, "pip install 'nsml[png]'" in result.stderr) == (1, True)


def test_no_folders_are_made_for_files(nsml, everything, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = list(tmp_path.iterdir())
    for words in (
        ["plot", "@last", "--svg", "no/a.svg"],
        ["plot", "@last", "--svg", "a.svg", "--png", "no/a.png"],
        ["plot", "@last", "--tensorboard", "no/runs"],
        ["export", "@last", "-o", "no/a.csv"],
        ["export", "@last", "-o", "no/points/"],
    ):
        refused = nsml(*words, check=False)
        assert (refused.code, refused.stdout) == (5, "")
        assert "mkdir -p no\n" in refused.stderr
        assert list(tmp_path.iterdir()) == before


def test_a_part_of_the_axis(nsml, everything):
    rows = csv.DictReader(io.StringIO(nsml("plot", "@last", "--range", "1:", "--csv").stdout))
    assert [row["step"] for row in rows] == ["1", "2", "2"]
    assert "fell 1 -> 0.5" in nsml("plot", "@last", "--range", ":1", "--table").stdout
    for axis, span in (("relative", "1s:2s"), ("wall", "2023-11-14T22:13:21:2023-11-14T22:13:22")):
        shown = nsml("plot", "@last", "-x", axis, "--range", span, "--table").stdout
        assert "fell 0.5 -> 0.3333" in shown
    result = nsml("plot", "@last", "--range", "7:9", "--chart")
    assert (result.stdout, result.stderr) == ("", "nothing was reported within 7:9\n")


@pytest.mark.parametrize("span", ["", ":x", "5", "9:1", "nan:1", "a:b", ":" * 1000])
def test_what_is_no_part_of_an_axis(nsml, everything, span):
    result = nsml("plot", "@last", "--range", span, check=False)
    assert result.code == 2
    assert "nsml plot ... --range 1000:5000" in result.stderr


def test_counters_and_constants_are_drawn_where_they_are_named(nsml, state, tmp_path):
    session = state.add("kim/mnist/1")
    for step in range(3):
        for name, value in (("loss", 1 / (step + 1)), ("epoch", step), ("batch_size", 32)):
            state.report(session, name, float(value), step=step)
    told = "(counters and constants left out: batch_size, epoch; all: -m '*')\n"
    for form in ("--chart", "--table"):
        shown = nsml("plot", "@last", form)
        assert shown.stderr == told
        assert "loss" in shown.stdout
        assert "epoch" not in shown.stdout
        every = nsml("plot", "@last", form, "-m", "*")
        assert every.stderr == ""
        assert "epoch" in every.stdout
        assert "batch_size" in every.stdout
    picture = nsml("plot", "@last", "--svg", str(tmp_path / "a.svg"))
    assert picture.stderr == told
    assert "batch_size" not in (tmp_path / "a.svg").read_text()
    assert "batch_size" in nsml("plot", "@last", "--csv").stdout
    assert "batch_size" in nsml("export", "@last").stdout


def test_a_logarithmic_chart_counts_what_it_cannot_show(nsml, state):
    session = state.add("kim/mnist/1")
    for step, value in enumerate([0.0, -1.0, 0.001, 1000.0]):
        state.report(session, "x", value, step=step)
        state.report(session, "zero", 0.0, step=step)
    shown = nsml("plot", "@last", "-m", "*", "--chart", "--log-y").stdout
    assert "x  (step, log)  2 points, 2 left out: not above 0" in shown
    assert "1,000┤" in shown
    assert "    0.001┤" in shown
    assert "zero: no points above 0, 4 left out: not above 0" in shown


def watched(environ, *words):
    stdout = Stream(is_terminal=True)
    app = App(
        environ={**environ, "NO_COLOR": "1"},
        stdout=stdout,
        stderr=Stream(is_terminal=True),
        stdin=Stream(),
        given_clock=SystemClock(),
    )
    assert run(["plot", *words, "-w"], app) == 0, app.stderr.raw_bytes
    return stdout.raw_bytes.decode()


def test_a_plot_that_is_watched_ends_with_its_sessions(environ, state, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("LINES", "20")
    sessions = [state.add(f"kim/mnist/{number}") for number in (1, 2)]
    for number, session in enumerate(sessions):
        for name in ("a", "b", "c", "d\x1b[2J"):
            state.report(session, name, number)

    def train():
        for step in range(1, 30):
            for session in sessions:
                state.report(session, "a", step)
        state.breaks_off = 1
        for session in sessions:
            state.report(session, "a", 99.0)
            state.change(session, state=pb.SESSION_STATE_SUCCEEDED)

    training = threading.Timer(0.4, train)
    training.start()
    shown = watched(environ, "mnist/1", "mnist/2")
    training.join()
    *_, last = shown.split("\x1b[J")
    assert "a  (step)  62 points" in last
    assert last.splitlines()[-1] == "... 2 metrics more: -m GLOB"
    assert len(last.splitlines()) == 18
    assert max(map(len, last.splitlines())) <= 70
    assert "\x1b[2J" not in shown
    assert watched(environ, "mnist/1", "-m", "no").endswith("no metric 'no' was reported\n")
    state.report(sessions[0], "note", json='"x"')
    said = "note is no number: nsml events kim/mnist/1 note\n"
    assert watched(environ, "mnist/1", "-m", "note").endswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "phase"], "phase is no number: nsml events kim/mnist/1 phase"),
        (["-m", "phase", "--range", "0:5"], "phase is no number: nsml events kim/mnist/1 phase"),
        (["-m", "phase", "--reduce", "max"], "phase is no number: nsml events kim/mnist/1 phase"),
        (["-m", "phase", "-m", "flag"], "flag, phase are no numbers: nsml events kim/mnist/1"),
        (["-m", "loss", "--rank", "1"], "no numbers reported by rank 1"),
        (["-m", "loss", "--range", "7:9"], "nothing was reported within 7:9"),
    ],
)
def test_a_plot_says_why_there_is_nothing_to_draw(nsml, state, tmp_path, words, said):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    session.spec.replica_count = 2
    state.report(session, "loss", 1.0, step=1)
    state.report(session, "phase", json='"warm"', step=1)
    state.report(session, "flag", json="true", step=1)
    shown = nsml("plot", "@last", "--chart", *words, check=False)
    is_named = "no number" in said and "--rank" not in words
    assert (shown.code, shown.stdout) == (5 if is_named else 0, "")
    assert shown.stderr == (f"error: {said}\n" if is_named else f"{said}\n")
    picture = tmp_path / "a.svg"
    refused = nsml("plot", "@last", *words, "--svg", str(picture), check=False)
    assert (refused.code, picture.exists()) == (5, False)
    assert said in refused.stderr
    if "--reduce" in words:
        for command in (
            ["plot", "@last", "--csv", *words],
            ["events", "@last", "phase", *words[2:]],
        ):
            refused = nsml(*command, check=False)
            assert (refused.code, refused.stderr) == (5, f"error: {said}\n")
    for part, why in (("--rank", "no replica 5"), ("--attempt", "no attempt 5")):
        for form in ("--chart", "--csv"):
            refused = nsml("plot", "@last", form, part, "5", check=False)
            assert (refused.code, why in refused.stderr) == (5, True)


def test_a_plot_says_which_of_the_named_metrics_it_does_not_draw(nsml, state):
    session = state.add("kim/mnist/1")
    state.report(session, "loss", 1.0, step=1)
    state.report(session, "phase", json='"warm"', step=1)
    shown = nsml("plot", "@last", "--table", "-m", "phase", "-m", "loss")
    assert shown.stderr == "(phase is no number: nsml events kim/mnist/1 phase)\n"
    assert shown.stdout.startswith("loss of kim/mnist/1")
    assert nsml("plot", "@last", "--table", "-m", "*").stderr == ""


@pytest.mark.parametrize("command", ["events", "eventlen"])
def test_values_of_simulated_gpus_are_told_as_such(nsml, state, command):
    state.simulated = True
    state.report(state.add("kim/mnist/1"), "loss", 1.0, step=1)
    told = nsml(command, "@last")
    assert told.stderr == "(kim/mnist/1: the GPUs are simulated)\n"
    assert "simulated" not in told.stdout
    assert nsml(command, "@last", "-j").stderr == ""


def test_events_say_why_there_are_none(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    for command in ("events", "eventlen"):
        assert nsml(command, "@last").stderr == "nothing was reported\n"
    state.report(session, "phase", json='"warm"', step=1)
    said = nsml("events", "@last", "--reduce", "mean").stderr
    assert said == "phase is no number: nsml events kim/mnist/1 phase\n"


def test_a_plot_is_watched_on_a_terminal_alone(nsml, everything):
    for terminal, words in ((False, []), (True, ["--svg", "x.svg"]), (True, ["--csv"])):
        result = nsml("plot", "@last", "-w", *words, terminal=terminal, check=False)
        assert (result.code, result.stdout) == (2, "")
    aloud = nsml("plot", "@last", "-w", terminal=True, check=False, NSML_ACCESSIBLE="1")
    assert "nsml events SESSION -f" in aloud.stderr


def test_lines_of_several_sessions_are_told_apart_by_the_arguments_that_differ(nsml, state):
    for number, rate in enumerate(("0.1", "3"), start=1):
        session = state.add(f"kim/sweep/{number}")
        session.spec.args[:] = ["--lr", rate, "--epochs", "30"]
        state.put(session)
        for step, loss in enumerate((1.0, 0.5)):
            state.report(session, "train/loss", loss, step=step)
    shown = nsml("plot", "sweep/1", "sweep/2", "--chart").stdout
    assert "A kim/sweep/1 lr=0.1  last 0.5" in shown
    assert "B kim/sweep/2 lr=3  last 0.5" in shown
    assert "━ kim/sweep/1  last 0.5" in nsml("plot", "sweep/1", "--chart").stdout
    assert "lr=" not in nsml("plot", "sweep/1", "sweep/2", "--csv").stdout
