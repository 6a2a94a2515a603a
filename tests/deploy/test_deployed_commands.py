"""Every command line of deploy/ and of the pages for operators is one that the CLI accepts."""

import re
import shutil
import subprocess

import pytest
from deploy_files import (
    COMPOSE,
    DEPLOY,
    DOCKERFILE,
    MANIFESTS,
    PAGES,
    UNITS,
    commands_of_lines,
    exists,
    file_commands,
    filled_in,
    page_commands,
    parsed,
)

COMMANDS = list(file_commands())


@pytest.mark.parametrize(
    ("file", "words"), COMMANDS, ids=[f"{file.name}-{words[0]}" for file, words in COMMANDS]
)
def test_commands_of_files_are_accepted(file, words):
    assert parsed([filled_in(word) for word in words])


def test_every_file_with_a_command_was_read():
    files = {file for file, _ in COMMANDS}
    assert files >= {*COMPOSE, *UNITS, *(file for file in MANIFESTS if file.name == "statefulset.yaml")}
    kinds = {words[0] for _, words in COMMANDS}
    assert kinds >= {"serve", "helper", "watch", "join", "enroll", "identity"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_pages_are_accepted(page):
    found = list(page_commands(page))
    assert found
    for words in found:
        if not exists(words):  # the bare name of a command is that of a sentence
            assert parsed(words), words


def test_wrong_commands_are_found():
    lines = (
        "server$ tardigrad serve a.toml --out x --no-such 1\n# docker compose run --rm keys enroll | tail\n"
    )
    option, no_names = commands_of_lines(lines)
    for words, problem in (
        (option, "NoSuchOption"), (no_names, "MissingParameter"), (["gone"], "UsageError"),
    ):  # fmt: skip
        with pytest.raises(Exception) as raised:  # noqa: PT011 -- Typer has its own copy of Click's errors
            parsed(words)
        assert type(raised.value).__name__ == problem


def test_image_starts_the_command():
    text = DOCKERFILE.read_text()
    assert 'ENTRYPOINT ["tardigrad"]' in text
    assert 'CMD ["--help"]' in text


def test_docker_compose_options_are_spelled_in_one_way():
    """A line with another spelling would not be read by the tests above."""
    for file in [*PAGES, *(path for path in DEPLOY.rglob("*") if path.is_file())]:
        for line in re.findall(r"docker compose .*(?:run|exec) .*", file.read_text()):
            assert re.search(
                r"docker compose( -f \S+)* (run --rm (helper-)?keys|exec \w+ (tardigrad|cat)) ", line
            )


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of_pages_are_shell(page):
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S):
        if kind == "sh":
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)
