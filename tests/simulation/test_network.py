"""Bandwidths: laws over clients, devices, files, and what is refused."""

import math

import numpy as np
import pytest
from test_planner import crowd

from tardigrad.core.setting_errors import SettingError
from tardigrad.errors import ConfigError
from tardigrad.simulation.delay import ConstantDelay
from tardigrad.simulation.device_profiles import DEVICES, MIXES
from tardigrad.simulation.network import (
    SLOWEST,
    BandwidthTrace,
    Links,
    LogNormalBandwidth,
    Network,
    TripBytes,
    durations_of,
)

SIZE = TripBytes(down=1000, up=500)


def seconds(network, clients=2000, seed=0):
    links = Links(network, seed, SIZE)
    return np.array([links.seconds(client) for client in range(clients)])


def test_constant_bandwidths_by_hand():
    assert seconds(Network(download=100, upload=50, latency=0.25), 3).tolist() == [[10.25, 10.25]] * 3


def test_the_missing_direction_is_ten_times_as_fast_down_as_up():
    assert seconds(Network(download=100), 1).tolist() == [[10.0, 50.0]]
    assert seconds(Network(upload=10), 1).tolist() == [[10.0, 50.0]]


def test_log_normal_bandwidths_have_their_median_and_spread_and_are_independent_in_both_directions():
    law = LogNormalBandwidth(median=200.0, spread=0.8)
    down, up = np.log(np.array([1000, 500]) / seconds(Network(download=law, upload=law), 20_000)).T
    for logs in (down, up):
        assert logs.mean() == pytest.approx(math.log(200.0), abs=4 * 0.8 / math.sqrt(20_000))
        assert logs.std() == pytest.approx(0.8, rel=0.03)
    assert abs(np.corrcoef(down, up)[0, 1]) < 4 / math.sqrt(20_000)


def test_a_client_has_the_same_bandwidth_whoever_asks_first_and_another_with_another_seed():
    network = Network(upload=LogNormalBandwidth(median=200.0))
    there, back = Links(network, 1, SIZE), Links(network, 1, SIZE)
    asked = [there.seconds(client) for client in range(0, 9000, 1000)]
    assert [back.seconds(client) for client in reversed(range(0, 9000, 1000))] == asked[::-1]
    assert Links(network, 2, SIZE).seconds(0) != asked[0]


def test_bytes_change_the_time_and_not_the_bandwidth():
    network = Network(upload=LogNormalBandwidth(median=200.0))
    whole, quarter = (Links(network, 0, TripBytes(1000, size)) for size in (4000, 1000))
    assert whole.seconds(5)[1] == pytest.approx(4 * quarter.seconds(5)[1])
    assert whole.seconds(5)[0] == quarter.seconds(5)[0]


def test_a_file_has_the_bandwidths_of_its_clients_and_random_rows_for_others(tmp_path):
    file = tmp_path / "rates.csv"
    file.write_text("client,download,upload\n0,100,10\n2,400,40\n")
    found = seconds(Network(download=BandwidthTrace(file=file), upload=BandwidthTrace(file=file)), 300)
    rates = np.array([1000, 500]) / found
    assert rates[0].tolist() == [100.0, 10.0]
    assert rates[2].tolist() == [400.0, 40.0]
    assert {tuple(row) for row in rates.tolist()} == {(100.0, 10.0), (400.0, 40.0)}, "both from one row"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,upload\n0,1\n", "must have client and download"),
        ("client,download\n", "has no rows"),
        ("client,download\n0,0\n", "line 2: a bandwidth must be 0.001 or more"),
        ("client,download\n0,1e-320\n", "line 2: a bandwidth must be 0.001 or more"),
        ("client,download\n0,nan\n", "line 2: a bandwidth must be 0.001 or more"),
        ("client,download\n0,1\n0,2\n", "line 3: client 0: give one row for each"),
        ("client,download\n-1,2\n", "line 2: client -1"),
        ("client,download\nann,2\n", "line 2: client is 'ann'"),
        ("client,download\n3\n", "line 2: the row is too short: it has no download"),
    ],
)
def test_malformed_bandwidth_files_are_refused_with_their_line(tmp_path, text, said):
    file = tmp_path / "rates.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        Links(Network(download=BandwidthTrace(file=file)), 0, SIZE)
    with pytest.raises(ConfigError, match="there is no file"):
        Links(Network(download=BandwidthTrace(file=tmp_path / "none.csv")), 0, SIZE)


def test_devices_have_their_shares_bandwidths_and_compute_factors():
    network = Network(profile={"old_phone": 1.0, "server": 3.0}, latency=0.0)
    factors = durations_of(ConstantDelay(duration=2.0), network, crowd(2), 0)
    drawn = np.array([factors(0, client) for client in range(8000)])
    old, server = 2.0 * DEVICES["old_phone"].compute, 2.0 * DEVICES["server"].compute
    assert set(drawn.tolist()) == {old, server}
    assert (drawn == server).mean() == pytest.approx(0.75, abs=0.02)
    down, up = (np.array([1000, 500]) / seconds(network, 8000)).T
    for device in ("old_phone", "server"):
        own = drawn == 2.0 * DEVICES[device].compute
        assert np.median(down[own]) == pytest.approx(DEVICES[device].download, rel=0.05)
        assert np.median(up[own]) == pytest.approx(DEVICES[device].upload, rel=0.05)


def test_every_mix_is_of_known_devices_and_every_device_is_asymmetric_or_equal():
    for mix in MIXES:
        assert sum(Network(profile=mix).devices().values()) == pytest.approx(1.0)
    assert all(device.upload <= device.download for device in DEVICES.values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "give either the clients' bandwidth"),
        ({"profile": "phones", "upload": 5}, "give either the clients' bandwidth"),
        ({"profile": "toasters"}, "no device 'toasters'; known are old_phone"),
        ({"profile": {}}, "no device in it"),
        ({"download": 0}, "greater than or equal to 0.001"),
        ({"upload": 5, "latency": -1}, "latency"),
    ],
)
def test_networks_that_cannot_be_are_refused(settings, said):
    with pytest.raises(SettingError, match=said):
        Network(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"upload": 1e-320}, "upload.*0.001"),
        ({"upload": {"kind": "log_normal", "median": 1000, "spread": 800}}, "spread.*10"),
        ({"upload": 1000, "latency": 1e308}, "latency"),
        ({"upload": 1000, "server_uplink": 1e-300}, "server_uplink.*0.001"),
    ],
)
def test_networks_whose_times_would_not_be_finite_are_refused(settings, said):
    with pytest.raises(SettingError, match=said):
        Network(**settings)


def test_times_on_the_slowest_network_are_finite():
    slowest = LogNormalBandwidth(median=SLOWEST, spread=10)
    links = Links(Network(upload=slowest), seed=0, size=TripBytes(10**12, 10**12))
    assert all(math.isfinite(seconds) for client in range(1000) for seconds in links.seconds(client))
