"""A store that fails on purpose."""

from tardigrad.service.store.contract import StoreError


class FailingStore:
    """Passes all calls on to another store, but raises a `StoreError` in place of every n-th call of one of
    its methods."""

    def __init__(self, store, method, every):
        self._store, self._method, self._every = store, method, every
        self.calls = self.failures = 0

    def __getattr__(self, name):
        found = getattr(self._store, name)
        return self._failing if name == self._method else found

    def _failing(self, *given):
        self.calls += 1
        if self.calls % self._every == 0:
            self.failures += 1
            raise StoreError("the store fails on purpose")
        return getattr(self._store, self._method)(*given)
