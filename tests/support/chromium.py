"""Chromium without a screen, driven through its DevTools protocol: what a reader of a page sees."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import websocket

__all__ = ["NAMES", "Browser", "Tab", "find_chromium"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
_LIFE_S = 600.0
_START_S = 60.0
_ANSWER_S = 60.0


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A process of its own with an empty profile; gone with all its children in the end."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farandole-chromium-", ignore_cleanup_errors=True)
        options = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", "--remote-debugging-port=0", "--remote-allow-origins=*",
            f"--user-data-dir={self._folder.name}", "about:blank",
        )  # fmt: skip
        # `timeout` ends it even where the tests are killed and cannot.
        self._process = subprocess.Popen(
            ["timeout", "--signal=KILL", f"{_LIFE_S:.0f}", program, *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"HOME": self._folder.name},
        )  # fmt: skip

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Asked to end, it takes its children with it.
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=20)
        self._folder.cleanup()

    def tab(self) -> Tab:
        """The one that is open."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port()}/json/list", timeout=_ANSWER_S) as answer:
            pages = [target for target in json.loads(answer.read()) if target["type"] == "page"]
        return Tab(pages[0]["webSocketDebuggerUrl"])

    def _port(self) -> int:
        told = Path(self._folder.name, "DevToolsActivePort")
        deadline = time.monotonic() + _START_S
        while not (told.exists() and (lines := told.read_text().splitlines())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"chromium did not start within {_START_S:.0f} s (exit code {self._process.returncode})")
            time.sleep(0.05)
        return int(lines[0])


class Tab:
    """One page."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=_ANSWER_S, suppress_origin=True)
        self._last = 0
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, and whatever was loaded from elsewhere."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """An answer; events that come meanwhile are kept if they are complaints."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv())
            if told.get("id") == self._last:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                answer: dict[str, Any] = told["result"]
                return answer
            self._note(told)

    def look(self, page: Path, *, width: int, height: int = 900, dark: bool = False, media: str = "", script: bool = True) -> None:
        """Open a page as on a screen of that width; `media` is "print" or empty."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not script)
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.ask("Page.navigate", url=page.absolute().as_uri())
        deadline = time.monotonic() + _ANSWER_S
        while self.run("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{page} was not loaded within {_ANSWER_S:.0f} s")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{script}: {told['exceptionDetails'].get('exception', {}).get('description')}")
        return told["result"].get("value")

    def point_at(self, x: float, y: float) -> None:
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        """Of the whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        told = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(told["data"]))

    def print_to(self, path: Path) -> None:
        told = self.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(told["data"]))

    def _note(self, told: dict[str, Any]) -> None:
        parameters = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent" if not parameters["request"]["url"].startswith(("file:", "about:", "data:")):
                self.complaints.append(f"asked for {parameters['request']['url']}")
