"""What-if without training: the same numbers as a run would have."""

import io
import json
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

import tardigrad as td
from event_records import read_records
from tardigrad.experiments.forecast.forecast import forecast, forecasts
from tardigrad.experiments.forecast.forecast_tables import show_forecasts

BASE = {
    "data": {"kind": "synthetic", "clients": 60, "examples": 5},
    "model": {"kind": "mlp", "hidden": [4]},
    "pace": td.Asynchronous(concurrency=20),
    "buffer": td.Buffer(size=5, staleness_bound=4),
    "delay": {"kind": "log_normal", "device_spread": 1.0, "give_up": 0.1},
    "local": td.Local(steps=1),
}


def test_a_plan_says_what_the_run_does(tmp_path):
    config = td.Config(**BASE, stop=td.Stop(trips=400))
    planned = forecast(config, trips=400)
    result = td.run(config, out=tmp_path / "run")
    assert (planned.trips, planned.steps) == (result.client_trips, result.steps)
    assert planned.virtual_time == result.virtual_time
    assert planned.refused == result.refused
    assert planned.given_up == result.given_up
    uploads = [e for e in read_records(tmp_path / "run/events.jsonl") if e["event"] == "upload"]
    stale = [e["staleness"] for e in uploads if e["accepted"]]
    assert planned.staleness_mean == pytest.approx(sum(stale) / len(stale))
    assert planned.staleness_max == max(stale)
    took_part = Counter(e["client"] for e in uploads if e["accepted"])
    assert planned.clients_taking_part == len(took_part)
    assert planned.participations_max == max(took_part.values())
    # at the last event some trips are under way that the run's bytes count too
    assert planned.megabytes_per_time * planned.virtual_time * 1e6 == pytest.approx(result.bytes, rel=0.05)


@pytest.mark.parametrize("stop", [td.Stop(trips=100), td.Stop(steps=20), td.Stop(trips=100, steps=10**6)])
def test_plan_has_the_length_of_the_run(stop):
    config = td.Config(**BASE, stop=stop)
    assert forecast(config) == forecast(config, trips=100)


def test_devices_that_are_slow_for_good_show_in_a_synchronous_cohort_with_over_selection():
    # the round closes with the fastest: who is slow hardly ever counts
    pace = td.Synchronous(cohort=10, selected=20)
    settings = BASE | {"pace": pace, "buffer": td.Buffer(), "algorithm": "fedavg"}
    planned = forecast(td.Config(**settings), trips=4000)
    assert planned.fast_over_slow > 1.5
    everybody = forecast(td.Config(**(settings | {"pace": td.Synchronous(cohort=20)})), trips=4000)
    assert 0.8 < everybody.fast_over_slow < 1.25


def test_privacy_limits_are_kept_and_priced():
    privacy = {"kind": "participation", "noise_multiplier": 5.0, "participations": 2, "separation": 6}
    planned = forecast(td.Config(**BASE, privacy=privacy, stop=td.Stop(steps=20)), trips=110)
    assert planned.participations_max <= 2
    assert planned.separation_min is None or planned.separation_min >= 6
    assert planned.epsilon > 0


def test_a_grid_on_the_command_line(cli, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(td.Config(**BASE).to_toml())
    question = ("plan", file, "--trips", "2000", "--json", "--plot", tmp_path / "p.png",
                "--grid", "buffer.size=1,10", "--grid", "pace.concurrency=5,20")  # fmt: skip
    code, out, err = cli(*question)
    assert code == 0, err
    found = json.loads(out)
    assert [one["settings"] for one in found] == [
        {"buffer.size": k, "pace.concurrency": c} for k in ("1", "10") for c in ("5", "20")
    ]
    assert found[0]["staleness_mean"] < found[1]["staleness_mean"]
    assert (tmp_path / "p.png").stat().st_size > 5000
    code, _, err = cli(*question, "--grid", "buffer.size")
    assert code == 2
    assert "must be KEY=VALUE" in err


@pytest.mark.parametrize("combinations", [1, 2, 9])
def test_a_plan_is_readable_at_80_columns(combinations):
    planned = forecast(td.Config(**BASE), trips=400)
    settings = [{"buffer.size": str(10**n), "pace.concurrency": "1000000"} for n in range(combinations)]
    plans = [replace(planned, settings=own if combinations > 1 else {}) for own in settings]
    said = io.StringIO()
    show_forecasts(plans, Console(file=said, width=80))
    lines = said.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in said.getvalue()
    staleness = [line for line in lines if line.strip().startswith("staleness, mean")]
    values = [number for line in staleness for number in line.split()[2:]]
    assert values == [f"{planned.staleness_mean:,.1f}"] * combinations
    sizes = [number for line in lines if "buffer.size" in line for number in line.split()[1:]]
    assert sizes == ([str(10**n) for n in range(combinations)] if combinations > 1 else [])


def test_in_a_wide_terminal_a_plan_has_a_row_for_each_combination():
    planned = forecast(td.Config(**BASE), trips=400)
    said = io.StringIO()
    plans = [replace(planned, settings={"buffer.size": size}) for size in ("1", "10")]
    show_forecasts(plans, Console(file=said, width=120))
    rows = [line.split() for line in said.getvalue().splitlines() if line.split()[:1] in (["1"], ["10"])]
    assert [row[1] for row in rows] == [f"{planned.steps_per_time:,.2f}"] * 2


def test_without_data_there_is_nothing_to_plan(tmp_path):
    with pytest.raises(td.ConfigError, match="a plan needs to know the clients"):
        forecast(td.Config(data=None), trips=10)
    (tmp_path / "c.toml").write_text("seed = 1")
    with pytest.raises(td.ConfigError, match="unknown key 'foo'"):
        list(forecasts(tmp_path / "c.toml", ["foo=1,2"], 10))


def test_with_a_network_a_plan_shows_where_the_time_goes_and_who_is_never_there():
    windows = td.DayNight(period=10_000.0, on=5000.0, zones=4)
    settings = BASE | {"network": td.Network(upload=300.0, server_uplink=2000.0), "availability": windows}
    planned = forecast(td.Config(**settings), trips=200)
    said = io.StringIO()
    show_forecasts([planned, planned], Console(file=said, width=80))
    lines = said.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for part in ("download", "compute", "upload", "waiting"):
        assert any(part in line and f"{planned.split[part]:,.3g}" in line for line in lines), part
    assert sum(planned.split.values()) == pytest.approx(
        planned.in_flight * planned.virtual_time / 200, rel=0.2
    )
    assert 0 < planned.never_there < 60, "the plan is over before the last zone wakes up"
    assert any("never there" in line and str(planned.never_there) in line for line in lines)
