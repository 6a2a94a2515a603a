"""Settings of availability, and files of windows."""

import pytest

from tardigrad.core.setting_errors import SettingError
from tardigrad.errors import ConfigError
from tardigrad.simulation.availability import DayNight, read_windows
from tardigrad.simulation.delay import read_trace
from tardigrad.simulation.network import read_bandwidths


def test_windows_that_touch_or_overlap_become_one(tmp_path):
    file = tmp_path / "windows.csv"
    file.write_text("client,start,end\n1,5,7\n1,0,2\n1,2,3\n1,6,9\n0,1,2\n")
    assert read_windows(file, 2) == {1: [(0.0, 3.0), (5.0, 9.0)], 0: [(1.0, 2.0)]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,start\n0,1\n", "must have client, start and end"),
        ("client,start,end\n", "has no windows"),
        ("client,start,end\n0,2,2\n", "line 2: a window must begin at 0 or later and end after that"),
        ("client,start,end\n0,-1,2\n", "line 2: a window must begin"),
        ("client,start,end\n0,1,inf\n", "line 2: a window must begin"),
        ("client,start,end\n9,1,2\n", "line 2: client is 9, but the clients are 0 to 4"),
        ("client,start,end\nbob,1,2\n", "line 2: client is 'bob'"),
        ("client,start,end\n0,1\n", "line 2: the row is too short: it has no end"),
    ],
)
def test_malformed_files_are_refused_with_their_line(tmp_path, text, said):
    file = tmp_path / "windows.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_windows(file, 5)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"availability\.file: there is no file"):
        read_windows(tmp_path / "none.csv", 5)


def test_a_window_longer_than_the_day_is_refused():
    with pytest.raises(SettingError, match="on must be at most period"):
        DayNight(period=5.0, on=6.0)


def test_trace_files_of_spreadsheets_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "windows.csv"
    file.write_text("client,start,end\n0,1,2\n", encoding="utf-8-sig")
    assert read_windows(file, 1) == {0: [(1.0, 2.0)]}
    file.write_text("client,upload\n0,5\n", encoding="utf-8-sig")
    assert read_bandwidths(file, "upload") == {0: 5.0}
    file.write_text("client,start,duration\n0,1,2\n", encoding="utf-8-sig")
    assert read_trace(file, "delay.file") == [(1.0, 2.0, 0)]
