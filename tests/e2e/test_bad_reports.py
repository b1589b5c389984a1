"""What bad reports become, from `nsml.report` in a program to what a reader sees: each works, or is refused or cut
with a sentence; nothing of it reaches a terminal raw, and training goes on."""

import os
import pty
import subprocess

import pytest

from bench.platform import PROGRAMS
from tests.e2e.programs import write_program
from tests.support.in_process import Platform
from tests.support.living_folders import files_below

BAD = r"""
import datetime, math, os, time
import nsml

report = nsml.report
report(step=5, back=5.0, both=float(nsml.MY_RANK))
report(step=3, back=3.0)
if nsml.MY_RANK:
    raise SystemExit
report(step=6, special=math.nan)
report(step=7, special=[math.inf, -math.inf, math.nan])
report(step=8, special=-math.inf)
for step, wrong in enumerate((object(), {1, 2}, b"x", 10**400)):
    report(step=step, beside=0.5, **{f"wrong/{step}": wrong})
report(step=1, loss=0.5, at=datetime.datetime(2026, 1, 1))
with nsml.strict():
    try:
        report(step=2, loss=0.25, at=object())
    except TypeError as error:
        print("refused", error, flush=True)
for step in range(20):
    report(step=step, is_best=step % 3 == 0, val={"loss": 1 / (step + 1), "acc": {"top": step / 20}}, text=str(step * 0.5))
import json, struct, zlib  # as a program in another language has it
spool = os.path.join(os.environ["NSML_RUN_DIR"], "spool")
values = {"foreign": {"loss": 0.5, "ok": True}}
record = json.dumps({"kind": "metric", "time": time.time(), "step": 7, "values": values}).encode()
first = (1).to_bytes(8, "little")
with open(os.path.join(spool, "9.records"), "xb") as out:
    out.write(b"NSMLREC1" + struct.pack("<II", len(record), zlib.crc32(first + record)) + first + record)
report(step="a", steps=1.0)  # no step
report(step=1e308, steps=2.0)
report(**{"n" * 10_000: 1.0, "kept": 1.0})
report(**{f"many/{number}": 1.0 for number in range(int(os.environ["NAMES"]))})
report(long=[0.5] * 1_000_000, kept=2.0)
report(text="x" * (2 << 20), kept=3.0)
hostile = "\x1b]0;owned\x07\x1b[2J\u202e\r\nname\x00"
report(step=1, **{hostile: 1.0, "value": hostile})
print(hostile, flush=True)
# A clock that is an hour ahead, and is then set right.
right = time.time
time.time = lambda: right() + 3600
report(step=20, summary=True, clock=20.0)
time.time = right
report(step=21, summary=True, clock=21.0)
"""
NAMES = 20_000


@pytest.fixture(scope="module")
def session(platform, tmp_path_factory) -> str:
    folder = write_program(tmp_path_factory.mktemp("bad") / "code", BAD)
    platform.nsml(
        *("run", "-g", "1", "--nodes", "2", "--wait", "--env", f"NAMES={NAMES}"), cwd=folder
    )
    return platform.json("ps", "-a")["items"][0]["name"]


@pytest.fixture(scope="module")
def log(platform, session) -> str:
    return platform.nsml("logs", session).stdout


def values(platform: Platform, session: str, metric: str) -> list[tuple[float | None, object]]:
    """Step and value of each point of rank 0, in the order reported."""
    items = platform.json("events", session, metric)["items"]
    return [(item["step"], item["value"]) for item in items if item["rank"] == 0]


