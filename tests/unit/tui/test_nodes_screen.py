"""The map of all devices, and the platform, on a platform over real gRPC."""

from nsml.v1 import nodes_pb2
from nsml.v1.resources_pb2 import Device, DeviceSample
from tests.unit.tui.conftest import said, shows, until
from tui.screens.session import SessionScreen

SIZE = (120, 40)


def add_node(server, name, *loads):
    node = nodes_pb2.Node(name=name, state=nodes_pb2.NODE_STATE_READY, agent_version="1.2")
    for index, load in enumerate(loads):
        device = Device(uuid=f"{name}-{index}", index=index, model="A100", memory_bytes=100)
        sample = DeviceSample(utilization_percent=load)
        node.devices.add(device=device, sample=sample, allocated_thousandths=1_000)
    server.state.nodes.append(node)


async def test_the_map_goes_through_its_measures_and_back_to_the_list(dashboard, server):
    add_node(server, "n1", 98, 5)
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("3", "h")
        await shows(pilot, "n1 98% ", " 5% ", "util  percent", ". free", "A100")
        for words in ("mem  percent", "temp  °C", "power  watts", "owner", "age  for how long"):
            await pilot.press("h")
            await shows(pilot, words)
        await pilot.press("h")
        await shows(pilot, "State")
        assert ". free" not in said(dashboard)


async def test_a_thousand_devices_are_there_and_keys_and_clicks_choose_a_node(dashboard, server):
    for number in range(128):
        add_node(server, f"gpu-{number:03d}", *[10 * n for n in range(8)])
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("3", "h")
        await shows(pilot, "gpu-000 01234567", "gpu-127 01234567")
        heat = dashboard.screen.heat
        await pilot.press("right", "down")
        await until(pilot, lambda: heat.current.name == "gpu-007")
        await shows(pilot, "gpu-007  7 ")
        await pilot.click(heat, offset=(18 * 2 + 3, 3))
        await until(pilot, lambda: heat.current.name == "gpu-020")
        await pilot.press("G", "right")
        assert heat.current.name == "gpu-127"
        await pilot.press("g", "left", "up")
        assert heat.current.name == "gpu-000"


async def test_the_map_says_as_much_as_there_is_room_for(dashboard, server):
    for number in range(128):
        add_node(server, f"gpu-{number:03d}", *[10 * n + 1 for n in range(8)])
    server.state.add("kim/mnist/1")
    for node in server.state.nodes[:5]:
        for device in node.devices:
            device.sessions.append("kim/mnist/1")
    async with dashboard.run_test(size=(80, 24)) as pilot:
        await pilot.press("3", "h")
        await shows(pilot, "gpu-000 01234567", "util  0-9")
        await pilot.resize_terminal(200, 60)
        await shows(
            pilot, "gpu-000   1  11  21  31  41  51  61  71   gpu-001", "gpu-127", "percent"
        )
        await pilot.resize_terminal(300, 100)
        await shows(pilot, "gpu-000 1%    11%   21% ", " kim   kim   kim ", "gpu-127")
        heat = dashboard.screen.heat
        await pilot.click(heat, offset=(60, 4))  # the second line of a node
        await until(pilot, lambda: heat.current.name == "gpu-006")
        del server.state.nodes[5:]
        await pilot.press("ctrl+r")
        await shows(pilot, "gpu-004 1% ", "kim/mnist/1 ")
        await pilot.resize_terminal(120, 40)
        await shows(pilot, "gpu-004 1% ", "kim/mnist/1  kim/mnist/1")


async def test_enter_leads_from_a_node_to_its_devices_and_on_to_who_is_there(dashboard, server):
    add_node(server, "n1", 98, 5)
    server.state.add("kim/mnist/1")
    server.state.nodes[0].devices[1].sessions.append("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("3")
        await shows(pilot, "n1", "A100")
        await pilot.press("enter", "enter")
        screen = dashboard.screen
        await until(pilot, lambda: screen.devices.has_focus)
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        assert dashboard.screen.row.session.name == "kim/mnist/1"


async def test_the_platform_is_told_below(dashboard, server):
    add_node(server, "n1", 50)
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("3", "i")
        await shows(pilot, "agents    1 of version 1.2", "failover  none since")
        server.state.leader, server.state.term = "cp-2", 4
        await shows(pilot, "cp-2 leads term 4, before it cp-1")
