"""A browser without a window, for tests of pages: Chromium, driven over a pair of pipes (its option --remote-debugging-pipe). Needs
Python's standard library alone."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE = 120  # seconds after which something hangs; no test measures time


def find_browser():
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. What it asked for, what it wrote to the console and its errors are in requests, console and errors."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.log = tempfile.TemporaryFile()
        (their_in, self.out), (self.into, their_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (their_in, their_out)]
        words = [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                 "--disable-background-networking", f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe"]
        start = f"import os, sys; os.dup2({high[0]}, 3); os.dup2({high[1]}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen([sys.executable, "-c", start, *words], pass_fds=high, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        start_new_session=True)
        for fd in (their_in, their_out, *high):
            os.close(fd)
        self.number, self.session, self.buffer = 0, None, b""
        self.requests, self.console, self.errors, self.replies = [], [], [], {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        os.close(self.out)
        os.close(self.into)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.folder.cleanup()

    def note(self, message):
        what, params = message.get("method"), message.get("params", {})
        if "id" in message:
            self.replies[message["id"]] = message
        elif what == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif what == "Runtime.consoleAPICalled":
            self.console.append((params["type"], " ".join(str(a.get("value", a.get("description"))) for a in params["args"])))
        elif what == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", str(params)))
        elif what == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def receive(self, seconds):
        ready, _, _ = select.select([self.into], [], [], seconds)
        got = os.read(self.into, 1 << 20) if ready else b""
        if ready and not got:
            raise AssertionError(f"the browser ended: {os.pread(self.log.fileno(), 1 << 16, 0).decode(errors='replace')[-2000:]}")
        *whole, self.buffer = (self.buffer + got).split(b"\0")
        for text in whole:
            self.note(json.loads(text))

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        deadline = time.monotonic() + PATIENCE
        while self.number not in self.replies:
            assert time.monotonic() < deadline, f"the browser does not answer to {method}"
            self.receive(1)
        reply = self.replies.pop(self.number)
        assert "error" not in reply, f"{method}: {reply['error']}"
        return reply["result"]

    def run(self, script):
        """The value of a JavaScript expression; a promise is waited for."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, f"{script}: {got['exceptionDetails'].get('exception', {}).get('description')}"
        return got["result"].get("value")

    def wait_for(self, script):
        """The value of an expression, once it is true."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"waited in vain: {script}; errors: {self.errors}"
            self.receive(0.02)
        return value

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def look(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, " ": 32}

    def key(self, name, shift=False):
        text = {"Enter": "\r", " ": " "}.get(name)
        common = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": self.KEYS[name], "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **({"text": text} if text else {}), **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def point(self, selector, click=False):
        """Moves the mouse to the middle of an element, and clicks there."""
        x, y = self.run(f"(e => {{ const r = e.getClientRects()[0]; return [r.left + r.width / 2, r.top + r.height / 2]; }})(document.querySelector({json.dumps(selector)}))")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
