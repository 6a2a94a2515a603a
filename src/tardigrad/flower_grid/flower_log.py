"""The log: below Flower's own logger, so that lines appear where those of the ServerApp do."""

from __future__ import annotations

import logging

log = logging.getLogger("flwr.tardigrad")
