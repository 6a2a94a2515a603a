"""`prepare = "standard"`: what clients tell, combined, prepares the tables of all."""

import csv
import datetime
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

import tardigrad as td
from observers import InterruptAfter
from tardigrad.core.draws import key
from tardigrad.data.sets.own_files import Files
from tardigrad.data.tables.preparation import read_preparation
from tardigrad.data.tables.reading_tables import read_columns
from tardigrad.data.tables.table_features import apply_to_table
from tardigrad.errors import ConfigError


def rows_of(file):
    with Path(file).open() as content:
        return list(csv.DictReader(content))


def expected_features(rows, training):
    """The features of rows, computed from the pooled training rows with the standard library alone."""

    def day(row):
        return float((datetime.date.fromisoformat(row["visit"]) - datetime.date(1970, 1, 1)).days)

    columns = {
        "age": lambda row: float(row["age"]),
        "pressure": lambda row: float(row["pressure"]) if row["pressure"] else None,
        "visit": day,
    }
    scaled = {}
    for name, value in columns.items():
        known = [value(row) for row in training if value(row) is not None]
        mean, scale = statistics.fmean(known), statistics.pstdev(known)
        scaled[name] = lambda row, v=value, m=mean, s=scale: 0.0 if v(row) is None else (v(row) - m) / s
    return {
        (row["age"], row["pressure"], row["visit"], row["sex"]): [
            scaled["age"](row),
            scaled["pressure"](row),
            float(row["sex"] == "f"),
            float(row["sex"] == "m"),
            float(row["sex"] == "NA"),
            scaled["visit"](row),
        ]
        for row in rows
    }


@pytest.mark.parametrize("test", [{"share": 0.2}, {"share": 0.34, "by": "client"}])
def test_federated_preparation_equals_the_pooled_one(tmp_path, write_visits, test):
    file = write_visits(tmp_path / "visits.csv")
    source = Files(path=file, client="clinic", label="sick", prepare="standard", test=test)
    federation = source.federation(3)
    plain = Files(path=file, client="clinic", label="sick", features=("age",), test=test).federation(3)
    clients = [plain.clients.load(c)[0].flatten().tolist() for c in range(len(plain.clients))]
    ages = {np.float32(age) for client in clients for age in client}  # each row has an age of its own
    rows = rows_of(file)
    training = [row for row in rows if np.float32(row["age"]) in ages]
    assert len(training) == sum(map(len, clients)) < len(rows)
    wanted = sorted(expected_features(rows, training).values())
    found = np.concatenate(
        [federation.clients.load(c)[0].numpy() for c in range(len(federation.clients))]
        + [federation.test[0].numpy()]
    )
    assert found.shape == (90, 6)
    np.testing.assert_allclose(sorted(found.tolist()), wanted, rtol=1e-6, atol=1e-6)
    assert federation.preparation.clients == len(federation.clients)
    assert federation.preparation.bytes > 100


