"""Headless Chromium, driven over a pipe by the DevTools protocol: pages that change, and what they show."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 300.0
"""Seconds that a test waits for what must come: many, because a busy machine may be slow."""


class Browser:
    """One browser. Use it as a context; `open` gives a page."""

    def __init__(self, profile: Path):
        self._profile = profile
        self._numbers = itertools.count(1)
        self._waiting: list[dict] = []
        self._buffer = b""

    def __enter__(self):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def descriptors():  # the protocol's: 3 to read, 4 to write
            read, write = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--hide-scrollbars",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--remote-debugging-pipe", f"--user-data-dir={self._profile}", "about:blank",
            ],
            preexec_fn=descriptors, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, url, width=1280, height=900, dark=False, before=""):
        """Open a page. `before`: a script that runs in it before its own."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", {"features": scheme})
        if before:
            page.call("Page.addScriptToEvaluateOnNewDocument", {"source": before})
        page.call("Page.navigate", {"url": url})
        return page

    def call(self, method, parameters=None, session=None):
        """Make one call and return its result. Events that come meanwhile are kept for `Page.trouble`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._waiting.append(answer)

    def _next(self):
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], deadline - time.monotonic())[0], "the browser is silent"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def events(self, session):
        """Return the events of a page so far, and forget them."""
        mine = [one for one in self._waiting if one.get("sessionId") == session]
        self._waiting = [one for one in self._waiting if one.get("sessionId") != session]
        return mine


class Page:
    """One page in a browser."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self._events = []

    def call(self, method, parameters=None):
        """Make a call of the protocol about this page."""
        return self._browser.call(method, parameters, self._session)

    def value(self, expression):
        """Return the value of an expression, or of the promise that it is."""
        found = self.call(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True}
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression):
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)
        return found

    def screenshot(self, file, whole=True):
        """Write a PNG of the page."""
        shot = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        Path(file).write_bytes(base64.b64decode(shot["data"]))

    def messages(self):
        """Return all events of the protocol about this page so far."""
        self.value("0")
        self._events += self._browser.events(self._session)
        return self._events

    def trouble(self):
        """Return script errors, errors in the console and refused requests so far."""
        found = []
        for one in self.messages():
            told = one["params"]
            if one["method"] == "Runtime.exceptionThrown":
                found.append(told["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif one["method"] == "Log.entryAdded" and told["entry"]["level"] == "error":
                found.append(told["entry"]["text"])
            elif one["method"] == "Runtime.consoleAPICalled" and told["type"] == "error":
                found.append(str(told["args"]))
        return found

    def requested(self):
        """Return the addresses that the page asked for."""
        return [
            one["params"]["request"]["url"]
            for one in self.messages()
            if one["method"] == "Network.requestWillBeSent"
        ]
