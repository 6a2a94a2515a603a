"""What the documents say exists: paths, links, anchors, configs, Python, command lines."""

import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import tomli_w
import torch

from command_lines import command_lines, wrong_with
from tardigrad.core.folder_lock import LOCK
from tardigrad.data.tables.preparation import FILE as PREPARATION
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.report.population import CACHE
from tardigrad.experiments.runs.private_run import KEYS, RELEASES, SAMPLING
from tardigrad.experiments.runs.run_folder import OWN_CODE
from tardigrad.privacy.chosen import CHOSEN
from tardigrad.service.monitor.status import FILE as STATUS
from tardigrad.service.store.audit_log import AUDIT
from tardigrad.service.store.sqlite import JOURNAL, UPLOADS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
EXAMPLE_PAGES = sorted(ROOT.glob("examples/**/*.md"))
TOP = ("src", "tests", "docs", "benchmarks", "tools", "examples", "experiments", "deploy")
PARENTS = (ROOT, ROOT / "src/tardigrad")
"""The folders that a path which is not in backticks may be relative to."""
FILES = {f"/{file.relative_to(ROOT)}" for top in TOP for file in (ROOT / top).rglob("*.*")}

IN_CODE = re.compile(r"`([\w./-]+\.(?:py|proto))(?::\w+)?`")
"""`folder/file.py` or `file.py`: the end of the path of a file. A class may follow, as in `file.py:Class`."""
ANYWHERE = re.compile(rf"(?<![\w/.~-])((?:{'|'.join(TOP)})/[\w./-]*[\w/])")
"""src/..., tests/... and so on: a file or folder."""
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
EXAMPLES = ("NAME", "path/to/")
"""Paths that stand for the reader's own files."""
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WRITTEN = re.compile(r'title="([^"]+)"')
"""A file that the reader of a tutorial writes."""
CONFIG = jsonschema.Draft202012Validator(Config.model_json_schema())


def missing(text):
    """The paths in a text that do not exist."""
    text = re.sub(r"\.\./(?=examples/)", "", text)  # in tutorials, seen from a folder of the clone
    written = {title for _, info, _ in FENCE.findall(text) for title in WRITTEN.findall(info)}
    code = {path for path in IN_CODE.findall(text) if not any(file.endswith(f"/{path}") for file in FILES)}
    other = {
        path for path in ANYWHERE.findall(text) if not any((parent / path).exists() for parent in PARENTS)
    }
    return sorted(path for path in (code | other) - written if not any(word in path for word in EXAMPLES))


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    headings = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page):
    """The links of a page that lead nowhere."""
    found = []
    for path, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(f"{path}#{anchor}" if anchor else path)
    return found


def blocks(page, *languages):
    """The code blocks of a page in these languages."""
    return [body for language, _, body in FENCE.findall(page.read_text()) if language in languages]


