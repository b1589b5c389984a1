import json
import shlex

import pytest

from cli.sessions.run import run as submit
from nsml.v1 import resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import EPOCH


@pytest.fixture
def three(state):
    state.add("kim/mnist/1").summary.update({"loss": 0.25})
    state.add("kim/mnist/2", pb.SESSION_STATE_SUCCEEDED, project="vision")
    state.add("lee/cifar/1", memo="lstm").summary.update({"loss": 0.5})
    return state


def names(result):
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["lee/cifar/1", "kim/mnist/1"]),
        (["-a"], ["lee/cifar/1", "kim/mnist/2", "kim/mnist/1"]),
        (["-n", "2"], ["lee/cifar/1", "kim/mnist/2"]),
        (["-s", "lstm"], ["lee/cifar/1"]),
        (["-s", "kim/*"], ["kim/mnist/1"]),
        (["--mine"], ["kim/mnist/1"]),
        (["-u", "lee"], ["lee/cifar/1"]),
        (["--state", "succeeded"], ["kim/mnist/2"]),
        (["--filter", "state:run user:lee"], ["lee/cifar/1"]),
        (["status:running", "user:lee"], ["lee/cifar/1"]),
        (["--project", "vision", "-a"], ["kim/mnist/2"]),
        (["--project", "kim"], ["kim/mnist/1"]),
        (["--filter", "project:lee"], ["lee/cifar/1"]),
        (["--filter", "name:'*/cifar/*'"], ["lee/cifar/1"]),
        (["--filter", "user:@me"], ["kim/mnist/1"]),
        (["--filter", "!user:@me", "-a"], ["lee/cifar/1"]),
        (["--filter", "-lstm"], ["kim/mnist/1"]),
        (["--filter", "state:succ"], ["kim/mnist/2"]),
        (["--filter", "state:END | loss<0.3"], ["kim/mnist/2", "kim/mnist/1"]),
        (["--filter", "state:run", "--filter", "loss<0.3"], ["kim/mnist/1"]),
        (["--filter", "user:kim", "-n", "1"], ["kim/mnist/2"]),
        (["-a", "@2"], ["kim/mnist/2"]),
        (["-a", "!@last | @2"], ["kim/mnist/2", "kim/mnist/1"]),
        (["-a", "mnist/[2-9]"], ["kim/mnist/2"]),
        (["-a", "--sort", "name"], ["kim/mnist/1", "kim/mnist/2", "lee/cifar/1"]),
        (["-a", "--sort", "loss"], ["kim/mnist/1", "lee/cifar/1", "kim/mnist/2"]),
        (["-a", "--sort", "-summary.loss"], ["lee/cifar/1", "kim/mnist/1", "kim/mnist/2"]),
    ],
)
def test_ps_narrows(nsml, three, words, expected):
    assert names(nsml("ps", "-o", "name", *words)) == expected


def test_ps_says_where_no_session_has_a_number_or_a_key_that_was_named(nsml, three):
    found = nsml("ps", "acc<0.3 age<9999d")
    note = "note: no session in this list has a number 'acc'; there are loss\n"
    assert found.stderr.endswith(f"nsml ps -a 'acc<0.3 age<9999d'\n{note}")
    assert "note:" not in nsml("ps", "loss<0").stderr, "it is known"
    three.add("kim/None/9", spec=pb.SessionSpec(labels={"seed": "3"}))
    assert nsml("ps", "seed>=3").stderr.endswith("number 'seed'; there are label.seed\n")
    unknown = nsml("ps", "--sort", "acc", check=False)
    assert "has such a column; there are loss\n" in unknown.stderr


