"""The default settings on pages are those of the classes."""

import re
import tomllib
from pathlib import Path

import pytest

import tardigrad as td
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.experiments.tune.search_space import Tune
from tardigrad.learning.gradient import TRACE_AFTER
from tardigrad.service.server import norm_limits
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.store import upload_files
from tardigrad.watch import client_list, watched_run

ROOT = Path(__file__).parents[1]
ALGORITHMS = {algorithm.model_fields["kind"].default: algorithm for algorithm in BUILT_IN}
PARTS = {
    "optimiser": lambda kind: td.Local(optimiser=kind).optimiser,
    "momentum": lambda kind: td.FedBuff(momentum=kind).momentum,
    "preconditioner": lambda kind: td.FedBuff(preconditioner=kind).preconditioner,
    "staleness": lambda kind: td.FedBuff(staleness=kind).staleness,
}
"""How a part of another table is made from its kind."""

NO_SETTING = object()

PART = re.compile(r"\b(momentum|preconditioner|staleness|mean) ([a-z_]+)(?: ([\d.]+))?")
SETTING = re.compile(r'([\w.]+) (\[.*?\]|-?\d[\d.e-]*|true|false|none|"\w+")')


def page(name):
    """The text of a page."""
    return (ROOT / "docs" / name).read_text()


def value(text):
    """A default as a page writes it."""
    if text == "none":
        return None
    return tomllib.loads(f"value = {text}")["value"]


def plain(setting):
    """A default as it can be compared with a page's."""
    return list(setting) if isinstance(setting, tuple) else setting


def default(made, name):
    """The default of a setting; two of the buffer's depend on the algorithm."""
    if name == "K":
        return made.default_buffer
    if name == "buffer.staleness_bound":
        return made.default_staleness_bound
    return plain(getattr(made, name, NO_SETTING))


def wrong(made, text):
    """What of the text of some settings is not as in a class."""
    text = re.sub(r"\s+", " ", re.sub(r"\([^)]*\)", "", text).replace("`", ""))
    found = []
    for name, kind, number in PART.findall(text):
        part = getattr(made, name)
        numbers = [setting for key, setting in part if key != "kind"]
        if part.kind != kind or (number and numbers != [float(number)]):
            found.append(f"{name} {kind} {number}")
    rest = PART.sub("", text)
    found += [f"{name} {said}" for name, said in SETTING.findall(rest) if default(made, name) != value(said)]
    return found + re.findall(r"\S*\d\S*", SETTING.sub("", rest))


def sentences():
    """The kinds of each sentence of settings on the page of algorithms, and the sentence."""
    text = " ".join(page("algorithms.md").split())
    found, kinds = [], []
    for kind, more, said in re.findall(r'kind = "(\w+)"((?:`, `"\w+")*)|\bSettings: (.*?)\.(?= |$)', text):
        if kind in ALGORITHMS or "approximation" in kind:
            kinds = [kind, *re.findall(r"\w+", more)]
        elif said:
            found += [(each, said) for each in kinds]
    return found


def made_of(kind):
    """An algorithm with its defaults, or FedBuff with a momentum."""
    return ALGORITHMS[kind]() if kind in ALGORITHMS else td.FedBuff(momentum=kind).momentum


@pytest.mark.parametrize(("kind", "said"), sentences())
def test_a_sentence_of_settings_has_the_defaults_of_the_algorithm(kind, said):
    assert wrong(made_of(kind), said) == []


def test_a_wrong_default_is_found():
    assert wrong(td.FedAsync(), "alpha 0.5, staleness polynomial 0.6, rho 0, K 2") == [
        "staleness polynomial 0.6", "alpha 0.5", "K 2",
    ]  # fmt: skip
    assert wrong(td.FedAsync(), "alpha 0.6 to 0.8") == ["to 0.8"]
    assert wrong(td.FedAsync(), "alpha 0.6, 0.8") == ["0.8"]


@pytest.mark.parametrize(
    ("table", "make", "count"),
    [
        ("optimiser", PARTS["optimiser"], 3),
        ("momentum", PARTS["momentum"], 7),
        ("preconditioner", PARTS["preconditioner"], 5),
        ("kind", PARTS["staleness"], 6),
        ("kind", made_of, 6),
    ],
)
def test_a_table_of_settings_has_the_defaults_of_the_classes(table, make, count):
    last = "defaults" if make is PARTS["staleness"] else "settings"
    (rows,) = re.findall(
        rf"^\| {table} \|[^\n]* \| {last} \|\n\|[- |]*\|\n((?:\|.*\|\n)*)",
        page("algorithms.md"),
        re.MULTILINE,
    )
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    assert len(cells) == count
    for kind, *_, settings in cells:
        made = make(re.match(r"\w+", kind.strip("`"))[0])
        assert wrong(made, settings.split(";")[0]) == [], kind


def test_every_algorithm_with_settings_has_its_defaults_on_the_page():
    table = re.findall(r"^\| (fed\w+) \|", page("algorithms.md"), re.MULTILINE)
    shown = {kind for kind, _ in sentences()} | set(table)
    assert set(ALGORITHMS) - shown == {"fedbuff_corollary", "area", "sgd"}
    assert f"(scale {td.FedBuffCorollary().scale:g}," in page("algorithms.md")
    assert f"with smoothness L {td.MasFL().smoothness:g}," in page("algorithms.md")
    assert (td.MasFL().eta, td.AdaMasFL().eta) == ("local", None)


def test_the_last_algorithms_of_the_page_have_buffers_of_one_upload():
    """Unless said otherwise."""
    _, last = page("algorithms.md").split("K is 1 unless said otherwise")
    kinds = [kind for kind in re.findall(r'kind = "(\w+)"', last) if kind in ALGORITHMS]
    others = {kind: ALGORITHMS[kind].default_buffer for kind in kinds if ALGORITHMS[kind].default_buffer != 1}
    assert others == {"area": 10, "rennala": 10, "bucketed_fedbuff": 3}
    assert "(K is 10)" in last


@pytest.mark.parametrize(("name", "settings"), [("service.md", ServiceSettings), ("tuning.md", Tune)])
def test_a_table_of_limits_has_the_defaults_of_its_class(name, settings):
    fields = dict(settings())
    rows = re.findall(r"^\| `?(\w+)(?:\.LABEL)?`? \|([^|]*)\|", page(name), re.MULTILINE)
    shown = {key: said.strip() for key, said in rows if key in fields}
    assert list(shown) == list(fields)
    for key, said in shown.items():
        if re.match(r'\d+$|"|true$|none$', said):
            assert value(said) == fields[key], key
        elif said == "1 GiB":
            assert fields[key] == 2**30
        else:  # in words
            assert fields[key] in (None, {}), key


def test_limits_in_words_are_those_of_the_code():
    performance = " ".join(page("performance.md").split())
    assert f"After {TRACE_AFTER:,} minibatches of one shape, the gradient is traced" in performance
    service = " ".join(page("service.md").split())
    last, enough = norm_limits.WINDOW, norm_limits.ENOUGH
    assert f"the median of the last {last} accepted ones do not count, once {enough} are known" in service
    assert upload_files.IN_MEMORY == 16 * 2**20
    assert "or 4 MiB for one of more than 16 MiB" in service
    watch = " ".join(page("watch.md").split())
    assert watched_run.UPLOADS == 1000
    assert (
        f"at most {watched_run.POINTS} points of a curve, the last thousand uploads and "
        f"{client_list.MOST_CLIENTS:,} clients"
    ) in watch
