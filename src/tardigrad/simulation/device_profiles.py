"""Devices for `network.profile`: how fast typical devices compute, download and upload.

Bandwidths are means of Ookla's Speedtest Global Index (www.speedtest.net/global-index). The compute factors
are round numbers of our own; phones lie within the factor of ten that FedScale reports (arXiv:2105.11367,
from AI Benchmark). docs/network.md says which number is from where.
"""

from __future__ import annotations

from typing import NamedTuple

MEGABIT = 125_000.0
"""Bytes per second of one megabit per second."""
SPREAD = 0.5
"""Standard deviation of the logarithm of a client's bandwidth over that of its device."""
LATENCY = 0.04
"""Seconds; the mean of mobile networks in the index."""


class DeviceProfile(NamedTuple):
    """One kind of device."""

    compute: float
    """The factor of training times; that of a new phone is 1."""
    download: float
    """Bytes per second."""
    upload: float
    """Bytes per second."""


DEVICES = {
    "old_phone": DeviceProfile(5.0, 20.3 * MEGABIT, 6.3 * MEGABIT),
    "new_phone": DeviceProfile(1.0, 36.0 * MEGABIT, 11.2 * MEGABIT),
    "laptop": DeviceProfile(0.5, 85.7 * MEGABIT, 45.7 * MEGABIT),
    "edge_box": DeviceProfile(2.0, 85.7 * MEGABIT, 45.7 * MEGABIT),
    "server": DeviceProfile(0.1, 1000.0 * MEGABIT, 1000.0 * MEGABIT),
}
MIXES: dict[str, dict[str, float]] = {
    "phones": {"old_phone": 0.4, "new_phone": 0.6},
    "devices": {"old_phone": 0.3, "new_phone": 0.5, "laptop": 0.2},
}
"""Shares of the clients that have each device."""
