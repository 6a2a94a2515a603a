"""The live page, served by a thread of the test over loopback."""

import asyncio
import contextlib
import http.client
import json
import queue
import threading

from tardigrad.core.event_log import write_events
from tardigrad.watch.run_readers import WatchedFolders
from tardigrad.watch.web_app import WatchPage
from tardigrad.watch.web_server import serve_page

PATIENCE = 300.0


@contextlib.contextmanager
def served(folders, host="127.0.0.1", names=(), token=False, servers=()):
    """Serve the page of some folders, and yield its address."""
    said = queue.Queue()

    async def serve():
        page = WatchPage(WatchedFolders(folders) if folders else None, list(servers))
        serving = asyncio.create_task(serve_page(page, host, 0, names, token, said.put))
        stop.append((asyncio.get_running_loop(), serving))
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    stop = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        yield said.get(timeout=PATIENCE)
    finally:
        loop, serving = stop[0]
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def port_of(address):
    return int(address.split("://")[1].split("/")[0].rpartition(":")[2])


def get(address, path="/", headers=None, method="GET", raw_host=None):
    """Return the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(address), timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if raw_host != "":
            connection.putheader("Host", raw_host or f"127.0.0.1:{port_of(address)}")
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


@contextlib.contextmanager
def stream(address, run=0):
    """Yield a function that returns the next panels that have changed. Waits while too many are open."""
    with contextlib.ExitStack() as stack:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port_of(address), timeout=PATIENCE)
            stack.callback(connection.close)
            connection.request("GET", f"/events?run={run}")
            answer = connection.getresponse()
            stack.callback(answer.close)
            if answer.status != 503:
                break
        assert answer.status == 200

        def following():
            while True:
                line = answer.readline()
                assert line, "the stream has ended"
                if line.startswith(b"data: "):
                    return json.loads(line[6:])

        yield following


def append(folder, events):
    """Append events to a run's file."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "events.jsonl").open("ab") as file:
        write_events(file, events)
