"""Golden output: what people read and scripts parse changes only on purpose."""

import csv
import io
import json

import pytest

from nsml.common.text import width
from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import EPOCH


def test_ps(nsml, everything):
    assert nsml("ps").stdout == (
        "Name         Created    Args      Status     Ran for  GPUs         Summary"
        "                               Memo       # of Models\n"
        "-----------  ---------  --------  ---------  -------  -----------  "
        "------------------------------------  ---------  -----------\n"
        "kim/mnist/1  a day ago  --lr 0.1  ● Running  23h59m   2 simulated  "
        "train/loss=0.25, val/accuracy=0.9877  first try  1\n"
    ).replace("a day ago", "23 hours ago").replace("Created  ", "Created     ").replace(
        "-----------  ---------  --", "-----------  ------------  --", 1
    )


def test_model_ls(nsml, everything):
    assert nsml("model", "ls", "@last").stdout == (
        "Checkpoint  Step  Last Modified  Since last  Summary              Size\n"
        "----------  ----  -------------  ----------  -------------------  -------\n"
        "best        2     23 hours ago   12s         val/accuracy=0.9877  7 Bytes\n"
    )
    assert "val/accuracy=0.98765 " in nsml("model", "ls", "@last", "-o", "wide").stdout


def test_dataset_ls(nsml, everything):
    assert nsml("dataset", "ls").stdout == (
        "Name   Size    Last Modified  Author  Description  Version  Last Used\n"
        "-----  ------  -------------  ------  -----------  -------  ---------\n"
        "mnist  3.5 MB  4 hours ago    kim     #example     1\n"
    )


def test_gpustat(nsml, everything):
    assert nsml("gpustat").stdout == (
        "Node   GPU  Model          Load  Memory             Temp  Power  Held  Sessions\n"
        "-----  ---  -------------  ----  -----------------  ----  -----  ----  "
        "------------------------\n"
        "gpu-1  0    Simulated GPU  91%   61.0 GiB/80.0 GiB  71°C  388 W  1     kim/mnist/1\n"
        "gpu-1  1    Simulated GPU  91%   61.0 GiB/80.0 GiB  71°C  388 W  0.5   "
        "kim/mnist/1, 1 of others\n"
    )


def test_free_gpus_are_those_that_nothing_holds(nsml, everything, state):
    assert nsml("gpustat", "--free").stderr == "no free GPUs\n"
    state.nodes[0].devices[1].allocated_thousandths = 0
    assert nsml("gpustat", "--free", "-o", "name").stdout == "SIM-1\n"


def test_gpumonitor(nsml, everything):
    assert nsml("gpumonitor", "@last").stdout.splitlines()[2:] == [
        f"{time}  gpu-1 GPU 0  {rest}"
        for time, rest in [
            ("11-14 22:13:13Z", "8%    8 B     8 W    8°C"),
            ("11-14 22:13:18Z", "4%    4 B     4 W    4°C"),
        ]
    ]
    rows = nsml("gpumonitor", "@last", "--csv").stdout.splitlines()
    assert rows[0].startswith("time,node,uuid,index,attempt,rank,utilization_percent,")
    assert len(rows) == 3


def test_top(nsml, everything, state):
    assert nsml("top", "@last").stdout == (
        "PID  CPU   Memory   CPU time  Ran for  Command\n"
        "---  ----  -------  --------  -------  -----------------------\n"
        "7    150%  3.0 GiB  1m30s     1h       python main.py --lr 0.1\n"
    )
    [record] = json.loads(nsml("top", "@last", "-j").stdout)["items"]
    assert (record["node_pid"], record["cpu_cores"], record["cpu_time_s"]) == (4321, 1.5, 90)
    assert record["gpus"] == []
    state.processes.processes[0].devices.add(index=0, memory_bytes=843 << 20)
    state.processes.processes[0].devices.add(index=3)
    assert "  3.0 GiB  GPU 0: 843.0 MiB, GPU 3  1m30s  " in nsml("top", "@last").stdout
    [record] = json.loads(nsml("top", "@last", "-j").stdout)["items"]
    assert record["gpus"] == [
        {"index": 0, "memory_bytes": 843 << 20},
        {"index": 3, "memory_bytes": None},
    ]
    state.processes.processes[0].is_cut = True
    state.processes.left_out = 12
    result = nsml("top", "@last")
    assert result.stdout.endswith("--lr 0.1…\n")
    assert result.stderr == "and 12 more processes\n"
    for user, service in (("kim", "agent.ssh"), ("lee", "8888"), ("", "web")):
        state.processes.visitors.add(user=user, service=service).age.seconds = 300
    assert nsml("top", "@last").stderr.splitlines()[1:] == [
        "connected: kim, ssh, for 5m",
        "connected: lee, port 8888, for 5m",
        "connected: somebody, web, for 5m",
    ]
    visitors = json.loads(nsml("top", "@last", "-j").stdout)["visitors"]
    assert visitors[0] == {"user": "kim", "service": "agent.ssh", "age_s": 300}
    state.processes.unseen = "its program is just beginning"
    refused = nsml("top", "@last", check=False)
    assert (refused.code, refused.stdout) == (6, "")
    assert "its program is just beginning" in refused.stderr


