"""Bars, rows and words of telemetry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsml.v1 import sessions_pb2
from nsml.v1.sessions_pb2 import Episode, SessionUsage
from nsml.v1.telemetry_pb2 import Figure, ReadTelemetryResponse, TelemetrySeries
from nsml.view import telemetry as view
from nsml.view.usage import (
    efficiency_text,
    episode_lines,
    episode_records,
    idle_text,
    taken_text,
    usage_text,
    use_record,
    waste_text,
)


def test_bars_fill_their_span_and_leave_gaps_blank() -> None:
    every = [(at + 0.5, 100.0 if at < 5 else 0.0) for at in range(10)]
    assert view.bars(every, (0, 10), 10, 100) == "█████▁▁▁▁▁"
    assert view.bars(every, (0, 10), 20, 100) == "█" * 10 + "▁" * 10
    assert view.bars(every[:3] + every[8:], (0, 10), 10, 100) == "███     ▁▁"
    # A second that was busy is seen in a wide place.
    assert "█" in view.bars([(at, 100.0 * (at == 70)) for at in range(100)], (0, 100), 10, 100)
    assert view.bars([], (0, 10), 4, 100) == "    "


@given(
    values=st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(0, 1e12)), max_size=30),
    since=st.floats(-1e9, 1e9),
    length=st.floats(0, 1e9),
    width=st.integers(1, 200),
)
def test_any_values_make_bars_of_the_width(
    values: list[tuple[float, float]], since: float, length: float, width: int
) -> None:
    drawn = view.bars(sorted(values), (since, since + length), width, 100.0)
    assert len(drawn) == width
    assert set(drawn) <= {" ", *view.BARS}


def answer() -> ReadTelemetryResponse:
    told = ReadTelemetryResponse(left_out=2)
    told.since.seconds, told.until.seconds = 1000, 1100
    series = TelemetrySeries(
        node="n1", device_uuid="GPU-a", device_index=3, thousandths=500, attempt=2, at=[1010, 1050]
    )
    for name, values in [
        ("utilization_percent", [20.0, 40.0]),
        ("memory_used_bytes", [2.0**30, 2.0**31]),
        ("power_watts", [100.0, 300.0]),
        ("temperature_celsius", [50.0, 60.0]),
        ("throttled", [0.0, 1.0]),
    ]:
        series.figures.append(Figure(name=name, least=values, most=values, mean=values))
    told.series.append(series)
    told.series.append(TelemetrySeries(node="n1", device_uuid="GPU-b", thousandths=1000, attempt=1))
    return told


def test_what_was_measured_last_is_told_where_it_is_not_long_ago() -> None:
    told = answer()
    assert "last" not in "\n".join(view.session_lines(told, room=80, now=1100.0, has_last=True))
    told.until.seconds = 1060
    text = "\n".join(view.session_lines(told, room=80, now=1100.0, has_last=True))
    assert "last 40%, mean 30%, peak 40%" in text
    assert "last 300 W, mean 200 W" in text
    assert "last" not in "\n".join(view.session_lines(told, room=80, now=1100.0))


def test_each_device_is_told_with_its_figures() -> None:
    lines = view.session_lines(answer(), room=80, now=1100.0)
    assert lines[0] == "1m40s, from 01-01 00:16Z on"
    text = "\n".join(lines)
    for words in (
        "n1 GPU 3 (0.5 of it, attempt 2)",
        "mean 30%, peak 40%",
        "peak 2.0 GiB",
        "mean 200 W, peak 300 W",
        "peak 60°C",
        "held down 50% of the time",
        "n1 GPU-b\n  nothing was measured",
        "... 2 more",
    ):
        assert words in text
    assert all(len(line) <= 80 for line in lines)
    [first, second] = view.cells(answer())
    record = view.cell_record(second)
    assert (record["node"], record["index"], record["power_watts_peak"]) == ("n1", 3, 300.0)
    assert [column.cell(first, 1100.0) for column in view.COLUMNS][1:] == [
        *("n1 GPU 3 (0.5 of it, attempt 2)", "-", "20%", "1.0 GiB", "-", "100 W", "50°C")
    ]


def replica_answer() -> ReadTelemetryResponse:
    told = ReadTelemetryResponse(left_out_replicas=3)
    told.since.seconds, told.until.seconds = 1000, 1100
    series = TelemetrySeries(node="n1", rank=1, attempt=2, at=[1010, 1050])
    for name, values in [
        ("cpu_cores", [1.5, 4.0]),
        ("memory_used_bytes", [2.0**30, 2.0**31]),
        ("process_count", [2.0, 8.0]),
    ]:
        series.figures.append(Figure(name=name, least=values, most=values, mean=values))
    told.series.append(series)
    return told


def test_the_processes_of_a_replica_are_told_beside_devices() -> None:
    lines = view.session_lines(replica_answer(), room=80, now=1100.0)
    assert lines[1] == "n1 processes (rank 1, attempt 2)"
    text = "\n".join(lines)
    for words in ("mean 2.75, peak 4 cores", "peak 2.0 GiB", "mean 5, peak 8", "3 more replicas"):
        assert words in text
    assert all(len(line) <= 80 for line in lines)
    [_, second] = view.cells(replica_answer())
    assert [column.cell(second, 1100.0) for column in view.COLUMNS][1:] == [
        *("n1 processes (rank 1, attempt 2)", "4", "-", "2.0 GiB", "8", "-", "-")
    ]
    record, beside = view.cell_record(second), view.cell_record(view.cells(answer())[0])
    assert (record["uuid"], record["rank"], record["cpu_cores"]) == (None, 1, 4.0)
    assert (beside["rank"], beside["cpu_cores"]) == (None, None)
    assert list(record) == list(beside)  # lines of CSV have the same columns


def test_what_is_taken_now_is_said_in_words() -> None:
    alone = sessions_pb2.Replica(rank=0)
    assert (taken_text([]), taken_text([alone]), use_record(alone)) == ("", "", None)
    alone.use.cpu_cores, alone.use.memory_used_bytes, alone.use.process_count = 1.5, 2**30, 1
    assert taken_text([alone]) == "1.5 cores, 1.0 GiB of memory, 1 process"
    both = [alone, sessions_pb2.Replica(rank=1)]
    assert taken_text(both) == "1.5 cores, 1.0 GiB of memory, 1 process (of 1 replica of 2)"
    assert use_record(alone) == {
        "cpu_cores": 1.5,
        "memory_used_bytes": 2**30,
        "process_count": 1,
    }


def platform_answer(*, simulated: bool) -> ReadTelemetryResponse:
    told = ReadTelemetryResponse()
    told.since.seconds, told.until.seconds = 1000, 1100
    series = TelemetrySeries(at=[1010, 1050], simulated=simulated)
    for name, values in [
        ("devices", [3.0, 3.0]),
        ("held", [1.23456, 2.0]),
        ("running", [0.5, 3.0]),
        ("busy", [0.0, 1.0]),
        ("utilization_percent", [20.0, 40.0]),
        ("power_watts", [100.0, 300.0]),
    ]:
        series.figures.append(Figure(name=name, least=values, most=values, mean=values))
    told.series.append(series)
    return told


def test_bars_of_the_platform_begin_at_one_place() -> None:
    lines = view.cluster_history_lines(platform_answer(simulated=True), room=80, now=1100.0)
    assert lines[0].endswith(" (simulated)")
    assert [line[:10].rstrip() for line in lines[1:-1]] == [
        *("GPUs held", "load >0%", "load >80%", "load", "power")
    ]
    assert len(lines[-1]) < 80
    width = 80 - 8 - 30 - 2
    for line in lines[1:-1]:
        assert set(line[10 : 10 + width]) <= {" ", *view.BARS}
        assert line[10 + width : 16 + width] == " mean "


def test_rows_tell_units_and_as_much_of_the_time_as_tells_them_apart() -> None:
    rows = view.cells(platform_answer(simulated=False))
    columns = view.timed(view.CLUSTER_COLUMNS, rows)
    assert [column.title for column in columns[:5]] == [
        *("Time", "GPUs", "GPUs held", "GPUs >0% load", "GPUs >80% load")
    ]
    assert [column.cell(rows[0], 1100.0) for column in columns[:4]] == [
        *("01-01 00:16:50Z", "3", "1.23", "0.5")
    ]
    [_, apart] = rows
    assert view.timed(view.CLUSTER_COLUMNS, [apart])[0].cell(apart, 1100.0) == "01-01 00:17Z"
    assert view.cell_record(apart)["simulated"] is False


def test_what_has_no_hardware_behind_it_says_so() -> None:
    told = answer()
    told.series[1].simulated = True
    assert "n1 GPU-b (simulated)" in view.session_lines(told, room=80, now=1100.0)
    assert view.series_title(told.series[0]) == "n1 GPU 3 (0.5 of it, attempt 2)"


def test_what_a_session_used_is_said_in_words() -> None:
    usage = SessionUsage(
        utilization_percent=71.4,
        utilization_peak_percent=99,
        memory_peak_bytes=12 << 30,
        watt_hours=1240,
    )
    expected = "GPU utilization mean 71%, peak 99%, memory peak 12.0 GiB, 1.24 kWh"
    assert usage_text(usage) == expected
    assert (efficiency_text(usage), efficiency_text(SessionUsage())) == ("71%", "-")
    assert usage_text(SessionUsage(watt_hours=0.34)) == "memory peak 0 B, 0.3 Wh"
    assert idle_text(usage, 5000) == ""
    usage.idle_since.seconds = 1000
    assert idle_text(usage, 1599) == ""
    assert idle_text(usage, 1000 + 3840) == "idle 1h4m"


def test_what_a_session_wastes_is_marked_while_it_stands_and_told_after() -> None:
    idle = Episode(kind=sessions_pb2.EPISODE_KIND_IDLE, reason="none of its GPUs did more than 1 %")
    idle.since.seconds = 1000
    assert waste_text([idle], 1720) == "idle 12m"
    assert waste_text([], 1720) == ""
    zombie = Episode(kind=sessions_pb2.EPISODE_KIND_ZOMBIE, reason="no process is on its GPUs")
    zombie.since.seconds = 2000
    idle.until.seconds = 1900
    assert waste_text([idle], 2000) == ""
    assert waste_text([idle, zombie], 2180) == "zombie 3m"
    assert episode_lines([idle, zombie], 2180) == [
        "zombie for 3m, since 01-01 00:33Z: no process is on its GPUs",
        "was idle for 15m, from 01-01 00:16Z on: none of its GPUs did more than 1 %",
    ]
    first, second = episode_records([idle, zombie])
    assert (first["kind"], first["until"]) == ("IDLE", "1970-01-01T00:31:40.000Z")
    assert (second["kind"], second["until"]) == ("ZOMBIE", None)


def test_energy_says_of_how_many_attempts_it_knows_nothing() -> None:
    usage = SessionUsage(watt_hours=840, forgotten_attempts=2)
    expected = "memory peak 0 B, 840 Wh, without 2 older attempts, whose GPUs are forgotten"
    assert usage_text(usage) == expected
