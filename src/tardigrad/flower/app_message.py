"""Messages for ClientApps that are called in this process, without a run of Flower.

This is the only place that uses something of Flower that is not documented: the parameter `metadata` of
`Message`. A message to a node can be made in no other way where no SuperLink has started the process.
"""

from __future__ import annotations

import time
from importlib.metadata import version as version_of

from flwr.app import Message, Metadata, RecordDict

from tardigrad.errors import ConfigError
from tardigrad.flower.requirement import OLDEST, TESTED
from tardigrad.flower_grid.carrier import Kind

DAY = 86400.0


def app_message(kind: Kind, content: RecordDict, node: int, version: int, trip: int) -> Message:
    """Return a message as a SuperNode gives it to a ClientApp."""
    try:
        metadata = Metadata(
            run_id=0, message_id=str(trip), src_node_id=1, dst_node_id=node, reply_to_message_id="",
            group_id=str(version), created_at=time.time(), ttl=DAY, message_type=kind,
        )  # fmt: skip
        return Message(content=content, metadata=metadata)
    except TypeError as error:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (OLDEST, TESTED))
        raise ConfigError(
            f"Flower {version_of('flwr')} makes messages in another way than the versions that were tested "
            f"({error}); install one from {oldest} to {newest}: pip install 'flwr=={newest}.*'"
        ) from None
