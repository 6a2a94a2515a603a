"""Code of the user's own: loading by place, keyword arguments, and the source of classes."""

import subprocess
import sys

import pytest

import tardigrad as td
from tardigrad.core.own_code import call_own, class_place, class_source, load_name, own_arguments


def test_a_file_is_executed_once_until_it_changes(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("class A: pass\n")
    first = load_name(f"{file}:A", "x")
    assert load_name(f"{file}:A", "x") is first
    assert load_name(f"{file}:A", "x", fresh=True) is not first
    file.write_text("class A: size = 1\n")
    assert load_name(f"{file}:A", "x").size == 1


def test_files_of_the_same_name_in_two_folders_do_not_replace_each_other(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(f"class Net:\n    name = '{name}'\n")
    a, b = (load_name(f"{tmp_path / name}/net.py:Net", "x") for name in ("a", "b"))
    assert (a.name, b.name) == ("a", "b")
    assert class_place(a) == f"{tmp_path}/a/net.py:Net"
    assert "name = 'a'" in class_source([a])


def test_a_file_can_import_the_module_beside_it(tmp_path):
    (tmp_path / "beside_own_code.py").write_text("WIDTH = 7\n")
    (tmp_path / "own.py").write_text("from beside_own_code import WIDTH\n")
    assert load_name(f"{tmp_path}/own.py:WIDTH", "x") == 7


def test_missing_file_name_and_failing_import_are_named(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("1 / 0\n")
    with pytest.raises(
        td.ConfigError, match=r"^model: there is no file gone\.py; give path/to/file\.py:name"
    ):
        load_name("gone.py:net", "model")
    with pytest.raises(
        td.ConfigError, match=r"own\.py cannot be imported \(ZeroDivisionError.*, at .*own\.py:1\)"
    ):
        load_name(f"{file}:net", "model")


def net(shape, classes, hidden=8, **more):
    return shape, classes, hidden, more


def strict(width, depth=2):
    raise ValueError("too wide")


def test_given_arguments_come_before_offered_ones_and_only_wanted_ones_are_offered():
    offered = {"shape": (3,), "classes": 2, "seed": 5}
    assert own_arguments(net, {"classes": 4, "extra": 1}, offered, "model") == {
        "shape": (3,), "classes": 4, "extra": 1,
    }  # fmt: skip
    assert own_arguments(strict, {"width": 1}, offered, "model") == {"width": 1}


def test_unknown_and_missing_arguments_are_named():
    with pytest.raises(
        td.ConfigError, match=r"unknown key 'model\.dept'; the parameters of strict are: width, depth"
    ):
        own_arguments(strict, {"width": 1, "dept": 3}, {}, "model")
    with pytest.raises(td.ConfigError, match=r"model: strict has the parameter width; give model\.width"):
        own_arguments(strict, {}, {"shape": (1,)}, "model")


def test_an_error_of_an_own_function_names_file_and_line_and_keeps_its_cause():
    with pytest.raises(
        td.ConfigError, match=r"model: strict failed at .*test_own_code\.py:\d+ \(ValueError: too wide"
    ) as e:
        call_own(strict, {"width": 1}, "model")
    assert isinstance(e.value.__cause__, ValueError)


class Base:
    def forward(self):
        return 1


class Derived(Base):
    pass


def test_the_source_of_a_class_has_its_own_bases_and_no_installed_ones():
    source = class_source([Derived])
    assert "return 1" in source
    assert "class Derived(Base)" in source
    assert class_source([td.FedBuff, dict]) == ""


def test_a_class_inside_a_function_has_no_place_in_a_file():
    class Inner:
        pass

    assert class_place(Inner) == "python:Inner"
    assert class_place(Derived).endswith("test_own_code.py:Derived")


NOTEBOOK = '''
import contextlib, linecache, sys
import torch
import tardigrad as td

class Interrupt:
    left = 4
    def begin(self, config, history): pass
    def end(self): pass
    def see(self, events):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

def cell(source):
    """Execute a cell as IPython does: its file has a name that no file has, but linecache knows its lines."""
    name = f"/tmp/ipykernel_1/{abs(hash(source))}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), globals())

CELL = """
class Half(td.SumOnly):
    share: float = 0.5
    def step(self, state, buffer):
        state["model"] = state["model"] - self.share * buffer.mean()
        return {}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
    def forward(self, x):
        return self.layer(x)

class Own(td.MultiClass):
    def loss(self, outputs, labels):
        return 2 * super().loss(outputs, labels)
"""

def settings():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3, generator=generator)
    y = (x[:, 0] > 0).long()
    return dict(
        algorithm=Half(), model=Net(), head=Own(), clients={i: (x[i::4], y[i::4]) for i in range(4)},
        test=(x, y), pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=20),
    )

cell(CELL)
out = sys.argv[1]
whole = td.run(**settings(), out=out + "/whole").model_sha256
assert td.run(**settings(), workers=2).model_sha256 == whole
with contextlib.suppress(KeyboardInterrupt):
    td.run(**settings(), out=out + "/cut", observers=(Interrupt(),))
cell(CELL.replace("2 * super", "3 * super"))
try:
    td.run(**settings(), out=out + "/cut", resume=True)
except td.ConfigError as error:
    print(error)
cell("# the same classes in another cell\\n" + CELL)
assert td.run(**settings(), out=out + "/cut", resume=True).model_sha256 == whole
print("resumed")
'''


def test_classes_of_a_notebook_are_run_resumed_and_compared(tmp_path):
    """In a process of its own whose main module has no file, as that of a kernel."""
    done = subprocess.run(
        [sys.executable, "-", str(tmp_path)], input=NOTEBOOK, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    changed, resumed = done.stdout.splitlines()
    assert changed.startswith("--resume: the head's code changed since")
    assert resumed == "resumed"
    source = (tmp_path / "whole" / "own_code.py").read_text()
    assert all(f"class {name}" in source for name in ("Half", "Net", "Own"))
    assert 'kind = "python:Half"' in (tmp_path / "whole" / "config.toml").read_text()
    with pytest.raises(
        td.ConfigError, match=r"Half was defined in Python .* algorithm=Half\(\.\.\.\), resume=True"
    ):
        td.load_config(tmp_path / "whole" / "config.toml")
