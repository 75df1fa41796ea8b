"""A Chromium without a window, driven over the W3C's WebDriver protocol by its own driver."""

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedmlh.sites.flower.processes import free_port
from waiting import wait_for

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and its driver (Debian: chromium, chromium-driver)"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
TAB, ENTER, DOWN = "\ue004", "\ue007", "\ue015"


class Browser:
    """One window."""

    def __init__(self, address: str, profile: Path) -> None:
        self._address = address
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": CHROMIUM}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"}}
        self._session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        body = None if method == "GET" else json.dumps(content or {}).encode()
        request = urllib.request.Request(
            f"{self._address}{path}", body, {"content-type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def call(self, method: str, path: str, content: Any = None) -> Any:
        """Call the driver for this window."""
        return self._call(method, f"/session/{self._session}/{path}", content)

    def tell(self, command: str, **values: Any) -> Any:
        """Give a command of the DevTools protocol."""
        return self.call("POST", "goog/cdp/execute", {"cmd": command, "params": values})

    def open(self, address: str, width: int = 1200, height: int = 900, *, scripts: bool = True) -> None:
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.tell("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("POST", "url", {"url": address})

    def ask(self, script: str) -> Any:
        """Return the value of an expression of the page."""
        return self.call("POST", "execute/sync", {"script": f"return {script}", "args": []})

    def press(self, *keys: str) -> None:
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call."""
        told = (
            json.loads(entry["message"])["message"] for entry in self.call("POST", "se/log", {"type": "performance"})
        )
        return [entry["params"]["request"]["url"] for entry in told if entry["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Return what the browser complained about since the last call: faults, broken policies."""
        return [entry["message"] for entry in self.call("POST", "se/log", {"type": "browser"})]

    def photograph(self, path: Path) -> None:
        """Write the whole page as a picture."""
        picture = self.tell("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        self._call("DELETE", f"/session/{self._session}")


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Give a browser with an empty profile in a folder."""
    port = free_port()
    assert DRIVER is not None
    with subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        address = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"{address}/status", timeout=5) as answer:
                    return bool(json.load(answer)["value"]["ready"])
            except OSError:
                return False

        try:
            wait_for(answers, driver)
            browser = Browser(address, folder / "profile")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
