"""Runs with a network and with clients that come and go: the same bits, what is recorded, what is refused."""

import pytest

import tardigrad as td
from event_records import read_records
from observers import InterruptAfter
from tardigrad.experiments.forecast.forecast import forecast
from tardigrad.experiments.runs.server_assembly import build_server

UPLINKS = td.Network(upload=td.LogNormalBandwidth(median=2000.0, spread=0.5), server_uplink=20_000.0)
BASE = {
    "data": {"kind": "synthetic", "clients": 60, "examples": 5},
    "model": {"kind": "mlp", "hidden": [4]},
    "pace": td.Asynchronous(concurrency=20),
    "buffer": td.Buffer(size=5, staleness_bound=6),
    "delay": td.LogNormal(median=0.2, device_spread=0.5),
    "network": UPLINKS,
    "availability": td.OnOff(on=2.0, off=3.0),
    "local": td.Local(steps=1),
    "stop": td.Stop(trips=120),
}


@pytest.mark.parametrize(
    "settings",
    [
        {"encoding": "int8", "algorithm": "fedbuff"},
        {"algorithm": "scaffold", "pace": td.Synchronous(cohort=6, selected=9), "buffer": td.Buffer()},
        {"pace": td.Arrivals(rate=20.0), "availability": td.DayNight(period=6.0, on=2.0, zones=1)},
        {"pace": td.Poisson(probability=0.2), "buffer": td.Buffer(), "network": td.Network(profile="phones")},
    ],
    ids=["int8", "synchronous", "arrivals", "poisson"],
)
def test_workers_and_interrupts_do_not_change_the_bits(settings, tmp_path):
    config = td.Config(**(BASE | settings))
    whole = td.run(config, out=tmp_path / "whole")
    assert whole.given_up > 0
    assert td.run(config, workers=2).model_sha256 == whole.model_sha256
    with pytest.raises(KeyboardInterrupt):
        td.run(config, out=tmp_path / "cut", observers=(InterruptAfter(150),))
    assert td.run(config, out=tmp_path / "cut", resume=True).model_sha256 == whole.model_sha256
    events = [(tmp_path / name / "events.jsonl").read_bytes() for name in ("whole", "cut")]
    assert events[0] == events[1]


def test_events_say_where_the_time_of_a_trip_went(tmp_path):
    td.run(td.Config(**BASE), out=tmp_path / "run")
    uploads = [one for one in read_records(tmp_path / "run/events.jsonl") if one["event"] == "upload"]
    assert uploads
    for one in uploads:
        parts = one["download_time"] + one["compute_time"] + one["upload_time"]
        assert 0 < parts <= one["time"] - one["start_time"] + 1e-9
    assert any(one["time"] - one["start_time"] > 1.5 * one["compute_time"] for one in uploads)


def test_without_a_network_events_have_no_such_fields(tmp_path):
    td.run(td.Config(**(BASE | {"network": None, "availability": "always"})), out=tmp_path / "run")
    for one in read_records(tmp_path / "run/events.jsonl"):
        assert not {"download_time", "compute_time", "upload_time", "bytes_up"} & set(one)


def test_a_result_tells_uploads_from_downloads():
    result = td.run(td.Config(**BASE))
    numbers = sum(value.numel() for value in result.model.values())
    assert result.bytes_up == 120 * 4 * numbers
    assert result.bytes - result.bytes_up >= result.bytes_up, "every upload follows a download"
    assert td.run(td.Config(**BASE), encoding="int8").bytes_up < 0.5 * result.bytes_up


def test_fewer_bytes_take_less_virtual_time():
    slow = BASE | {"network": td.Network(upload=100.0), "availability": "always", "delay": td.ConstantDelay()}
    whole, small = (td.run(td.Config(**slow), encoding=kind).virtual_time for kind in ("float32", "int8"))
    assert small < 0.6 * whole


def test_a_plan_counts_the_bytes_of_differences():
    config = td.Config(**(BASE | {"broadcast": td.DifferenceBroadcast(encoding=td.Sign())}))
    planned, whole = forecast(config, trips=120), forecast(td.Config(**BASE), trips=120)
    assert planned.megabytes_down < 0.7 * whole.megabytes_down
    megabytes = planned.megabytes_per_time * planned.virtual_time
    assert megabytes == pytest.approx(td.run(config).bytes / 1e6, rel=1e-9)
    assert 0 < planned.split["waiting"] < 1


def test_without_an_uplink_nobody_waits_not_even_for_a_rounding():
    for kind in ("float32", "bfloat16", "differences"):
        config = td.Config(**(BASE | {"network": td.Network(upload=2000), "broadcast": kind}))
        assert forecast(config, trips=120).split["waiting"] == 0


def test_a_plan_says_what_the_run_does():
    planned, result = forecast(td.Config(**BASE), trips=120), td.run(td.Config(**BASE))
    assert planned.virtual_time == result.virtual_time
    assert (planned.steps, planned.given_up) == (result.steps, result.given_up)
    assert planned.megabytes_up * 1e6 * 120 == result.bytes_up
    assert planned.split["upload"] > planned.split["download"] > 0
    assert planned.split["waiting"] > 0
    assert planned.split["compute"] > 0


@pytest.mark.parametrize("table", ["network", "availability"])
@pytest.mark.parametrize("pace", [td.SampledStaleness(maximum=2), td.Scripted(trips=((0.0, 1.0, 0),) * 5)])
def test_paces_that_say_themselves_when_trips_end_are_refused(pace, table):
    config = td.Config(**(BASE | {"pace": pace, "buffer": td.Buffer(size=5)}))
    other = {"network": None} if table == "availability" else {"availability": td.Always()}
    with pytest.raises(td.ConfigError, match=rf"{table}: pace.kind '{pace.kind}' says itself"):
        config.model_copy(update=other).resolved(60)


def test_a_server_ignores_what_describes_virtual_time():
    config = td.Config(**(BASE | {"pace": td.Asynchronous(concurrency=20)}))
    plain = config.model_copy(update={"network": None, "availability": td.Always()})
    served, other = (build_server(one).plan for one in (config, plain))
    assert (served.seed, served.stop, served.shapes) == (other.seed, other.stop, other.shapes)


def test_a_run_from_its_resolved_config_is_the_same(tmp_path):
    whole = td.run(td.Config(**BASE), out=tmp_path / "run")
    again = td.load_config(tmp_path / "run" / "config.toml")
    assert td.run(again).model_sha256 == whole.model_sha256


def test_a_changed_file_of_windows_is_noticed_on_resume(tmp_path):
    file = tmp_path / "windows.csv"
    file.write_text("client,start,end\n" + "".join(f"{c},0,1000\n" for c in range(60)))
    config = td.Config(**(BASE | {"availability": td.AvailabilityTrace(file=file)}))
    with pytest.raises(KeyboardInterrupt):
        td.run(config, out=tmp_path / "run", observers=(InterruptAfter(5),))
    file.write_text(file.read_text().replace("0,1000", "0,900"))
    with pytest.raises(td.ConfigError, match=r"what availability\.file holds"):
        td.run(config, out=tmp_path / "run", resume=True)
