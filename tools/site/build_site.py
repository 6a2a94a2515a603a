"""Build the documentation site from docs/: `make docs`, then open build/site/index.html.

The site asks nothing from other machines: no fonts, no scripts, no pictures. It works from a folder, and its
search too.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from staging import ROOT, Staging

WORKER = re.compile(r"https://unpkg\.com/iframe-worker/shim")
BUNDLE = re.compile(r'"https?://[^"]*unpkg\.com/[^"]*"')


def build(folder: Path) -> Path:
    """Build the site in a folder, with its sources; return the folder of the pages."""
    pages = Staging(folder / "source").run()
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    project = config["project"]
    project["docs_dir"], project["site_dir"] = "source", "site"
    project["nav"] = with_unlisted(project["nav"], pages)
    (folder / "zensical.toml").write_text(tomli_w.dumps(config))
    shutil.rmtree(folder / "site", ignore_errors=True)
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"]
    subprocess.run(command, cwd=folder, check=True)
    make_self_contained(folder / "site")
    return folder / "site"


def with_unlisted(nav: list[dict[str, Any]], pages: list[str]) -> list[dict[str, Any]]:
    """Return the navigation with the pages that it does not name: at the end of the topics, where most new
    pages belong. Copies of files are found by links only."""
    listed = set(re.findall(r"[\w/.-]+\.md", str(nav)))
    unlisted = [page for page in pages if page not in listed and not page.startswith("files/")]
    for section in nav:
        section.get("Topics", []).extend(unlisted)
    return nav


def make_self_contained(site: Path) -> None:
    """Take out what the theme would ask from other machines.

    The script that makes the search work from a folder is ours (docs/assets/worker-in-frame.js). The theme
    would fetch Mermaid if a page had a diagram for it; none has, because diagrams are drawn before.
    """
    for page in site.rglob("*.html"):
        up = "../" * (len(page.relative_to(site).parts) - 1)
        page.write_text(WORKER.sub(f"{up}assets/worker-in-frame.js", page.read_text()))
    for script in site.glob("assets/javascripts/bundle.*.js"):
        script.write_text(BUNDLE.sub('"about:blank"', script.read_text()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build")
    print(f"open {build(parser.parse_args().folder.resolve()) / 'index.html'}")
