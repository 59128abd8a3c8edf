"""The system's Chromium without a window, driven over its DevTools protocol (chromedevtools.github.io)."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.needs import chromium

#: seconds for the browser to start, and for what a test waits for
PATIENCE = 30.0
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Page:
    """A tab.

    Attributes:
      requests: URLs that the page asked for.
      errors: exceptions and messages of level error of its console, violations of the security policy among them.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE))
            if message.get("id") == self._number:
                assert "error" not in message, (method, message)
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, what = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(what["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(what["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and what["type"] == "error":
            self.errors.append(json.dumps(what["args"])[:500])

    def open(self, url: str, width: int, height: int, *, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer)
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until an expression is true; returns its value."""
        end = time.monotonic() + PATIENCE
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"{expression} is not true: {self.value('document.body.innerText')}"
            time.sleep(0.02)
        return value

    def place(self, selector: str, across: float = 0.5, down: float = 0.5) -> dict[str, float]:
        """x and y of a point of an element, in the window; the element is scrolled there."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        return {"x": box[0] + across * box[2], "y": box[1] + down * box[3]}

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        place = self.place(selector, across, down)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str) -> None:
        """A key by its name, or a character."""
        code = KEYS.get(key, ord(key[0].upper()))
        text = {} if key in KEYS and key != "Enter" else {"text": "\r" if key == "Enter" else key}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def fill(self, selector: str, text: str) -> None:
        """What typing a value into a field does."""
        self.value(
            f"(() => {{ const e = document.querySelector({selector!r}); e.focus(); e.value = {text!r};"
            "e.dispatchEvent(new Event('input', {bubbles: true}));"
            "e.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def drop(self, selector: str, *files: Path) -> None:
        """Drags files from outside onto an element."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        place = self.place(selector)
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, data=data, **place)

    def choose(self, selector: str, file: Path) -> None:
        """Chooses a file in the dialogue of a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(file)], nodeId=node)

    def downloaded(self, selector: str, file: Path) -> str:
        """The text of a file of that name which a click saves."""
        self.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(file.parent))
        self.click(selector)
        end = time.monotonic() + PATIENCE
        while not file.exists():
            assert time.monotonic() < end, f"{file.name} was not saved"
            time.sleep(0.02)
        return file.read_text(encoding="utf-8")

    def screenshot(self, out: Path) -> None:
        """A PNG of the whole page."""
        out.write_bytes(b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """An empty tab of a new browser with its own profile directory."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    process = subprocess.Popen(
        [str(chromium()), *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
        start_new_session=True,
    )
    try:
        active, end = profile / "DevToolsActivePort", time.monotonic() + PATIENCE
        while not (active.is_file() and active.read_text().count("\n")):
            assert process.poll() is None, f"the browser ended with {process.returncode}"
            assert time.monotonic() < end, "the browser did not start"
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{active.read_text().split()[0]}/json") as answer:
            tab = next(target for target in json.load(answer) if target["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
