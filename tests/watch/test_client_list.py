"""The list of clients: what is counted, and its pages."""

from collections import Counter

import pytest
from some_events import a_run

from tardigrad.core.events import CheckInRefused, TripGivenUp, UploadReceived
from tardigrad.watch import client_list
from tardigrad.watch.client_list import ORDERS, PAGE, ClientList


def listed(events):
    clients = ClientList()
    for event in events:
        if isinstance(event, UploadReceived | TripGivenUp | CheckInRefused):
            clients.take(event)
    return clients


def test_each_client_has_the_numbers_of_its_events():
    events = a_run(trips=200, clients=9)
    rows = {row["client"]: row for row in listed(events).page("", "trips", True, 0)["rows"]}
    uploads = [one for one in events if isinstance(one, UploadReceived)]
    assert len(rows) == 9
    for name, row in rows.items():
        own = [one for one in uploads if one.client == name]
        counted = [one for one in own if one.accepted]
        assert row["trips"] == len(own)
        assert row["share"] == len(counted) / sum(one.accepted for one in uploads)
        assert row["staleness"] == sum(one.staleness for one in counted) / len(counted)
        refused = Counter(one.reason for one in own if not one.accepted)
        refused += Counter(
            one.reason for one in events if isinstance(one, CheckInRefused) and one.client == name
        )
        assert row["refused"] == refused
        assert row["given_up"] == sum(isinstance(one, TripGivenUp) and one.client == name for one in events)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("down", [True, False])
def test_pages_have_every_client_once_in_order(order, down):
    clients = listed(a_run(trips=500, clients=60))
    pages = [clients.page("", order, down, number) for number in range(3)]
    assert [len(page["rows"]) for page in pages] == [PAGE, PAGE, 60 - 2 * PAGE]
    rows = [row for page in pages for row in page["rows"]]
    assert len({row["client"] for row in rows}) == 60
    if order in ("client", "trips", "share", "last", "given_up"):
        values = [row[order] for row in rows]
        assert values == sorted(values, reverse=down)


def test_search_ignores_case_and_counts_what_it_finds():
    clients = listed(a_run(trips=200, clients=30))
    found = clients.page("CLIENT-1", "client", False, 0)
    assert found["found"] == 11
    assert found["clients"] == 30
    assert clients.page("nobody", "client", False, 99)["rows"] == []


def test_a_page_that_does_not_exist_is_the_last():
    assert listed(a_run(clients=30)).page("", "trips", True, 10**6)["page"] == 1


def test_more_clients_than_can_be_listed_are_not_remembered(monkeypatch):
    monkeypatch.setattr(client_list, "MOST_CLIENTS", 5)
    clients = listed(a_run(trips=200, clients=30))
    assert len(clients) == 5
    assert clients.page("", "trips", True, 0)["unlisted"]
