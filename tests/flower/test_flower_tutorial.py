"""The tutorial for users of Flower: every command works, and prints what the page shows."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tutorials import differences_of, follow, steps_of

PAGE = Path(__file__).parents[2] / "docs/tutorials/from-flower.md"


def test_the_tutorial_can_be_followed(tmp_path):
    steps = steps_of(PAGE.read_text())
    assert len(steps) > 10
    follow(steps, tmp_path, str(Path(sys.executable).parent))
    assert differences_of(steps) == []