def test_a_window_of_an_ended_session_is_its_last_part(nsml, everything, state):
    session = state.add("kim/mnist/2", ended_at={"seconds": EPOCH})
    state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    [row] = nsml("gpumonitor", "@last", "--window", "5s").stdout.splitlines()[2:]
    assert row.endswith("  4°C")


def test_the_history_of_the_platform(nsml, everything):
    record = json.loads(nsml("status", "--history", "-j").stdout)["items"][1]
    assert (record["devices"], record["busy"], record["busy_peak"]) == (4, 4, 8)
    assert nsml("status", "--window", "1h", check=False).code == 2


def test_an_explanation_says_whether_its_gpus_are_simulated(nsml, everything):
    shown = json.loads(nsml("status", "--explain", "kim/mnist/1", "-j").stdout)
    assert shown["simulated"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpustat", "-w"], "the output is not a terminal"),
        (["gpumonitor", "@last", "-w"], "the output is not a terminal"),
        (["gpumonitor", "@last", "-w", "--csv"], "does not write csv"),
        (["top", "@last", "-w"], "the output is not a terminal"),
        (["gpumonitor", "@last", "--csv", "-j"], "give one"),
        (["gpumonitor", "@last", "--window", "1ms"], "--window is 1s at least"),
        (["status", "--history", "--window", "0s"], "--window is 1s at least"),
        (["status", "--history", "--explain", "@last"], "one of --explain, --history"),
        (["status", "--history", "--queue"], "one of --explain, --history"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_reason(nsml, everything, words, said):
    result = nsml(*words, check=False)
    assert (result.code, result.stdout) == (2, "")
    assert said in result.stderr


def test_status(nsml, everything, server):
    assert nsml("status").stdout == (
        f"server    {server.address}\n"
        "version   0.1.0\n"
        "control   cp-1 leads term 3 · embedded\n"
        "nodes     1/2 ready\n"
        "gpus      0.5/2 used (simulated)\n"
        "cpus      1/4 used\n"
        "sessions  1 running · 0 queued\n"
    )


def test_status_counts_what_waits_for_a_person(nsml, everything, state):
    state.add("kim/mnist/77", pb.SESSION_STATE_HELD)
    assert "sessions  1 running · 0 queued · 1 held\n" in nsml("status").stdout
    assert json.loads(nsml("status", "-j").stdout)["sessions_held"] == 1


def test_status_names_what_is_wrong(nsml, everything, state):
    state.now, state.known_at = 1_000_100, 1_000_040
    gone = nodes_pb2.Condition(
        name="CONDITION_NAME_COORDINATION_GONE", meaning="what runs goes on", healing="by itself"
    )
    gone.since.FromSeconds(1_000_041)
    newer = nodes_pb2.Condition(name=99, subject="n1", meaning="new\x1b[2J", healing="later")
    state.conditions += [gone, newer]
    done = nsml("status", check=False)
    assert done.code == 1
    assert done.stdout.splitlines()[2:] == [
        "control   no control plane can lead now · embedded",
        "nodes     1/2 ready",
        "gpus      0.5/2 used (simulated)",
        "cpus      1/4 used",
        "sessions  1 running · 0 queued",
        "known     as it was 1m ago",
        "",
        "COORDINATION_GONE for 59s",
        "  what runs goes on",
        "  by itself",
        "99 (n1)",
        "  new␛[2J",
        "  later",
    ]
    shown = json.loads(nsml("status", "-j", check=False).stdout)
    assert [one["name"] for one in shown["conditions"]] == ["COORDINATION_GONE", "99"]
    assert shown["conditions"][1]["since"] is None
    assert shown["known_at"] == "1970-01-12T13:47:20.000Z"


def test_status_does_not_fail_of_what_anybody_can_cause(nsml, everything, state):
    refused = nodes_pb2.Condition(name="CONDITION_NAME_JOIN_REFUSED", meaning="refused")
    state.conditions += [refused]
    done = nsml("status")
    assert done.code == 0
    assert "notice JOIN_REFUSED" in done.stdout
    assert json.loads(nsml("status", "-j").stdout)["conditions"][0]["is_notice"]
    state.conditions += [nodes_pb2.Condition(name="CONDITION_NAME_NODES_SILENT")]
    assert nsml("status", check=False).code == 1


def test_a_list_without_the_ended_ones_says_so(nsml, everything, state):
    state.lacks_ended = True
    done = nsml("ps", "-a", check=False)
    assert done.code == 9
    assert "kim/mnist/1" in done.stdout
    assert done.stderr.startswith("ended sessions are missing: the platform's history does not")


def test_node_ls(nsml, everything):
    assert nsml("node", "ls").stdout == (
        "Name   State  GPUs             CPUs  CPU %  Memory            Last contact  Isolation  Note\n"
        "-----  -----  ---------------  ----  -----  ----------------  ------------  ---------  ----\n"
        "gpu-1  ready  1.5/2 simulated  1/4   12%    4.0 GiB/16.0 GiB  just now      namespace\n"
    )


def test_eventlen(nsml, everything):
    assert nsml("eventlen", "@last").stdout == (
        "Metric      Count\n----------  -----\nnote        1\ntrain/loss  3\n"
    )
    assert (
        nsml("eventlen", "@last", "-o", "csv").stdout
        == "name,count,origin\nnote,1,\ntrain/loss,3,\n"
    )


def test_ps_json(nsml, everything):
    found = json.loads(nsml("ps", "-j").stdout)
    assert list(found) == ["schema_version", "items"]
    (item,) = found["items"]
    assert item["name"] == "kim/mnist/1"
    assert item["state"] == "RUNNING"
    assert item["gpus"] == 2.0
    assert item["args"] == ["--lr", "0.1"]
    assert item["summary"] == {"step": 3.0, "train/loss": 0.25, "val/accuracy": 0.98765}
    assert item["created_at"] == "2023-11-14T22:13:21.000Z"
    assert item["ended_at"] is None
    assert item["simulated"] is True


def test_ps_shows_what_was_asked_for_and_then_what_was_granted(nsml, state):
    def shown(*flags):
        return json.loads(nsml("ps", "-j", *flags).stdout)["items"][0]

    session = state.add("kim/None/1", pb.SESSION_STATE_QUEUED)
    assert (shown()["cpus"], shown()["memory_bytes"]) == (None, None)
    session.spec.resources.cpu_thousandths = 4000
    assert (shown()["cpus"], shown()["memory_bytes"]) == (4.0, None)
    replica = session.replicas.add(rank=0, node="gpu-1")
    replica.resources.cpu_thousandths = 1500
    replica.resources.memory_bytes = 8 << 30
    assert (shown()["cpus"], shown()["memory_bytes"]) == (1.5, 8 << 30)
    assert shown()["replicas"][0]["memory_bytes"] == 8 << 30
    assert nsml("ps", "--fields", "cpus,memory", "--no-header").stdout == "1.5  8.0 GiB\n"


def test_no_cell_of_csv_holds_json(nsml, everything, state):
    session = (
        state.sessions["s1"] if "s1" in state.sessions else next(iter(state.sessions.values()))
    )
    session.spec.args[:] = ["--name", "a b"]
    session.attempts.add(number=1)
    state.add("kim/mnist/2", pb.SESSION_STATE_QUEUED)
    rows = list(csv.DictReader(io.StringIO(nsml("ps", "-a", "-o", "csv").stdout)))
    assert {row["name"] for row in rows} == {"kim/mnist/1", "kim/mnist/2"}
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("{", "["))]
    one = next(row for row in rows if row["name"] == "kim/mnist/1")
    assert (one["args"], one["attempts"]) == ("--name 'a b'", "1")
    assert float(one["summary.train/loss"]) == 0.25
    assert one["limits.shm_bytes"] == ""


