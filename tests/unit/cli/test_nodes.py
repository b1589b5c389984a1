"""node show, drain, resume, fence, rm: what administrators see and are asked."""

import json

from cli.exits import ExitCode
from nsml.v1 import nodes_pb2, resources_pb2
from tests.unit.nsml.client.contract_server import EPOCH


def test_a_node_is_shown_with_what_runs_there(nsml, state, everything):
    state.on_nodes, state.hidden_on_nodes = ["kim/mnist/1"], 2
    shown = nsml("node", "show", "gpu-1").stdout
    assert "gpu-1\n  state     ready\n" in shown
    assert "  sessions  kim/mnist/1, 2 of others\n" in shown
    assert "why" not in shown
    record = json.loads(nsml("node", "show", "gpu-1", "-j").stdout)
    assert (record["state"], record["drain"], record["hidden_sessions"]) == ("READY", None, 2)
    missing = nsml("node", "show", "gpu-9", check=False)
    assert missing.code == ExitCode.NOT_FOUND
    assert "there is no node gpu-9" in missing.stderr


def test_a_drain_says_who_why_and_when(nsml, everything):
    said = nsml("node", "drain", "gpu-1", "--move-after", "2h", "--reason", "new\x1b[31m disks")
    assert said.stdout == (
        "gpu-1  draining  drained by kim: new␛[31m disks (moves what runs in 2h)\n"
    )
    listed = nsml("node", "ls").stdout
    assert "draining" in listed
    assert "drained by kim" in listed
    assert nsml("node", "resume", "gpu-1").stdout == "gpu-1  ready\n"


def test_a_drained_node_that_is_empty_moves_nothing(nsml, state, everything):
    state.nodes[0].allocated.Clear()
    for when in ("0s", "2h"):
        said = nsml("node", "drain", "gpu-1", "--move-after", when, "--reason", "disks")
        assert said.stdout == "gpu-1  drained  drained by kim: disks\n"
    assert "moves" not in nsml("node", "show", "gpu-1").stdout


def test_a_fence_names_what_it_ends_and_asks(nsml, state, everything):
    state.nodes[0].state = nodes_pb2.NODE_STATE_SILENT
    state.on_nodes, state.hidden_on_nodes = ["kim/mnist/1"], 1
    refused = nsml("node", "fence", "gpu-1", check=False)
    assert refused.code == ExitCode.USAGE
    assert "it would fence node gpu-1 (silent) and end 2 sessions" in refused.stderr
    assert "  kim/mnist/1\n" in refused.stderr
    no = nsml("node", "fence", "gpu-1", stdin="n\n", terminal=True, check=False)
    assert "nothing was changed" in no.stderr
    assert state.nodes[0].state == nodes_pb2.NODE_STATE_SILENT
    yes = nsml("node", "fence", "gpu-1", "--reason", "burnt", "-y")
    assert yes.stdout == "gpu-1  fenced  fenced by kim: burnt\n  ended kim/mnist/1\n"


def test_nobody_is_asked_about_a_fence_that_would_be_refused(nsml, state, everything):
    state.nodes[0].state, state.on_nodes = nodes_pb2.NODE_STATE_SILENT, ["kim/mnist/1"]
    state.fence_refusal = nodes_pb2.FenceRefusal(
        message="node gpu-1 reported a moment ago", why="it may be back", attempt="wait"
    )
    refused = nsml("node", "fence", "gpu-1", stdin="y\n", terminal=True, check=False)
    assert refused.code == ExitCode.CONFLICT
    assert "reported a moment ago" in refused.stderr
    assert "[y/N]" not in refused.stderr + refused.stdout
    forced = nsml("node", "fence", "gpu-1", "--force", stdin="y\n", terminal=True)
    assert "fence node gpu-1 (silent) and end kim/mnist/1? [y/N]" in forced.stderr


def test_what_is_heard_is_fenced_by_force_only(nsml, everything):
    refused = nsml("node", "fence", "gpu-1", "-y", check=False)
    assert refused.code != 0
    assert "not silent" in refused.stderr
    assert "fenced" in nsml("node", "fence", "gpu-1", "-y", "--force").stdout


