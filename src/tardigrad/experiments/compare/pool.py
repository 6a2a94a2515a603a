"""Many runs side by side on the cores: stopped and resumed at will, a finished one never repeated."""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import tomllib
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from tardigrad.core.events import Event, ModelEvaluated
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.run_folder import RunFolder

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class PoolJob:
    """One run to make."""

    config: Config
    folder: Path


def fingerprint(config: Config) -> str:
    """Eight digits that differ where configs differ: part of a folder's name, so that an edited config is run
    anew and an old result is never taken for it."""
    return hashlib.sha256(config.to_toml().encode()).hexdigest()[:8]


def run_all(jobs: Mapping[K, PoolJob], console: Console) -> dict[K, str]:
    """Run what is not finished, on all cores; what went wrong, by run. One that fails does not sink the
    others. An interrupt has the runs under way write a snapshot first."""
    left = {key: job for key, job in jobs.items() if RunFolder(job.folder).summary is None}
    if not left:
        return {}
    errors, lost = _run_side_by_side(left, console)
    for key in lost:  # a process died, and took others with it: each for itself, it is seen which
        more, again = _run_side_by_side({key: left[key]}, console)
        errors |= more | dict.fromkeys(again, "its process died (out of memory?); run it again to go on")
    return errors


def _run_side_by_side(jobs: Mapping[K, PoolJob], console: Console) -> tuple[dict[K, str], list[K]]:
    """What went wrong, by run; and the runs that were lost because a process died."""
    errors: dict[K, str] = {}
    lost: list[K] = []
    workers = min(len(jobs), len(os.sched_getaffinity(0)))
    nursery = start_nursery()
    stop = nursery.Event()
    initial = (stop, dict(os.environ))
    with ProcessPoolExecutor(workers, nursery, initializer=begin_worker, initargs=initial) as pool:
        with no_program():
            futures = {
                pool.submit(_run_one, job.config.to_toml(), job.folder): key for key, job in jobs.items()
            }
        done = track(as_completed(futures), "running", len(futures), console=console, transient=True)
        try:
            for future in done:
                try:
                    error = future.result()
                except BrokenProcessPool:
                    lost.append(futures[future])
                    continue
                if error is not None:
                    errors[futures[future]] = error
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return errors, lost


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else writes tables into this folder meanwhile."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--out {folder}: the same is going on there right now; wait for it") from None
        yield


class PoolProgress:
    """Stops a run when the others are stopped."""

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        pass

    def see(self, events: list[Event]) -> None:
        if _stop is not None and _stop.is_set():
            raise KeyboardInterrupt

    def end(self) -> None:
        pass


_stop: Any = None


def start_nursery() -> multiprocessing.context.ForkServerContext:
    """Where workers come from: they are forked from a process that has imported all they need, once, with one
    thread each, and has done nothing else."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy is imported there
    nursery = multiprocessing.get_context("forkserver")
    nursery.set_forkserver_preload(["tardigrad.experiments.runs.run"])
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it is not asked to stop: we are
    try:
        with no_program():
            ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return nursery


@contextmanager
def no_program() -> Iterator[None]:
    """Workers that are started here do not run the user's program again, guarded or not: they need none."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def begin_worker(stop: Any, environment: dict[str, str]) -> None:
    """In a new worker: the environment is that of who asks, not of whoever asked first; interrupts are the
    parent's business, and without the parent there is none."""
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
    """In a worker: run or go on with one config; what went wrong, if anything."""
    from tardigrad.experiments.runs.run import run

    if _stop is not None and _stop.is_set():
        return "stopped"
    try:
        config = parse_config(tomllib.loads(toml), str(folder))
        begun = (folder / "config.toml").exists() or (folder / ".lock").exists()
        run(config, out=folder, resume=begun, observers=(PoolProgress(),))
    except KeyboardInterrupt:
        return "stopped"
    except TardigradError as error:
        return str(error)
    except Exception as error:  # whatever it is, the other runs go on
        return f"{type(error).__name__}: {error}"
    return None
