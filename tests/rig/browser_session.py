"""A page in Chromium that a test works with: clicks, keys, what it says and whether it complains.

By the Chrome DevTools Protocol (https://chromedevtools.github.io/devtools-protocol/), over the websocket that Chromium
names in its profile. Pictures and elements of a page as it loads need no session: `tests.rig.browser`.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.rig.browser import headless
from tests.rig.llm_server import RigError

_TIMEOUT_S: Final = 60.0  # what takes a second takes many on a machine that shares its cores
_POLL_S: Final = 0.05


class BrowserSession:
    """One tab. `complaints` has errors, refused loads and dialogs, as they happened."""

    def __init__(self, socket: Connection) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result. Raises `RigError`."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        until = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < until:
            message = json.loads(self._socket.recv(timeout=_TIMEOUT_S))
            if message.get("id") == self._number:
                if "error" in message:
                    raise RigError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)
        raise RigError(f"{method}: no answer")

    def open(self, url: str) -> None:
        """Load a page and wait until its program has run."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the page in pixels, and which colours its reader likes."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript. Raises `RigError` when it throws."""
        reported = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reported:
            raise RigError(f"{expression}: {reported['exceptionDetails']}")
        return reported["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until JavaScript is true, and return its value. Raises `RigError` when it does not become so."""
        until = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < until:
            if value := self.evaluate(expression):
                return value
            time.sleep(_POLL_S)
        raise RigError(f"never true: {expression}")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element, where it is once what was asked for before is drawn."""
        quoted = json.dumps(selector)
        frame = "requestAnimationFrame"
        self.evaluate(f"new Promise(done => {frame}(() => {frame}(() => done(true))))")
        box = self.wait(
            f"(() => {{ const e = document.querySelector({quoted}); if (!e) return null;"
            " e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            " return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def press(self, key: str) -> None:
        """Press and release a key, by the name that pages see."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def write(self, text: str) -> None:
        """Type text where the focus is."""
        self.send("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        reported = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(f"exception: {reported['exceptionDetails']}")
            case "Runtime.consoleAPICalled" if reported["type"] in ("error", "warning", "assert"):
                self.complaints.append(f"console: {reported['args']}")
            case "Log.entryAdded" if reported["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"log: {reported['entry']}")
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {reported['message']}")
                self._number += 1  # nobody waits for the answer
                close = {"accept": False}
                self._socket.send(
                    json.dumps({"id": self._number, "method": "Page.handleJavaScriptDialog", "params": close})
                )
            case "Network.requestWillBeSent":
                self.requests.append(reported["request"]["url"])


@contextmanager
def browser_session() -> Iterator[BrowserSession]:
    """A browser of the test's own, with nothing in its profile. Raises `RigError`."""
    with headless("--remote-debugging-port=0", "about:blank") as (command, profile):
        # In a group of its own: Debian's program is a script that starts the browser, and would end without it.
        browser = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            tab = _tab(profile / "DevToolsActivePort", browser)
            # What a page tells while no test asks is read later; pings would go unanswered behind it.
            with connect(tab, max_size=None, max_queue=None, ping_interval=None, proxy=None) as socket:
                yield BrowserSession(socket)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()


def _tab(reported: Path, browser: subprocess.Popen[bytes]) -> str:
    """The websocket of the tab that Chromium opened."""
    from urllib.request import ProxyHandler, build_opener

    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        if browser.poll() is not None:
            raise RigError(f"Chromium ended with {browser.returncode}")
        if reported.exists() and (port := reported.read_text().partition("\n")[0]):
            with build_opener(ProxyHandler({})).open(
                f"http://127.0.0.1:{port}/json/list", timeout=10
            ) as answer:
                for tab in json.load(answer):
                    if tab["type"] == "page":
                        return str(tab["webSocketDebuggerUrl"])
        time.sleep(_POLL_S)
    raise RigError("Chromium opened no tab")
