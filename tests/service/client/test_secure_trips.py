"""A client of a secure run hides its uploads, and stops when the server lies, before anything is sent."""

import asyncio
import base64
import json

import numpy as np
import pytest
import torch
from scripted_secure_server import (
    GRID,
    SEED,
    SETTINGS,
    START,
    Helper,
    Script,
    other_model,
    policy_of,
    scripted,
    scripted_client,
)
from service_harness import PATIENCE, app_of
from upload_clients import SIMULATION

import tardigrad as td
from tardigrad.core.upload import Task, Upload
from tardigrad.encodings.common_grid import Grid
from tardigrad.errors import ConfigError, RunError, TardigradError
from tardigrad.secure.helper_refusals import RESEAL
from tardigrad.secure.masks import SALT
from tardigrad.secure.policy import HelperNoise, declared_digest
from tardigrad.secure.receipts import Receipt, sign_receipt
from tardigrad.service.client.client_memory import ClientMemory, TrainedUpload
from tardigrad.service.client.client_trainer import Assignment, ClientTrainer
from tardigrad.service.protocol.task_settings import to_json
from tardigrad.service.protocol.v1 import service_pb2 as v1

HELPER, SECOND, STRANGER = Helper(), Helper(), Helper()


def took_part(script, state, helpers=None, seen=lambda line: None, **demands):
    """A client takes part; return the server, and why the run ended or the client's error."""

    async def scene():
        async with scripted(script) as (server, address):
            client = scripted_client(
                address, state, script.helpers if helpers is None else helpers, seen, **demands
            )
            try:
                return server, await asyncio.wait_for(client.take_part(), PATIENCE)
            except TardigradError as error:
                return server, error

    return asyncio.run(scene())


def honest(*tasks, helpers=(HELPER,), **changes):
    """The script of a server that does not lie yet."""
    return Script(list(helpers), policy_of(helpers, **changes), tasks=list(tasks) or [{}])


def plain_codes(trip):
    """The codes of a trip of the scripted server, as a client has them before it masks them."""
    assignment = Assignment(Task(trip, "ann", 0, START), SEED, SETTINGS, False, 1)
    finished = ClientTrainer("ann", app_of(SIMULATION, 0)).train(assignment, {})
    return finished.upload.vectors["delta/codes"].numpy()


@pytest.mark.parametrize("helpers", [(HELPER,), (HELPER, SECOND)], ids=["one helper", "two helpers"])
def test_only_all_helpers_together_can_take_the_masks_off_an_upload(helpers, tmp_path):
    script = honest({}, {"version": 1}, helpers=helpers)
    server, ended = took_part(script, tmp_path)
    assert ended == "the script is over"
    assert len(server.bodies) == 2
    for trip in range(2):
        codes = server.codes(trip)
        assert np.array_equal(codes, plain_codes(trip))
        hidden = np.frombuffer(server.bodies[trip][: -SALT.length], np.int32)
        assert np.count_nonzero(codes == hidden) < 3
    assert server.bodies[0] != server.bodies[1]


def test_header_says_nothing_about_losses_examples_steps_and_metrics(tmp_path):
    server, _ = took_part(honest({}, {"version": 1}), tmp_path)
    for header in server.headers:
        assert (header.examples, header.steps, header.loss, header.evaluated) == (1, 1, 0.0, 0)
        assert dict(header.metrics) == {}
        assert [(v.name, v.dtype) for v in header.vectors] == [("delta/codes", "int32"), ("salt", "uint8")]
        assert header.encoding == GRID.kind


def test_same_training_is_masked_differently_every_time(tmp_path):
    first, _ = took_part(honest(), tmp_path / "one")
    second, _ = took_part(honest(), tmp_path / "other")
    assert first.headers[0].digest != second.headers[0].digest
    assert np.array_equal(first.codes(0), second.codes(0))


def test_seeds_are_sealed_with_the_hybrid_where_the_policy_says_so(tmp_path):
    helper = Helper(post_quantum=True)
    server, ended = took_part(honest(helpers=(helper,), post_quantum=True), tmp_path)
    assert ended == "the script is over"
    assert np.array_equal(server.codes(0), plain_codes(0))


