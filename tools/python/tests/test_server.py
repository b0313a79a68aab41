"""verbatim.Server: a server that starts, answers, says why it does not start, and ends."""

import json
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
