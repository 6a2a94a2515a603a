"""Connecting to Ray: an existing connection of this process, a cluster, or a new Ray on this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from tardigrad.core.extras import pip_install
from tardigrad.errors import ConfigError

JOIN_SECONDS = 45
"""How long joining a cluster may take. Ray itself tries for many minutes and cannot be interrupted."""
SMALLEST_STORE = 200 << 20
"""Bytes of the object store of a Ray that is started here. Memory is taken when it is used."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
QUIET: dict[str, bool | str] = {"log_to_driver": False, "logging_level": "ERROR"}
PROBE = """
import sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
except BaseException as error:
    print("tardigrad:", " ".join(str(error).split()), flush=True)
    raise SystemExit(1)
"""


class RaySession:
    """A connection to the Ray that workers are started on.

    `address`: of a cluster that this machine is a node of ("auto", or HOST:PORT). If it is None, the session
    uses the Ray that this process has already joined; if there is none, it starts one on this machine, with
    `cpus` CPUs and an object store of about `store` bytes.
    """

    def __init__(self, address: str | None, cpus: int | None, store: int) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError(f"--workers ray needs Ray: {pip_install('ray')}") from None
        self.ray: ModuleType = ray
        self.environment: dict[str, dict[str, str]] = {"env_vars": ONE_THREAD}
        """The runtime environment of the workers."""
        self._leave: Callable[[], object] | None = None
        if ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns
        if address is None:
            folder = tempfile.mkdtemp(prefix="tardigrad-ray-")
            self._leave = weakref.finalize(self, _end, ray, folder)
            try:
                _start(ray, folder, cpus or len(os.sched_getaffinity(0)), store)
            except BaseException as error:
                self._leave()
                if isinstance(error, Exception):  # Ray raises a bare one if its processes start too slowly
                    raise ConfigError(f"--workers ray: Ray cannot be started ({_line(error)})") from None
                raise
            self.environment = {}  # its workers inherit the variables of this process
        else:
            _probe(address)
            try:
                self.ray.init(address, **QUIET)
            except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
                raise _cannot_join(address, _line(error)) from None
            self._leave = weakref.finalize(self, ray.shutdown)

    @property
    def cpus(self) -> int:
        """The number of CPUs of all nodes together."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def close(self) -> None:
        """Leave a cluster, which continues to run, or end a Ray that was started here."""
        if self._leave is not None:
            self._leave()


def _start(ray: ModuleType, folder: str, cpus: int, store: int) -> None:
    home = Path.home() / ".ray" / "auth_token"
    if "RAY_AUTH_TOKEN_PATH" not in os.environ and not home.exists():
        # A secret of this process, so that nobody else on the network can use this Ray. Ray uses the first
        # token that it finds, and would otherwise write one into the user's home directory
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        ray.init(
            "local", num_cpus=cpus, include_dashboard=False, object_store_memory=_fitting(store),
            _temp_dir=folder, **QUIET,
        )  # fmt: skip
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _end(ray: ModuleType, folder: str) -> None:
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def _fitting(store: int) -> int:
    """Limit the object store to what shared memory has free. Ray puts on disk what does not fit."""
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free * 4 // 5 if shared.is_dir() else store
    return max(SMALLEST_STORE, min(store, free))


def _probe(address: str) -> None:
    """Try to join the cluster in another process, which can be ended; raise a ConfigError if it fails."""
    host, _, port = address.rpartition(":")
    try:
        if host:  # first find out whether anything listens there
            socket.create_connection((host, int(port)), timeout=10).close()
        probe = subprocess.run(
            [sys.executable, "-c", PROBE, address],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=JOIN_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, OverflowError) as error:
        raise _cannot_join(address, str(error)) from None
    except subprocess.TimeoutExpired:
        raise _cannot_join(address, f"no answer in {JOIN_SECONDS} seconds") from None
    if probe.returncode != 0:
        raise _cannot_join(address, probe.stdout.rpartition("tardigrad:")[2].strip() or "Ray gives no reason")


def _cannot_join(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"--workers ray:{address}: the cluster cannot be joined ({why[:300]}); "
        "this machine must be one of its nodes, and where it asks for a token, RAY_AUTH_MODE=token be set"
    )


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
