"""verbatim.Server: a server that starts, answers, says why it does not start, and ends."""

import http.server
import json
import subprocess
import sys
import threading
import urllib.request

import pytest
import verbatim
from conftest import BUILD, ROOT, run

COMMAND = str(BUILD / "verbatim")
TALE = ROOT / "golden" / "tale"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module", autouse=True)
def with_http():
    try:
        verbatim.Server(ROOT / "golden" / "missing", command=COMMAND)
    except RuntimeError as error:
        if "libmicrohttpd" in str(error):
            pytest.skip("this build has no HTTP server")


def ask(server, path, body):
    request = urllib.request.Request(server.base_url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with DIRECT.open(request, timeout=600) as answer:
        return json.load(answer)


def test_a_server_answers_as_the_command_does_and_ends():
    with verbatim.Server(TALE, "--max-sequences", "2", command=COMMAND) as server:
        assert server.base_url == "http://127.0.0.1:%d/v1" % server.port
        answer = ask(server, "/completions", {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0})
        assert answer["choices"][0]["text"] == run("generate", TALE, "--prompt", "Once upon a time", "-n", "12")["text"]
        assert "/v1/completions" in server.log()
        process = server._process
    assert process.poll() == 0
    server.close()  # a second time does nothing


def compare_answers(base_url):
    script = [sys.executable, str(ROOT / "examples" / "serve" / "same_answer.py"), base_url, "2"]
    return subprocess.run(script, stdout=subprocess.PIPE, text=True, timeout=600)


def test_the_example_compares_answers_alone_and_beside_others():
    with verbatim.Server(TALE, command=COMMAND) as server:
        done = compare_answers(server.base_url)
    assert done.returncode == 0 and done.stdout.startswith("2 of 2 answers are the same"), done.stdout


class Changing(http.server.BaseHTTPRequestHandler):
    """A server whose answers have a number in them that grows."""

    count = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Changing.count += 1
        body = json.dumps({"choices": [{"text": str(Changing.count)}], "verbatim": {"fingerprint": "0"}, "system_fingerprint": "x"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *unused):
        pass


def test_the_example_finds_answers_that_differ():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Changing) as changing:
        threading.Thread(target=changing.serve_forever, daemon=True).start()
        done = compare_answers("http://127.0.0.1:%d/v1" % changing.server_port)
        changing.shutdown()
    assert done.returncode == 1 and done.stdout.startswith("0 of 2 answers are the same"), done.stdout


def test_two_servers_have_different_ports():
    with verbatim.Server(TALE, command=COMMAND) as one, verbatim.Server(TALE, command=COMMAND) as other:
        assert one.port != other.port


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(RuntimeError, match=r"--max-sequences"):
        verbatim.Server(TALE, "--max-sequences", "65", command=COMMAND)
    with pytest.raises(RuntimeError, match="golden/missing"):
        verbatim.Server(ROOT / "golden" / "missing", command=COMMAND)


def test_an_exception_ends_the_server():
    with pytest.raises(KeyError):
        with verbatim.Server(TALE, command=COMMAND) as server:
            raise KeyError
    assert server._process.poll() is not None
