"""The pages that can be followed: every command works, and prints what the page shows."""

import sys
from pathlib import Path

import pytest

from tutorials import Command, File, alike, differences, differences_of, follow, steps_of, written

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in ROOT.glob("docs/*/*.md")
    if page.name != "from-flower.md"  # in tests/flower: Flower has a virtual environment of its own
    and any(isinstance(step, File) for step in steps_of(page.read_text()))
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_can_be_followed_and_prints_what_it_shows(page, commands, tmp_path):
    bin_folder, clone = tmp_path / "bin", tmp_path / "clone"
    bin_folder.mkdir()
    clone.mkdir()
    commands.for_shells(bin_folder)
    steps = steps_of(page.read_text())
    follow(steps, clone, f"{bin_folder}:{Path(sys.executable).parent}")
    assert differences_of(steps) == []


def test_the_tutorials_are_among_the_pages():
    there = {page.stem for page in ROOT.glob("docs/tutorials/*.md")} - {"from-flower"}
    assert len(there) >= 5
    assert there <= {page.stem for page in PAGES}


TEXT = """```toml title="a/b.toml"
seed = 1
```
```console
$ cat a/b.toml
seed = 1
$ for n in 1 2; do
>     echo "port 7433, $n"
> done
port 7433, 1
...
$ sleep 600 > log &
```
"""


def test_files_and_commands_are_done_in_order_and_compared(tmp_path):
    steps = steps_of(TEXT)
    follow(steps, tmp_path, "/bin")
    commands = [step for step in steps if isinstance(step, Command)]
    assert [command.printed for command in commands] == [["seed = 1"], ["port 7433, 1", "port 7433, 2"], []]
    assert [differences(command) for command in commands] == [[], [], []]
    assert written(TEXT, steps) == TEXT


def test_other_output_and_failures_are_found(tmp_path):
    steps = steps_of("```console\n$ echo one two\none three\n$ echo 10\n14\n$ exit 3\n$ echo never\n```\n")
    follow(steps, tmp_path, "/bin")
    first, second, third, fourth = (differences(step) for step in steps)
    assert "three is two" in first[0]
    assert "14 is 10" in second[0]
    assert "exit code" in third[0]
    assert "exit code None" in fourth[0]


@pytest.mark.parametrize(
    ("words", "sha256", "exact"),
    [
        ("tardigrad plan run.toml", "abc", True),
        ("tardigrad run run.toml", "def", True),
        ("tardigrad run run.toml", "abc", False),
    ],
)
def test_numbers_are_equal_without_training_and_where_the_model_is_that_of_the_page(words, sha256, exact):
    table = "model sha256     │ {}  │\nwall seconds     │ {}   │\n"
    model = Command("tardigrad run other.toml", table.format("def", 3).splitlines())
    model.printed, model.code = table.format(sha256, 9).splitlines(), 0
    assert differences_of([model, Command(words, ["steps 100"], ["steps 100"], 0)]) == []
    found = differences_of([model, Command(words, ["steps 100"], ["steps 101"], 0)])
    assert ["100 is 101" in line for line in found] == [True] * exact


@pytest.mark.parametrize(("row", "wrong"), [("epsilon", 0), ("baseline", 1)])
def test_what_secret_noise_decides_is_not_compared(row, wrong):
    shown, printed = ([f"│ accuracy │ {one} % │", f"│ {row} │ 8 │"] for one in (50.3, 36.7))
    assert len(differences(Command("tardigrad run a.toml", shown, printed, 0))) == wrong


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("1,000", "1,100", True),
        ("94.1", "70", False),
        ("±", "+", False),
        ("▂█", "█", True),
        ("v1", "w1", False),
    ],
)
def test_words_are_the_same_and_numbers_near(shown, printed, same):
    assert alike(shown, printed) is same