def test_upload_that_was_sealed_to_an_old_key_is_sealed_again(tmp_path):
    script = honest()
    script.answers = [RESEAL]
    server, ended = took_part(script, tmp_path)
    assert ended == "the script is over"
    assert server.bodies[0] == server.bodies[1]
    assert server.headers[0].envelopes[0].sealed != server.headers[1].envelopes[0].sealed
    assert np.array_equal(server.codes(1), plain_codes(0))
    assert server.calls.count("FetchTask") == 2


def test_client_delivers_again_for_as_long_as_a_helper_is_away(tmp_path):
    script = honest()
    script.away = 4
    server, ended = took_part(script, tmp_path, patience=0.0)
    assert ended == "the script is over"
    assert len(server.bodies) == 5
    assert len({*server.bodies}) == 1
    assert np.array_equal(server.codes(4), plain_codes(0))
    assert server.calls.count("FetchTask") == 2


def test_finished_upload_is_kept_with_its_seeds_and_sealed_after_a_restart(tmp_path):
    script = honest()
    script.keys = []  # the helpers' keys cannot be had, so that the client stops before it delivers
    server, error = took_part(script, tmp_path)
    assert isinstance(error, RunError)
    assert server.calls == ["Join", "FetchTask", "OfferKeys"]
    (kept,) = ClientMemory(tmp_path / "the-run").pending()
    script.keys, script.tasks = None, []
    server, ended = took_part(script, tmp_path)
    assert ended == "the script is over"
    assert server.calls == ["Join", "OfferKeys", "Deliver", "FetchTask"]
    assert server.bodies[0] == b"".join(v.numpy().tobytes() for v in kept.upload.vectors.values())
    assert np.array_equal(server.codes(0), plain_codes(0))
    assert ClientMemory(tmp_path / "the-run").pending() == []


def test_upload_of_a_plain_run_is_never_sent_in_a_secure_one(tmp_path):
    upload = Upload({"delta/codes": torch.zeros(len(START["model"]), dtype=torch.int32)}, 5, 2, 0.5)
    ClientMemory(tmp_path / "the-run").keep(TrainedUpload(0, 0, upload, {}, {}, 0, 1, "grid"))
    server, error = took_part(honest(), tmp_path)
    assert isinstance(error, RunError)
    assert "trip 0 is not masked for this run, so it is not sent" in str(error)
    assert "Deliver" not in server.calls


# -- lies of the server: the client stops with a sentence, and has sent nothing ------------------------


CLIPPED = Grid(uploads=2, clip=1.0)
NORM = CLIPPED.norm(len(START["model"]))
NOISE = {
    "mechanism": td.Independent(), "deviation": NORM * GRID.denominator, "steps": 5, "allowed": 5,
    "noise_multiplier": 1.0, "epsilon": 8.0, "delta": 1e-6,
}  # fmt: skip


def noisy(**changes):
    """The script of a server whose helper adds noise."""
    settings = to_json(td.FedBuff(), td.Local(steps=2), encoding=CLIPPED)
    noise = HelperNoise(**NOISE | changes)
    return honest(noise=noise, norm=NORM, limits=(1, 1), settings=settings)


def forged(script):
    return [sign_receipt(one.receipt, STRANGER.key) for one in script.receipt(0)]


def of_another_run(script):
    return script.receipt(0, run="another-run")