def test_args_show_what_differs(nsml, state, monkeypatch):
    for number, rate in enumerate(("0.1", "0.02"), start=1):
        session = state.add(f"kim/mnist/{number}", pb.SESSION_STATE_RUNNING)
        session.spec.entry = "train.py"
        session.spec.args[:] = [
            "--model",
            "resnet50-with-a-long-name",
            "--data",
            "/x" * 30,
            "--lr",
            rate,
        ]
        state.put(session)
    others = (
        ["--lr", "0.3", "--wd", "0.1", *session.spec.args[:4]],
        [],
    )  # one option more, and none
    for number, args in enumerate(others, start=3):
        session = state.add(f"kim/mnist/{number}", pb.SESSION_STATE_RUNNING)
        session.spec.entry = "train.py"
        session.spec.args[:] = args
        state.put(session)
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = nsml("ps", terminal=True, NO_COLOR="1").stdout
        assert "--lr 0.1 …" in shown
        assert "--lr 0.02 …" in shown
        assert "--lr 0.3" in shown
        assert max(map(width, shown.splitlines())) <= columns
        assert "Ran for" in shown
    assert "--model resnet50-with-a-long-name --data" in nsml("ps").stdout, (
        "a pipe has room for all"
    )


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (("--sort", "train/loss"), "train/loss▴"),
        (("--sort", "memo"), "Memo▴"),
        (("--filter", "memo:*try"), "Memo"),
        (("--filter", "train/loss<1"), "train/loss"),
        (("--filter", "priority:normal"), "Priority"),
    ],
)
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_what_was_asked_for_is_shown_and_no_column_that_shows_nothing(
    nsml, state, monkeypatch, words, title, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    for number, rate in enumerate(("0.1", "0.05"), start=1):
        session = state.add(
            f"kim/digits/{number}",
            memo="first try",
            summary={"train/loss": 0.08176, "train/accuracy": 0.9694},
        )
        session.spec.args[:] = ["--epochs", "20", "--lr", rate]
        state.put(session)
    heads, _, *rows = nsml("ps", *words, terminal=True, NO_COLOR="1").stdout.splitlines()
    assert title in heads.split("  ") or f" {title}" in heads
    assert max(map(width, (heads, *rows))) <= columns
    for begin in (heads.index(one) for one in heads.split() if one in {"Args", "Summary"}):
        assert any(row[begin] != "…" for row in rows)
    assert not any("--lr …" in row for row in rows)


def test_fields_that_were_asked_for_are_all_shown(nsml, everything, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    asked = "name,created,args,state,summary,memo,ended_at,id"
    shown = nsml("ps", "--fields", asked, terminal=True, NO_COLOR="1")
    assert "\nMemo      first try\n" in shown.stdout
    assert shown.stderr == ""


def test_the_version_of_the_platform_is_said_too(nsml, everything, server):
    shown = nsml("version").stdout
    assert [line.split()[0] for line in shown.splitlines()[:2]] == ["client", "control"]
    found = json.loads(nsml("version", "-j").stdout)
    assert set(found) >= {"client", "server", "control_planes", "agents", "differ"}


def test_every_format_of_ps(nsml, everything):
    fields = ["ps", "--fields", "name,gpus,args,memo"]
    assert nsml(*fields, "-o", "jsonl").stdout == (
        '{"schema_version":1,"name":"kim/mnist/1","gpus":2.0,"args":["--lr","0.1"],"memo":"first try"}\n'
    )
    assert nsml(*fields, "-o", "csv").stdout == (
        "name,gpus,args,memo\nkim/mnist/1,2.0,--lr 0.1,first try\n"
    )
    assert nsml(*fields, "-o", "yaml").stdout == (
        "schema_version: 1\n"
        "items:\n"
        '  - name: "kim/mnist/1"\n'
        "    gpus: 2.0\n"
        "    args:\n"
        '      - "--lr"\n'
        '      - "0.1"\n'
        '    memo: "first try"\n'
    )
    assert nsml("ps", "-o", "name").stdout == "kim/mnist/1\n"
    assert nsml("ps", "--fields", "memo,name", "--no-header").stdout == "first try  kim/mnist/1\n"


@pytest.mark.parametrize(
    ("at", "end", "text"),
    [
        (pb.SESSION_STATE_FAILED, (pb.CAUSE_PROGRAM_FAILED, 3), "✗ Failed (exit 3)"),
        (pb.SESSION_STATE_FAILED, (pb.CAUSE_OUT_OF_MEMORY, 137), "✗ Failed (out of memory)"),
        (pb.SESSION_STATE_SUCCEEDED, (pb.CAUSE_COMPLETED, 0), "✔ Succeeded"),
        (pb.SESSION_STATE_STOPPED, (pb.CAUSE_STOP_REQUESTED, 143), "■ Stopped"),
        (99, (0, 0), "? Unspecified"),
    ],
)
def test_ends_say_how(nsml, state, at, end, text):
    session = state.add("kim/mnist/1", at)
    session.end.cause, session.end.exit_code = end
    assert nsml("ps", "-a", "--fields", "state", "--no-header").stdout == f"{text}\n"


def test_the_end_of_a_gang_names_the_replica_that_was_first(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_FAILED)
    session.spec.replica_count = 4
    session.end.cause, session.end.exit_code, session.end.rank = pb.CAUSE_PROGRAM_FAILED, 3, 2
    shown = nsml("ps", "-a", "--fields", "state", "--no-header").stdout
    assert shown == "✗ Failed (exit 3, rank 2)\n"


def test_a_gang_points_to_the_log_of_who_ended_first(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_FAILED)
    session.spec.replica_count = 4
    session.end.cause, session.end.exit_code, session.end.rank = pb.CAUSE_PROGRAM_FAILED, 3, 2
    pointer = "nsml logs kim/mnist/1 --rank 2"
    assert f"rank 2 ended first: {pointer}\n" in nsml("logs", "kim/mnist/1").stderr
    followed = nsml("logs", "-f", "kim/mnist/1").stderr
    assert f"(exit 3, rank 2)   see: {pointer}\n" in followed
    assert f"  see: {pointer}\n" in nsml("status", "--explain", "kim/mnist/1").stdout
    assert pointer not in nsml("logs", "--rank", "2", "kim/mnist/1").stderr
    assert pointer not in nsml("logs", "-f", "--rank", "2", "kim/mnist/1").stderr
    assert pointer not in nsml("logs", "--attempt", "1", "kim/mnist/1").stderr
    session.end.rank = 0
    assert "--rank" not in nsml("logs", "-f", "kim/mnist/1").stderr


def test_a_queued_session_says_why(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_QUEUED, waiting="needs 8 GPUs on one node")
    assert "needs 8 GPUs on one node" in nsml("ps").stdout


def test_a_gang_without_gpus(nsml, state):
    state.add("kim/mnist/1").spec.replica_count = 3
    assert nsml("ps", "--fields", "gpus", "--no-header").stdout == "3x0\n"


def test_nothing_live_says_where_the_rest_is(nsml):
    result = nsml("ps")
    assert result.stdout == ""
    assert "nsml ps -a" in result.stderr


@pytest.mark.parametrize("form", ["table", "json", "csv"])
@pytest.mark.parametrize("words", [["ps"], ["dataset", "ls"], ["node", "ls"]])
def test_a_field_that_is_not_there_is_told_of_an_empty_list_too(nsml, words, form):
    result = nsml(*words, "-o", form, "--fields", "nmae", check=False)
    assert (result.code, result.stdout) == (2, "")
    assert "no such field: 'nmae'" in result.stderr
    assert nsml(*words, "-o", form, "--fields", "name").code == 0


def test_a_field_may_be_called_as_its_column_is_headed(nsml, everything):
    fields = ("name", "state", "memo", "checkpoints")
    headed = ("NAME", "status", "Memo", "# of Models")
    shown = nsml("ps", "--fields", ",".join(headed)).stdout
    assert shown == nsml("ps", "--fields", ",".join(fields)).stdout
    for form, heading, field in (("table", "nmae", "name"), ("json", "status", "state")):
        result = nsml("ps", "-o", form, "--fields", heading, check=False)
        assert (result.code, result.stdout) == (2, "")
        if form == "table":
            assert f"\n  try: --fields {field}\n" in result.stderr
        else:
            assert json.loads(result.stderr)["error"]["try"] == [f"--fields {field}"]


def test_colours_and_width_on_a_terminal_only(nsml, everything, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = nsml("ps", terminal=True).stdout
    assert "\x1b[32m● Running" in shown
    plain = shown.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "…" in plain
    monkeypatch.setenv("COLUMNS", "60")
    narrow = nsml("ps", terminal=True, NO_COLOR="1").stdout
    assert max(len(line) for line in narrow.splitlines()) <= 60
    assert "● RUN   23h59m" in narrow
    assert "\x1b" not in nsml("ps", terminal=True, NO_COLOR="1").stdout
    assert "\x1b" not in nsml("ps", terminal=True, TERM="dumb").stdout
    assert "\x1b" not in nsml("--no-color", "ps", terminal=True).stdout
    assert "\x1b[32m" in nsml("ps", FORCE_COLOR="1").stdout
    assert "\x1b[32m" in nsml("ps", NSML_COLOR="always").stdout


@pytest.mark.parametrize("command", [("ps", "-a"), ("model", "ls", "@last"), ("gpustat",)])
def test_wide_rows_that_do_not_fit_a_terminal_are_blocks_of_lines(
    nsml, everything, monkeypatch, command
):
    monkeypatch.setenv("COLUMNS", "60")
    lines = nsml(*command, "-o", "wide", terminal=True, NO_COLOR="1").stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert "…" not in "".join(lines)
    assert "-----" not in "".join(lines)
    piped = nsml(*command, "-o", "wide").stdout.splitlines()
    heads = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert heads[0] == piped[0].split("  ")[0]
    assert sum(head == heads[0] for head in heads) == len(piped) - 2


def test_columns_without_room_are_told_to_people_beside_the_table(nsml, state, monkeypatch):
    state.add("kim/mnist/1", memo="the first try", summary={"loss": 0.25, "acc": 0.5})
    monkeypatch.setenv("COLUMNS", "200")
    assert nsml("ps", terminal=True).stderr == ""
    monkeypatch.setenv("COLUMNS", "60")
    shown = nsml("ps", terminal=True)
    assert "Memo" not in shown.stdout
    assert shown.stderr.startswith("(no room for ")
    assert shown.stderr.endswith("Memo, # of Models: -o wide shows all)\n")
    for words in (("ps",), ("ps", "-o", "wide"), ("ps", "-q"), ("ps", "-j"), ("ps", "-o", "csv")):
        assert nsml(*words, terminal=words != ("ps",)).stderr == ""


def test_what_a_user_wrote_cannot_steer_the_terminal(nsml, state, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    state.add("kim/mnist/1", memo="\x1b]0;owned\x07\x1b[2J\u202egnp.exe\r\n")
    shown = nsml("ps", terminal=True, NO_COLOR="1").stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "␛]0;owned␇" in shown


@pytest.mark.parametrize("words", [("--sort", "train/loss"), ("--filter", "train/loss<9")])
def test_a_sweep_on_a_small_terminal_shows_what_each_was_run_with_and_no_value_twice(
    nsml, state, monkeypatch, words
):
    """A summary says less where one of its values has a column, and is cut before arguments are."""
    monkeypatch.setenv("COLUMNS", "80")
    rates = ["0.01", "0.03", "0.1", "0.3", "1", "3"]
    for number, rate in enumerate(rates, start=5):
        session = state.add(
            f"kim/mydata/{number}",
            memo="sweep",
            summary={"train/loss": 2.009, "train/accuracy": 0.9983},
        )
        session.spec.args[:] = ["--lr", rate, "--epochs", "30", "--sleep", "0.1"]
        state.put(session)
    rows = nsml("ps", *words, terminal=True, NO_COLOR="1").stdout.splitlines()[2:]
    assert sorted(row.partition("--lr ")[2].split()[0] for row in rows) == sorted(rates)
    for row in rows:
        assert "2.009" in row
        assert "loss=" not in row
        assert "=0.9983" in row


def test_a_value_alone_is_a_field_as_it_is_a_sort_key(nsml, state):
    session = state.add("kim/mnist/1", summary={"val/acc": 0.5})
    session.spec.args[:] = ["--lr", "0.1"]
    state.put(session)
    state.add("kim/mnist/2")
    asked = nsml("ps", "--fields", "name,lr,val/acc", "-o", "csv").stdout.splitlines()
    assert sorted(asked[1:]) == ["kim/mnist/1,0.1,0.5", "kim/mnist/2,,"]
    shown = nsml("ps", "--fields", "name,lr,val/acc").stdout.splitlines()
    assert shown[0].split() == ["Name", "lr", "val/acc"]
    assert ["kim/mnist/1", "0.1", "0.5"] in [line.split() for line in shown]
    refused = nsml("ps", "--fields", "name,rate", check=False)
    assert (refused.code, "no such field: 'rate'" in refused.stderr) == (2, True)
