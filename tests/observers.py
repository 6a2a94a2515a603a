"""Observers of a run that several tests want."""


class InterruptAfter:
    """Ctrl-C after so many commits, of all the runs that it sees together."""

    def __init__(self, commits):
        self.left = commits

    def begin(self, config, history):
        pass

    def see(self, events):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def end(self):
        pass