def test_a_hold_names_what_is_stopped_and_asks(nsml, state, everything):
    held = state.nodes[0]
    held.state = nodes_pb2.NODE_STATE_HELD
    held.hold.why = "it runs a replica that this platform never placed there"
    held.hold.found_at.FromSeconds(EPOCH)
    held.hold.replicas.append("saaaaaaaaaaaaaaaa.1.0")
    assert held.hold.why in nsml("node", "ls").stdout
    refused = nsml("node", "resume", "gpu-1", check=False)
    assert "resume node gpu-1 and stop the replica a session that its agent cannot name" in (
        refused.stderr
    )
    assert held.hold.why in refused.stderr
    assert "saaaaaaaaaaaaaaaa.1.0" in refused.stderr
    assert held.HasField("hold")
    assert nsml("node", "resume", "gpu-1", "-y").stdout == "gpu-1  ready\n"


def test_what_runs_on_a_held_node_is_told_as_people_know_it(nsml, state, everything):
    held = state.nodes[0]
    held.state = nodes_pb2.NODE_STATE_HELD
    held.hold.why = "it runs 25 replicas that this platform never placed there"
    held.hold.found_at.FromSeconds(EPOCH)
    ids = [f"saaaaaaaaaaaaaaa{letter}.2.1" for letter in "abcdefghijklmnopqrstuvwxy"]
    held.hold.replicas.extend(ids)
    one = held.hold.foreign.add(replica=ids[7], session_name="kim/mnist/7\x1b[31m")
    one.device_uuids.append(held.devices[0].device.uuid)
    one.started_at.FromSeconds(EPOCH)
    shown = nsml("node", "show", "gpu-1").stdout
    assert "  foreign   kim/mnist/7␛[31m · attempt 2, rank 1 · GPU 0 · started " in shown
    assert shown.count("cannot name") == 19
    assert "  and 5 more: nsml node show gpu-1 -j\n" in shown
    asked = nsml("node", "resume", "gpu-1", check=False).stderr
    assert "  kim/mnist/7␛[31m · attempt 2" in asked
    record = json.loads(nsml("node", "show", "gpu-1", "-j").stdout)
    assert record["hold"]["replicas"] == ids
    assert record["hold"]["foreign"][0]["replica"] == ids[7]


def test_a_node_is_forgotten(nsml, state, everything):
    assert nsml("node", "rm", "gpu-1", "-y").stderr == "removed node gpu-1\n"
    assert not state.nodes


def several(state, *names):
    for name in names:
        other = nodes_pb2.Node()
        other.CopyFrom(state.nodes[0])
        other.name = name
        state.nodes.append(other)


def test_globs_and_several_names_mean_each_node_once(nsml, state, everything):
    several(state, "gpu-2", "rack2-1", "rack2-2")
    said = nsml("node", "drain", "rack2-*", "gpu-1", "rack2-1", "--reason", "power")
    assert [line.split()[:2] for line in said.stdout.splitlines()] == [
        ["rack2-1", "draining"],
        ["rack2-2", "draining"],
        ["gpu-1", "draining"],
    ]
    assert nsml("node", "resume", "*").stdout.count("ready") == 4
    missing = nsml("node", "drain", "rack9-*", check=False)
    assert missing.code == ExitCode.NOT_FOUND
    assert "no node fits 'rack9-*'" in missing.stderr


def test_several_nodes_are_asked_about_at_once(nsml, state, everything):
    several(state, "gpu-2")
    state.on_nodes, state.hidden_on_nodes = ["kim/mnist/1"], 0
    refused = nsml("node", "drain", "gpu-*", "--move-after", "1h", check=False)
    assert "drain nodes gpu-1, gpu-2 and move kim/mnist/1" in refused.stderr
    assert "draining" not in nsml("node", "ls").stdout
    fenced = nsml("node", "fence", "gpu-*", "--force", "-y").stdout
    assert [line.split()[0] for line in fenced.splitlines() if "fenced by" in line] == [
        "gpu-1",
        "gpu-2",
    ]


def test_several_nodes_are_removed(nsml, state, everything):
    several(state, "gpu-2")
    removed = nsml("node", "rm", "gpu-*", "-y")
    assert removed.stderr.splitlines()[-2:] == ["removed node gpu-1", "removed node gpu-2"]