LIES = {
    "a forged receipt": (honest({"receipts": forged}), "is not signed by helper 1"),
    "no receipt": (honest({"receipts": lambda script: []}), "version 0 has 0 receipts, but there are 1"),
    "a receipt of another run": (honest({"receipts": of_another_run}), "is of the run another-run"),
    "a receipt of another policy": (
        honest({"receipts": lambda script: script.receipt(0, policy="0" * 64)}),
        "of the policy 0000000000000000",
    ),
    "a receipt of another version": (
        honest({"version": 1, "receipts": lambda script: script.receipt(2)}),
        "the receipt is of version 2 of",
    ),
    "another model": (
        honest({"vectors": other_model()}),
        "the server sent another model as version 0 than the helpers have signed",
    ),
    "another beginning": (
        honest({"receipts": lambda script: script.receipt(0, vectors=other_model())}),
        "is not of the model that the policy begins with",
    ),
    "other settings in the task": (
        honest({"settings": to_json(td.FedBuff(), td.Local(steps=200), encoding=GRID)}),
        "has other settings than the policy that the helpers have signed",
    ),
    "a helper that says something else": (
        honest(
            {
                "receipts": lambda script: [
                    script.receipt(0)[0], script.receipt(0, vectors=other_model())[1],
                ]
            },
            helpers=(HELPER, SECOND),
        ),
        "there are two histories of the run: this client has seen version 0",
    ),
    "a vector of another length": (
        honest(vectors=({"name": "delta", "length": 3},)), "the policy names {'delta': 3}"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("script", "sentence"), LIES.values(), ids=LIES)
def test_client_stops_at_a_lie_of_a_task_and_has_sent_nothing(script, sentence, tmp_path):
    server, error = took_part(script, tmp_path)
    assert isinstance(error, RunError)
    assert sentence in str(error)
    assert not {"Deliver", "OfferKeys"} & {*server.calls}


def test_policy_that_the_pinned_helper_has_not_signed_is_refused(tmp_path):
    script = honest()
    script.signed = [STRANGER]
    server, error = took_part(script, tmp_path)
    assert isinstance(error, ConfigError)
    assert str(error) == (
        f"the policy of the run is not signed by the helper {HELPER.identity}, so nothing is trained"
    )
    assert server.calls == ["Join"]


@pytest.mark.parametrize(
    "change",
    [{"step": 2 * GRID.step}, {"bits": 16}, {"denominator": 1}, {"largest": 1}, {"norm": 1.0},
     {"settings": to_json(td.FedBuff(), td.Local())}],
    ids=["step", "bits", "denominator", "largest", "norm", "no grid"],
)  # fmt: skip
def test_policy_whose_settings_ask_for_another_grid_is_refused(change, tmp_path):
    server, error = took_part(honest(**change), tmp_path)
    assert isinstance(error, ConfigError)
    assert "ask for another grid than the policy has" in str(error)
    assert server.calls == ["Join"]


def test_server_whose_settings_are_not_the_signed_ones_is_refused(tmp_path):
    script = honest()
    script.joined = {"settings": to_json(td.FedBuff(), td.Local(steps=9), encoding=GRID)}
    server, error = took_part(script, tmp_path)
    assert "run or settings are not those of the policy" in str(error)
    assert server.calls == ["Join"]


@pytest.mark.parametrize("run", ["../elsewhere", "/tmp/elsewhere", "..", ""])
def test_run_whose_identifier_is_no_name_writes_nothing(run, tmp_path):
    state = tmp_path / "deep" / "state"
    server, error = took_part(honest(run=run), state)
    assert isinstance(error, RunError)
    assert "which is not a name" in str(error)
    assert server.calls == ["Join"]
    assert list(tmp_path.iterdir()) == []


def test_policy_without_the_signature_of_every_helper_is_refused(tmp_path):
    script = honest(helpers=(HELPER, SECOND))
    script.signed = [HELPER]
    server, error = took_part(script, tmp_path)
    assert "the policy of the run has 1 signatures of 2 helpers" in str(error)
    assert server.calls == ["Join"]


GUARDED = {
    "a swapped helper": (honest(helpers=(STRANGER,)), {}, "which this client does not trust"),
    "a helper too many": (honest(helpers=(HELPER, STRANGER)), {}, "which this client does not trust"),
    "too few clients": (honest(), {"least_clients": 3}, "releases sums of 2 clients"),
    "too great a weight": (honest(), {"most_weight": 64}, "weigh up to 256"),
    "no noise": (honest(), {"most_epsilon": 1.0}, "nobody adds noise in this run"),
    "too great an epsilon": (
        noisy(), {"most_epsilon": 7.0}, "has an epsilon of 8,"
    ),
    "a smaller epsilon than the noise gives": (
        noisy(epsilon=1.0), {},
        "promises an epsilon of 1, but its noise gives",
    ),
    "a small epsilon at a large delta": (
        noisy(delta=0.9), {"most_epsilon": 9.0}, "at a delta of 0.9",
    ),
    "noise that everybody knows": (
        noisy(seed=3), {"most_epsilon": 9.0}, "drawn from a seed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("script", "demands", "sentence"), GUARDED.values(), ids=GUARDED)
def test_run_outside_the_guardrails_is_not_trained(script, demands, sentence, tmp_path):
    server, error = took_part(script, tmp_path, helpers=[HELPER], **demands)
    assert isinstance(error, ConfigError)
    assert sentence in str(error)
    assert server.calls == ["Join"]


@pytest.mark.parametrize("signed", ["", "other columns"], ids=["nothing", "other columns"])
def test_client_made_of_a_declaration_that_the_policy_does_not_name_is_not_trained(signed, tmp_path):
    script = honest(declaration=declared_digest(signed))
    server, error = took_part(script, tmp_path, declaration="columns and model")
    assert isinstance(error, ConfigError)
    assert "the server declared other columns, or another model, than the policy" in str(error)
    assert server.calls == ["Join"]


def test_client_made_of_the_declaration_that_the_policy_names_is_trained(tmp_path):
    script = honest(declaration=declared_digest("columns and model"))
    assert took_part(script, tmp_path, declaration="columns and model")[1] == "the script is over"


def test_run_within_the_guardrails_is_trained(tmp_path):
    script = noisy()
    demands = {"least_clients": 2, "most_weight": 256, "most_epsilon": 8.0}
    assert took_part(script, tmp_path, **demands)[1] == "the script is over"


def test_run_without_a_helper_that_the_client_demands_is_refused(tmp_path):
    server, error = took_part(honest(), tmp_path, helpers=[HELPER, SECOND])
    assert f"the run does without the helper {SECOND.identity}" in str(error)
    assert server.calls == ["Join"]


def test_client_without_pinned_helpers_refuses_a_secure_run_and_says_how_to_pin_them(tmp_path):
    server, error = took_part(honest(helpers=(HELPER, SECOND)), tmp_path, helpers=[])
    assert isinstance(error, ConfigError)
    assert "this run is secure and has 2 helpers, but this client trusts none" in str(error)
    assert "--helper IDENTITY" in str(error)
    assert HELPER.identity not in str(error)
    assert server.calls == ["Join"]


def test_client_with_pinned_helpers_refuses_a_run_that_is_not_secure(tmp_path):
    script = honest()
    script.secure = False
    server, error = took_part(script, tmp_path)
    assert isinstance(error, ConfigError)
    assert "takes part in secure runs only" in str(error)
    assert server.calls == ["Join"]


def test_policy_that_changes_in_the_middle_stops_the_client(tmp_path):
    assert took_part(honest(), tmp_path)[1] == "the script is over"
    server, error = took_part(honest(least_clients=3), tmp_path)
    assert "the policy of the run was changed" in str(error)
    assert server.calls == ["Join"]


def test_older_version_than_one_seen_stops_the_client_even_after_a_restart(tmp_path):
    assert took_part(honest({"version": 2}), tmp_path)[1] == "the script is over"
    server, error = took_part(honest({"version": 1}), tmp_path)
    assert "the server gave version 1, but this client has seen version 2" in str(error)
    assert "Deliver" not in server.calls


def other_history(version):
    """Receipts of a version that was made of another version before it."""
    return lambda script: script.receipt(version, previous="f" * 64)


@pytest.mark.parametrize("version", [3, 4], ids=["of the same version", "of the next version"])
def test_client_that_sees_two_receipts_stops_for_good_and_shows_both(version, tmp_path):
    assert took_part(honest({"version": 3}), tmp_path)[1] == "the script is over"
    script = honest({"version": version, "receipts": other_history(version)})
    server, error = took_part(script, tmp_path)
    assert "there are two histories of the run" in str(error)
    assert "Deliver" not in server.calls
    proof = json.loads((tmp_path / "the-run" / "two-histories.json").read_text())
    for shown, expected in ((proof["seen"], 3), (proof["given"], version)):
        (one,) = shown
        HELPER.key.public_key().verify(base64.b64decode(one["signature"]), one["receipt"].encode())
        assert json.loads(one["receipt"].split("\n")[1])[1] == expected
    server, error = took_part(honest({"version": 4}), tmp_path)  # an honest server does not heal it
    assert "this client has seen two histories of the run, and stopped" in str(error)
    assert server.calls == ["Join"]


def test_two_helpers_that_sign_different_histories_stop_the_client_for_good(tmp_path):
    def different(script):
        return [script.receipt(3)[0], script.receipt(3, previous="f" * 64)[1]]

    helpers = (HELPER, SECOND)
    server, error = took_part(honest({"version": 3, "receipts": different}, helpers=helpers), tmp_path)
    assert "there are two histories of the run" in str(error)
    assert "Deliver" not in server.calls
    proof = json.loads((tmp_path / "the-run" / "two-histories.json").read_text())
    for (one,), helper in zip((proof["seen"], proof["given"]), helpers, strict=True):
        helper.key.public_key().verify(base64.b64decode(one["signature"]), one["receipt"].encode())
    _, error = took_part(honest({"version": 3}, helpers=helpers), tmp_path)
    assert "this client has seen two histories of the run, and stopped" in str(error)


@pytest.mark.parametrize(
    "other", [{"version": 4}, {"version": 3, "policy": "0" * 64}], ids=["two versions", "two runs"]
)
def test_receipts_that_do_not_belong_together_prove_nothing(other, tmp_path):
    def mixed(script):
        return [script.receipt(3)[0], script.receipt(**other)[1]]

    script = honest({"version": 3, "receipts": mixed}, helpers=(HELPER, SECOND))
    server, error = took_part(script, tmp_path)
    assert isinstance(error, RunError)
    assert "Deliver" not in server.calls
    assert not (tmp_path / "the-run" / "two-histories.json").exists()


def test_same_version_and_the_next_one_of_the_same_history_are_trained(tmp_path):
    versions = [{"version": version} for version in (0, 0, 1, 2, 2, 7, 8)]
    server, ended = took_part(honest(*versions), tmp_path)
    assert ended == "the script is over"
    assert [header.version for header in server.headers] == [0, 0, 1, 2, 2, 7, 8]


def test_damaged_receipts_stop_the_client(tmp_path):
    assert took_part(honest(), tmp_path)[1] == "the script is over"
    (tmp_path / "the-run" / "receipts.json").write_text("[{}]")
    server, error = took_part(honest(), tmp_path)
    assert "receipts.json is damaged" in str(error)
    assert server.calls == ["Join"]


def test_something_that_is_no_receipt_stops_the_client(tmp_path):
    class Bytes(Receipt):
        def to_bytes(self):
            return b"hello"

    def nonsense(script):
        return [sign_receipt(Bytes("the-run", 0, "", "", ""), HELPER.key)]

    server, error = took_part(honest({"receipts": nonsense}), tmp_path)
    assert str(error) == "the server sent something that is not a receipt"
    assert "Deliver" not in server.calls


def offered(helper, policy, **changes):
    key = helper.offered(policy)
    fields = {"key_id": key.key_id, "public_key": key.public_key, "signature": key.signature}
    return v1.OfferedKey(**fields | changes)


KEYS = {
    "a key of the server": lambda policy: [
        offered(HELPER, policy, public_key=STRANGER.sealing.public_bytes())
    ],
    "a key signed by somebody else": lambda policy: [offered(STRANGER, policy)],
    "a key for another run": lambda policy: [offered(HELPER, policy_of([HELPER], run="another"))],
    "a key under another identifier": lambda policy: [offered(HELPER, policy, key_id=bytes([1]) * 16)],
    "no key": lambda policy: [],
}


@pytest.mark.parametrize("lie", KEYS.values(), ids=KEYS)
def test_seeds_are_sealed_to_no_key_that_the_helper_has_not_signed(lie, tmp_path):
    script = honest()
    script.keys = lie(script.policy)
    server, error = took_part(script, tmp_path)
    assert isinstance(error, RunError)
    assert str(error).endswith("so nothing is sent")
    assert "Deliver" not in server.calls


def test_hybrid_policy_is_not_served_with_a_classic_key(tmp_path):
    server, error = took_part(honest(post_quantum=True), tmp_path)
    assert "is not signed by that helper for this run" in str(error)
    assert "Deliver" not in server.calls
