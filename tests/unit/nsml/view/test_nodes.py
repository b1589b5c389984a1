"""What a node's row says when there is little to say."""

from nsml.v1 import nodes_pb2, resources_pb2
from nsml.view import nodes

NOW = 1_700_000_000.0


def cells(node):
    return {column.key: column.cell(node, NOW) for column in nodes.COLUMNS}


def test_a_node_that_was_never_heard_has_no_time_of_contact():
    node = nodes_pb2.Node(name="a")
    assert cells(node)["contact"] == "-"
    assert nodes.record(node)["last_contact_at"] is None


def test_a_node_that_was_heard_says_how_long_ago():
    node = nodes_pb2.Node(name="a")
    node.last_contact_at.FromSeconds(int(NOW) - 120)
    assert cells(node)["contact"] == "2 minutes ago"


def test_what_was_not_measured_is_no_zero():
    node = nodes_pb2.Node(name="a")
    node.capacity.memory_bytes = 8 << 30
    shown, record = cells(node), nodes.record(node)
    assert (shown["load"], shown["memory"]) == ("-", "-/8.0 GiB")
    assert (record["cpu_percent"], record["memory_used_bytes"]) == (None, None)


def test_a_node_says_how_it_keeps_limits_and_why_not_by_the_kernel():
    node = nodes_pb2.Node(name="a")
    assert cells(node)["limits"] == "-"
    node.limits.memory = node.limits.cpus = node.limits.processes = resources_pb2.KEEPING_GROUP
    node.limits.disk = resources_pb2.KEEPING_WATCHED
    assert cells(node)["limits"] == "group"
    node.limits.cpus = resources_pb2.KEEPING_WATCHED
    node.limits.note = "cpu: Permission denied"
    assert cells(node)["limits"] == "memory group, cpus watched, processes group"
    shown = nodes.shown_lines(nodes_pb2.GetNodeResponse(node=node), now=NOW)
    assert any(line.endswith("processes group: cpu: Permission denied") for line in shown)
    assert nodes.record(node)["limits"]["disk"] == "watched"


def test_a_node_says_which_networks_sessions_have_there():
    node = nodes_pb2.Node(name="a", gang_network="none")
    node.networks.extend([resources_pb2.NETWORK_OWN, resources_pb2.NETWORK_HOST])
    answer = nodes_pb2.GetNodeResponse(node=node)
    assert "  network   own, host on request; gangs: none" in nodes.shown_lines(answer, now=NOW)
    record = nodes.record(answer.node)
    assert (record["networks"], record["gang_network"]) == (["own", "host"], "none")
    del answer.node.networks[1:]
    assert "  network   own; gangs: none" in nodes.shown_lines(answer, now=NOW)
    answer.node.gang_network = ""
    del answer.node.networks[:]
    assert not [line for line in nodes.shown_lines(answer, now=NOW) if "network" in line]


def test_a_node_says_why_its_isolation_is_no_stronger():
    node = nodes_pb2.Node(name="a", isolation=resources_pb2.ISOLATION_NAMESPACE)
    answer = nodes_pb2.GetNodeResponse(node=node)
    assert "  isolation namespace" in nodes.shown_lines(answer, now=NOW)
    answer.node.isolation_note = "no container engine"
    assert "  isolation namespace: no container engine" in nodes.shown_lines(answer, now=NOW)
    answer.node.isolation_note = "no containers: " + "it does not answer; " * 20
    lines = nodes.shown_lines(answer, now=NOW)
    assert max(map(len, lines)) <= 100
    first = next(n for n, line in enumerate(lines) if line.startswith("  isolation "))
    assert lines[first + 1].startswith(" " * 12 + "does not answer; it ")


def test_a_node_says_where_it_is_listed_what_its_administrator_set_in_vain():
    node = nodes_pb2.Node(name="a", setting_note="default_image is set, and no containers: gone")
    assert cells(node)["note"] == "default_image is set, and no containers: gone"
    assert nodes.record(node)["setting_note"] == "default_image is set, and no containers: gone"


def device(index, uuid, parent="", *, allocated=0):
    found = nodes_pb2.DeviceUse(allocated_thousandths=allocated)
    found.device.index, found.device.uuid, found.device.parent_uuid = index, uuid, parent
    return found


def held(*uses):
    items = nodes.devices([nodes_pb2.Node(name="a", devices=uses)])
    (column,) = [one for one in nodes.DEVICE_COLUMNS if one.key == "allocated"]
    return [(column.cell(item, NOW), nodes.is_free(item)) for item in items]


def test_instances_of_a_gpu_that_is_held_are_not_free():
    """It was cut while a session had all of it: the driver lists both, under names of their own."""
    whole, other = device(0, "GPU-0", allocated=1000), device(3, "GPU-1")
    parts = [device(1, "MIG-1", "GPU-0"), device(2, "MIG-2", "GPU-0")]
    shown = held(whole, *parts, other)
    assert shown == [("1", False), ("as GPU 0", False), ("as GPU 0", False), ("0", True)]
    item = nodes.devices([nodes_pb2.Node(devices=[whole, *parts])])[1]
    assert nodes.device_record(item)["held_with"] == ["GPU-0"]


def test_a_gpu_with_instances_that_are_held_is_not_free():
    parts = [device(1, "MIG-1", "GPU-0", allocated=1000), device(2, "MIG-2", "GPU-0")]
    assert held(device(0, "GPU-0"), *parts) == [("as GPU 1", False), ("1", False), ("0", True)]