def parsed(text):
    """A TOML text as a dict. If its lines are alternatives for one key: one that is wrong, or the last."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if "overwrite" not in str(error):
            raise
        whole = [tomllib.loads(line) for line in text.splitlines()]
        wrong = [line for line in whole if wrong_config(tomli_w.dumps(line))]
        return wrong[0] if wrong else whole[-1]


def wrong_config(text):
    """Why a TOML text is no valid config or comparison; None if it is valid, or neither of them."""
    found = parsed(text)
    if not found.keys() & (Config.model_fields.keys() | {"base", "entries"}):
        return None  # of another program, or of another file of ours
    if {"base", "entries"} & found.keys():
        tables = [found.get("base", {}), *found.get("entries", {}).values()]
    else:
        tables = [found]
    for table in tables:
        if error := jsonschema.exceptions.best_match(CONFIG.iter_errors(table)):
            return f"{error.json_path}: {error.message}"
    return None


def names(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_paths_in_documents_exist(page):
    assert missing(page.read_text()) == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLE_PAGES], ids=names)
def test_links_and_their_anchors_exist(page):
    assert dead_links(page) == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLE_PAGES], ids=names)
def test_configs_in_documents_are_valid(page):
    wrong = [(text, why) for text in blocks(page, "toml") if (why := wrong_config(text))]
    assert wrong == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLE_PAGES], ids=names)
def test_python_in_documents_compiles(page):
    for text in blocks(page, "python"):
        compile(text, str(page), "exec")


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLE_PAGES], ids=names)
def test_command_lines_in_documents_are_understood(page):
    text = page.read_text()
    typed = [
        line for block in blocks(page, "console", "sh", "bash", "yaml", "") for line in command_lines(block)
    ]
    spoken = [" ".join(code.split()) for code in re.findall(r"`(tardigrad [^`]+)`", FENCE.sub("", text))]
    wrong = {line: why for line in typed if (why := wrong_with(line))}
    wrong |= {line: why for line in spoken if (why := wrong_with(line, partial=True))}
    assert wrong == {}


def test_the_files_of_a_run_s_folder_are_listed():
    _, part = (ROOT / "docs/features.md").read_text().split("## The files of a run's folder")
    listed = {name.rstrip("/") for name in re.findall(r"`([\w./-]+)`", part)}
    written = {
        AUDIT,
        CHOSEN,
        JOURNAL,
        UPLOADS,
        KEYS,
        RELEASES,
        SAMPLING,
        OWN_CODE,
        LOCK,
        STATUS,
        CACHE,
        PREPARATION,
    }
    assert written <= listed
    assert {"config.toml", "inputs.json", "events.jsonl", "metrics.csv", "model.safetensors"} <= listed


def test_the_readme_s_python_runs_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (text,) = blocks(ROOT / "README.md", "python")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(text, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.7
    assert (tmp_path / "curves.png").stat().st_size > 0


def test_every_kind_of_block_is_found():
    """The checks above look at something."""
    pages = [*PAGES, *EXAMPLE_PAGES]
    lines = [line for page in pages for block in blocks(page, "console", "") for line in command_lines(block)]
    configs = [text for page in pages for text in blocks(page, "toml")]
    assert len(lines) > 100
    assert len([text for text in configs if parsed(text).keys() & Config.model_fields.keys()]) > 20


def test_missing_paths_are_found():
    text = "`core/bookkeeping.py`, `pace.py`, src/tardigrad/gone.py, `service/gone.py:Class`, `docs/NAME.md`"
    assert missing(text) == ["service/gone.py", "src/tardigrad/gone.py"]


def test_dead_links_and_anchors_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# A heading, with `code`\n```\n# none\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#a-heading-with-code) [b](other.md#none) [c](gone.md) [d](#e-f)\n# E f\n[g](#h)"
        " [outside](https://example.org/gone.md)\n"
    )
    assert dead_links(page) == ["other.md#none", "gone.md", "#h"]


def test_wrong_configs_are_found():
    assert wrong_config("[local]\nlr = 0.1") is None
    assert wrong_config("[tool.other]\nlrr = 0.1") is None
    assert "lrr" in wrong_config("[local]\nlrr = 0.1")
    assert wrong_config("[data]\nkind = 'files'\ntest = 0.2\n[network]\ndownload = 1e6") is None
    assert "lrr" in wrong_config("local = { lr = 0.1 }\nlocal = { lrr = 0.1 }\nlocal = { lr = 0.2 }")
    assert "trip" in wrong_config("[base]\nstop = { trip = 5 }\n[entries.A]\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tardigrad run a.toml --out runs/a --set local.lr=1 > log 2>&1 &", None),
        ("tardigrad run a.toml --outt runs/a", "No such option: --outt"),
        ("tardigrad rum a.toml", "No such command"),
        ("tardigrad privacy plan --epsilon much", "--epsilon"),
        ("tardigrad serve", "Missing argument"),
    ],
)
def test_wrong_command_lines_are_found(line, said):
    found = wrong_with(line)
    assert found is None if said is None else said in found


def test_command_lines_are_found_in_shells():
    text = "$ cd x && tardigrad run \\\n> a.toml\nfor n in a; do\n    tardigrad join h:1 --key $n.key &\ndone"
    assert command_lines(text) == ["tardigrad run  a.toml", "tardigrad join h:1 --key $n.key &"]
