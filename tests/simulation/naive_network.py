"""A naive simulation of clients, networks and windows: a plain loop over all events, without any cleverness.

It is given the clients' windows and the durations of every part of a trip, and shares no code with the
planner except bookkeeping and random draws. At each moment it looks at every client.
"""

from math import inf

import numpy as np

from tardigrad.core.draws import Draws, key
from tardigrad.core.pace import Arrivals, Poisson


class NaiveSimulation:
    """One run of a pace in which clients are chosen at random."""

    def __init__(self, book, population, seed, seconds, windows=None, server_seconds=0.0):
        """`seconds(trip, client)`: of download, training and upload. `windows`: for each client a list of
        (begin, end), or None if everybody is always there."""
        self.book, self.population, self.seed, self.seconds = book, population, seed, seconds
        self.windows, self.server_seconds, self.sent = windows, server_seconds, 0.0
        self.under_way, self.busy, self.now, self.record = [], {}, 0.0, []
        self.draws = [Draws(seed, f"client/{n}", lambda r, n: r.random(n)) for n in range(16)]
        self.listing = False
        self.arrived = self.asked = 0
        self.sampled = -1

    def there(self, client):
        return self.windows is None or any(b <= self.now < e for b, e in self.windows[client])

    def eligible(self, but=()):
        everybody = range(self.population)
        return [c for c in everybody if self.there(c) and self.book.objection(c) is None and c not in but]

    def choose(self, but=()):
        """Draw clients until one is eligible; after too many draws, take one of the list."""
        eligible, trip = self.eligible(but), self.book.next_trip
        first = [draws[trip] for draws in self.draws]
        drawn = [int(u * self.population) for u in first]
        if self.windows is None:
            self.listing = len(self.book.training) > 0.9 * self.population
        else:
            random = np.random.default_rng(key(self.seed, "more clients", trip))
            drawn += random.integers(0, self.population, 1024).tolist()
        if not self.listing:
            for client in drawn:
                if client in eligible:
                    return client
        self.listing = len(eligible) <= max(64, self.population // 512)
        return eligible[int(first[0] * len(eligible))] if eligible else None

    def start(self, client):
        ticket = self.book.check_in(client, self.now)
        if not hasattr(ticket, "trip"):
            self.record.append(("refused", self.now, client))
            return
        down, compute, up = self.seconds(ticket.trip, client)
        sending = self.now
        if self.server_seconds:
            sending = max(self.now, self.sent)
            self.sent = sending + self.server_seconds
            down = max(down, self.server_seconds)
        ready = sending + down
        if self.book.pace.queues:
            ready = max(ready, self.busy.get(client, 0.0))
        end, cut = ready + compute + up, False
        if self.windows is not None:
            (closes,) = (e for b, e in self.windows[client] if b <= self.now < e)
            if closes < end:
                end, cut = closes, True
        self.busy[client] = end
        self.under_way.append((end, ticket.trip, cut))
        self.record.append(("start", self.now, ticket.trip, client, ticket.version))

    def fill_up(self):
        drawn = set()
        for _ in range(self.book.capacity()):
            client = self.choose(drawn if self.book.pace.queues else ())
            if client is None and self.book.pace.queues:
                drawn.clear()
                client = self.choose()
            if client is None:
                return
            drawn.add(client)
            self.start(client)

    def join(self):
        random = np.random.default_rng(key(self.seed, "join", self.asked))
        count = int(random.binomial(self.population, self.book.pace.probability))
        sample = random.choice(self.population, size=count, replace=False).tolist()
        self.asked += 1
        self.sampled = self.book.version
        eligible = set(self.eligible())
        for client in sample:
            if client in eligible:
                self.start(client)
        self.record.append(("joined", self.now, self.book.all_joined()))

    def end(self):
        moment, trip, cut = min(self.under_way)
        self.under_way.remove((moment, trip, cut))
        self.now = moment
        outcome = self.book.give_up(trip, moment) if cut else self.book.deliver(trip, moment)
        self.record.append((type(outcome).__name__, moment, trip, outcome.ticket.client, self.book.version))

    def next_start(self):
        """Return when clients may start next, and what happens then."""
        pace, begins = self.book.pace, [inf]
        if self.windows is not None:
            begins += [b for own in self.windows for b, _ in own if b > self.now]
        if isinstance(pace, Arrivals):
            return self.arrived / pace.rate, "arrival"
        if isinstance(pace, Poisson):
            if self.book.version <= self.sampled and self.under_way:
                return inf, ""
            return (self.now, "join") if self.eligible() else (min(begins), "look again")
        if self.book.capacity() <= 0:
            return inf, ""
        if self.eligible():
            return self.now, "fill up"
        self.listing = True  # drawing clients has found nobody
        return min(begins), "look again"

    def run(self, items):
        while len(self.record) < items:
            time, what = self.next_start()
            if self.under_way and min(self.under_way)[0] <= time:
                self.end()
            elif time == inf:
                break
            else:
                self.now = time
                if what == "fill up":
                    self.fill_up()
                elif what == "join":
                    self.join()
                elif what == "arrival":
                    self.arrived += 1
                    client = self.choose()
                    if client is not None:
                        self.start(client)
        return self.record[:items]
