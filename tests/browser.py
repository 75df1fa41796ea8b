"""Chromium as tests drive it: by the WebDriver protocol, with nothing but the standard library."""

import base64
import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from waiting import wait_for

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(None in (CHROMIUM, DRIVER), reason="chromium or chromedriver is not installed")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-prefers-reduced-motion"
).split()
#: The keys of the protocol.
TAB, ENTER, SPACE, SHIFT, RIGHT, END = "\ue004", "\ue007", " ", "\ue008", "\ue014", "\ue010"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


@dataclass
class Browser:
    """A window of Chromium."""

    connection: http.client.HTTPConnection
    session: str = ""

    def call(self, method: str, path: str, said: Any = None) -> Any:
        body = None if method != "POST" else json.dumps({} if said is None else said)
        self.connection.request(method, f"/session{self.session}{path}", body, {"Content-Type": "application/json"})
        answer = json.loads(self.connection.getresponse().read())["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{path}: {answer['message']}")
        return answer

    def open(self, address: str) -> None:
        self.call("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page; return what it returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Press keys, one after another, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def find(self, selector: str) -> list[str]:
        found = self.call("POST", "/elements", {"using": "css selector", "value": selector})
        return [element[_ELEMENT] for element in found]

    def read(self, selector: str) -> list[str]:
        """Return the visible text of elements."""
        return [self.call("GET", f"/element/{element}/text") for element in self.find(selector)]

    def fill(self, selector: str, keys: str) -> None:
        """Type into an element, or choose a file."""
        (element,) = self.find(selector)
        self.call("POST", f"/element/{element}/value", {"text": keys})

    def click(self, selector: str) -> None:
        self.call("POST", f"/element/{self.find(selector)[0]}/click")

    @property
    def focus(self) -> str:
        """The id of the element that has the focus."""
        return str(self.call("GET", f"/element/{self.call('GET', '/element/active')[_ELEMENT]}/property/id"))

    def tree(self) -> list[dict[str, Any]]:
        """Return the accessibility tree of the page, as a screen reader gets it."""
        said = {"cmd": "Accessibility.getFullAXTree", "params": {}}
        return list(self.call("POST", "/goog/cdp/execute", said)["nodes"])

    def requests(self) -> list[str]:
        """Return the addresses that were asked since the last time."""
        entries = [
            json.loads(entry["message"])["message"] for entry in self.call("POST", "/se/log", {"type": "performance"})
        ]
        sent = [entry["params"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
        return [about["request"]["url"] for about in sent]

    def complaints(self) -> list[str]:
        """Return what the console says."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def take_picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextmanager
def browse(place: Path, width: int, *, scripts: bool = True) -> Iterator[Browser]:
    """Open a window with an empty profile in a folder."""
    log = place / "chromedriver.log"
    with log.open("wb") as file:
        driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=file, stderr=file)
    browser = None
    try:
        port = int(wait_for(lambda: re.search(r"successfully on port (\d+)", log.read_text()), driver)[1])
        browser = Browser(http.client.HTTPConnection("127.0.0.1", port, timeout=120))
        options: dict[str, Any] = {
            "binary": CHROMIUM,
            "args": [*_FLAGS, f"--user-data-dir={place / 'profile'}", f"--window-size={width},1400"],
            "prefs": {
                "download.default_directory": str(place),
                "profile.managed_default_content_settings.javascript": 1 if scripts else 2,
            },
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"}}
        begun = browser.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        browser.session = f"/{begun['sessionId']}"
        # A window of a desktop is not as narrow as a telephone.
        metrics = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        browser.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})
        yield browser
    finally:
        if browser is not None and browser.session:
            browser.call("DELETE", "")
            browser.connection.close()
        driver.terminate()
        driver.wait()
