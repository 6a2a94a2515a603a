"""The command `tardigrad` in a process of its own that has already imported everything.

A process that imports torch takes some seconds of processor time before it does anything. `Commands` starts
one such process, which forks for each command. The fork is a process like any other: it has its own words,
folder, environment and streams, gets signals, can be killed, and ends as `python -m tardigrad` does.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SHELL = """#!{python} -IS
import json, os, signal, socket, sys
status, ended = os.pipe()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    request = {{"program": None, "words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2, ended])
    os.close(ended)
    process = int(server.recv(100))
signal.signal(signal.SIGTERM, lambda *_: os.kill(process, signal.SIGTERM))
sys.exit(int(os.read(status, 100)) % 256)
"""
"""`tardigrad` for a shell: passes on its words, streams and exit code."""


CLONE_NEWNET = 0x40000000


class Commands:
    """Starts commands. Use it as a context; commands that still run at its end are killed."""

    def __enter__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        return self

    def __exit__(self, *_):
        self._socket.close()
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def for_shells(self, folder):
        """Put an executable file `tardigrad` into a folder, with which a shell starts commands."""
        address = f"\0tardigrad-{os.getpid()}-{uuid.uuid4()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(address)
            listening.listen()
            socket.send_fds(self._socket, [b"listen"], [listening.fileno()])
        self._socket.recv(100)
        (folder / "tardigrad").write_text(SHELL.format(python=sys.executable, address=address))
        (folder / "tardigrad").chmod(0o700)

    def start(self, *words, cwd=None, merged=False, program=None, network=None):
        """Start `tardigrad` with these words, or a Python program; with `merged`, its standard error goes to
        its standard output; `network`: the name of the network namespace that it runs in."""
        request = {
            "network": network,
            "program": program,
            "words": [str(word) for word in words],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ),
            "path": sys.path,
        }
        (stdin, ours), (output, stdout), (errors, stderr), (status, ended) = (os.pipe() for _ in range(4))
        theirs = [stdin, stdout, stdout if merged else stderr, ended]
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for descriptor in (stdin, stdout, stderr, ended):
            os.close(descriptor)
        return Command(int(self._socket.recv(100)), status, ours, output, errors)


class Command:
    """A command that was started: as much of `subprocess.Popen` as tests need."""

    def __init__(self, pid, status, stdin, output, errors):
        self.pid, self.returncode, self._status, self._interrupted = pid, None, status, False
        self.stdin, self.stdout, self.stderr = open(stdin, "w"), open(output), open(errors)  # noqa: SIM115, PTH123

    def poll(self):
        return self._ended(0)

    def wait(self, timeout=300):
        if self._interrupted and self._ended(60) is None:
            self.send_signal(
                signal.SIGINT
            )  # Python drops an interrupt that meets the callback of a weak reference
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("tardigrad", timeout)
        return self.returncode

    def _ended(self, timeout):
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 100))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number):
        self._interrupted = number == signal.SIGINT
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=300):
        """Return all that it writes to its standard output and its standard error, when it has ended."""
        with ThreadPoolExecutor(2) as pool:
            told = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            return tuple(text.result() for text in told)


def serve(requests):
    """Fork for each request. Return the request in the fork, and None when there are no more."""
    running, shells = {}, []  # by the descriptor of a process, its number and where its exit code goes
    while True:
        for ready in select.select([requests, *shells, *running], [], [])[0]:
            if ready in running:
                pid, ended = running.pop(ready)
                os.write(ended, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(ended)
                os.close(ready)
                continue
            asking = requests if ready is requests else ready.accept()[0]
            message, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 4)
            if not message and asking is requests:
                return None
            if message == b"listen":
                shells.append(socket.socket(fileno=descriptors[0]))
                requests.send(b"listening")
                continue
            *streams, ended = descriptors
            pid = os.fork()
            if pid == 0:
                for other in (ended, *running, *(one for _, one in running.values())):
                    os.close(other)
                for other in {requests, asking, *shells}:
                    other.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for stream in set(streams):
                    os.close(stream)
                return json.loads(message)
            asking.send(str(pid).encode())
            if asking is not requests:
                asking.close()
            running[os.pidfd_open(pid)] = pid, ended
            for stream in set(streams):
                os.close(stream)


def become(request):
    """Take on the arguments, the folder and the environment of a command, and run it."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:] = request.get("path", sys.path)
    sys.argv = ["tardigrad", *request["words"]]
    if request.get("network") is not None:
        with open(f"/run/netns/{request['network']}") as namespace:  # noqa: PTH123
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "no such network")
    if request["program"] is None:
        main()
    exec(request["program"], {"__name__": "__main__"})


def leave(code):
    """End as the interpreter does, but without taking apart what was imported, which takes a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import tardigrad.experiments.runs.run
    import tardigrad.experiments.runs.serve
    import tardigrad.service.client.participant
    from tardigrad.cli import main
    from tardigrad.errors import ConfigError

    with contextlib.suppress(ConfigError):  # a helper needs a newer cryptography than old versions of Flower
        import tardigrad.service.helper.helper_lifecycle  # noqa: F401

    gc.freeze()  # a fork need not look at what exists now
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        try:
            become(request)
        except SystemExit as ended:
            leave(ended.code or 0)
        leave(0)