def test_images_are_listed_by_node(nsml, state, everything):
    listed = nsml("image", "ls").stdout.splitlines()
    assert listed[-1].split() == ["lab/torch:2", "gpu-1", "3.2", "GB"]
    (row,) = json.loads(nsml("image", "ls", "gpu-1", "-j").stdout)["items"]
    assert (row["name"], row["node"], row["bytes"]) == ("lab/torch:2", "gpu-1", 3 << 30)
    assert nsml("image", "ls", "gpu-9", check=False).code == ExitCode.NOT_FOUND
    assert nsml("image", "ls", "rack-*", check=False).code == ExitCode.NOT_FOUND
    several(state, "gpu-2")
    state.images["gpu-2"] = state.images["gpu-1"]
    rows = json.loads(nsml("image", "ls", "gpu-*", "-j").stdout)["items"]
    assert [row["node"] for row in rows] == ["gpu-1", "gpu-2"]
    state.images.clear()
    assert "no images on nodes" in nsml("image", "ls").stderr


def containers(state, *names):
    several(state, *names)
    for node in state.nodes:
        node.isolation = resources_pb2.ISOLATION_CONTAINER


def results(listed):
    return [(row["node"], row["result"]) for row in json.loads(listed.stdout)["items"]]


def test_an_image_is_pulled_on_all_nodes_with_containers_or_on_those_that_are_named(
    nsml, state, everything
):
    containers(state, "gpu-2", "rack-1")
    state.nodes.append(nodes_pb2.Node(name="bare", state=nodes_pb2.NODE_STATE_READY))
    pulled = nsml("image", "pull", "lab/new:1", "--node", "gpu-*", "-j")
    assert results(pulled) == [("gpu-1", "pulled"), ("gpu-2", "pulled")]
    assert "gpu-1: pulled" in pulled.stderr.splitlines()
    again = nsml("image", "pull", "lab/new:1", "-j")
    assert results(again) == [("gpu-1", "present"), ("gpu-2", "present"), ("rack-1", "pulled")]
    dry = nsml("image", "pull", "lab/other:1", "--dry-run")
    assert dry.stdout.split() == ["gpu-1", "gpu-2", "rack-1"]
    assert not any(one.name == "lab/other:1" for one in state.images["gpu-1"])


def test_a_pull_that_fails_says_why_and_its_exit_code_how_many(nsml, state, everything):
    containers(state, "gpu-2")
    state.unpullable["lab/no:1"] = "image lab/no:1 cannot be pulled: its registry limits"
    failed = nsml("image", "pull", "lab/no:1", check=False)
    assert failed.code == ExitCode.FAILED
    assert failed.stdout.count("its registry limits") == 2
    state.images["gpu-2"] = [nodes_pb2.NodeImage(name="lab/no:1")]
    assert nsml("image", "pull", "lab/no:1", check=False).code == ExitCode.PARTLY
    named = nsml("image", "pull", "lab/no:1", "--node", "gpu-9", check=False)
    assert (named.code, "there is no node gpu-9" in named.stderr) == (ExitCode.NOT_FOUND, True)
    state.nodes.clear()
    assert nsml("image", "pull", "lab/no:1", check=False).code == ExitCode.NOT_FOUND


def test_a_node_of_somebody_elses_sessions_is_left_out_unless_it_is_named(nsml, state, everything):
    containers(state, "gpu-2")
    state.nodes[-1].owner_note = "runs only sessions of lee: its agent has no root"
    assert results(nsml("image", "pull", "lab/new:1", "-j")) == [
        ("gpu-1", "pulled"),
        ("gpu-2", "skipped"),
    ]
    named = nsml("image", "pull", "lab/new:1", "--node", "gpu-2", "-j", check=False)
    assert (named.code, results(named)) == (ExitCode.FAILED, [("gpu-2", "failed")])
    assert "only sessions of lee" in named.stdout


def test_an_image_is_removed_from_the_nodes_that_list_it(nsml, state, everything):
    containers(state, "gpu-2", "gpu-3")
    state.images["gpu-3"] = list(state.images["gpu-1"])
    dry = nsml("image", "rm", "lab/torch:2", "--dry-run")
    assert dry.stdout.splitlines() == ["lab/torch:2 on gpu-1", "lab/torch:2 on gpu-3"]
    removed = nsml("image", "rm", "lab/torch:2", "--node", "gpu-3", "-y", "-j")
    assert results(removed) == [("gpu-3", "removed")]
    state.images_in_use.append("lab/torch:2")
    kept = nsml("image", "rm", "lab/torch:2", "-y", check=False)
    assert (kept.code, "a session or container uses it" in kept.stdout) == (ExitCode.FAILED, True)
    assert nsml("image", "rm", "lab/none:2", "-y", check=False).code == ExitCode.NOT_FOUND
