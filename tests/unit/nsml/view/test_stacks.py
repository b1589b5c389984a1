"""Stacks of several replicas: what most do is shown once, and who does another thing stands out."""

from nsml.v1 import sessions_pb2 as pb
from nsml.view.stacks import SeenReplica, lines, record

LIBRARY = "/opt/env/lib/python3.11/site-packages/torch/distributed.py"


def thread(*calls, name="MainThread", state=pb.THREAD_STATE_IDLE, **facts):
    frames = [pb.StackFrame(function=call, file=file, line=line) for call, file, line in calls]
    return pb.ThreadStack(name=name, frames=frames, state=state, **facts)


def replica(rank, *threads, unseen="", **facts):
    process = pb.ProcessStacks(pid=7 + rank, command="python main.py", threads=threads)
    found = pb.ReplicaStacks(processes=[] if unseen else [process], unseen=unseen, **facts)
    return SeenReplica(rank=rank, found=found, unseen=unseen)


TRAIN = ("train", "/app/main.py", 40)
REDUCES = thread(TRAIN, ("all_reduce", LIBRARY, 1720))
LOADS = thread(
    TRAIN,
    ("load", "/app/data.py", 12),
    ("decode", "/app/data.py", 99),
    state=pb.THREAD_STATE_ACTIVE,
)


def text(*replicas):
    return "\n".join(lines(replicas))


def test_of_one_replica_each_thread_is_shown_with_its_outermost_call_first():
    shown = text(
        replica(0, LOADS, thread(("run", "/usr/lib/python3.11/threading.py", 1), name="writer"))
    )
    assert (
        shown
        == """\
pid 7  python main.py
  MainThread (active)
    train   main.py:40
    load    data.py:12
    decode  data.py:99
  writer (idle)
    run  threading.py:1"""
    )


def test_the_rank_that_differs_stands_out_from_the_call_on_where_it_does():
    shown = text(*(replica(rank, LOADS if rank == 2 else REDUCES) for rank in range(5)))
    assert (
        shown
        == """\
python main.py
  MainThread, ranks 0-1, 3-4 (idle)
    train       main.py:40
    all_reduce  torch/distributed.py:1720
  MainThread, rank 2 (active)
    1 call as above
  > load    data.py:12
  > decode  data.py:99"""
    )


def test_another_line_of_the_same_call_is_another_place():
    shown = text(
        replica(0, REDUCES), replica(1, REDUCES), replica(2, thread(("train", "/app/main.py", 41)))
    )
    assert "rank 2 (idle)\n  > train  main.py:41" in shown


def test_one_that_has_no_more_calls_is_behind_those_that_have():
    shown = text(replica(0, REDUCES), replica(1, REDUCES), replica(2, thread(TRAIN)))
    assert shown.endswith("MainThread, rank 2 (idle)\n    1 call as above, and no further")


def test_a_replica_that_cannot_be_seen_hides_no_other():
    shown = text(replica(0, REDUCES), replica(1, unseen="its node is away\x1b[2J"))
    assert shown.splitlines()[0].startswith("rank 1: cannot be seen: its node is away")
    assert "\x1b" not in shown
    assert "MainThread, rank 0 (idle)" in shown


def test_what_a_thread_does_is_said_where_it_is_known():
    assert "  MainThread (holds the GIL)\n" in text(replica(0, thread(TRAIN, holds_gil=True)))
    unknown = thread(TRAIN, state=pb.THREAD_STATE_UNSPECIFIED)
    assert "  MainThread\n" in text(replica(0, unknown))
    both = text(replica(0, unknown), replica(1, thread(TRAIN)))
    assert "  MainThread, ranks 0-1 (idle)\n" in both


def test_what_is_left_out_is_said():
    many = thread(*(("f", "/app/m.py", n) for n in range(4)), frames_left_out=9)
    seen = replica(0, many, left_out=3)
    seen.found.processes[0].threads_left_out = 5
    shown = text(seen)
    assert [line.strip() for line in shown.splitlines()] == [
        "pid 7  python main.py",
        "MainThread (idle)",
        "f  m.py:0".removesuffix(":0"),
        "f  m.py:1",
        "... 9 more calls",
        "f  m.py:2",
        "f  m.py:3",
        "5 more threads",
        "3 more Python processes",
    ]


def test_a_program_without_python_says_so():
    assert (
        text(SeenReplica(rank=0, found=pb.ReplicaStacks(), unseen=""))
        == "no process is called python"
    )


def test_local_variables_are_below_their_call_and_in_the_record():
    seen = replica(0, REDUCES)
    seen.found.processes[0].threads[0].frames[0].locals.add(name="lr", value="0.1")
    assert "    train       main.py:40\n        lr = 0.1\n" in text(seen)
    [process] = record(seen)["processes"]
    assert process["threads"][0]["frames"][0] == {
        "function": "train",
        "file": "/app/main.py",
        "line": 40,
        "locals": {"lr": "0.1"},
    }


def test_variables_that_differ_between_ranks_say_whose_they_are():
    seen = []
    for rank, step in enumerate((1, 7, 1)):
        one = replica(rank, thread(TRAIN))
        frame = one.found.processes[0].threads[0].frames[0]
        frame.locals.add(name="lr", value="0.1")
        frame.locals.add(name="step", value=str(step))
        seen.append(one)
    frame.locals.add(name="late", value="True")
    assert text(*seen).endswith(
        "    train  main.py:40\n"
        "        lr = 0.1\n"
        "        step = 1 (ranks 0, 2), 7 (rank 1)\n"
        "        late = True (rank 2)"
    )


def test_processes_of_one_program_are_compared_wherever_they_stand():
    first, second = replica(0, thread(TRAIN)), replica(1, LOADS)
    first.found.processes[0].command = "python main.py --rank 0"
    board = pb.ProcessStacks(pid=2, command="python -m tensorboard.main", threads=[REDUCES])
    first.found.processes.insert(0, board)
    second.found.processes[0].command = "python -u main.py --rank 1"
    shown = text(first, second).splitlines()
    assert shown[0] == "python -m tensorboard.main"
    assert shown[1] == "  MainThread, rank 0 (idle)"
    main = shown.index("python main.py --rank 0")
    assert shown[main + 1 :][0] == "  MainThread, rank 0 (idle)"
    assert "  MainThread, rank 1 (active)" in shown[main:]


def test_threads_are_compared_whatever_their_numbers_are():
    loads = [thread(TRAIN, name=f"Thread-{number} (load)") for number in (1, 9)]
    shown = text(replica(0, loads[0]), replica(1, loads[1]))
    assert shown.splitlines()[1] == "  Thread-1 (load), ranks 0-1 (idle)"


def test_another_depth_is_another_place():
    deep = [thread(TRAIN, frames_left_out=depth) for depth in (10, 9999)]
    assert "ranks" not in text(*(replica(rank, one) for rank, one in enumerate(deep)))
