"""A real Chromium without a window, driven over the DevTools protocol, and the terminal that a page in it shows."""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyte
import pytest
from PIL import Image

PATIENCE_S = 60.0
_WITHOUT_NETLINK = (sys.executable, "-m", "tests.support.without_netlink")


def required_chromium() -> str:
    """The program, or a skip with the reason; with NSML_REQUIRE_CHROMIUM=1 a failure."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    reason = "no chromium is installed (Debian: chromium)"
    if os.environ.get("NSML_REQUIRE_CHROMIUM"):
        pytest.fail(reason)
    pytest.skip(reason)


class Refused(Exception):
    """The browser did not do what it was told."""


class Page:
    """One page of a browser of its own.

    Attributes:
        requested: addresses of all that was asked for.
        said: what the console was told.
        connections: how many WebSockets there were.
    """

    def __init__(self, program: str, folder: Path, size: tuple[int, int]) -> None:
        self.requested: list[str] = []
        self.said: list[str] = []
        self.connections = 0
        self._loaded = False
        self._width, self._height = size
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)
        self._number = 0
        self._session = ""
        self._rest = b""
        theirs, self._to = _pipe()
        self._from, said = _pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * 127.0.0.1",  # whatever this machine calls itself
            "--ignore-certificate-errors",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            f"--window-size={size[0]},{size[1]}",
        ]
        # The protocol's ends are 3 and 4.
        command = f'exec "$@" 3<&{theirs} 4>&{said}'
        self._process = subprocess.Popen(
            [*("bash", "-c", command, "chromium"), *_WITHOUT_NETLINK, program, *options],
            pass_fds=(theirs, said),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs)
        os.close(said)

    def begin(self) -> None:
        """Have a page, and hear of what happens in it."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.tell(f"{domain}.enable")
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=self._width,
            height=self._height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol on the page."""
        return self._call(method, **parameters)

    def open(self, url: str) -> None:
        """Go there."""
        self._loaded = False
        answer = self.tell("Page.navigate", url=url)
        if "errorText" in answer:
            raise Refused(answer["errorText"])
        self.wait(lambda: self._loaded, f"{url} is loaded")

    def evaluate(self, expression: str) -> Any:
        """The value of a promise or an expression in the page."""
        answer = self.tell(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise Refused(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def type(self, text: str) -> None:
        """As if it was typed."""
        for character in text:
            self.tell("Input.dispatchKeyEvent", type="char", text=character)

    def press(self, key: str, code: int, *, control: bool = False) -> None:
        """A key that is no letter, or one with Control."""
        for kind in ("keyDown", "keyUp"):
            self.tell(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key if len(key) > 1 else "",
                windowsVirtualKeyCode=code,
                modifiers=2 if control else 0,
            )

    @property
    def text(self) -> str:
        """What the terminal of the page has been sent, as a terminal shows it."""
        return "\n".join(self._screen.display)

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Listen until something holds; of a page that is being left nothing can be asked."""

        def is_so() -> object:
            with suppress(Refused):
                return holds()
            return False

        ends_at = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < ends_at, f"{what}\n{self.text}\n{self.said}"
            self._listen(0.05)

    def picture(self) -> Image.Image:
        """What is painted."""
        shot = self.tell("Page.captureScreenshot", format="png")["data"]
        return Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB")

    def close(self) -> None:
        """End the browser."""
        os.close(self._to)
        os.close(self._from)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        call: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            call["sessionId"] = self._session
        os.write(self._to, json.dumps(call).encode() + b"\0")
        ends_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends_at:
            for message in self._listen(1.0):
                if message.get("id") == number:
                    if "error" in message:
                        raise Refused(f"{method}: {message['error']['message']}")
                    result: dict[str, Any] = message["result"]
                    return result
        raise Refused(f"{method}: no answer")

    def _listen(self, seconds: float) -> list[dict[str, Any]]:
        """What it says within a moment, of which events are taken in."""
        ready, _, _ = select.select([self._from], [], [], seconds)
        if not ready:
            return []
        read = os.read(self._from, 1 << 20)
        if not read:
            raise Refused(f"the browser ended with {self._process.wait()}")
        *whole, self._rest = (self._rest + read).split(b"\0")
        messages = [json.loads(one) for one in whole]
        for one in messages:
            self._take(one.get("method", ""), one.get("params", {}))
        return messages

    def _take(self, event: str, of: dict[str, Any]) -> None:
        match event:
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requested.append(of["request"]["url"])
            case "Network.webSocketCreated":
                self.requested.append(of["url"])
                self.connections += 1
                self._screen.reset()
            case "Network.webSocketFrameSent":
                self._sent(of["response"]["payloadData"])
            case "Network.webSocketFrameReceived" if of["response"]["opcode"] == 2:
                self._stream.feed(base64.b64decode(of["response"]["payloadData"]))
            case "Runtime.consoleAPICalled":
                self.said.append(" ".join(str(one.get("value")) for one in of["args"]))
            case "Log.entryAdded":
                self.said.append(of["entry"]["text"])

    def _sent(self, message: str) -> None:
        try:
            said = json.loads(message)
        except ValueError:
            return  # of another program than ours
        match said:
            case ["resize", {"width": width, "height": height}]:
                self._screen.resize(height, width)


def _pipe() -> tuple[int, int]:
    """To read from and to write to: none of them is 3 or 4, which others are made to."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextmanager
def chromium(folder: Path, *, size: tuple[int, int] = (1200, 700)) -> Iterator[Page]:
    """A page in a browser that keeps what it knows in a folder, until the end."""
    page = Page(required_chromium(), folder, size)
    try:
        page.begin()
        yield page
    finally:
        page.close()


def colours(picture: Image.Image) -> int:
    """How many colours a picture has: an empty one has one, letters on it make it dozens."""
    found = picture.getcolors(maxcolors=1 << 24)
    return len(found or ())
