"""An executor that trains in the reverse order of submission: what is needed for one more, in one file."""

from tardigrad.simulation.executors.inline import train


class ReversedExecutor:
    """Trains all submitted jobs, the last one first, when a result is requested that it does not have."""

    ahead = 50

    def __init__(self, trainer, clients):
        self.trainer, self.clients = trainer, clients
        self.jobs, self.results, self.errors = {}, {}, {}

    def publish(self, version, vectors):
        return {name: vector.clone() for name, vector in vectors.items()}

    def withdraw(self, version):
        pass

    def submit(self, job):
        self.jobs[job.task.trip] = job

    def result(self, trip):
        while trip in self.jobs:
            last, job = self.jobs.popitem()
            try:
                self.results[last] = train(self.trainer, self.clients, job)
            except Exception as error:
                self.errors[last] = error
        if trip in self.errors:
            raise self.errors.pop(trip)
        return self.results.pop(trip)

    def profile(self):
        return {}

    def close(self):
        self.jobs.clear()