def test_training_features_have_mean_0_and_variance_1(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv")
    settings = {"path": file, "client": "clinic", "label": "sick", "features": ("age", "visit")}
    clients = Files(**settings, prepare="standard").federation(0).clients
    x = torch.cat([clients.load(c)[0] for c in range(len(clients))]).double()
    assert torch.allclose(x.mean(dim=0), torch.zeros(2, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(x.var(dim=0, correction=0), torch.ones(2, dtype=torch.float64), atol=1e-5)


def test_given_constants_are_used_and_no_pass_is_made(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv")
    settings = {"path": file, "client": "clinic", "label": "sick"}
    found = Files(**settings, prepare="standard").federation(0)
    (tmp_path / "p.json").write_text(found.preparation.to_json())
    for constants in (str(tmp_path / "p.json"), found.preparation):
        again = Files(**settings, prepare={"kind": "standard", "constants": constants}).federation(0)
        assert torch.equal(again.clients.load(1)[0], found.clients.load(1)[0])
    moved = json.loads(found.preparation.to_json())
    moved["columns"][0]["mean"] += moved["columns"][0]["scale"]
    other = Files(**settings, prepare={"constants": moved}).federation(0)
    difference = other.clients.load(1)[0] - found.clients.load(1)[0]
    assert torch.allclose(difference[:, 0], torch.tensor(-1.0), atol=1e-5)
    assert not difference[:, 1:].any()


def test_unknown_class_is_refused_where_classes_are_given(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv")
    source = Files(path=file, client="clinic", label="sick", columns={"sick": ("no", "perhaps")})
    with pytest.raises(ConfigError, match=r"column 'sick': not one of the classes no, perhaps \(client '"):
        source.model_copy(update={"features": ("age",)}).federation(0)


def test_indicators_mark_missing_values_of_columns_that_have_some(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv")
    source = Files(path=file, client="clinic", label="sick", prepare={"indicators": True})
    preparation = source.federation(0).preparation
    assert [name for name in preparation.outputs if "missing" in name] == ["pressure is missing"]


def test_kinds_can_be_set(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv")
    source = Files(
        path=file, client="clinic", label="sick", features=("age", "sex"), columns={"age": "category"},
        prepare="standard",
    )  # fmt: skip
    preparation = source.federation(0).preparation
    assert preparation.kinds == {"age": "category", "sex": "category"}
    date = source.model_copy(update={"columns": {"sex": "date"}})
    with pytest.raises(ConfigError, match=r"line 2, column 'sex': not a date .*\(client '"):
        date.federation(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prepare": None}, r"column 'pressure': no value \(missing, or NaN\)"),
        ({"prepare": None, "features": ("sex",)}, "column 'sex': no value"),
        ({"prepare": None, "features": ("visit",)}, "not a number; data.prepare = 'standard'"),
        ({"prepare": None, "columns": {"age": "category"}}, r"columns\.age: 'category' needs data\.prepare"),
        ({"prepare": {"most_categories": 1}}, "'sex' has 2 categories, such as 'f', 'm'"),
        ({"columns": {"sex": ("f", "m")}}, r"data\.columns\.sex: a list has the classes of the label"),
        ({"columns": {"sick": "number"}}, "set head = 'regression'"),
        ({"prepare": {"constants": "none.json"}}, r"none\.json: cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_refused(tmp_path, write_visits, changes, message):
    file = write_visits(tmp_path / "visits.csv")
    settings = {"path": file, "client": "clinic", "label": "sick", "prepare": "standard"} | changes
    with pytest.raises(ConfigError, match=message):
        Files(**settings).federation(0)


def test_a_value_that_is_no_number_in_a_column_of_numbers_is_named(tmp_path, write_visits):
    rows = [(f"c{i % 2}", f"{i}.5" if i % 40 != 7 else "3.6o", "yes" if i % 3 else "no") for i in range(300)]
    file = write_visits(tmp_path / "a.csv", rows, heading=("clinic", "age", "sick"))
    with pytest.raises(
        ConfigError, match=r"'age' has numbers, but also values that are none, such as '3\.6o'; corr"
    ):
        Files(path=file, client="clinic", label="sick", prepare="standard").federation(0)


def test_numbers_without_a_finite_variance_and_empty_columns_are_refused(tmp_path, write_visits):
    heading = ("clinic", "x", "sick")
    for values, message in ((("1e300", "-1e300"), "variance is not finite"), (("", "NA"), "no value at all")):
        rows = [(f"c{i % 2}", values[i % 2], "yes" if i % 3 else "no") for i in range(12)]
        file = write_visits(tmp_path / "a.csv", rows, heading=heading)
        with pytest.raises(ConfigError, match=message):
            Files(path=file, client="clinic", label="sick", prepare="standard").federation(0)


def test_fractions_as_labels_are_never_classes(tmp_path, write_visits):
    heading = ("clinic", "x", "sick")
    file = write_visits(tmp_path / "a.csv", [("c", i, i / 4) for i in range(12)], heading=heading)
    source = Files(path=file, client="clinic", label="sick")
    with pytest.raises(ConfigError, match=r"line 3, column 'sick': its labels are fractions .*regression"):
        source.federation(0)
    asked = source.model_copy(update={"columns": {"sick": "category"}})
    assert asked.federation(0).classes == 12


def test_whole_numbers_with_a_point_are_classes_by_value(tmp_path, write_visits):
    rows = [("c", i, f"{i % 3 + 9}.0") for i in range(12)]
    file = write_visits(tmp_path / "a.csv", rows, heading=("clinic", "x", "sick"))
    clients = Files(path=file, client="clinic", label="sick").federation(0).clients
    assert all(label == x % 3 for x, label in zip(*(part.flatten().tolist() for part in clients.load(0))))


SETTINGS = {
    "model": td.MLP(hidden=(4,)), "pace": td.Asynchronous(concurrency=2), "buffer": td.Buffer(size=2),
    "local": td.Local(lr=0.2, batch_size=8), "stop": td.Stop(trips=24),
    "evaluation": td.Evaluation(every_steps=3),
}  # fmt: skip


def test_run_with_a_preparation_has_the_same_bits_with_workers_and_resumed(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv", separator=";")
    data = Files(path=file, client="clinic", label="sick", prepare={"indicators": True})
    result = td.run(data=data, out=tmp_path / "a", **SETTINGS)
    assert td.run(data=data, workers=2, **SETTINGS).model_sha256 == result.model_sha256
    with pytest.raises(KeyboardInterrupt):
        td.run(data=data, out=tmp_path / "b", observers=(InterruptAfter(10),), **SETTINGS)
    resumed = td.run(data=data, out=tmp_path / "b", resume=True, **SETTINGS)
    assert resumed.model_sha256 == result.model_sha256
    assert (tmp_path / "a/events.jsonl").read_bytes() == (tmp_path / "b/events.jsonl").read_bytes()
    assert (tmp_path / "a/preparation.json").read_bytes() == (tmp_path / "b/preparation.json").read_bytes()


def test_saved_preparation_gives_others_the_features_of_the_run(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv")
    data = Files(path=file, client="clinic", label="sick", prepare="standard")
    td.run(data=data, out=tmp_path / "run", **SETTINGS)
    preparation = read_preparation(tmp_path / "run" / "preparation.json")
    applied = apply_to_table(preparation, read_columns(tmp_path / "visits.csv"))
    federation = data.federation(key(0, "data"))
    parts = [federation.clients.load(c)[0] for c in range(len(federation.clients))]
    assert sorted(applied.tolist()) == sorted(torch.cat([*parts, federation.test[0]]).tolist())


def test_constants_in_a_file_are_in_the_resolved_config(tmp_path, write_visits):
    file = write_visits(tmp_path / "visits.csv")
    settings = {"path": file, "client": "clinic", "label": "sick"}
    found = Files(**settings, prepare="standard").federation(0).preparation
    (tmp_path / "p.json").write_text(found.to_json())
    data = Files(**settings, prepare={"constants": str(tmp_path / "p.json")})
    result = td.run(data=data, out=tmp_path / "run", **SETTINGS)
    (tmp_path / "p.json").unlink()
    again = td.load_config(tmp_path / "run" / "config.toml")
    assert again.data.prepare.constants == found
    assert td.run(again).model_sha256 == result.model_sha256


@pytest.mark.parametrize(
    "privacy",
    [
        {"kind": "participation", "noise_multiplier": 1.0, "clip": 1.0, "participations": 30, "delta": 1e-3},
        {"kind": "local", "noise_multiplier": 1.0, "clip": 1.0, "participations": 30, "delta": 1e-3},
    ],
)
def test_private_run_needs_given_constants(tmp_path, write_visits, privacy):
    file = write_visits(tmp_path / "visits.csv")
    settings = {"path": file, "client": "clinic", "label": "sick"}
    private = SETTINGS | {"stop": td.Stop(steps=4), "privacy": privacy}
    with pytest.raises(ConfigError, match=r"data\.prepare\.constants: with privacy they must be given"):
        td.run(data=Files(**settings, prepare="standard"), **private)
    constants = Files(**settings, prepare="standard").federation(0).preparation
    result = td.run(data=Files(**settings, prepare={"constants": constants}), **private)
    assert result.steps == 4


def regression_table(tmp_path, write_visits):
    rows = [(f"c{i % 3}", i / 10, 1000 + 50 * math.sin(i)) for i in range(60)]
    return write_visits(tmp_path / "a.csv", rows, heading=("clinic", "x", "cost"))


def test_target_that_is_a_number_is_scaled_only_on_request(tmp_path, write_visits):
    file = regression_table(tmp_path, write_visits)
    settings = {"path": file, "client": "clinic", "label": "cost"}
    plain = Files(**settings, prepare="standard").federation_for(td.Regression(), 0)
    scaled = Files(**settings, prepare={"target": True}).federation_for(td.Regression(), 0)
    raw = torch.cat([plain.clients.load(c)[1] for c in range(3)]).double()
    found = torch.cat([scaled.clients.load(c)[1] for c in range(3)]).double()
    assert raw.mean() > 900
    assert torch.allclose(found, (raw - raw.mean()) / raw.std(correction=0), atol=1e-4)
    target = scaled.preparation.target
    assert (target.classes, plain.preparation.target.scale) == (None, 1.0)
    assert target.mean == pytest.approx(float(raw.mean()), rel=1e-6)


def test_regression_run_on_a_table_is_judged_by_rmse(tmp_path, write_visits):
    file = regression_table(tmp_path, write_visits)
    data = Files(path=file, client="clinic", label="cost", prepare={"target": True})
    result = td.run(data=data, head="regression", **SETTINGS)
    assert 0 < result.metrics["rmse"] < 2
    with pytest.raises(ConfigError, match=r"data\.partition\.kind: 'shards' goes by classes"):
        td.run(
            data=data.model_copy(update={"partition": td.Shards(clients=2)}), head="regression", **SETTINGS
        )
