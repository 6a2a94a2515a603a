"""An operator's remedies for refusals, by their reason."""

from __future__ import annotations

from tardigrad.core.outcomes import Reason
from tardigrad.service.protocol.refusals import Cause

_UPGRADE = "Install the server's version of Tardigrad on the client."
_SAME_CODE = "Have the client build the same model, from the same file and version, as `serve --model` does."
_BY_ITSELF = "The client comes again by itself; if this lasts, look into its log."
_BROKEN = "Look into the client's log: its program, or something between it and the server, is broken."

OF_REQUESTS: dict[Cause, str] = {
    Cause.UNSIGNED: "Something that is no client of Tardigrad sends requests to this port; check the "
    "client's address, or the firewall.",
    Cause.NOT_ENROLLED: "Enroll the client under this name (`tardigrad enroll NAME --public KEY`), into the"
    " folder that `serve --keys` names; the server reads the list by itself.",
    Cause.SIGNATURE: "The client signs with another key than it is enrolled with: give it its own key "
    "(`join --key`), or remove its line from clients.txt and enroll it again.",
    Cause.MISDIRECTED: _BROKEN,
    Cause.SESSION: _BY_ITSELF,
    Cause.TIME: "The client uses the server's clock from then on; if this lasts, set the clocks of both "
    "machines.",
    Cause.REPLAYED: "Somebody repeats a client's requests, or two programs share its state: let each client"
    " run once.",
    Cause.RATE: "The client asks too often: let it run once, or raise service.requests_per_second.",
    Cause.FULL: "More uploads come than service.reception_bytes has room for: raise it, or wait.",
    Cause.SILENT: "The connection of the client is too slow or was cut; check it, or raise "
    "service.idle_seconds.",
    Cause.DISK: "Make room on the disk of the run's folder. The clients keep their uploads and come again.",
    Cause.BODY: _BROKEN,
    Cause.LENGTH: _BROKEN,
    Cause.SHAPE: _SAME_CODE,
    Cause.ENCODING: _UPGRADE,
    Cause.CODES: _BROKEN,
    Cause.VERSION: _BROKEN,
    Cause.VALUES: "The training of the client diverges: check its examples, lower local.lr or set "
    "local.gradient_clip.",
    Cause.NUMBERS: "The client claims an impossible number of examples or steps; check its data, or "
    "service.examples_bound.",
    Cause.UNSOLICITED: "The tickets of these uploads have expired: raise service.ticket_seconds if honest "
    "trips take longer.",
    Cause.NOT_YOURS: _BROKEN,
    Cause.NO_EPOCH: _UPGRADE,
    Cause.TOO_OLD: _UPGRADE,
    Cause.DUPLICATE: "Two programs deliver the same trip with other values: let each client run once, with "
    "one state folder.",
    Cause.AT_ONCE: "Two programs deliver the same trip at once: let each client run once.",
    Cause.STOPPING: _BY_ITSELF,
    Cause.FROZEN: "The frozen parts of the client's model differ from the server's, and they do not travel. "
    + _SAME_CODE,
    Cause.ENVELOPES: "The client has other keys of the helpers than the server: start it again, with the "
    "keys of this run's helpers.",
    Cause.EJECTED: "An operator has ejected this client; `tardigrad admin admit` lets it in again.",
    Cause.ACT: "An operator has asked for something that is not possible; it was told why.",
    Cause.FAILED: "This run has failed, and the server's log says why. Remove the cause and start the "
    "server again with the same command.",
    Cause.HELPER_AWAY: "Start the helper again. The clients keep their uploads and come again.",
}

OF_UPLOADS: dict[Reason, str] = {
    Reason.STALE: "Trips take longer than buffer.staleness_bound steps: raise it, or lower "
    "pace.concurrency, in the next run.",
    Reason.LATE: "The rounds close before these clients return: lower pace.cohort or raise pace.selected in"
    " the next run.",
    Reason.CONTRIBUTED: "These clients have given their share of this buffer; others must come.",
    Reason.RESTING: "These clients rest after a step that they took part in (privacy.separation); others "
    "must come.",
    Reason.FINISHED: "These clients took part as often as privacy.participations allows; others must come.",
    Reason.NORM: "Their norm is above service.norm_bound, or so large that a sum could overflow: check "
    "these clients' training, or start the server again with a larger bound.",
    Reason.OUTLIER: "Their norm is more than service.norm_multiple times the median of the others: check "
    "these clients, or start the server again with a larger multiple.",
    Reason.HELPER: "A helper of this secure run does not count them; its log says why.",
}
"""Uploads that are received are refused for no other reasons."""

_BY_REASON = {cause.value: text for cause, text in OF_REQUESTS.items()}
_BY_REASON |= {reason.value: text for reason, text in OF_UPLOADS.items()}

PASSING = frozenset(
    {Cause.SESSION, Cause.TIME, Cause.RATE, Cause.FULL, Cause.SILENT, Cause.AT_ONCE, Cause.STOPPING,
     Cause.REPLAYED, Cause.UNSOLICITED, Cause.DUPLICATE, Cause.HELPER_AWAY}
)  # fmt: skip
"""Reasons that clients get over by themselves; they are worth a word only if nothing else comes."""


def remedy_of(reason: str) -> str:
    """Return what can be done about a refusal for this reason.

    >>> remedy_of("client too old")
    "Install the server's version of Tardigrad on the client."
    """
    return _BY_REASON.get(reason, _BROKEN)
