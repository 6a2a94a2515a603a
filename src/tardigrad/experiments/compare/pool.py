"""Make many runs in parallel processes; a run that was stopped is resumed, a finished one is not repeated."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import track

from tardigrad.core.events import Event, ModelEvaluated
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.compare.outcome import DIED, STOPPED
from tardigrad.experiments.compare.verbosity import Verbosity
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.fingerprints import named_files, own_code
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event as StopEvent

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class PoolJob:
    """One run to make."""

    config: Config
    folder: Path


def fingerprint(config: Config) -> str:
    """Return eight hexadecimal digits that identify a config and the files that it names: the user's code,
    tables and others. They are part of the name of the run's folder, so that an edited config or file is run
    anew."""
    own = own_code(config) | named_files(config)
    text = config.to_toml() + (json.dumps(own) if own else "")
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_all(jobs: Mapping[K, PoolJob], console: Console, verbosity: Verbosity = "normal") -> dict[K, str]:
    """Make all runs that are not finished, on all cores, and return the error message of each that failed.
    A run that fails does not stop the others. On an interrupt, the runs under way write a snapshot first."""
    left = {key: job for key, job in jobs.items() if RunFolder(job.folder).summary is None}
    if not left:
        return {}
    errors, lost = _run_in_parallel(left, console, verbosity)
    for key in lost:  # a process died and broke the pool: run each alone to find out which one it is
        more, again = _run_in_parallel({key: left[key]}, console, verbosity)
        errors |= more | dict.fromkeys(again, DIED)
    return errors


def run_here(
    jobs: Mapping[K, PoolJob], own: InMemory, console: Console, verbosity: Verbosity = "normal"
) -> dict[K, str]:
    """Make all runs in this process, one after another, and return the error message of each that failed."""
    errors: dict[K, str] = {}
    shown = track(jobs, "running", console=console, transient=True, disable=verbosity == "quiet")
    for key in shown:
        folder = jobs[key].folder
        try:
            own.run(jobs[key].config, folder, _begun(folder))
        except TardigradError as error:
            errors[key] = str(error)
        except Exception as error:  # whatever it is, the other runs go on
            errors[key] = f"{type(error).__name__}: {error}"
    return errors


def _run_in_parallel(
    jobs: Mapping[K, PoolJob], console: Console, verbosity: Verbosity
) -> tuple[dict[K, str], list[K]]:
    """Return the error messages by run, and the runs that were lost because a process died."""
    errors: dict[K, str] = {}
    lost: list[K] = []
    workers = min(len(jobs), len(os.sched_getaffinity(0)))
    server = fork_server()
    stop = server.Event()
    initial = (stop, dict(os.environ))
    with ProcessPoolExecutor(workers, server, initializer=begin_worker, initargs=initial) as pool:
        with hidden_main():
            futures = {
                pool.submit(_run_one, job.config.to_toml(), job.folder): key for key, job in jobs.items()
            }
        done = track(
            as_completed(futures), "running", len(futures), console=console, transient=True,
            disable=verbosity == "quiet",
        )  # fmt: skip
        try:
            for future in done:
                try:
                    error = future.result()
                except BrokenProcessPool:
                    lost.append(futures[future])
                    continue
                if error is not None:
                    errors[futures[future]] = error
                if verbosity == "verbose":
                    name = jobs[futures[future]].folder.name
                    console.print(f"{name}: {error or 'finished'}", highlight=False, markup=False)
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return errors, lost


@contextmanager
def exclusive_lock(file: Path, error: str, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock on a file. If another process still has it after so many seconds, raise a ConfigError."""
    deadline = time.monotonic() + seconds
    with file.open("w") as lock:
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise ConfigError(error) from None
                time.sleep(0.1)
        yield


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make the folder if needed and lock it, so that no other comparison writes tables there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be made ({error})") from None
    with exclusive_lock(
        folder / ".lock", f"--out {folder}: the same is going on there right now; wait for it"
    ):
        yield


class PoolProgress:
    """Interrupt a run when the parent process asks all runs to stop."""

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        pass

    def see(self, events: list[Event]) -> None:
        if _stop is not None and _stop.is_set():
            raise KeyboardInterrupt

    def end(self) -> None:
        pass


_stop: StopEvent | None = None


def fork_server() -> multiprocessing.context.ForkServerContext:
    """Start the process from which workers are forked. It has imported all that they need, has one thread,
    and has done nothing else."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy is imported there
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tardigrad.experiments.runs.run"])
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process
    try:
        with hidden_main():
            ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return server


@contextmanager
def hidden_main() -> Iterator[None]:
    """Hide `__main__`, so that workers that are started here do not import the calling script."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def begin_worker(stop: StopEvent, environment: dict[str, str]) -> None:
    """Prepare a new worker: take over the caller's environment (the fork server may have an older one),
    ignore Ctrl-C, which the parent handles, and exit when the parent is gone."""
    global _stop
    _stop = stop
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _run_one(toml: str, folder: Path) -> str | None:
    """Make or resume one run in a worker. Return the error message, or None."""
    from tardigrad.experiments.runs.run import run

    if _stop is not None and _stop.is_set():
        return STOPPED
    try:
        config = parse_config(tomllib.loads(toml), str(folder))
        run(config, out=folder, resume=_begun(folder), observers=(PoolProgress(),), progress=False)
    except KeyboardInterrupt:
        return STOPPED
    except TardigradError as error:
        return str(error)
    except Exception as error:  # whatever it is, the other runs go on
        return f"{type(error).__name__}: {error}"
    return None


def _begun(folder: Path) -> bool:
    return (folder / "config.toml").exists() or (folder / ".lock").exists()
