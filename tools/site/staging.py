"""Put the sources of the site together: the pages of docs/, what they link to, pictures and the reference.

Pages link to files of the repository, such as ../examples/own_model.py. A copy of each becomes a page too,
under files/, so that the site has no dead links and needs no network.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import command_reference
import config_reference
import diagrams
import event_reference
import exit_code_reference
import protocol_reference
import python_reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".proto": "protobuf",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".sh": "bash",
}

REFERENCE: dict[str, Callable[[], str]] = {
    "config": config_reference.page,
    "commands": command_reference.page,
    "python": python_reference.page,
    "events": event_reference.page,
    "protocol": protocol_reference.page,
    "exit-codes": exit_code_reference.page,
}
"""The generated pages of docs/reference."""
GENERATED = re.compile(r"\[(Config|Commands|Python API|Events|Protocol|Exit codes)\]\(index\.md\)")
"""A link to a generated page in a page of docs/reference. In a clone, which has no such page, it leads to the
list of them."""


class Staging:
    """A folder that becomes the sources of the site."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._waiting: list[Path] = []
        self._staged: set[Path] = set()

    def run(self) -> list[str]:
        """Fill the folder; return the names of all its pages."""
        shutil.rmtree(self.folder, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.md")
        shutil.copytree(DOCS, self.folder, ignore=ignored)
        for file in sorted(DOCS.rglob("*.md")):
            self._write(file.relative_to(DOCS), self._page(file.read_text(), file, file.relative_to(DOCS)))
        while self._waiting:
            self._stage_outside(self._waiting.pop())
        for name, page in REFERENCE.items():
            self._write(Path(f"reference/{name}.md"), page())
        return sorted(str(page.relative_to(self.folder)) for page in self.folder.rglob("*.md"))

    def _write(self, page: Path, text: str) -> None:
        target = self.folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def _page(self, text: str, file: Path, page: Path) -> str:
        """Return the text of a page with its links for the site, and its diagrams as pictures."""
        numbered = iter(range(1, 100))
        if file.parent == DOCS / "reference":
            text = GENERATED.sub(lambda found: f"[{found[1]}]({generated_page(found[1])})", text)
        parts = FENCE.split(text)
        for i, part in enumerate(parts):
            if i % 2 == 0:
                parts[i] = LINK.sub(lambda found: self._link(found, file, page), part)
            elif part.startswith("```mermaid\n"):
                name = f"{'-'.join(page.with_suffix('').parts)}-{next(numbered)}.svg"
                title = re.findall(r"^#+ (.+)$", "".join(parts[:i]), re.MULTILINE)[-1]
                drawn = diagrams.draw(part.removeprefix("```mermaid\n").removesuffix("```"), title)
                self._write(Path("pictures", name), drawn)
                parts[i] = f"![{title}]({'../' * (len(page.parts) - 1)}pictures/{name})"
        return "".join(parts)

    def _link(self, found: re.Match[str], file: Path, page: Path) -> str:
        """Return a link; a link out of docs/ becomes one to the copy of that file."""
        target = (file.parent / found[2]).resolve()
        if target.is_relative_to(DOCS) and file.is_relative_to(DOCS):
            return found[0]
        if target.is_relative_to(DOCS):
            inside = target.relative_to(DOCS)
        else:
            self._waiting.append(target)
            inside = page_of(target)
        return f"{found[1]}{'../' * (len(page.parts) - 1)}{inside}{found[3]}"

    def _stage_outside(self, target: Path) -> None:
        """Make the page of a file or a folder outside docs/."""
        page = page_of(target)
        if page in self._staged:
            return
        self._staged.add(page)
        name = target.relative_to(ROOT)
        if target.is_dir() and not (target / "README.md").exists():
            files = sorted(file for file in target.iterdir() if file.suffix in LANGUAGES or file.is_dir())
            files = [file for file in files if not file.name.startswith(("_", "."))]
            links = "\n".join(f"- [{file.name}]({file.name})" for file in files)
            self._write(page, self._page(f"# {name}\n\n{links}\n", target / "index", page))
        elif target.is_dir() or target.suffix == ".md":
            file = target / "README.md" if target.is_dir() else target
            self._write(page, self._page(file.read_text(), file, page))
        else:
            language = LANGUAGES.get(target.suffix, "text")
            self._write(page, f"# {name}\n\n```{language}\n{target.read_text().rstrip()}\n```\n")


def generated_page(title: str) -> str:
    """Return the file of a generated page.

    >>> generated_page("Exit codes"), generated_page("Python API")
    ('exit-codes.md', 'python.md')
    """
    return title.lower().removesuffix(" api").replace(" ", "-") + ".md"


def page_of(target: Path) -> Path:
    """Return the page of the site that has a file or folder outside docs/."""
    inside = Path("files") / target.relative_to(ROOT)
    if target.is_dir():
        return inside / ("README.md" if (target / "README.md").exists() else "index.md")
    return inside if inside.suffix == ".md" else inside.with_name(f"{inside.name}.md")
