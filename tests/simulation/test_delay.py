"""Delay laws against theory, devices that differ for good, traces, and bad trace files."""

import math

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from tardigrad.data.dataset import Holders
from tardigrad.errors import ConfigError
from tardigrad.simulation.delay import (
    ConstantDelay,
    Delay,
    Durations,
    ExponentialByExamples,
    ExponentialDelay,
    HalfNormal,
    LogNormal,
    Trace,
    UniformDelay,
    read_trace,
)

DRAWS = 20_000


def clients(sizes):
    """Clients with so many examples each."""
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return Holders(torch.zeros(sum(sizes)), torch.zeros(sum(sizes)), parts)


def draw(law, sizes=(1,), client=0, n=DRAWS, seed=0):
    durations = Durations(law, clients(sizes), seed)
    return np.array([durations(trip, client) for trip in range(n)])


# law, mean, standard deviation, distribution: from the textbooks
LAWS = {
    "half normal": (
        HalfNormal(scale=2.0), 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(1 - 2 / math.pi),
        stats.halfnorm(0, 2),
    ),
    "half normal, shifted": (
        HalfNormal(scale=1.0, minimum=0.5), 0.5 + math.sqrt(2 / math.pi), math.sqrt(1 - 2 / math.pi),
        stats.halfnorm(0.5, 1),
    ),
    "uniform": (UniformDelay(low=1.0, high=4.0), 2.5, 3 / math.sqrt(12), stats.uniform(1, 3)),
    "exponential": (ExponentialDelay(mean=3.0), 3.0, 3.0, stats.expon(0, 3)),
    "log normal": (
        LogNormal(median=2.0, spread=0.5), 2 * math.exp(0.125),
        2 * math.exp(0.125) * math.sqrt(math.exp(0.25) - 1), stats.lognorm(0.5, 0, 2),
    ),
    "exponential by examples": (
        ExponentialByExamples(straggler=3.0), 3.0, 3.0, stats.expon(0, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_mean_and_shape(name):
    law, mean, deviation, distribution = LAWS[name]
    drawn = draw(law)
    assert (drawn >= 0).all()
    assert abs(drawn.mean() - mean) < 5 * deviation / math.sqrt(DRAWS)
    kurtosis = float(distribution.stats(moments="k")) + 3
    error = deviation**2 * math.sqrt((kurtosis - 1) / DRAWS)
    assert abs(drawn.var() - deviation**2) < 5 * error
    assert stats.kstest(drawn, distribution.cdf).pvalue > 1e-3


def test_constant():
    assert set(draw(ConstantDelay(duration=0.75), n=100)) == {0.75}
    assert set(draw(ConstantDelay(duration=0.0), n=100)) == {0.0}


@pytest.mark.parametrize("name", LAWS)
def test_successive_trips_are_independent(name):
    drawn = stats.rankdata(draw(LAWS[name][0]))
    correlation = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(DRAWS)


def test_exponential_by_examples_scales_with_examples():
    law = ExponentialByExamples(straggler=0.5)
    small, large = (draw(law, sizes=(3, 60), client=c) for c in (0, 1))
    assert abs(small.mean() - 1.5) < 5 * 1.5 / math.sqrt(DRAWS)
    assert abs(large.mean() - 30) < 5 * 30 / math.sqrt(DRAWS)
    # the same trip would take 20 times as long
    assert large / small == pytest.approx(np.full(DRAWS, 20.0))


# -- devices ------------------------------------------------------------------------------------------


def test_slow_device_stays_slow():
    durations = Durations(ConstantDelay(duration=2.0, device_spread=0.8), clients([1] * 50), seed=3)
    factors = [durations.factor(c) for c in range(50)]
    assert len(set(factors)) == 50
    for trip in (0, 1, 7, 5000, 100_000):
        assert [durations(trip, c) for c in range(50)] == [2.0 * f for f in factors]
    again = Durations(HalfNormal(device_spread=0.8), clients([1] * 50), seed=3)
    assert [again.factor(c) for c in range(50)] == factors


def test_devices_are_log_normal_with_median_one():
    durations = Durations(ConstantDelay(device_spread=0.8), clients([1] * 2), seed=0)
    logs = np.log([durations.factor(c) for c in range(DRAWS)])
    assert abs(logs.mean()) < 5 * 0.8 / math.sqrt(DRAWS)
    assert stats.kstest(logs, stats.norm(0, 0.8).cdf).pvalue > 1e-3


def test_without_spread_all_devices_are_alike():
    durations = Durations(HalfNormal(), clients([1] * 5), seed=0)
    assert [durations.factor(c) for c in range(5)] == [1.0] * 5
    assert len({durations(9, c) for c in range(5)}) == 1


def test_spread_and_examples_multiply():
    sizes = (2, 7, 5)
    spread = Durations(ExponentialByExamples(straggler=1.0, device_spread=0.5), clients(sizes), seed=0)
    device = Durations(ConstantDelay(device_spread=0.5), clients(sizes), seed=0)
    assert [spread.factor(c) for c in range(3)] == [device.factor(c) * sizes[c] for c in range(3)]


# -- giving up ----------------------------------------------------------------------------------------


def test_trips_are_given_up_with_the_set_probability():
    durations = Durations(HalfNormal(give_up=0.3), clients([1]), seed=0)
    share = np.mean([durations.gives_up(trip) for trip in range(DRAWS)])
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / DRAWS)


def test_no_trip_is_given_up_by_default():
    durations = Durations(HalfNormal(), clients([1]), seed=0)
    assert not any(durations.gives_up(trip) for trip in range(1000))


def test_giving_up_is_independent_of_the_duration():
    durations = Durations(ExponentialDelay(give_up=0.5), clients([1]), seed=0)
    gone = np.array([durations.gives_up(trip) for trip in range(DRAWS)])
    times = np.array([durations(trip, 0) for trip in range(DRAWS)])
    assert abs(np.corrcoef(gone, times)[0, 1]) < 5 / math.sqrt(DRAWS)


# -- seeds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAWS)
def test_a_duration_depends_on_seed_and_trip_alone(name):
    law = LAWS[name][0]
    straight = draw(law, n=200)
    durations = Durations(law, clients([1]), seed=0)
    order = np.random.default_rng(1).permutation(200)
    shuffled = {trip: durations(int(trip), 0) for trip in order}
    assert [shuffled[trip] for trip in range(200)] == straight.tolist()
    assert (draw(law, n=200, seed=1) != straight).any()


# -- traces -------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    return tmp_path / "trace.csv"


def test_a_trace_is_read(file):
    file.write_text("client,start,duration\n3,0,1.5\n0,2.25,4\n")
    assert read_trace(file, "pace.file") == [(0.0, 1.5, 3), (2.25, 4.0, 0)]


def test_columns_in_any_order_and_more_of_them(file):
    file.write_text("duration,model,client,start\n1.5,phone,3,0\n")
    assert read_trace(file, "pace.file") == [(0.0, 1.5, 3)]


def test_a_client_takes_one_of_its_own_durations(file):
    file.write_text("client,start,duration\n0,0,1\n0,9,2\n0,20,4\n1,0,10\n")
    law = Trace(file=file)
    own = draw(law, sizes=(1, 1, 1), client=0, n=6000)
    assert set(own) == {1.0, 2.0, 4.0}
    assert stats.chisquare(np.unique(own, return_counts=True)[1]).pvalue > 1e-3
    assert set(draw(law, sizes=(1, 1, 1), client=1, n=100)) == {10.0}


def test_client_without_durations_takes_one_of_any_client(file):
    file.write_text("client,start,duration\n0,0,1\n0,9,2\n0,20,4\n1,0,10\n")
    anyones = draw(Trace(file=file), sizes=(1, 1, 1), client=2, n=8000)
    assert set(anyones) == {1.0, 2.0, 4.0, 10.0}
    assert stats.chisquare(np.unique(anyones, return_counts=True)[1]).pvalue > 1e-3


BAD = {
    "missing column": ("client,duration\n0,1\n", r"has the columns client, duration; it must have client, s"),
    "no header": ("0,0,1\n1,0,1\n", "it must have client, start and duration"),
    "empty": ("", "it must have client, start and duration"),
    "no rows": ("client,start,duration\n", "has no trips"),
    "negative duration": ("client,start,duration\n0,0,1\n1,0,-2\n", r"line 3: a trip's duration.*-2"),
    "negative start": ("client,start,duration\n0,-1,1\n", r"line 2: a trip's start"),
    "negative client": ("client,start,duration\n-4,0,1\n", r"line 2: a trip's client.*-4"),
    "text in a number": (
        "client,start,duration\n0,0,1\n0,5,long\n",
        "line 3: duration is 'long'; give a num",
    ),
    "text for a client": ("client,start,duration\nann,0,1\n", r"line 2: client is 'ann'; give its number"),
    "half a client": ("client,start,duration\n0.5,0,1\n", r"line 2: .*'0\.5'"),
    "not a number": ("client,start,duration\n0,0,nan\n", r"line 2: a trip's duration"),
    "infinite": ("client,start,duration\n0,0,inf\n", r"line 2: a trip's duration"),
    "a short row": (
        "client,start,duration\n0,0,1\n1,0\n",
        "line 3: the row is too short: it has no durat",
    ),
    "an empty field": ("client,start,duration\n0,,1\n", "line 2: start is ''; give a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_traces_name_key_file_and_line(file, case):
    text, says = BAD[case]
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        Durations(Trace(file=file), clients([1]), seed=0)
    message = str(caught.value)
    assert message.startswith(f"delay.file: {file}")
    assert "\n" not in message


def test_a_missing_trace_is_named(file):
    with pytest.raises(ConfigError, match=r"delay\.file: there is no file .*trace\.csv; give a CSV"):
        Durations(Trace(file=file), clients([1]), seed=0)


def test_file_that_is_not_csv_is_named(file):
    file.write_bytes(b"\x93NUMPY\x00\xff\xfe" * 30)
    with pytest.raises(ConfigError, match=r"delay\.file: .*trace\.csv"):
        Durations(Trace(file=file), clients([1]), seed=0)


def test_file_of_one_very_long_line_is_named(file):
    file.write_bytes(b"x" * 200_000)
    with pytest.raises(ConfigError, match=r"delay\.file: .*trace\.csv"):
        Durations(Trace(file=file), clients([1]), seed=0)


# -- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"kind": "half_normal", "scale": 0}, "scale"),
        ({"kind": "half_normal", "minimum": -1}, "minimum"),
        ({"kind": "uniform", "low": 3, "high": 2}, r"high must be at least low \(3\); 2 was given"),
        ({"kind": "uniform", "low": -1}, "low"),
        ({"kind": "exponential", "mean": 0}, "mean"),
        ({"kind": "log_normal", "spread": 0}, "spread"),
        ({"kind": "exponential_by_examples", "straggler": -1}, "straggler"),
        ({"kind": "constant", "duration": -1}, "duration"),
        ({"kind": "constant", "duration": float("inf")}, "duration"),
        ({"kind": "constant", "give_up": 1.0}, "give_up"),
        ({"kind": "constant", "device_spread": -0.1}, "device_spread"),
        ({"kind": "trace"}, "file"),
        ({"kind": "normal"}, "kind"),
    ],
)
def test_bad_settings_name_the_key(value, says):
    with pytest.raises(ValidationError, match=says):
        TypeAdapter(Delay).validate_python(value)
