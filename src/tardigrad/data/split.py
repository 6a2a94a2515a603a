"""Set examples aside for evaluation: whole clients, or a share of each client's examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError


class Aside(Setting):
    """A share of the training examples that is set aside for evaluation.

    >>> Aside(share=0.1, by="client")
    Aside(share=0.1, by='client')
    """

    share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the clients, or of each client's examples."""
    by: Literal["client", "example"] = "example"
    """client: some clients do not train at all. example: each client trains on fewer examples."""

    def take(
        self, parts: Sequence[np.ndarray], random: np.random.Generator
    ) -> tuple[list[np.ndarray], list[int], np.ndarray]:
        """Return the parts left for training, the numbers of their clients, and the examples set aside.

        `parts` has the example indices of each client. At least one client (or example) is set aside, and
        every client that trains keeps at least one example.
        """
        if self.by == "client":
            kept, aside = self._clients(len(parts), random)
            return [parts[c] for c in kept], kept, _sorted([parts[c] for c in aside])
        left, back = [], []
        for part in parts:
            order = random.permutation(part)
            # The share is exact on average: of clients with five examples, a tenth means one example
            # for every second client.
            count = min(math.floor(self.share * len(part) + random.random()), len(part) - 1)
            back.append(order[:count])
            left.append(np.sort(order[count:]))
        aside_examples = _sorted(back)
        if len(aside_examples) == 0:
            raise ConfigError(
                f"data: a share of {self.share:g} of each client's examples is nothing at all; "
                "give more, or set it aside by = 'client'"
            )
        return left, list(range(len(parts))), aside_examples

    def _clients(self, clients: int, random: np.random.Generator) -> tuple[list[int], list[int]]:
        if clients < 2:
            raise ConfigError("data: there is one client, so none can be set aside; use by = 'example'")
        count = min(max(1, round(self.share * clients)), clients - 1)
        order = random.permutation(clients)
        return np.sort(order[count:]).tolist(), np.sort(order[:count]).tolist()


def _sorted(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate(parts)).astype(np.int64)


def _share_table(value: object) -> object:
    return {"share": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


SetAside = Annotated[Aside, BeforeValidator(_share_table, json_schema_input_type=float | Aside)]
"""The type of a setting in which `0.1` is short for `{share = 0.1}`."""
