"""The reference pages list everything that there is, and the checked-in pictures are those that are drawn."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pool import Default as descriptors

import command_reference
import config_reference
import event_reference
import exit_code_reference
import pictures
import protocol_reference
import public_names
import python_reference
import tardigrad
import tardigrad.flower
from tardigrad.service.protocol.v1 import admin_pb2, helper_pb2, service_pb2


def sections(page):
    """The sections of a page, by their headings."""
    parts = re.split(r"^#{2,3} (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_setting_of_every_kind_is_in_the_page_of_configs(cli):
    _, printed, _ = cli("schema")
    schema = json.loads(printed)
    found = sections(config_reference.page())
    shown = {name.rpartition("(")[2].rstrip(")"): text for name, text in found.items()}
    for name, table in schema["$defs"].items():
        for key, value in table.get("properties", {}).items():
            if key != "kind":
                assert f"| `{key}` |" in shown[name], name
                assert " ".join(value.get("description", "").split()).replace("|", "\\|") in shown[name]


def test_every_command_and_option_is_in_the_page_of_commands(cli):
    found = sections(command_reference.page())
    _, printed, _ = cli("--help")
    listed = re.findall(r"^│ (\w+)  ", printed, re.MULTILINE)
    assert len(listed) > 15
    for name in listed:
        pages = {words: text for words, text in found.items() if words.split()[1] == name}
        assert pages, name
        for words, text in pages.items():
            _, help_text, _ = cli(*words.split()[1:], "--help")
            options = set(re.findall(r"^│ \*?\s*(--[\w-]+)", help_text, re.MULTILINE)) - {"--help"}
            assert {option for option in options if f"`{option}`" not in text} == set(), words


def test_every_public_name_is_in_the_page_of_the_api_with_its_docstring(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)  # the page is the same without Flower
    found = sections(python_reference.page())
    for name in tardigrad.__all__:
        if name != "__version__":
            assert getattr(tardigrad, name).__doc__.split(".")[0].split("\n")[0] in found[name]
    for name in tardigrad.flower.__all__:
        assert f"\n{name}(" in found[name]
    packages = {module.split(".")[1] for module in tardigrad._MODULE_OF.values()}
    assert set(python_reference.TITLES) == packages | {"flower"}


def test_the_page_of_the_api_has_types_defaults_fields_and_what_subclasses_inherit():
    page = python_reference.page()
    assert not re.search(r"KEPT|<factory>|<built-in|tardigrad\.\w+\.\w+\.[A-Z]", page)
    found = sections(page)
    assert "    seed: int = ...,\n" in found["run"]
    assert "    say: Callable[[str], None] = print,\n" in found["serve"]
    for thing in (tardigrad.Result, tardigrad.Client, tardigrad.Endpoint, tardigrad.Compared):
        named = re.findall(r"^\| `(\w+)` \|", found[thing.__name__], re.MULTILINE)
        assert named == [field.name for field in dataclasses.fields(thing)]
    for name in ("SumOnly", "Individual"):
        assert "| `tuning_space` | `dict[str, dict[str, object]]` | `{}` |" in found[name]
        assert "| `rule(task: Task, memory: Vectors, lr: float) -> Rule` |" in found[name]
        assert "| `start(model: Tensor, situation: Situation) -> State` |" in found[name]
    assert "| `step(state: State, buffer: WeightedSum) -> Metrics` |" in found["SumOnly"]
    assert "| `mean(name: str = 'delta') -> Tensor` |" in found["WeightedSum"]


@pytest.mark.parametrize("made", [command_reference, config_reference, event_reference, python_reference])
def test_every_row_has_a_meaning(made):
    page = made.page()
    assert page.count("| meaning |") >= 5
    assert re.findall(r"^\| `.*\|  \|$", page, re.MULTILINE) == []


def test_the_list_of_public_names_is_that_of_the_package():
    page = public_names.PAGE.read_text()
    assert page == public_names.with_names(page), (
        "run python tools/site/public_names.py, and CHANGELOG.md says why"
    )
    listed = set(re.findall(r"`(\w+)`", page.split(public_names.BEGIN)[1]))
    assert {*tardigrad.__all__, "AsyncStrategy"} - {"__version__"} <= listed
    assert not listed & set(tardigrad._RENAMED)


def test_every_event_and_field_is_in_the_page_of_events(cli):
    _, printed, _ = cli("schema", "events")
    found = sections(event_reference.page())
    kinds = json.loads(printed)["oneOf"]
    assert [kind["title"] for kind in kinds] == list(found)
    for kind in kinds:
        named = set(re.findall(r"^\| `(\w+)`", found[kind["title"]], re.MULTILINE))
        assert named == set(kind["properties"]) - {"event"}


@pytest.mark.parametrize("module", [admin_pb2, helper_pb2, service_pb2])
def test_every_call_message_and_field_is_in_the_page_of_the_protocol(module):
    found = sections(protocol_reference.page())
    file = descriptors().FindFileByName(module.DESCRIPTOR.name)
    for service in file.services_by_name.values():
        named = re.findall(r"^\| `(\w+)`", found[f"service {service.name}"], re.MULTILINE)
        assert named == [call.name for call in service.methods]
    for message in file.message_types_by_name.values():
        rows = re.findall(r"^\| (\d+) \| `(\w+)`", found[f"message {message.name}"], re.MULTILINE)
        assert rows == [(str(field.number), field.name) for field in message.fields]


def test_the_exit_codes_are_those_of_the_program_and_the_same_on_all_pages():
    source = "\n".join(file.read_text() for file in Path(tardigrad.__file__).parent.rglob("*.py"))
    used = set(map(int, re.findall(r"(?:typer\.Exit\(|sys\.exit\(|exit_code = )(\d+)", source)))
    assert used >= {1, 2, 3, 130}
    signals = {one.code for one in exit_code_reference.CODES if one.code > 130}
    assert {one.code for one in exit_code_reference.CODES} - signals == used | {0}
    assert "| `td.RunError` | 3 |" in exit_code_reference.page()
    for name in exit_code_reference.TABLES:
        page = (exit_code_reference.DOCS / name).read_text()
        changed = "run python tools/site/exit_code_reference.py"
        assert page == exit_code_reference.with_table(name, page), changed
    for page in exit_code_reference.DOCS.rglob("*.md"):
        tables = len(re.findall(r"^\| code \|", page.read_text(), re.MULTILINE))
        assert tables == (str(page.relative_to(exit_code_reference.DOCS)) in exit_code_reference.TABLES), page


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_pictures_are_those_that_are_drawn(name):
    drawn = pictures.PICTURES[name]()
    assert (pictures.FOLDER / name).read_text() == drawn, "run make pictures"
