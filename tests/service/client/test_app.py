"""The file that `join --app` names."""

import pytest

from tardigrad.errors import ConfigError
from tardigrad.service.client.app import load_app

MODEL = """
import torch
import tardigrad as td
from tardigrad import Client

def model():
    return torch.nn.Linear(1, 2)

EXAMPLES = torch.ones(2, 1), torch.zeros(2, dtype=torch.long)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client = 3", "must be a tardigrad.Client"),
        ("import nothing_like_it", "cannot be imported"),
        ("other = 3", "has nothing called client"),
    ],
)
def test_an_app_that_is_no_client_is_named(text, said, tmp_path):
    (tmp_path / "app.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_app(f"{tmp_path / 'app.py'}:client", "ann")


@pytest.mark.parametrize(
    "text",
    [
        "client = Client(model(), EXAMPLES)",
        "any_name = td.Client(model(), EXAMPLES)",
        "def make(name):\n    assert name == 'ann'\n    return Client(model(), EXAMPLES)",
        "def make():\n    return td.Client(model(), EXAMPLES)\n\ndef main():\n    raise SystemExit(1)",
        "_unused = Client(model(), EXAMPLES)\nclient = Client(model(), EXAMPLES)",
        "C = Client\n\ndef make():\n    return C(model(), EXAMPLES)",
    ],
)
def test_without_a_name_the_only_client_of_the_file_is_used(text, tmp_path):
    (tmp_path / "app.py").write_text(MODEL + text)
    found = load_app(str(tmp_path / "app.py"), "ann")
    assert found.module.weight.shape == (2, 1)


def test_without_a_name_several_clients_are_listed_and_none_is_made(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(
        MODEL
        + "one = Client(model(), EXAMPLES)\n\n"
        + "def two():\n    return Client(1 / 0, EXAMPLES)\n\n"
        + "def needs_two_arguments(a, b):\n    return Client(a, b)\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_app(str(file), "ann")
    assert str(caught.value) == f"--app {file}: has 2 clients; give one of them: {file}:one, {file}:two"


def test_a_file_without_a_client_says_so(tmp_path):
    (tmp_path / "app.py").write_text(MODEL)
    with pytest.raises(
        ConfigError, match=r"app\.py: has no tardigrad\.Client and no function that uses it; define"
    ):
        load_app(str(tmp_path / "app.py"), "ann")
    with pytest.raises(ConfigError, match="there is no file"):
        load_app(str(tmp_path / "other.py"), "ann")
