"""A report in a real browser: every chart shows something, nothing goes wrong, no network is asked."""

import csv
import json
import re

import pytest
from test_write import make_comparison

from browser import CHROMIUM, Browser
from tardigrad.experiments.report.write import report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

WATCH = """
window.trouble = [];
window.addEventListener("error", (event) => trouble.push("error: " + event.message));
document.addEventListener("securitypolicyviolation", (event) => trouble.push("asked: " + event.blockedURI));
"""
PICTURES = "Object.defineProperty(window, 'ResizeObserver', { value: undefined });"
"""Makes the drawing of charts fail."""
LOOK = """
(async () => {
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
  const painted = (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
      const [r, g, b, a] = data.slice(at, at + 4);
      if (a > 100 && Math.max(r, g, b) - Math.min(r, g, b) > 40) count += 1;
    }
    return count;
  };
  const look = (turn) => {
    for (const figure of document.querySelectorAll("figure")) {
      if (figure.hidden) continue;
      const svg = figure.querySelector("svg"), paper = figure.getBoundingClientRect();
      const canvas = figure.querySelector("canvas");
      const outside = [...svg.querySelectorAll("text")].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < paper.left - 1 || box.right > paper.right + 1;
      });
      seen.push({ name: figure.id, turn, marks: canvas ? painted(canvas) : marks(svg).length,
        width: (canvas || svg).getBoundingClientRect().width, interactive: Boolean(canvas),
        texts: svg.querySelectorAll("text").length,
        outside: canvas ? [] : outside.map((text) => text.textContent),
        title: svg.querySelector("title").textContent });
    }
  };
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)));
  await drawn();
  look("");
  for (const button of document.querySelectorAll(".turns button")) {
    button.click();
    await drawn();
    look(button.value);
  }
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
  return { seen, trouble, wide, fetched, paper: css.getPropertyValue("--paper") };
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file, _ = report([make_comparison(tmp_path_factory.mktemp("page"))])
    return file.read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def opened(browser, text, folder, width=1200, dark=False, before=""):
    """A report in the browser, in a window that is as tall as the page, so that all charts are in view."""
    file = folder / "page.html"
    file.write_text(text)
    page = browser.open(file.as_uri(), width, 60_000, dark, WATCH + before)
    page.until("document.readyState === 'complete' && location.protocol === 'file:'")
    return page


def browse(browser, text, folder, width=1200, dark=False, before=PICTURES):
    """What the browser found on the page; without `before`, charts are drawn by the script."""
    return opened(browser, text, folder, width, dark, before).value(LOOK)


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False)])
@pytest.mark.parametrize("before", ["", PICTURES], ids=["interactive", "pictures"])
def test_every_chart_shows_something(browser, page, tmp_path, width, dark, before):
    found = browse(browser, page, tmp_path, width, dark, before)
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
    drawn = {one["name"] for one in found["seen"] if one["interactive"]}
    kinds = ("accuracy-", "loss-", "staleness-", "weights-", "at-work-", "timeline-", "step-")
    assert drawn == (set() if before else {name for name in names if name.startswith(kinds)})


def specs_of(page):
    return json.loads(re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)[1])


def test_values_are_told_and_saved(browser, page, tmp_path):
    opening = opened(browser, page, tmp_path)
    opening.until("document.querySelectorAll('#accuracy-trips canvas').length === 1")
    spec = specs_of(page)["accuracy-trips"]
    legend = opening.value("document.querySelector('#accuracy-trips .u-legend').textContent")
    for line in spec["lines"]:
        assert f"{100 * line['y'][-1]:.1f} %" in legend
    opening.value(
        "window.saved = null;"
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { saved = text; }); return '#'; };"
        "document.querySelector('#accuracy-trips .csv').click()"
    )
    rows = list(csv.reader(opening.until("saved").splitlines()))
    first = spec["lines"][0]
    column = rows[0].index(first["label"])
    assert [float(row[column]) for row in rows[1:] if row[column]] == first["y"]


def test_labels_cannot_end_the_data_of_charts(browser, page, tmp_path):
    def inside(text):
        return json.dumps(text).replace("<", "\\u003c")

    evil = "</script><script>trouble.push('hacked')</script>"
    label = specs_of(page)["accuracy-trips"]["lines"][0]["label"]
    assert "<b>" in label
    assert json.dumps(label) not in page
    spoilt = page.replace(inside(label), inside(evil))
    opening = opened(browser, spoilt, tmp_path)
    opening.until("document.querySelectorAll('#accuracy-trips canvas').length === 1")
    assert evil in opening.value("document.querySelector('#accuracy-trips .u-legend').textContent")
    assert opening.value("trouble") == []


def test_a_script_that_is_not_the_report_s_own_does_not_run(browser, page, tmp_path):
    spoilt = page.replace("<main>", "<main><script>trouble.push('hacked')</script>", 1)
    found = browse(browser, spoilt, tmp_path)["trouble"]
    assert found == ["asked: inline"]


def test_the_reader_chooses_the_axis(browser, page, tmp_path):
    found = browse(browser, page, tmp_path)["seen"]
    for turn, over in (("", "trips"), ("virtual time", "time"), ("megabytes sent, both ways", "bytes")):
        shown = {one["name"] for one in found if one["turn"] == turn}
        assert {name for name in shown if name.startswith("accuracy-")} == {f"accuracy-{over}"}


def test_the_check_sees_trouble(browser, page, tmp_path):
    spoilt = page.replace("<main>", "<main><img src='https://example.org/a.png'>", 1)
    spoilt = re.sub(
        r'(<figure id="accuracy-trips".*?<svg[^>]*>).*?</svg>',
        r"\1<title>t</title></svg>",
        spoilt,
        count=1,
        flags=re.DOTALL,
    )
    found = browse(browser, spoilt, tmp_path, before=PICTURES + "setTimeout(() => nothing(), 0);")
    assert any("nothing is not defined" in one for one in found["trouble"])
    assert any("example.org" in one for one in found["trouble"])
    assert next(one for one in found["seen"] if one["name"] == "accuracy-trips")["marks"] == 0