def test_ps_shows_single_values_and_what_it_sorts_by(nsml, three):
    three.add("kim/None/1", spec=pb.SessionSpec(args=["--lr", "0.1", "--amp"]))
    lines = nsml("ps", "--sort", "-loss").stdout.splitlines()
    assert lines[0].split()[:2] == ["Name", "loss▾"]
    assert [line.split()[1] for line in lines[2:]] == ["0.5", "0.25", "-"]
    fields = ("--fields", "name,arg.lr,summary.loss,arg.amp")
    assert nsml("ps", *fields, "--filter", "lr=0.1").stdout.splitlines()[2].split() == [
        "kim/None/1",
        "0.1",
        "-",
        "set",
    ]
    one, *_ = json.loads(nsml("ps", *fields, "-j").stdout)["items"]
    assert one == {"name": "kim/None/1", "arg.lr": "0.1", "summary.loss": None, "arg.amp": True}


def test_ps_looks_at_values_that_lists_leave_out(nsml, state):
    for number in range(3):
        values = {f"a{place:02}": place for place in range(40)} | {"val/acc": (number + 1) % 3}
        session = state.add(f"kim/mnist/{number}")
        session.summary.update(values)
        session.summary_names.extend(values)
    by_value = ["kim/mnist/1", "kim/mnist/0", "kim/mnist/2"]
    for key in ("-val/acc", "-summary.val/acc"):
        assert names(nsml("ps", "-o", "name", "--sort", key)) == by_value
    assert names(nsml("ps", "-o", "name", "--filter", "val/acc>=2")) == by_value[:1]
    shown = nsml("ps", "--fields", "name,summary.val/acc").stdout.splitlines()[2:]
    assert [line.split() for line in shown] == [
        ["kim/mnist/2", "0"],
        ["kim/mnist/1", "2"],
        ["kim/mnist/0", "1"],
    ]
    line = nsml("ps").stdout.splitlines()[2]
    assert "a29=29 … 11 more  " in line
    first, *_ = json.loads(nsml("ps", "-j").stdout)["items"]
    assert (len(first["summary"]), first["summary_left_out"]) == (30, 11)


def test_ps_shows_priorities_and_places_where_somebody_asked_for_any(nsml, three):
    def header(*words):
        return nsml("ps", *words).stdout.splitlines()[0].split()

    rare = {"Priority", "Project", "Pod", "model"}
    assert rare.isdisjoint(header())
    assert rare.isdisjoint(header("-o", "wide"))
    spec = pb.SessionSpec(priority=pb.PRIORITY_LOW, preemptible=True)
    three.add("kim/None/1", spec=spec)
    assert rare.intersection(header()) == {"Priority"}
    assert "low, preemptible" in nsml("ps").stdout
    three.add("lee/None/1", project="vision", spec=pb.SessionSpec(gpu_model="A100", pod="p1"))
    assert rare <= {*header()}
    assert rare <= {*header("-o", "wide")}
    found = json.loads(nsml("ps", "-j").stdout)["items"]
    wishes = [
        (one["project"], one["priority"], one["preemptible"], one["gpu_model"], one["pod"])
        for one in found
    ]
    assert wishes[:2] == [
        ("vision", "normal", False, "A100", "p1"),
        ("kim", "low", True, None, None),
    ]


def test_labels_are_a_column_a_filter_a_line_and_json(nsml, three):
    def header(*words):
        return nsml("ps", *words).stdout.splitlines()[0].split()

    assert "Labels" not in header()
    assert "Labels" not in header("-o", "wide")
    labels = {"stage": "dev", "try": "둘째"}
    three.add("kim/None/7", spec=pb.SessionSpec(labels=labels))
    three.add("kim/None/8", spec=pb.SessionSpec(labels={"stage": "prod", "x": "\x1b[2J"}))
    assert "Labels" in header()
    assert "stage=dev, try=둘째" in nsml("ps", "--fields", "name,labels").stdout
    assert [one["labels"] for one in json.loads(nsml("ps", "-j").stdout)["items"]][:2] == [
        {"stage": "prod", "x": "\x1b[2J"},
        labels,
    ]
    for text, found in (
        ("label:stage", ["kim/None/8", "kim/None/7"]),
        ("label:stage=dev", ["kim/None/7"]),
        ("label:stage=* !label:try", ["kim/None/8"]),
    ):
        assert names(nsml("ps", "-a", "--filter", text, "-o", "name")) == found
    fields = ("--fields", "name,label.stage", "--sort", "-label.stage")
    assert nsml("ps", *fields).stdout.splitlines()[2].split() == ["kim/None/8", "prod"]
    found = json.loads(nsml("ps", "label.stage=dev", *fields, "-j").stdout)["items"]
    assert found == [{"name": "kim/None/7", "label.stage": "dev"}]
    told = nsml("status", "--explain", "kim/None/8").stdout
    assert "  labels: stage=prod, x=" in told
    assert "\x1b" not in told + nsml("ps").stdout
    assert nsml("command", "kim/None/7").stdout.count("--label") == 2
    rows = nsml("diff", "kim/None/7", "kim/None/8").stdout
    assert "label stage" in rows


