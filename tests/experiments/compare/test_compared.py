"""td.compare: comparisons in Python, with and without objects of the caller."""

import io

import pandas
import pytest
import rich.console
import torch

import tardigrad as td

BASE = {
    "data": {"kind": "digits", "partition": {"kind": "iid", "clients": 5}},
    "local": {"lr": 0.2, "batch_size": 8},
    "pace": {"kind": "asynchronous", "concurrency": 3},
    "buffer": {"size": 2},
    "stop": {"trips": 8},
    "evaluation": {"every_trips": 4},
}


class Halved(td.SumOnly):
    """An algorithm of the caller's own."""

    def step(self, state, buffer):
        state["model"] = state["model"] - 0.5 * buffer.mean()
        return {}


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def examples(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(20, 3, generator=generator)
    return features, (features[:, 0] > 0).long()


def curves(folder, label):
    return sorted(file.read_text() for file in folder.glob(f"{label}-seed*/events.jsonl"))


def test_entries_as_dicts_and_configs_give_the_runs_of_a_file(tmp_path):
    found = td.compare(
        {"A": {"local": {"lr": 0.4}}, "B": td.Config(algorithm=td.FedBuff(lr=0.5))},
        base=BASE | {"algorithm": td.FedBuff()}, seeds=[3, 4], targets=[0.2],
        title="Mine", out=tmp_path / "a",
    )  # fmt: skip
    assert found.failed == {}
    assert [row["entry"] for row in found.table["rows"]] == ["A", "B"]
    assert (found.table["title"], found.table["seeds"], found.table["targets"]) == ("Mine", [3, 4], [0.2])
    (tmp_path / "c.toml").write_text(
        "seeds = [3, 4]\ntargets = [0.2]\n"
        '[base]\ndata = { kind = "digits", partition = { kind = "iid", clients = 5 } }\n'
        "local = { lr = 0.2, batch_size = 8 }\nstop = { trips = 8 }\nevaluation = { every_trips = 4 }\n"
        'pace = { kind = "asynchronous", concurrency = 3 }\nbuffer = { size = 2 }\n'
        '[entries.A]\nlocal = { lr = 0.4 }\n[entries.B]\nalgorithm = { kind = "fedbuff", lr = 0.5 }\n'
    )
    same = td.compare(tmp_path / "c.toml", out=tmp_path / "b")
    for label in ("A", "B"):
        assert curves(tmp_path / "a", label) == curves(tmp_path / "b", label)
        assert len(curves(tmp_path / "b", label)) == 2
    assert same.table["rows"] == found.table["rows"]
    frame = found.to_pandas()
    assert list(frame["entry"]) == ["A", "B"]
    assert isinstance(frame, pandas.DataFrame)
    shown = io.StringIO()
    rich.console.Console(file=shown, width=100).print(found)
    assert "Mine: to 0.2 accuracy" in shown.getvalue()
    assert found._repr_markdown_() == (tmp_path / "a" / "comparison.md").read_text()


def test_entries_may_have_networks_and_encodings_of_their_own(tmp_path):
    entries = {
        "plain": {},
        "slow": {"network": {"upload": 1000.0, "download": 10_000.0}},
        "small": {"network": {"upload": 1000.0, "download": 10_000.0}, "encoding": "int8"},
        "rare": {"network": {"profile": "phones"}, "availability": {"kind": "on_off", "on": 5.0, "off": 5.0}},
    }
    found = td.compare(entries, base=BASE, seeds=[0], targets=[0.01], out=tmp_path / "runs")
    assert [row["entry"] for row in found.table["rows"]] == list(entries)
    alone = {}
    for label, entry in entries.items():
        config = td.Config.model_validate(BASE | entry | {"seed": 0})
        alone[label] = td.run(config, out=tmp_path / "alone" / f"{label}-seed0")
        assert curves(tmp_path / "alone", label) == curves(tmp_path / "runs", label)
    assert alone["small"].bytes_up < 0.27 * alone["slow"].bytes_up
    assert alone["plain"].virtual_time < alone["small"].virtual_time < 0.5 * alone["slow"].virtual_time
    said = (tmp_path / "runs" / "comparison.md").read_text()
    assert [label for label in entries if f"{label}: " in said] == ["slow", "small", "rare"]


def test_own_model_clients_and_algorithm_are_compared_in_this_process(tmp_path):
    clients = {name: examples(number) for number, name in enumerate(("a", "b", "c"))}
    entries = {"FedBuff": {"algorithm": "fedbuff"}, "own": {"algorithm": Halved()}}
    base = {name: BASE[name] for name in ("local", "pace", "buffer", "stop", "evaluation")}
    given = {"model": linear(), "clients": clients, "test": examples(9), "base": base, "seeds": [0]}
    found = td.compare(entries, out=tmp_path / "here", **given)
    assert found.failed == {}
    alone = td.run(
        model=linear(), clients=clients, test=examples(9), algorithm=Halved(), **base, out=tmp_path / "alone"
    )
    assert curves(tmp_path / "here", "own") == [(tmp_path / "alone" / "events.jsonl").read_text()]
    assert found.table["rows"][1]["accuracy"]["mean"] == alone.accuracy
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "here").glob("*/summary.json")}
    again = td.compare(entries, out=tmp_path / "here", **given)
    assert again.table == found.table
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "here").glob("*/summary.json")}
    other = td.compare(entries, out=tmp_path / "here", **given | {"model": torch.nn.Linear(3, 2)})
    assert "the model changed" in other.failed["FedBuff"][0]


@pytest.mark.parametrize(
    ("entries", "given", "says"),
    [
        ({}, {}, "entries"),
        ({"A": {"locl": {}}}, {}, "entry 'A': unknown key 'locl'; did you mean 'local'?"),
        ({"A": td.Config(seed=1)}, {}, "seed is set by `seeds`"),
        ({"A": {}}, {"seeds": [1, 1]}, "the same seed twice"),
        ({"A": {}}, {"targets": []}, "targets"),
        ("nowhere.toml", {}, "there is no such file"),
        ("nowhere.toml", {"base": {}}, "base: the file has"),
    ],
)
def test_wrong_comparisons_are_refused_before_anything_is_written(tmp_path, entries, given, says):
    with pytest.raises(td.ConfigError, match=says):
        td.compare(entries, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
