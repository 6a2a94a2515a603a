"""The reference page of the protocol, from the .proto files and their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tardigrad.service.protocol.v1 as protocol
from markdown_text import cell

FOLDER = Path(protocol.__path__[0])
BLOCK = re.compile(r"((?:^//[^\n]*\n)*)^(service|message|enum) (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"((?:^ *//[^\n]*\n)*)^ *rpc (\w+)\((.*?)\) returns \((.*?)\)", re.MULTILINE)
FIELD = re.compile(
    r"((?:^ *//[^\n]*\n)*)^ *((?:repeated |optional )?[\w.<>]+(?:, \w+>)?) (\w+) = (\d+);(?: *// *(.*))?",
    re.MULTILINE,
)


def page() -> str:
    """Return the page: a section for each file, its services and its messages."""
    parts = [
        "# Protocol",
        "What travels between a server, its clients, its helpers and its operators: gRPC, version 1. "
        "This page is made from the `.proto` files of the package. [service.md](../service.md) says what is "
        "promised, and [secure-aggregation.md](../secure-aggregation.md) how a secure run goes.",
    ]
    for file in sorted(FOLDER.glob("*.proto")):
        parts.extend(section(file))
    return "\n\n".join(parts) + "\n"


def section(file: Path) -> Iterator[str]:
    """Give the parts of one file."""
    text = file.read_text()
    yield f"## {file.name}"
    opening = comment(text[: text.index("syntax =")])
    yield re.sub(r" Generate the Python modules .*? tardigrad/\S*\.proto", "", opening)
    for above, kind, name, body in BLOCK.findall(text):
        yield f"### {kind} {name}"
        if above:
            yield comment(above)
        rows = list(calls(body) if kind == "service" else fields(body))
        if len(rows) > 2:
            yield "\n".join(rows)


def calls(body: str) -> Iterator[str]:
    """Give the table of a service's calls."""
    yield from ("| call | request | answer | meaning |", "| --- | --- | --- | --- |")
    for above, name, request, answer in CALL.findall(body):
        yield f"| `{name}` | {request} | {answer} | {cell(comment(above))} |"


def fields(body: str) -> Iterator[str]:
    """Give the table of a message's fields."""
    yield from ("| number | field | type | meaning |", "| --- | --- | --- | --- |")
    for above, kind, name, number, beside in FIELD.findall(body):
        meaning = " ".join(filter(None, (comment(above), beside)))
        yield f"| {number} | `{name}` | `{kind}` | {cell(meaning)} |"


def comment(lines: str) -> str:
    """Return the text of comment lines."""
    return " ".join(re.sub(r"^ *// ?", "", line).strip() for line in lines.strip().splitlines() if line)
