"""The files of deploy/, the commands in them and in the pages for operators, and how the CLI reads them."""

import re
import shlex
from pathlib import Path

import typer
import yaml

from tardigrad.cli import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HOW_TO = [f"how-to/{name}.md" for name in ("deploy", "eject-a-client", "recover")]
PAGES = [
    *(ROOT / "docs" / name for name in ("deployment.md", "operations.md", *HOW_TO)),
    DEPLOY / "README.md",
]
COMPOSE = [DEPLOY / "compose" / name for name in ("compose.yaml", "secure.yaml")]
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*/*.yaml"))
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"

VARIABLE = re.compile(r"\$\{(\w+)(?::[?-][^}]*)?\}|\$\((\w+)\)")
"""A variable of compose and systemd, ${NAME}, ${NAME:-} or ${NAME:?message}, or of Kubernetes, $(NAME)."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`tardigrad ([^`]+)`")
LINE = re.compile(
    r"^(?:\w*\$ |# +|ExecStart=)?(?:sudo -u \w+ )?(?:[\w/.]*/)?"
    r"(?:tardigrad|docker compose(?: -f \S+)* (?:run --rm (?:helper-)?keys|exec \w+ tardigrad)|"
    r"kubectl .*exec .* -- tardigrad) (?P<words>.+)$"
)
"""A command in a block of a page or in a comment. The containers have `tardigrad` as their entry point."""


def documents(file):
    """The YAML documents of a file."""
    return list(yaml.safe_load_all(file.read_text()))


def parsed(words):
    """Read the words of a command as the CLI does, without running it; return the context of the command."""
    command, context, name = typer.main.get_command(app), None, "tardigrad"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "commands"):
            return context
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


def exists(words):
    """Whether the CLI has a command of this name, such as `watch` or `data prepare`."""
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands.get(word) if hasattr(command, "commands") else None
        if command is None:
            return False
    return True


def filled_in(word, values=()):
    """A word with its variables replaced, by 1 if no value is given."""
    return VARIABLE.sub(lambda found: dict(values).get(found[1] or found[2], "1"), word)


def compose_services(file):
    """The services of a compose file that run our own image, and have a command."""
    services = documents(file)[0]["services"]
    return {name: one for name, one in services.items() if "image" not in one and "command" in one}


def containers(file):
    """The containers of a manifest."""
    return [
        container
        for document in documents(file)
        if document["kind"] == "StatefulSet"
        for container in document["spec"]["template"]["spec"]["containers"]
    ]


def unit_command(file):
    """The words of ExecStart of a unit, without the program."""
    text = file.read_text().replace("\\\n", " ")
    program, *words = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
    assert program == "/opt/tardigrad/bin/tardigrad"
    return words


def commands_of_lines(text):
    """The words of every command in lines of a shell, or of comments."""
    for line in text.replace("\\\n", " ").splitlines():
        found = LINE.match(line.strip())
        if found:
            words = shlex.split(found["words"], comments=True)
            ends = [words.index(word) for word in ("|", ">", "&", "&&") if word in words]
            yield words[: min(ends, default=len(words))]


def page_commands(page):
    """The commands in the blocks of a page, and those in its sentences."""
    text = page.read_text()
    blocks = [block for kind, block in FENCE.findall(text) if kind in ("", "console", "sh", "ini")]
    yield from commands_of_lines("\n".join(blocks))
    for words in INLINE.findall(FENCE.sub("", text)):
        yield shlex.split(words.replace("\n", " "))


def file_commands():
    """All commands of the files of deploy/, each with the file in which it is."""
    for file in COMPOSE:
        for service in compose_services(file).values():
            yield file, service["command"]
    for file in MANIFESTS:
        for container in containers(file):
            yield file, container["args"]
    for file in UNITS:
        yield file, unit_command(file)
    for file in (path for path in sorted(DEPLOY.rglob("*")) if path.is_file()):
        comments = re.findall(r"^#.*(?:\\\n#.*)*", file.read_text(), re.M)
        for words in commands_of_lines("\n".join(comments).replace("\\\n#", " ")):
            yield file, words
