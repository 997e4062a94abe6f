"""A real browser, Debian's chromium, told what to do through a pipe: no port, and no package is needed for that."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.harness import wait_for

PATIENCE = 60.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"


class Browser:
    """One page. What its scripts complained about, and what its policy has blocked, is in `complaints`."""

    def __init__(self, folder: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [CHROMIUM, *options, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]

        def connect() -> None:
            # The numbers that the browser looks at; ours may be the same ones, so they are moved away first.
            reading, writing = os.dup2(theirs_in, 100), os.dup2(theirs_out, 101)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command,
            close_fds=False,
            preexec_fn=connect,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._count = 0
        self._buffer = b""
        self._session = ""
        self._loaded = False
        self.complaints: list[str] = []
        attached = self._ask("Target.attachToTarget", targetId=wait_for(self._page, "a page", PATIENCE), flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def _page(self) -> str:
        """The first one, as soon as it is there: the browser answers before."""
        targets = self._ask("Target.getTargets")["targetInfos"]
        return next((str(each["targetId"]) for each in targets if each["type"] == "page"), "")

    def close(self) -> None:
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._in)

    def be(self, width: int, height: int, *, language: str = "en", scripts: bool = True, dark: bool = False) -> None:
        """A phone is a narrow screen that is touched."""
        phone = width < 600
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )  # fmt: skip
        self._ask("Network.setExtraHTTPHeaders", headers={"Accept-Language": language})
        self._ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[wish])

    def open(self, url: str) -> None:
        self._loaded = False
        self._ask("Page.navigate", url=url)
        self.until_loaded()

    def until_loaded(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._loaded:
            self._take(self._next(deadline))

    def expect_load(self) -> None:
        self._loaded = False

    def evaluate(self, script: str) -> Any:
        found = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Also over the moment in which one page gives way to the next."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(AssertionError):
                if self.evaluate(f"Boolean({script})"):
                    return
            time.sleep(0.02)
        raise AssertionError(f"waited in vain for {script}")

    def click(self, selector: str) -> None:
        """As a person does: with the mouse, where the thing is."""
        x, y = self.middle(selector)
        self.drag([(x, y)])

    def middle(self, selector: str) -> tuple[float, float]:
        """Of what is there, or comes soon; a page that has just come may be laid out once more."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(AssertionError):
                return self._middle(selector)
            time.sleep(0.02)
        raise AssertionError(f"waited in vain for {selector}")

    def _middle(self, selector: str) -> tuple[float, float]:
        """By the layout, not by a script: also where none may run. Once it has come to rest: pages scroll smoothly."""
        root = self._ask("DOM.getDocument")["root"]["nodeId"]
        node = self._ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        assert node, f"there is no {selector}"
        before: list[float] = []
        corners = [0.0]
        while corners != before:
            before = corners
            self._ask("DOM.scrollIntoViewIfNeeded", nodeId=node)
            time.sleep(0.1)
            corners = self._ask("DOM.getContentQuads", nodeId=node)["quads"][0]
        return (corners[0] + corners[4]) / 2, (corners[1] + corners[5]) / 2

    def drag(self, places: list[tuple[float, float]]) -> None:
        for kind, (x, y) in [
            ("mousePressed", places[0]),
            *(("mouseMoved", place) for place in places[1:]),
            ("mouseReleased", places[-1]),
        ]:
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def type(self, text: str) -> None:
        self._ask("Input.insertText", text=text)

    def html(self) -> str:
        root = self._ask("DOM.getDocument")["root"]["nodeId"]
        return str(self._ask("DOM.getOuterHTML", nodeId=root)["outerHTML"])

    def picture(self, path: Path) -> None:
        data = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        said = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            said["sessionId"] = self._session
        os.write(self._out, json.dumps(said).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (heard := self._next(deadline)).get("id") != self._count:
            self._take(heard)
        assert "error" not in heard, (method, heard["error"])
        result: dict[str, Any] = heard["result"]
        return result

    def _take(self, heard: dict[str, Any]) -> None:
        method, parameters = heard.get("method"), heard.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])

    def _next(self, deadline: float) -> dict[str, Any]:
        import select

        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, "the browser fell silent"
            data = os.read(self._in, 1 << 16)
            assert data, "the browser is gone"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        heard: dict[str, Any] = json.loads(text)
        return heard


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