def test_the_platform_says_which_control_planes_stand_by():
    cluster = nodes_pb2.GetClusterResponse(
        leader="a", term=3, coordination="etcd", version="2", answered_by="b"
    )
    cluster.members.add(name="a", version="2", user_address="a:1", is_leader=True)
    cluster.members.add(name="b", version="1", user_address="b:1").started_at.seconds = 60
    lines = nodes.cluster_lines(cluster, server="b:1")
    assert "control   a leads term 3 · a:1 · etcd" in lines
    assert [line for line in lines if line.startswith("standby")] == [
        "standby   b · b:1 · 1 · answers you"
    ]
    record = nodes.cluster_record(cluster)
    assert [one["is_leader"] for one in record["members"]] == [True, False]
    assert record["members"][1]["started_at"] == "1970-01-01T00:01:00.000Z"
    assert record["answered_by"] == "b"


def test_nobody_leads_while_the_store_is_gone():
    cluster = nodes_pb2.GetClusterResponse(leader="a", term=3, coordination="etcd")
    cluster.members.add(name="a", user_address="a:1", is_leader=True)
    cluster.conditions.add(name="CONDITION_NAME_COORDINATION_GONE")
    record = nodes.cluster_record(cluster)
    assert (record["leader"], record["term"]) == (None, 0)
    assert [one["is_leader"] for one in record["members"]] == [False]
    lines = nodes.cluster_lines(cluster, server="a:1")
    assert "control   no control plane can lead now · etcd" in lines
    assert any(line.startswith("standby   a · a:1") for line in lines)


def test_a_certificate_is_warned_of_when_its_renewals_fail():
    node = nodes_pb2.Node(name="a", agent_version="1")
    assert cells(node)["certificate"] == "-"
    for days, shown, warned in (
        (45, "ends in 45d", ""),
        (13, "ends in 13d", "certificate ends in 13d"),
        (-3, "ended 3 days ago", "certificate ended 3 days ago"),
    ):
        node.certificate_ends_at.FromSeconds(int(NOW) + days * 86_400)
        assert (cells(node)["certificate"], cells(node)["note"]) == (shown, warned)
        assert f"certificate {shown}" in "\n".join(
            nodes.shown_lines(nodes_pb2.GetNodeResponse(node=node), NOW)
        )
    assert nodes.record(node)["certificate_ends_at"].startswith("2023-11-11")


def test_a_wrong_clock_is_in_the_note():
    node = nodes_pb2.Node(name="a")
    assert nodes.record(node)["clock_ahead_s"] is None
    node.clock_ahead.FromMilliseconds(-7_200_500)
    assert cells(node)["note"] == "clock 2h behind"
    assert nodes.record(node)["clock_ahead_s"] == -7200.5
    node.clock_ahead.FromMilliseconds(1_500)
    assert cells(node)["note"] == ""


def test_a_node_that_is_not_ready_says_why():
    node = nodes_pb2.Node(
        name="a", state=nodes_pb2.NODE_STATE_NOT_READY, not_ready="no engine answers"
    )
    shown = cells(node)
    assert (shown["state"], shown["note"]) == ("not ready", "no engine answers")
    assert nodes.record(node)["state"] == "NOT_READY"
    lines = nodes.shown_lines(nodes_pb2.GetNodeResponse(node=node), now=NOW)
    assert "  why       no engine answers" in lines
    node.drain.asked_by = "kim"
    assert cells(node)["note"] == "drained by kim; no engine answers"


def test_what_a_restart_of_the_engine_ends_is_shown():
    node = nodes_pb2.Node(name="a", engine_note="live-restore is off")
    assert cells(node)["engine"] == "live-restore is off"
    lines = nodes.shown_lines(nodes_pb2.GetNodeResponse(node=node), now=NOW)
    assert "  engine    live-restore is off" in lines
    assert nodes.record(node)["engine_note"] == "live-restore is off"


def test_where_its_datasets_came_from_is_said_where_it_has_fetched_some() -> None:
    answer = nodes_pb2.GetNodeResponse(node=nodes_pb2.Node(name="n"))
    assert not [line for line in nodes.shown_lines(answer, now=NOW) if "datasets" in line]
    answer.transfers.from_platform = 1_000_000
    assert "  datasets  1.0 MB fetched" in nodes.shown_lines(answer, now=NOW)
    answer.transfers.from_peers = 3_000_000
    line = "  datasets  4.0 MB fetched (3.0 MB of it from peers)"
    assert line in nodes.shown_lines(answer, now=NOW)
    answer.transfers.from_bucket, answer.transfers.bucket_note = 1_000_000, "it does not answer"
    line = "  datasets  5.0 MB fetched (3.0 MB of it from peers, 1.0 MB of it from the bucket) · it does"
    assert line in " ".join(nodes.shown_lines(answer, now=NOW))
    answer.transfers.ClearField("from_bucket")
    answer.transfers.to_peers, answer.transfers.dropped_peers = 2_000, 2
    record = nodes.shown_record(answer)
    assert record["dataset_bytes"] == {
        "from_platform": 1_000_000,
        "from_peers": 3_000_000,
        "from_bucket": 0,
        "to_peers": 2_000,
    }
    assert record["dropped_peers"] == 2
    shown = " ".join(nodes.shown_lines(answer, now=NOW)).split()
    assert "2.0 kB sent to peers · 2 peers dropped" in " ".join(shown)
