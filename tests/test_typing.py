"""Static types of the public names: what type checkers and editors see of `import tardigrad as td`."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tardigrad as td

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tardigrad"
CODE = ROOT / "tests" / "typing"


def wrong_lines():
    lines = (CODE / "wrong.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def test_type_checkers_see_the_names_that_are_imported_lazily():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == td._MODULE_OF, "src/tardigrad/__init__.py: the table and the imports below it differ"


def test_every_public_name_can_be_imported():
    for name in td.__all__:
        assert getattr(td, name) is not None


def test_importing_the_package_imports_neither_torch_nor_pydantic():
    code = "import sys, tardigrad; print([m for m in ('torch', 'pydantic', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("function", "absent"), [(td.run, set()), (td.serve, {"head"})])
def test_each_field_of_a_config_is_a_documented_keyword(function, absent):
    parameters = inspect.signature(function).parameters
    assert set(td.Config.model_fields) - set(parameters) <= absent
    undocumented = [name for name in parameters if f"`{name}`" not in (function.__doc__ or "")]
    assert undocumented == ["unknown"]


def test_defaults_of_fields_are_keywords_so_that_type_checkers_see_them():
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Field"
        and node.args
    ]
    assert found == [], "write Field(default=...): otherwise type checkers take the field for required"


def test_mypy_finds_the_mistakes_of_users_and_nothing_else():
    # with the project's options, so that the cache of `make types` serves
    files = [str(CODE / "right.py"), str(CODE / "wrong.py")]
    done = subprocess.run([sys.executable, "-m", "mypy", *files], cwd=ROOT, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if "wrong.py" not in line] == []
    assert {int(line.split(":")[1]) for line in errors} == wrong_lines(), done.stdout + done.stderr


def test_pyright_finds_the_mistakes_of_users_and_nothing_else(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps(
            {"include": [str(CODE)], "typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")]}
        )
    )
    command = [sys.executable, "-m", "basedpyright", "-p", str(tmp_path), "--outputjson"]
    done = subprocess.run([*command, "--pythonpath", sys.executable], capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in found
        if one["severity"] == "error"
    ]
    assert [error for error in errors if error[0] != "wrong.py"] == []
    assert {line for _, line in errors} == wrong_lines()
