"""A report in a real browser: every chart shows something, nothing goes wrong, no network is asked."""

import json
import re
import shutil
import subprocess

import pytest
from test_write import make_comparison

from tardigrad.experiments.report.write import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

WATCH = """<script>
window.trouble = [];
window.addEventListener("error", (event) => trouble.push("error: " + event.message));
document.addEventListener("securitypolicyviolation", (event) => trouble.push("asked: " + event.blockedURI));
</script>"""
LOOK = """<script>
addEventListener("load", () => {
  const seen = [];
  const css = getComputedStyle(document.documentElement);
  const probe = document.body.appendChild(document.createElement("span"));
  const resolved = (name) => {
    probe.style.color = css.getPropertyValue(name);
    return getComputedStyle(probe).color;
  };
  const frame = ["--ink", "--muted", "--grid"].map(resolved);
  const marks = (svg) => [...svg.querySelectorAll("path, image, use")].filter((mark) => {
    const box = mark.getBoundingClientRect(), look = getComputedStyle(mark);
    const coloured = [look.fill, look.stroke].some((c) => c.startsWith("rgb") && !frame.includes(c));
    return Math.max(box.width, box.height) >= 4 && (mark.tagName === "image" || coloured);
  });
  const look = (turn) => {
    for (const figure of document.querySelectorAll("figure")) {
      if (figure.hidden) continue;
      const svg = figure.querySelector("svg"), paper = figure.getBoundingClientRect();
      const outside = [...svg.querySelectorAll("text")].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < paper.left - 1 || box.right > paper.right + 1;
      });
      seen.push({ name: figure.id, turn, marks: marks(svg).length, width: svg.getBoundingClientRect().width,
        texts: svg.querySelectorAll("text").length, outside: outside.map((text) => text.textContent),
        title: svg.querySelector("title").textContent });
    }
  };
  look("");
  for (const button of document.querySelectorAll(".turns button")) { button.click(); look(button.value); }
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
  const found = document.createElement("script");
  found.type = "application/json";
  found.id = "found";
  const paper = css.getPropertyValue("--paper");
  found.textContent = JSON.stringify({ seen, trouble, wide, fetched, paper });
  document.body.appendChild(found);
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file, _ = report([make_comparison(tmp_path_factory.mktemp("page"))])
    return file.read_text()


def browse(text, folder, width=1200, dark=False):
    """What the browser found on the page."""
    file = folder / "page.html"
    file.write_text(text.replace("<head>", "<head>" + WATCH, 1).replace("</body>", LOOK + "</body>", 1))
    dom = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=600, check=True,
    ).stdout  # fmt: skip
    found = re.search(r'<script type="application/json" id="found">(.*?)</script>', dom, re.DOTALL)
    assert found is not None, "the check did not come to its end"
    return json.loads(found[1])


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False)])
def test_every_chart_shows_something(page, tmp_path, width, dark):
    found = browse(page, tmp_path, width, dark)
    assert found["trouble"] == []
    assert found["fetched"] == []
    assert found["wide"] <= 0
    assert found["paper"] == ("#14171c" if dark else "#ffffff")
    names = set(re.findall(r'<figure id="([^"]+)"', page))
    assert {one["name"] for one in found["seen"]} == names
    assert len(names) > 20
    for one in found["seen"]:
        assert one["marks"] > 0, one
        assert one["texts"] > 2, one
        assert one["width"] > 150, one
        assert one["outside"] == [], one
        assert one["title"], one


def test_the_reader_chooses_the_axis(page, tmp_path):
    found = browse(page, tmp_path)["seen"]
    for turn, over in (("", "trips"), ("virtual time", "time"), ("megabytes sent, both ways", "bytes")):
        shown = {one["name"] for one in found if one["turn"] == turn}
        assert {name for name in shown if name.startswith("accuracy-")} == {f"accuracy-{over}"}


def test_the_check_sees_trouble(page, tmp_path):
    spoilt = page.replace(
        "<main>", "<main><img src='https://example.org/a.png'><script>nothing()</script>", 1
    )
    spoilt = re.sub(
        r'(<figure id="accuracy-trips".*?<svg[^>]*>).*?</svg>',
        r"\1<title>t</title></svg>",
        spoilt,
        count=1,
        flags=re.DOTALL,
    )
    found = browse(spoilt, tmp_path)
    assert any("nothing is not defined" in one for one in found["trouble"])
    assert any("example.org" in one for one in found["trouble"])
    assert next(one for one in found["seen"] if one["name"] == "accuracy-trips")["marks"] == 0