def test_stop_tells_what_came_of_each(nsml, three):
    result = nsml("stop", "kim/mnist/1", "kim/mnist/2", "kim/mnist/9", "-y", check=False)
    assert result.code == 9
    assert names(result) == ["kim/mnist/1"]
    assert result.stderr.splitlines()[-1] == "stopped 1 · already ended 1 · failed 1"


def test_stop_says_stopping_of_what_has_not_ended(nsml, three):
    three.stops_slowly = True
    said = nsml("stop", "kim/mnist/1", "--grace", "1h")
    assert names(said) == ["kim/mnist/1"]
    told, *advice = said.stderr.splitlines()[-3:]
    assert told == "stopping 1 · already ended 0 · failed 0"
    assert [line.partition(": ")[2].strip() for line in advice] == [
        "nsml logs -f kim/mnist/1",
        "nsml stop --kill kim/mnist/1",
    ]
    again = nsml("stop", "kim/mnist/1", "lee/cifar/1", "--kill", "-y").stderr
    assert "stopping 2 · " in again
    assert "nsml logs -f SESSION" in again
    assert "--kill" not in again


def test_requeue_counts_the_requeued_and_the_refused(nsml, three):
    result = nsml("requeue", "lee/cifar/1", "kim/mnist/2", "kim/mnist/9", "-y", check=False)
    assert result.code == 9
    assert names(result) == ["lee/cifar/1"]
    assert result.stderr.splitlines()[-2:] == [
        "requeued 1 · refused 1 · failed 1",
        "lee/cifar/1 is queued, and resumes as attempt 2",
    ]
    again = nsml("requeue", "lee/cifar/1", "-y", check=False)
    assert (again.code, names(again)) == (6, [])
    assert "does not run" in again.stderr


def test_each_failure_is_told_in_the_format_of_the_output(nsml, three):
    for words in (("stop",), ("rm", "-y")):
        result = nsml(*words, "kim/mnist/8", "kim/mnist/9", check=False, NSML_OUTPUT="json")
        told = [json.loads(line)["error"] for line in result.stderr.splitlines()[:-1]]
        assert [error["code"] for error in told] == [5, 5]


def test_stop_from_a_pipe_with_a_reason(nsml, three):
    listed = nsml("ps", "-o", "name").stdout
    result = nsml("stop", "-", "--reason", "enough", "-y", stdin=listed)
    assert names(result) == ["lee/cifar/1", "kim/mnist/1"]
    assert {s.end.message for s in three.sessions.values() if s.owner == "lee"} == {"enough"}


def test_stop_by_glob(nsml, three):
    assert names(nsml("stop", "lee/cifar/*", "-y")) == ["lee/cifar/1"]


@pytest.mark.parametrize(
    ("glob", "fitting"),
    [
        ("None/[3-9]", ["kim/None/4", "kim/None/3"]),
        ("[3-9]", ["kim/None/4", "kim/None/3"]),
        ("kim/None/?", ["kim/None/4", "kim/None/3", "kim/None/2"]),
        ("lee/None/[3-9]", ["lee/None/3"]),
    ],
)
def test_a_glob_fits_what_a_person_types(nsml, state, glob, fitting):
    for name in ("kim/None/2", "kim/None/3", "kim/None/4", "lee/None/3"):
        session = state.add(name)
        state.log(session, f"{name}\n".encode())
        state.report(session, "loss", 1.0, step=1)
    listed = names(nsml("ps", "-s", glob, "-u", "kim,lee", "-o", "name"))
    assert {one.partition("/")[2] for one in listed} == {one.partition("/")[2] for one in fitting}
    exported = nsml("export", glob, "--format", "jsonl", "-o", "-").stdout.splitlines()
    assert {json.loads(line)["session"] for line in exported} == set(fitting)


