"""`verbatim serve` as a context manager, for tests of programs that talk to an OpenAI-compatible server."""

from __future__ import annotations

import http.client
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import weakref


def find_command() -> str:
    """The `verbatim` command: $VERBATIM_COMMAND, the wheel's own, build/ of the repository that contains the package, or on the PATH."""
    named = os.environ.get("VERBATIM_COMMAND")
    here = pathlib.Path(__file__).resolve()
    built = [place for place in (here.parent / "bin" / "verbatim", here.parents[3] / "build" / "verbatim") if place.is_file()]
    found = named or (str(built[0]) if built else shutil.which("verbatim"))
    if not found:
        raise FileNotFoundError("no `verbatim` command; `make` builds it; VERBATIM_COMMAND names another one")
    return found


def end(process: subprocess.Popen, errors, patience: float = 10.0) -> None:
    """Lets running requests finish for `patience` seconds, then kills the process."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    errors.close()


class Server:
    """A running `verbatim serve MODEL OPTIONS`, on a free port of 127.0.0.1 unless the options choose otherwise. A context manager.

        with verbatim.Server("golden/tale", "--max-sequences", "4") as server:
            client = openai.OpenAI(base_url=server.base_url, api_key="none")

    The constructor returns when the server is ready. If the server does not start, it raises RuntimeError with the server's own
    sentence.

    base_url       the address of the API, such as "http://127.0.0.1:40001/v1"
    port           the port
    patience       seconds that the server may need to open the model"""

    base_url: str
    port: int

    def __init__(self, model, *options: str, command: str | None = None, patience: float = 600.0):
        words = [command or find_command(), "serve", os.fspath(model), "--port", "0", *map(str, options)]
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors)
        self._end = weakref.finalize(self, end, self._process, self._errors)  # also when the interpreter exits
        try:
            self._wait(time.monotonic() + patience)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *unused) -> None:
        self.close()

    def __repr__(self) -> str:
        return "verbatim.Server at %s" % self.base_url

    def close(self) -> None:
        """Stops the server, and waits until its process has ended. Requests that run have ten seconds to finish."""
        self._end()

    def log(self) -> str:
        """What the server has written to stderr so far: a line for each request, unless the option --log names a file."""
        return os.pread(self._errors.fileno(), 1 << 30, 0).decode("utf-8", "replace")

    def _wait(self, deadline: float) -> None:
        while not (found := re.search(r"^listening on (http://\S+:(\d+))$", self.log(), re.MULTILINE)):
            if self._process.poll() is not None:
                lines = self.log().strip().splitlines() or ["the server ended without a message"]
                raise RuntimeError(lines[-1].removeprefix("verbatim: "))
            if time.monotonic() > deadline:
                raise RuntimeError("the server was not ready in time: %s" % self.log().strip())
            time.sleep(0.01)
        self.base_url, self.port = found[1] + "/v1", int(found[2])
        host = re.sub(r"^http://\[?|\]?:\d+$", "", found[1])
        connection = http.client.HTTPConnection("127.0.0.1" if host in ("0.0.0.0", "::") else host, self.port, timeout=max(deadline - time.monotonic(), 1))
        try:
            connection.request("GET", "/health")
            if (status := connection.getresponse().status) != 200:
                raise RuntimeError("GET /health answers with status %d" % status)
        finally:
            connection.close()
