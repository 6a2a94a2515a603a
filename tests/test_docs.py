"""Every path that the documents name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
TOP = ("src", "tests", "docs", "benchmarks", "tools", "examples", "experiments", "deploy")
PARENTS = (ROOT, ROOT / "src/tardigrad")
"""The folders that a path which is not in backticks may be relative to."""
FILES = {f"/{file.relative_to(ROOT)}" for top in TOP for file in (ROOT / top).rglob("*.*")}

IN_CODE = re.compile(r"`([\w./-]+\.(?:py|proto))(?::\w+)?`")
"""`folder/file.py` or `file.py`: the end of the path of a file. A class may follow, as in `file.py:Class`."""
ANYWHERE = re.compile(rf"(?<![\w/.~-])((?:{'|'.join(TOP)})/[\w./-]*[\w/])")
"""src/..., tests/... and so on: a file or folder."""
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
EXAMPLES = ("NAME", "path/to/")
"""Paths that stand for the reader's own files."""


def missing(text):
    """The paths in a text that do not exist."""
    code = {path for path in IN_CODE.findall(text) if not any(file.endswith(f"/{path}") for file in FILES)}
    other = {
        path for path in ANYWHERE.findall(text) if not any((parent / path).exists() for parent in PARENTS)
    }
    return sorted(path for path in code | other if not any(word in path for word in EXAMPLES))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_documents_exist(page):
    text = page.read_text()
    assert missing(text) == []
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


def anchors(page):
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_of_links_exist(page):
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
    wanted = [(page.parent / name if name else page, anchor) for name, anchor in links]
    assert [
        f"{to.name}#{anchor}" for to, anchor in wanted if to.suffix == ".md" and anchor not in anchors(to)
    ] == []


def test_missing_paths_are_found():
    text = "`core/bookkeeping.py`, `pace.py`, src/tardigrad/gone.py, `service/gone.py:Class`, `docs/NAME.md`"
    assert missing(text) == ["service/gone.py", "src/tardigrad/gone.py"]