def test_all_ended_already_is_a_conflict(nsml, three):
    nsml("stop", "kim/mnist/1")
    assert nsml("stop", "kim/mnist/1", "kim/mnist/2", check=False).code == 6


@pytest.fixture
def many(state):
    for number in range(12):
        state.add(f"kim/mnist/{number + 1}", pb.SESSION_STATE_SUCCEEDED)
    return state


def test_rm_of_many_needs_the_number(nsml, many):
    result = nsml("rm", "kim/mnist/*", check=False)
    assert result.code == 2
    assert "--confirm 12 or -y" in result.stderr
    assert nsml("rm", "kim/mnist/*", "--confirm", "11", check=False).code == 2
    assert nsml("rm", "kim/mnist/*", terminal=True, stdin="y\n", check=False).code == 2
    assert len(many.sessions) == 12
    assert len(names(nsml("rm", "kim/mnist/*", terminal=True, stdin="12\n"))) == 12
    assert not many.sessions


def test_a_glob_of_rm_leaves_live_ones_alone(nsml, three):
    left = "left alone: kim/mnist/1 (running); nsml stop kim/mnist/1 ends it\n"
    assert left in nsml("rm", "kim/*", "--dry-run").stderr
    asked = nsml("rm", "kim/*", terminal=True, stdin="n\n", check=False)
    assert left in asked.stderr
    removed = nsml("rm", "kim/*", "-y")
    assert names(removed) == ["kim/mnist/2"]
    assert removed.stderr.endswith(left)
    result = nsml("rm", "kim/*", "-y", check=False)
    assert (result.code, result.stdout) == (5, "")
    assert "no ended session of yours fits 'kim/*'" in result.stderr


def test_a_glob_of_requeue_names_the_ended_ones_that_it_leaves_alone(nsml, many):
    many.add("kim/mnist/13")
    said = nsml("requeue", "mnist/*", "-y").stderr.splitlines()[-1]
    assert said.startswith("left alone: kim/mnist/12 (succeeded), kim/mnist/11 (succeeded), ")
    assert ", and 9 more; nsml command SESSION prints the line that runs it again" in said


def test_rm_says_which_session_is_the_last_one_afterwards(nsml, many):
    assert nsml("rm", "@last", "-y").stderr.splitlines()[-1] == "@last is now kim/mnist/11"
    assert "is now" not in nsml("rm", "kim/mnist/1", "-y").stderr
    nsml("rm", *(f"mnist/{number}" for number in range(2, 11)), "-y")
    assert nsml("rm", "@last", "-y").stderr.splitlines()[-1] == "@last is no session now"


@pytest.mark.parametrize("flags", [["-y"], ["-f"], ["--confirm", "12"]])
def test_rm_of_many_without_asking(nsml, many, flags):
    nsml("rm", "kim/mnist/*", *flags)
    assert not many.sessions


def test_rm_of_what_was_named_asks_as_well(nsml, many):
    both = ["kim/mnist/1", "kim/mnist/2"]
    assert nsml("rm", *both, check=False).code == 2
    assert len(many.sessions) == 12
    assert names(nsml("rm", *both, "-y")) == both


def test_rm_by_glob_asks(nsml, many):
    assert nsml("rm", "kim/mnist/1?", check=False).code == 2
    assert nsml("rm", "kim/mnist/1?", terminal=True, stdin="n\n", check=False).code == 2
    nsml("rm", "kim/mnist/1?", terminal=True, stdin="y\n")
    assert len(many.sessions) == 9
    assert nsml("rm", "kim/mnist/*", "--no-input", terminal=True, check=False).code == 2


