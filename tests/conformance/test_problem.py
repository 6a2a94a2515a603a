"""The script really has what the conformance tests are meant to meet."""

from problem import BOUND, BUFFER, schedule


def test_the_script_has_every_kind_of_upload():
    arrivals = schedule()
    assert sum(a.accepted for a in arrivals) >= 40
    staleness = [a.staleness for a in arrivals]
    assert staleness.count(0) >= 2
    assert max(s for s in staleness if s <= BOUND) >= BOUND - 1
    assert any(s > BOUND for s in staleness)
    assert len(set(staleness)) >= 5
    accepted = [a for a in arrivals if a.accepted]
    buffers = [accepted[i : i + BUFFER] for i in range(0, len(accepted), BUFFER)]
    assert any(len({a.client for a in buffer}) < len(buffer) for buffer in buffers), (
        "nobody is twice in a buffer"
    )
