"""The two apps of examples/flower differ in the ServerApp alone, by few lines."""

import difflib
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"


def lines(app, name):
    return (EXAMPLES / app / "digits_app" / name).read_text().splitlines()


def test_client_app_and_task_are_the_same():
    for name in ("client_app.py", "task.py"):
        assert lines("fedavg", name) == lines("asynchronous", name)


def test_the_readme_shows_how_the_server_apps_differ():
    before, after = lines("fedavg", "server_app.py"), lines("asynchronous", "server_app.py")
    different = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    shown = (EXAMPLES / "README.md").read_text()
    assert len(different) == 6
    for line in different:
        assert f"{'<' if line[0] == '-' else '>'} {line[2:]}\n" in shown