def test_memo(nsml, three):
    written = nsml("memo", "kim/mnist/1", "baseline").stderr
    assert written == "memo: baseline\n  see: nsml ps -a --fields name,memo\n"
    nsml("memo", "kim/mnist/1", "--append", "two")
    assert nsml("memo", "kim/mnist/1").stdout == "baseline two\n"
    assert nsml("memo", "kim/mnist/1", "--clear").stderr == "memo cleared\n"
    assert nsml("memo", "kim/mnist/1", "--clear").stderr == "kim/mnist/1 has no memo\n"
    assert nsml("memo", "kim/mnist/1").stdout == "\n"


def test_getid(nsml, three):
    found = nsml("getid", "kim/mnist/1").stdout.strip()
    assert three.sessions[found].name == "kim/mnist/1"


def test_a_command_made_from_the_spec(nsml, everything):
    assert nsml("command", "@last").stdout == (
        "nsml run -d mnist@1 -g 2 -m 'first try' -e main.py -- --lr 0.1\n"
    )


def test_a_command_made_of_what_was_asked_for_has_all_of_it(nsml, state):
    spec = pb.SessionSpec(
        entry="main.py",
        resources=resources_pb2.Resources(
            gpu_thousandths=500, cpu_thousandths=1500, memory_bytes=24 * 10**9
        ),
        time_limit={"seconds": 5400, "nanos": 500_000_000},
        retry_count=3,
        priority=pb.PRIORITY_LOW,
    )
    state.add("kim/mnist/1", spec=spec).visibility = resources_pb2.VISIBILITY_TEAM
    told = nsml("command", "@last").stdout
    assert told == (
        "nsml run -g 0.5 -c 1.5 --memory 24G --time-limit 5400.5s --retry 3"
        " --priority low --team -e main.py\n"
    )
    context = submit.make_context("run", shlex.split(told)[2:], resilient_parsing=True)
    assert context.params["time_limit"] == 5400.5
    assert context.params["cpus"] == 1500


def test_why_nothing_is_known_of_it(nsml, state):
    replicas = [pb.Replica(rank=0, node="gpu-7")]
    state.add("kim/mnist/1", pb.SESSION_STATE_UNKNOWN, replicas=replicas)
    assert nsml("status", "--explain", "@last").stdout.splitlines() == [
        "kim/mnist/1  ⚠ Unknown",
        "  why: no contact with its node; it may still be running, and keeps its GPUs",
        "  on:  gpu-7 (attempt 1)",
        "  see: nsml node show gpu-7",
    ]


def test_which_image_it_has(nsml, state):
    replicas = [pb.Replica(rank=0, node="gpu-7", image="python@sha256:12")]
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING, replicas=replicas)
    assert "  image: python@sha256:12" in nsml("status", "--explain", "@last").stdout.splitlines()
    (row,) = json.loads(nsml("ps", "-j").stdout)["items"]
    assert row["replicas"][0]["image"] == "python@sha256:12"
    assert "python@sha256:12" in nsml("ps", "-o", "wide").stdout


def test_why_it_is_there(nsml, state):
    taken = [("gpu-7", False), ("gpu-9", True), ("gpu-9", True)]
    replicas = [
        pb.Replica(rank=rank, node=node, near_data=is_near)
        for rank, (node, is_near) in enumerate(taken)
    ]
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING, replicas=replicas)
    told = nsml("status", "--explain", "@last").stdout.splitlines()
    assert told[1:] == ["  on:  gpu-7, gpu-9 near its data (attempt 1)"]


