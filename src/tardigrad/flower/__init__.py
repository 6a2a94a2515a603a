"""For apps of Flower: asynchronous algorithms in a ServerApp, on Flower's own grid (docs/flower.md).

`AsyncStrategy` takes the place of a strategy of Flower. The names are imported when they are used, because
they need the extra `flower`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tardigrad.flower.requirement import check_flower

if TYPE_CHECKING:
    from tardigrad.flower.app_trainer import replay as replay
    from tardigrad.flower.app_trainer import simulate as simulate
    from tardigrad.flower.client_half import ClientHalf as ClientHalf
    from tardigrad.flower.declared_app import ServedApp as ServedApp
    from tardigrad.flower.strategy import AsyncStrategy as AsyncStrategy

_PLACES = {
    "AsyncStrategy": "strategy",
    "ClientHalf": "client_half",
    "ServedApp": "declared_app",
    "replay": "app_trainer",
    "simulate": "app_trainer",
}

__all__ = ["AsyncStrategy", "ClientHalf", "ServedApp", "replay", "simulate"]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_flower()
    return getattr(import_module(f"tardigrad.flower.{_PLACES[name]}"), name)