def on_a_terminal(platform: Platform, *arguments: str) -> str:
    """What the command writes to a terminal."""
    ours, its = pty.openpty()
    environment = {**platform.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    running = subprocess.Popen(
        [str(PROGRAMS / "nsml"), *arguments],
        env=environment,
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=platform.folder,
    )
    os.close(its)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # its end is closed
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    assert running.wait(60) == 0, said
    return said.decode()


def test_a_step_may_go_backwards_and_is_drawn_in_order(platform, session):
    assert values(platform, session, "back") == [(5, 5.0), (3, 3.0)]
    assert "back" in platform.nsml("plot", session, "-m", "back", "--chart").stdout


def test_numbers_that_json_lacks_arrive(platform, session):
    assert values(platform, session, "special") == [
        (6, "NaN"),
        (7, ["Infinity", "-Infinity", "NaN"]),
        (8, "-Infinity"),
    ]


def test_two_ranks_may_report_the_same_step(platform, session):
    items = platform.json("events", session, "both")["items"]
    assert sorted((item["rank"], item["step"], item["value"]) for item in items) == [
        (0, 5, 0.0),
        (1, 5, 1.0),
    ]
    drawn = platform.nsml("plot", session, "-m", "both", "--table").stdout
    assert "rank 0" in drawn
    assert "rank 1" in drawn


def test_values_of_the_wrong_type_are_named_and_cost_no_other(platform, session, log):
    assert values(platform, session, "beside") == [(step, 0.5) for step in range(4)]
    assert values(platform, session, "loss") == [(1, 0.5), (2, 0.25)]
    said = [line for line in log.splitlines() if "is not recorded: " in line]
    assert [line.split("'")[1] for line in said[:5]] == [*(f"wrong/{n}" for n in range(4)), "at"]
    assert "a set is no number; report list(...) of it" in log
    assert "beyond all floats" in log
    assert "a datetime is no number; report seconds: .timestamp()" in log
    assert "refused nsml.report: 'at' is not recorded: an object is no number" in log
    refused = platform.nsml("events", session, "at", check=False)
    assert "no metric 'at' was reported" in refused.stderr


def test_booleans_and_dicts_are_numbers_everywhere(platform, session, log, tmp_path):
    assert values(platform, session, "is_best")[:4] == [(0, 1.0), (1, 0.0), (2, 0.0), (3, 1.0)]
    assert values(platform, session, "val/acc/top")[-1] == (19, 19 / 20)
    assert values(platform, session, "foreign/*") == [(7, 0.5), (7, 1.0)]
    names = ("is_best", "val/loss", "val/acc/top")
    for name in names:
        assert name in platform.nsml("plot", session, "-m", name, "--chart").stdout
    exported = platform.nsml("export", session, "-m", "val/*", "-m", "is_best").stdout
    assert exported.count("\n") == 1 + 20 * len(names)
    drawn = platform.nsml("plot", session, "-m", "foreign/*", "--table").stdout
    assert "foreign/ok" in drawn
    platform.nsml("plot", session, "--tensorboard", str(tmp_path / "runs"))
    written = b"".join(path.read_bytes() for path in files_below(tmp_path / "runs", "*tfevents*"))
    assert all(name.encode() in written for name in (*names, "foreign/loss"))
    assert "'text' is text ('0.0'): it is recorded, but not drawn" in log


def test_a_step_that_is_no_number_is_none_and_a_huge_one_stands(platform, session):
    assert values(platform, session, "steps") == [(None, 1.0), (1e308, 2.0)]
    platform.nsml("plot", session, "-m", "steps", "--chart")


def test_what_is_too_long_is_left_out_and_the_log_says_so(platform, session, log):
    assert values(platform, session, "kept") == [(None, 1.0), (None, 2.0), (None, 3.0)]
    assert "a metric's name has 512 characters at most, and this one has 10,000" in log
    assert "'long' is not recorded: one value has 1,044,480 bytes at most, and this one 4,0" in log
    assert "'text' is not recorded: one value has" in log
    assert "(2 reports of" in platform.nsml("events", session, "kept").stderr


def test_very_many_names_are_kept_and_the_first_are_listed(platform, session, log):
    assert len(values(platform, session, "many/*")) == NAMES
    listed = platform.json("eventlen", session)["items"]
    assert len(listed) == 10_000
    assert "more than 10,000 metrics have names of their own" in log
    unlisted = f"many/{NAMES - 1}"
    assert len(values(platform, session, unlisted)) == 1
    assert platform.nsml("export", session, "-m", unlisted).stdout.count("\n") == 2


def test_a_clock_that_is_set_hides_no_later_report(platform, session):
    assert values(platform, session, "clock") == [(20, 20.0), (21, 21.0)]
    (item,) = platform.json("ps", "-a")["items"]
    assert item["summary"]["clock"] in {20.0, 21.0}
    for axis in ("relative", "wall"):
        platform.nsml("plot", session, "-m", "clock", "-x", axis, "--chart")


@pytest.mark.parametrize(
    "command",
    [
        ["plot", "-m", "*name*"],
        ["plot", "-m", "*name*", "--table"],
        ["events", "*name*"],
        ["events", "value"],
        ["logs"],
    ],
    ids=" ".join,
)
def test_nothing_that_a_terminal_obeys_reaches_one(platform, session, command):
    said = on_a_terminal(platform, command[0], session, *command[1:])
    assert "owned" in said
    for forbidden in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\x00", "\x9b"):
        assert forbidden not in said