@pytest.mark.parametrize(
    ("stop", "left_s", "told"),
    [
        (
            {"cause": pb.CAUSE_PREEMPTED, "reason": "gives way to lee/mnist/3 (high)"},
            42,
            "gives way to lee/mnist/3 (high), for 42s more at most",
        ),
        (
            {"cause": pb.CAUSE_PREEMPTED, "reason": "moves to make room for a session of lee"},
            -1,
            "moves to make room for a session of lee, ends any moment",
        ),
        ({"cause": pb.CAUSE_STOP_REQUESTED, "asked_by": "kim"}, None, "stopped by kim"),
        (
            {"cause": pb.CAUSE_STOP_REQUESTED, "asked_by": "root", "reason": "too loud"},
            90,
            "stopped by root: too loud, for 1m30s more at most",
        ),
    ],
)
def test_why_it_is_being_stopped(nsml, state, stop, left_s, told):
    one = state.add("kim/mnist/1", pb.SESSION_STATE_STOPPING, stop=pb.SessionStop(**stop))
    if left_s is not None:
        one.stop.until.seconds = EPOCH + 86_400 + left_s
    assert nsml("status", "--explain", "@last").stdout.splitlines()[1] == f"  why: {told}"
    assert told in nsml("ps", "--fields", "name,summary").stdout
    for shown in (
        json.loads(nsml("status", "--explain", "@last", "-j").stdout),
        json.loads(nsml("ps", "-j").stdout)["items"][0],
    ):
        assert shown["stop"]["cause"] == pb.Cause.Name(stop["cause"]).removeprefix("CAUSE_")
        assert shown["stop"]["reason"] == stop.get("reason")
        assert shown["stop"]["asked_by"] == stop.get("asked_by")
        assert (shown["stop"]["until"] is None) is (left_s is None)


def test_what_a_folder_says_is_a_topic_of_help(nsml):
    said = nsml("help", "code").stdout
    assert "#nsml: IMAGE" in said
    assert max(map(len, said.splitlines())) <= 90


def test_why_it_is_held(nsml, state):
    end = pb.SessionEnd(cause=pb.CAUSE_NODE_LOST, message="gpu-1 was started again")
    held = {"end": end, "held_cause": pb.HELD_CAUSE_NODE_LOSSES}
    state.add("kim/mnist/1", pb.SESSION_STATE_HELD, **held)
    state.add("kim/mnist/2", pb.SESSION_STATE_RUNNING)
    told = nsml("status", "--explain", "mnist/1").stdout.splitlines()
    assert told[0] == "kim/mnist/1  ⊘ Held (node losses)"
    assert told[1].startswith("  why: it is held: too many bad attempts in a row; ")
    assert told[2] == "  end: gpu-1 was started again"
    shown = nsml("ps", "--fields", "name,state,summary").stdout
    assert "⊘ Held (node losses)" in shown
    assert "gpu-1 was started again" in shown
    [one] = json.loads(nsml("ps", "-j", "held_cause:node_losses").stdout)["items"]
    assert (one["name"], one["held_cause"]) == ("kim/mnist/1", "NODE_LOSSES")
    [other] = json.loads(nsml("ps", "-j", "!held_cause:*").stdout)["items"]
    assert (other["name"], other["held_cause"]) == ("kim/mnist/2", None)


def test_why_it_waits(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_QUEUED, waiting="61 free, largest hole 6")
    result = nsml("status", "--explain", "@last")
    assert result.stdout.splitlines()[:2] == [
        "kim/mnist/1  ◌ Queued",
        "  why: 61 free, largest hole 6",
    ]
    shown = json.loads(nsml("status", "--explain", "@last", "-j").stdout)
    assert shown["waiting"] == "61 free, largest hole 6"


@pytest.mark.parametrize(
    "words",
    [
        ("sh", "{}", "--", "true"),
        ("ssh", "{}"),
        ("cp", "{}:main.py", "out"),
        ("exec", "{}", "1"),
        ("stacks", "{}"),
        ("top", "{}"),
        ("forward", "{}", "80"),
        ("stop", "{}"),
    ],
    ids=" ".join,
)
def test_of_an_ended_session_the_log_is_what_to_look_at(nsml, state, tmp_path, words):
    ended = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    ssh = tmp_path / "ssh"
    ssh.touch(0o755)
    line = [word.format(ended.name) for word in words]
    refused = nsml(*line, check=False, PATH=str(tmp_path))
    assert (refused.code, refused.stdout) == (6, "")
    assert "error: session kim/mnist/1 has ended\n  try: nsml logs kim/mnist/1\n" in refused.stderr
