"""A layer that makes each step wait until somebody lets it go on."""

import threading

from tardigrad.algorithms.layers import UploadLayer


class WaitingLayer(UploadLayer):
    """Steps from versions below `open_to`, and those that were let, can be made."""

    name = "waiting"

    def __init__(self, open_to=0):
        self._open_to, self._let, self._callbacks = open_to, set(), []
        self._changed = threading.Condition()
        self._stopped = False
        self.waited_for = []
        """Versions whose buffers were closed."""

    def closed(self, buffer, version):
        with self._changed:
            self.waited_for.append(version)
            self._changed.notify_all()

    def ready(self, version):
        return version < self._open_to or version in self._let

    def notify(self, ready):
        self._callbacks.append(ready)

    def let(self, version):
        """The step from this version can be made."""
        self._let.add(version)
        for callback in self._callbacks:
            callback()

    def let_all_that_wait(self):
        """Let each step go on after it was closed, until stopped. For a thread."""
        done = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or len(self.waited_for) > done)  # noqa: B023
                if self._stopped:
                    return
                version = self.waited_for[done]
            done += 1
            self.let(version)

    def stop(self):
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
