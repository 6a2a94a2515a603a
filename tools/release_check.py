"""Build the wheel and the sdist, check them, and install the wheel in clean virtual environments.

    python tools/release_check.py                 the package without extras
    python tools/release_check.py --extras tune   also with this extra; all: with each extra by itself

It takes some minutes and gigabytes for each environment. What is built stays in dist/.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_WITH_CONSTRAINTS = ("flower",)
"""Extras that need other versions than constraints.txt names."""
NOT_FOR_USERS = ("dev",)


def run(*words: object, cwd: Path | None = None) -> str:
    """Run a command; return what it prints, or end with what it says."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> Path:
    """Build and check both files; return the wheel."""
    tools = ROOT / ".release-venv"
    if not tools.exists():
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin/pip", "install", "--quiet", "build", "twine")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(tools / "bin/python", "-m", "build", ROOT)
    built = sorted((ROOT / "dist").iterdir())
    print(run(tools / "bin/twine", "check", "--strict", *built).strip())
    wheel, sdist = sorted(built, key=lambda file: file.suffix != ".whl")
    version = wheel.name.split("-")[1]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    if sdist.name != f"tardigrad-{version}.tar.gz" or cited is None or cited[1] != version:
        sys.exit(f"the version of {wheel.name} is not that of {sdist.name} and CITATION.cff")
    return wheel


def install(wheel: Path, extra: str | None) -> None:
    """Install the wheel in a clean environment, and run the command in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv/bin/python")
        run(sys.executable, "-m", "venv", Path(folder, "venv"))
        constraints = () if extra in NOT_WITH_CONSTRAINTS else ("-c", ROOT / "constraints.txt")
        run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "torch")
        wanted = f"{wheel}[{extra}]" if extra else wheel
        run(python, "-m", "pip", "install", "--quiet", *constraints, wanted)
        run(python, "-m", "pip", "check")
        version = run(python, "-m", "tardigrad", "--version", cwd=Path(folder)).strip()
        run(python, "-m", "tardigrad", "init", "first.toml", cwd=Path(folder))
        run(python, "-m", "tardigrad", "run", "first.toml", "--set", "stop.trips=20", "-q", cwd=Path(folder))
        print(f"{version}, {extra or 'without extras'}: installed, ran")


def main() -> None:
    """Check a release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extras", nargs="*", default=[], help="names of extras, or all")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = options.extras
    if extras == ["all"]:
        extras = [name for name in project["optional-dependencies"] if name not in NOT_FOR_USERS]
    wheel = build()
    for extra in (None, *extras):
        install(wheel, extra)


if __name__ == "__main__":
    main()
