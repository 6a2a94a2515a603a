"""The reference page of a config, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import markdown_text
from tardigrad.experiments.config.schema import Config

Schema = dict[str, Any]


def page() -> str:
    """Return the page: a section for each table of a config, with its kinds and their settings."""
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    parts = [
        "# Config",
        "Every key of a TOML config, from the schema that `tardigrad schema` prints. `tardigrad list` shows "
        "the kinds in a terminal, and `tardigrad init` writes a config with comments. In Python, each kind "
        "is a class of the name in brackets: `td.FedBuff(lr=0.5)`.",
        table(schema["properties"], definitions),
    ]
    shown: set[str] = set()
    for key, value in schema["properties"].items():
        names = list(dict.fromkeys(references(value)))
        if not names:
            continue
        parts.append(f"## {key}\n\n{value.get('description', '')}")
        for name in names:
            parts.extend(section(name, definitions, shown))
    return "\n\n".join(parts) + "\n"


def section(name: str, definitions: Schema, shown: set[str]) -> Iterator[str]:
    """Give the section of one class, and after it those of the classes that its fields name."""
    if name in shown:
        return
    shown.add(name)
    found = definitions[name]
    kind = found.get("properties", {}).get("kind", {}).get("const")
    yield f"### {kind} ({name})" if kind else f"### {name}"
    if found.get("description"):
        yield markdown_text.docstring(found["description"])
    fields = {key: value for key, value in found.get("properties", {}).items() if key != "kind"}
    if fields:
        yield table(fields, definitions, found.get("required", []))
    for inner in references(fields):
        yield from section(inner, definitions, shown)


def references(value: Any) -> Iterator[str]:
    """Give the names of the definitions that a part of the schema refers to, in order."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for key, inner in value.items():
            if key not in ("default", "discriminator"):
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def table(fields: Schema, definitions: Schema, required: list[str] | tuple[str, ...] = ()) -> str:
    """Return a table with a row for each field."""
    rows = []
    for key, value in fields.items():
        default = "required" if key in required else default_of(value)
        rows.append((f"`{key}`", type_of(value, definitions), default, meaning_of(value, definitions)))
    return "".join(markdown_text.table(("key", "type", "default", "meaning"), rows))


def meaning_of(value: Schema, definitions: Schema) -> str:
    """Return what a field means. A schema leaves it out where it is what its class means."""
    if "description" in value or "$ref" not in value:
        return str(value.get("description", ""))
    return str(definitions[value["$ref"].rpartition("/")[2]]["description"])


def default_of(value: Schema) -> str:
    """Return a field's default as TOML would have it; a table by its kind."""
    if "default" not in value or value["default"] is None:
        return ""
    default = value["default"]
    if isinstance(default, dict):
        default = default.get("kind", "its own defaults")
    return f"`{json.dumps(default)}`" if default != "its own defaults" else default


def type_of(value: Schema, definitions: Schema) -> str:
    """Return the type of a field in words, with its limits."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return kind_of(name, definitions)
    if "anyOf" in value or "oneOf" in value:
        choices = [
            type_of(one, definitions)
            for one in value.get("anyOf", value.get("oneOf", []))
            if one.get("type") != "null" and one.get("description") != "The name of a kind."
        ]
        return " or ".join(dict.fromkeys(choices))
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return " or ".join(f"`{json.dumps(one)}`" for one in value["enum"])
    if value.get("title") == "Your own":
        return "your own `file.py:name`"
    if value.get("type") == "array":
        items = value.get("items") or {}
        return f"list of {type_of(items, definitions)}" if items else "list"
    if value.get("type") == "object":
        return "table"
    return value.get("type", "any") + limits(value)


def kind_of(name: str, definitions: Schema) -> str:
    """Return how a config names a definition: by its kind, or as a table."""
    found = definitions[name]
    kind = found.get("properties", {}).get("kind", {}).get("const")
    if kind:
        return f"`{kind}`"
    return type_of(found, definitions) if "enum" in found else f"table {name}"


LIMITS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def limits(value: Schema) -> str:
    """Return the limits of a number, such as ' >= 0, < 1'."""
    found = [f"{sign} {value[key]}" for key, sign in LIMITS.items() if key in value]
    return " " + ", ".join(found) if found else ""
