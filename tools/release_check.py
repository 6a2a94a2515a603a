"""Build the wheel and the sdist, check them, and install the wheel in clean virtual environments.

    python tools/release_check.py                 the package without extras
    python tools/release_check.py --extras tune   also with this extra; all: with each extra by itself

It takes some minutes for the first environment, and less for each extra. What is built stays in dist/.
"""

from __future__ import annotations

import argparse
import os
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
TARDIGRAD = ("python", "-m", "tardigrad")
RUN = (*TARDIGRAD, "run", "first.toml", "--set", "stop.trips=20", "-q")
USES: dict[str | None, list[tuple[str, ...]]] = {
    None: [(*TARDIGRAD, "demo", "--short", "-q")],
    "ray": [(*RUN, "--workers", "ray")],
    "privacy": [
        (*TARDIGRAD, "privacy", "plan", "--epsilon", "2", "--steps", "200", "--sampling-rate", "5e-4")
    ],
    "secure": [("python", "-c", "import tardigrad.secure.envelopes")],
    "tune": [(*TARDIGRAD, "tune", "few.toml", "--out", "tuned", "-q")],
    "dashboard": [("python", "-c", "import tardigrad.watch.web_server, tardigrad.watch.web_app")],
    "tensorboard": [(*RUN, "--out", "tracked", "--track", "tensorboard")],
    "mlflow": [(*RUN, "--out", "tracked", "--track", "mlflow")],
    "wandb": [(*RUN, "--out", "tracked", "--track", "wandb")],
    "data": [("python", "-c", "import h5py, pyarrow.parquet, PIL.Image")],
    "hugging-face": [("python", "-c", "import datasets, tardigrad; tardigrad.from_hugging_face")],
    "flower": [("python", "-c", "import tardigrad.flower; tardigrad.flower.AsyncStrategy")],
    "transformers": [("python", "-c", "import peft, transformers; transformers.BertModel")],
    "deploy": [("check-jsonschema", "--version"), ("hadolint", "--version")],
    "docs": [("zensical", "--version")],
}
"""What each extra is for, tried in its environment, in a folder with the config first.toml."""
COMPARISON = """seeds = [0]
targets = [0.5]
base = { stop = { trips = 40 } }
entries = { FedBuff = {}, FedAvg = { algorithm = "fedavg" } }
tune = { trials = 2 }
"""


def run(*words: object, cwd: Path | None = None) -> str:
    """Run a command; return what it prints, or end with what it says."""
    environment = os.environ | {"WANDB_MODE": "offline"}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True
    )
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


def install(environment: Path, *wanted: object, constrained: bool = True) -> None:
    """Install packages in an environment, and check that all of it fits together."""
    constraints = ("-c", ROOT / "constraints.txt") if constrained else ()
    run(environment / "bin/python", "-m", "pip", "install", "--quiet", *constraints, *wanted)
    run(environment / "bin/python", "-m", "pip", "check")


def clean_environment(folder: Path) -> Path:
    """Return a new environment with torch alone. With it there, nothing pulls the GPU builds."""
    run(sys.executable, "-m", "venv", folder)
    install(folder, "torch")
    return folder


def use(environment: Path, extra: str | None) -> None:
    """Use the installed package, and what the extra is for, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment / "bin/python"
        version = run(python, "-m", "tardigrad", "--version", cwd=Path(folder)).strip()
        run(python, "-m", "tardigrad", "init", "first.toml", cwd=Path(folder))
        Path(folder, "few.toml").write_text(COMPARISON)
        for program, *words in [RUN, *USES[extra]]:
            run(environment / "bin" / program, *words, cwd=Path(folder))
        print(f"{version}, {extra or 'without extras'}: installed, used", flush=True)


def check(wheel: Path, extras: list[str]) -> None:
    """Install the wheel without extras, and with each of them in an environment of its own.

    The environment of an extra is a copy of the one without, in hard links. pip replaces files, and does
    not change them.
    """
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        base = clean_environment(Path(folder, "base"))
        install(base, wheel)
        use(base, None)
        for extra in extras:
            environment = Path(folder, extra)
            constrained = extra not in NOT_WITH_CONSTRAINTS
            try:
                if constrained:
                    shutil.copytree(base, environment, symlinks=True, copy_function=os.link)
                else:
                    clean_environment(environment)
                install(environment, f"{wheel}[{extra}]", constrained=constrained)
                use(environment, extra)
            except SystemExit as error:
                print(f"{extra}: FAILED\n{error}", flush=True)
                failed.append(extra)
            shutil.rmtree(environment)
    if failed:
        sys.exit(f"these extras failed: {', '.join(failed)}")


def main() -> None:
    """Check a release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extras", nargs="*", default=[], help="names of extras, or all")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = options.extras
    if extras == ["all"]:
        extras = [name for name in project["optional-dependencies"] if name not in NOT_FOR_USERS]
    check(build(), extras)


if __name__ == "__main__":
    main()
