"""Check that a run goes on with the config and the inputs that it was begun with."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from pydantic import ValidationError

from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.fingerprints import Inputs


def check_same_run(folder: Path, config: Config, inputs: Inputs, option: str) -> None:
    """Raise a ConfigError if config or inputs differ from those in the folder; `option` is named in it."""
    stored_file = folder / "config.toml"
    try:
        stored = tomllib.loads(stored_file.read_text())
        stored_inputs = json.loads((folder / "inputs.json").read_text())
        if not stored:
            raise ValueError("config.toml is empty")
    except (OSError, ValueError) as error:
        raise RunError(f"{stored_file} or inputs.json is damaged ({error}); start a new run") from None
    given = tomllib.loads(config.to_toml())
    from_python = [name for name in ("data", "model") if name in given and name not in stored]
    if from_python and option == "--resume":  # the clients of a server have the data
        names = " and ".join(from_python)
        raise ConfigError(
            f"{option}: the {names} of {folder} came from Python; go on from there with the same {names}: "
            f"td.run(..., out={str(folder)!r}, resume=True)"
        )
    different = _differences(_decisive(_with_defaults(stored)), _decisive(given))
    if different:
        raise ConfigError(
            f"{option}: the config differs from that of {folder} in {', '.join(different)}; "
            "go on with the same config, or start a new run"
        )
    known = {name: digest for name, digest in inputs.items() if name in stored_inputs}
    changed = _differences(stored_inputs, known)  # an earlier version may have stored less
    if changed:
        raise ConfigError(
            f"{option}: {' and '.join(changed)} changed since {folder} was begun; "
            "put that back, or start a new run"
        )


def _with_defaults(stored: dict[str, object]) -> dict[str, object]:
    """Return a stored config with the defaults of settings that did not exist when it was written."""
    none: dict[str, object] = {"data": None, "model": None}  # a stored config without them has none
    try:
        return tomllib.loads(Config.model_validate(none | stored).to_toml())
    except (ConfigError, ValidationError):  # another version's, or its own code is gone: compared as it is
        return stored


def _decisive(config: dict[str, object]) -> dict[str, object]:
    """Return the settings that the result depends on: of a server's limits, the population alone; not the
    main metric, which follows from the head if it is not given; and of helpers not their addresses."""
    service, evaluation, secure = config.get("service"), config.get("evaluation"), config.get("secure")
    population = service.get("population") if isinstance(service, dict) else None
    if isinstance(evaluation, dict):
        evaluation = {name: value for name, value in evaluation.items() if name not in ("main", "better")}
    if isinstance(secure, dict) and isinstance(secure.get("helpers"), list):
        secure = secure | {"helpers": [helper.get("identity") for helper in secure["helpers"]]}
    return config | {"service": {"population": population}, "evaluation": evaluation, "secure": secure}


def _differences(a: object, b: object, path: str = "") -> list[str]:
    """Return the dotted keys in which two documents differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(set(a) | set(b))
        return [d for n in names for d in _differences(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
