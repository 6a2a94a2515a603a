"""Fixtures for the tests of data sets: a data folder, the real data, and a publisher on this machine."""

import http.server
import os
import threading
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder."""
    made = tmp_path / "data"
    made.mkdir()
    monkeypatch.setenv("TARDIGRAD_DATA", str(made))
    return made


@pytest.fixture
def real_folder():
    """The folder with the real data; without it, the test is skipped."""
    if not os.environ.get("TARDIGRAD_DATA"):
        pytest.skip("the real data is not here: TARDIGRAD_DATA is not set")
    return Path(os.environ["TARDIGRAD_DATA"])


@pytest.fixture
def server():
    """An HTTP server: `files` by path, and the `asked` paths. A path that ends in -short is cut off."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            body = self.server.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if self.path.endswith("-short") else body)

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):  # some tests close the connection early
            pass

    with Server(("127.0.0.1", 0), Handler) as running:
        running.files, running.asked = {}, []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()
