"""The papers' claims that hold at small scale must go on holding: `make claims`, an hour or two.

`settled.json` says which they are, as measured (docs/results.md). Runs are kept in runs/small, as
`tardigrad reproduce --scale small` leaves them; TARDIGRAD_CLAIMS names another folder, such as an empty one.
"""

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from tardigrad.data.folder import data_folder
from tardigrad.experiments.reproduce.reproduce import reproduce

PROJECT = Path(__file__).parents[2]
SETTLED = json.loads((Path(__file__).parent / "settled.json").read_text())


@pytest.mark.claims
@pytest.mark.parametrize("name", SETTLED)
def test_a_claim_that_held_holds(name):
    if not (data_folder() / "fashion-mnist").is_dir():
        pytest.skip("needs Fashion-MNIST: tardigrad data get fashion_mnist")
    out = Path(os.environ.get("TARDIGRAD_CLAIMS", PROJECT / "runs/small"))
    result = reproduce([name], "small", out, Console(quiet=True), PROJECT / "experiments")[name]
    assert result["failed"] == {}
    verdicts = {(claim["task"], claim["says"]): claim for claim in result["claims"]}
    for task, says in SETTLED[name]:
        assert verdicts[task, says]["verdict"] == "holds", verdicts[task, says]
