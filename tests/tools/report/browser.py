"""A browser without a window for tests: chromedriver, spoken to over HTTP as WebDriver has it."""

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.ports import free_ports

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


TRACED = "toplevel,devtools.timeline,disabled-by-default-devtools.timeline,loading,blink.user_timing"
"""What is traced of a page."""


class Browser:
    """A page in a browser; scripts are run in it with `run`, and what it complains of is in `complaints`.

    If it is `traced`, `work` tells how long the page's thread has worked.
    """

    def __init__(self, width: int = 1300, height: int = 900, *, dark: bool = False, traced: bool = False):
        assert CHROMIUM
        assert DRIVER
        (self.port,) = free_ports(1)
        self.process = subprocess.Popen(
            [DRIVER, f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]
        arguments += [
            "--disable-renderer-backgrounding",
            "--disable-backgrounding-occluded-windows",
        ]  # no frame is left out
        arguments += [f"--window-size={width},{height}"]
        options: dict[str, Any] = {"binary": CHROMIUM, "args": arguments}
        logged = {"browser": "ALL"}
        if traced:
            options["perfLoggingPrefs"] = {"traceCategories": TRACED}
            logged["performance"] = "ALL"
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logged}
        self.session = ""
        try:
            self._wait()
            answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self.session = f"/session/{answer['sessionId']}"
            self.devtools(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
            )
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        except BaseException:
            self.process.kill()
            raise

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        try:
            self._send("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait(20)

    def _wait(self) -> None:
        for _ in range(300):
            try:
                self._send("GET", "/status")
                return
            except (AssertionError, URLError, OSError):
                time.sleep(0.1)
        raise AssertionError("chromedriver does not start")

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except HTTPError as refused:
            raise AssertionError(
                f"the browser refuses {path}: {refused.read().decode(errors='replace')[:500]}"
            ) from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of the browser's own protocol."""
        return self._send("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, path: Path) -> None:
        """Shows a file."""
        self._send("POST", f"{self.session}/url", {"url": path.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns; `arguments[0]` and so on are what it is given."""
        return self._send("POST", f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def later(self, script: str) -> Any:
        """What a script in the page gives to its last argument, a function."""
        return self._send("POST", f"{self.session}/execute/async", {"script": script, "args": []})

    def keys(self, text: str) -> None:
        """Types at what has the focus."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._send(
            "POST", f"{self.session}/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        )

    def complaints(self) -> list[str]:
        """What the console has had since it was asked last: errors and warnings."""
        entries = self._send("POST", f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def work(self, begin: str, end: str) -> list[float]:
        """The tasks of the page's thread between two marks, each in seconds of CPU, so that others matter little."""
        events: list[dict[str, Any]] = []
        marks: dict[str, Any] = {}
        seen = 0
        for _ in range(40):  # a trace comes in parts, with some delay
            entries = self._send("POST", f"{self.session}/se/log", {"type": "performance"})
            messages = [json.loads(entry["message"])["message"] for entry in entries]
            events += [message["params"] for message in messages if message["method"] == "Tracing.dataCollected"]
            marks = {event["name"]: event for event in events if event["name"] in (begin, end)}
            seen += len(marks) == 2
            if seen == 4:
                break
            time.sleep(0.3)
        thread, last = (marks[end]["pid"], marks[end]["tid"]), marks[end]["ts"]
        first = max(event["ts"] for event in events if event["name"] == begin and event["ts"] <= last)
        return [
            event.get("tdur", 0) / 1e6
            for event in events
            if event["name"] == "RunTask" and (event["pid"], event["tid"]) == thread and first <= event["ts"] <= last
        ]

    def picture(self, path: Path) -> None:
        """Writes what is seen."""
        path.write_bytes(base64.b64decode(self._send("GET", f"{self.session}/screenshot")))
