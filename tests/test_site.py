"""The site of the documentation: complete, without requests to other machines, its search works offline."""

import re
import tomllib
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from build_site import build, with_unlisted
from diagrams import draw

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*\b(?:src|data|srcset)=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b[^>]*\bhref=["']?(?:https?:)?//[^>]*>|@import\s+["']?(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)
"""What a browser would fetch from another machine. A link that a reader may click is not."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(tmp_path_factory.mktemp("site"))


def test_nothing_is_fetched_from_other_machines(site):
    files = [file for pattern in ("*.html", "*.css") for file in site.rglob(pattern)]
    assert len(files) > 40
    assert {str(file.relative_to(site)): OUTSIDE.findall(file.read_text()) for file in files
            if OUTSIDE.search(file.read_text())} == {}  # fmt: skip
    scripts = list(site.rglob("assets/javascripts/*.js"))
    assert scripts
    assert not any("unpkg.com" in script.read_text() for script in scripts)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://x.org/a.js">', '<link rel="stylesheet" href="//x.org/a.css">', "<img src=http://x.org>",
        "@import 'https://x.org/a.css'", "b { background: url(https://x.org/a.png) }",
    ],
)  # fmt: skip
def test_what_would_be_fetched_is_found(text):
    assert OUTSIDE.search(text)
    assert not OUTSIDE.search('<a href="https://x.org">x</a><script src="assets/a.js"></script>')


def test_every_document_is_in_the_site_and_in_the_navigation(site):
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in ROOT.glob("docs/**/*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()
    linked = set(re.findall(r'href="(?:\./)?([\w/.-]+\.html)"', (site / "index.html").read_text()))
    assert pages <= {*linked, "index.html"}
    assert {"reference/config.html", "reference/commands.html", "reference/python.html"} <= linked


def test_the_public_api_links_to_the_generated_pages(site):
    text = (site / "reference/public-api.html").read_text()
    for name in ("config", "commands", "python", "events", "protocol", "exit-codes"):
        assert re.search(rf'<td>.*<a href="(?:\./)?{name}\.html">', text), name


def test_pages_that_the_navigation_does_not_name_are_topics():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    added = with_unlisted(nav, ["index.md", "new.md", "files/README.md"])
    assert [section["Topics"][-1] for section in added if "Topics" in section] == ["new.md"]


def test_diagrams_are_drawn_and_unknown_ones_are_refused(site):
    drawn = (site / "pictures/architecture-1.svg").read_text()
    assert drawn.startswith("<svg ")
    assert "bookkeeping" in drawn
    assert 'class="mermaid"' not in (site / "architecture.html").read_text()
    with pytest.raises(ValueError, match="gantt"):
        draw("gantt\n  a", "A")
    with pytest.raises(ValueError, match="loop"):
        draw("sequenceDiagram\n  loop forever", "A")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_the_site_from_a_folder_and_searches_it(site, tmp_path):
    with Browser(tmp_path) as browser:
        page = browser.open(f"file://{site}/index.html", dark=True)
        page.until("document.querySelector('.md-search__button') !== null")
        page.until("document.body.getAttribute('data-md-color-scheme') === 'slate'")
        page.until("document.images.length > 0 && [...document.images].every(one => one.naturalWidth > 0)")
        page.value("document.querySelector('.md-search__button').click()")
        root = "document.activeElement.shadowRoot"
        page.until(f"{root} && {root}.querySelector('input') !== null")
        page.value(f"{root}.querySelector('input').focus()")
        page.call("Input.insertText", {"text": "staleness"})
        links = f"[...{root}.querySelectorAll('a')].map(one => one.href)"
        found = page.until(f"{links}.filter(one => one.includes('.html')).join(' ')")
        assert "asynchrony.html" in found
        assert page.trouble() == []
        assert asked_outside(page) == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_a_page_of_each_kind_and_asks_no_other_machine(site, tmp_path):
    with Browser(tmp_path) as browser:
        for name, shown in {
            "tutorials/your-own-algorithm": ".highlight code",
            "how-to/recover": "table",
            "explanation/asynchrony": "img",
            "reference/python": "#sumonly",
        }.items():
            page = browser.open(f"file://{site}/{name}.html")
            page.until("document.readyState === 'complete'")
            assert page.value(f"document.querySelector('article {shown}') !== null"), name
            page.until("[...document.images].every(one => one.complete)")
            assert page.value("[...document.images].every(one => one.naturalWidth > 0)"), name
            assert page.trouble() == []
            assert asked_outside(page) == []


def asked_outside(page):
    """The addresses outside the site that a page asked for."""
    return [url for url in page.requested() if not url.startswith(("file:", "data:", "blob:"))]
