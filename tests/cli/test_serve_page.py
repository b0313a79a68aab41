#!/usr/bin/env python3
"""The page that `verbatim serve` has at /, in a real browser without a window: what it shows is what the API answers. Needs Python's
standard library, and Chromium; without Chromium the tests are skipped. Run in the repository's root.

    test_serve_page.py [VERBATIM [NAME...]]     NAME: these tests alone
"""

import base64
import contextlib
import hashlib
import json
import math
import os
import re
import sys
import tempfile

from browser import Browser, find_browser
from serving import TALE, TINY, Server, run_tests, tale_with

DRAFTING = ("--draft", "mtp-eagle", "--draft-tokens", "2")
IDLE = "document.querySelector('#log .turn') && !document.body.classList.contains('running')"
TOKENS = "[...document.querySelectorAll('.turn:last-child .answer > .text .tok')]"
FIGURES = "[...document.querySelectorAll('.turn:last-child .figures :is(li:not(:last-child), li:last-child > span)')].map(e => e.textContent)"

AT_END = "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 2)(document.getElementById('scroll'))"


@contextlib.contextmanager
def page(server, width=1000, settings=None, expected_errors=()):
    """The page in a browser. Its end checks that the page reached no other host and that nothing failed."""
    address = f"http://127.0.0.1:{server.port}/"
    with Browser() as b:
        b.look(width, 740)
        b.open(address)
        if settings:
            b.run(f"localStorage.setItem('verbatim-settings', {json.dumps(json.dumps(settings))})")
            b.open(address)
        yield b
        others = [url for url in b.requests if not url.startswith((address, "data:image/png"))]
        assert not others, f"the page asked another host: {others}"
        strange = [e for e in b.errors if not any(x in e for x in expected_errors)]
        assert not strange and not b.console, f"errors {strange}, console {b.console}"


def ready(b):
    b.wait_for("!!document.getElementById('model').textContent")
    b.run("document.getElementById('input').focus()")


def send(b, text, wait=True):
    turns = b.run("document.querySelectorAll('.turn').length")
    b.type(text)
    b.run("document.getElementById('send').click()")
    if wait:
        b.wait_for(f"document.querySelectorAll('.turn').length > {turns} && {IDLE}")


def text_of(b):
    return b.run("document.querySelector('.turn:last-child .answer > .text').textContent")


def problem_of(b):
    return b.wait_for("(document.querySelector('.turn:last-child .problem:not([hidden])') || {}).textContent")


# ---- the file ----

def the_page_is_one_file_that_reaches_nothing_else():
    with Server(TALE, "--api-key-file", key_file("sesame")) as server:
        status, headers, text = server.ask("GET", "/")
        assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8" and headers["Cache-Control"] == "no-cache", headers
        found = re.findall(r"https?:|url\(|@import|\ssrc=|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|\son\w+=|style=", text)
        assert not found, f"the page has {found}"
        policy = headers["Content-Security-Policy"]
        for tag in ("script", "style"):
            inside, = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}';" in policy, f"the policy has another hash of {tag}"
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
        status, head, text = server.ask("HEAD", "/")
        assert status == 200 and text == "" and head["Content-Length"] == headers["Content-Length"] and head["ETag"] == headers["ETag"]
        for tag, wanted in ((headers["ETag"], 304), (f'"old", W/{headers["ETag"]}', 304), ('"old"', 200)):
            status, _, text = server.ask("GET", "/", headers={"If-None-Match": tag})
            assert status == wanted and bool(text) == (wanted == 200), (tag, status)
        status, head, _ = server.ask("POST", "/", {})
        assert status == 405 and head["Allow"] == "GET, HEAD"
    with Server(TALE) as server:
        assert server.ask("GET", "/", headers={"Host": "evil.example"})[0] == 403


def key_file(key):
    file = tempfile.NamedTemporaryFile("w", delete=False)
    with file:
        file.write(key)
    return file.name


# ---- conversations ----

def check_answer(b, server, path, body):
    """What the page shows of its last answer, and what the API answers to the same request."""
    answer = server.post(path, dict(body, return_token_ids=True))
    choice, verdict = answer["choices"][0], answer["verbatim"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    assert text_of(b) == text, f"the page shows {text_of(b)!r}, the API says {text!r}"
    shown = b.run(f"{TOKENS}.map(e => [e.textContent, e.classList.contains('draft'), getComputedStyle(e).textDecorationLine])")
    wanted = [[t["text"], t["draft"] > 0, "underline" if t["draft"] else "none"] for t in verdict["tokens"]]
    assert shown == wanted, f"the page marks {shown}, the API says {wanted}"
    passes = verdict["tokens"][-1]["pass"]
    figures = b.run(FIGURES)
    assert figures[1].endswith(" tokens per pass") and abs(float(figures[1].split()[0]) - (len(wanted) - 1) / passes) < 0.0051, figures
    assert figures[2] == (f"{verdict['accepted']} of {verdict['drafted']} drafts accepted" if verdict["drafted"] else "no drafts"), figures
    assert figures[3:] == [f"fingerprint {verdict['fingerprint']}", f"seed {verdict['seed']}"], figures
    assert re.fullmatch(r"\d+(\.\d)? tokens/s", figures[0]), figures
    return choice, verdict


def a_conversation_is_that_of_the_api_with_its_drafts_marked():
    body = {"temperature": 0.7, "seed": 7, "max_tokens": 60}
    settings = {"mode": "chat", "temperature": "0.7", "seed": "7", "max_tokens": "60", "system": "A tale. "}
    with Server(TALE, *DRAFTING) as server, page(server, settings=settings) as b:
        ready(b)
        messages = [{"role": "system", "content": "A tale. "}]
        for said in ("Once upon a time", "The king said\nto his \"daughter\" <b>"):
            send(b, said)
            messages.append({"role": "user", "content": said})
            _, verdict = check_answer(b, server, "/v1/chat/completions", dict(body, messages=messages))
            assert verdict["accepted"] > 3, "the test needs accepted drafts"
            messages.append({"role": "assistant", "content": text_of(b)})
        assert b.run("document.querySelector('.turn:last-child .bubble').textContent") == said
        assert b.run("document.querySelector('.legend').checkVisibility()") and "accepted draft" in b.run("document.querySelector('.legend').textContent")
        first, text = b.run(FIGURES), text_of(b)
        b.run("[...document.querySelectorAll('.turn:last-child button')].find(e => e.textContent === 'Answer again').click()")
        b.wait_for(IDLE)
        assert (b.run(FIGURES)[1:], text_of(b)) == (first[1:], text), "with the same seed, the answer is another one"
        b.run("[...document.querySelectorAll('.turn:last-child button')].find(e => e.textContent === 'Edit').click()")
        assert b.run("document.getElementById('input').value") == said
        b.run("document.getElementById('input').value = ''")
        send_replacing(b, "In a deep forest")
        check_answer(b, server, "/v1/chat/completions", dict(body, messages=messages[:3] + [{"role": "user", "content": "In a deep forest"}]))
        b.run("document.getElementById('new').click()")
        assert b.run("document.querySelectorAll('.turn').length") == 0 and b.run("document.getElementById('empty').checkVisibility()")


def send_replacing(b, text):
    b.run("document.querySelector('.turn:last-child').id = 'replaced'")
    b.type(text)
    b.run("document.getElementById('send').click()")
    b.wait_for(f"!document.getElementById('replaced') && {IDLE}")
    assert b.run("document.querySelectorAll('.turn').length") == 2


def everything_works_by_keyboard():
    with Server(TALE) as server, page(server) as b:
        ready(b)
        b.run("document.getElementById('open').focus()")
        b.key("Enter")
        for name, value in (("temperature", "0"), ("max_tokens", "30")):
            b.run(f"document.querySelector('[name={name}]').focus()")
            b.type(value)
        b.run("document.querySelector('[name=draft]').focus()")
        while b.run("document.activeElement.value") != "ngram":
            b.key("ArrowDown")
        b.key("Escape")
        b.wait_for("!document.getElementById('settings').open && document.activeElement.id === 'input'")
        b.type("a man and a man and a man and")
        b.key("Enter", shift=True)
        b.type("a man")
        b.key("Enter")
        b.wait_for(IDLE)
        body = {"messages": [{"role": "user", "content": "a man and a man and a man and\na man"}], "temperature": 0, "max_tokens": 30, "draft": "ngram", "seed": 1}
        answer = server.post("/v1/chat/completions", dict(body, return_token_ids=True))
        assert text_of(b) == answer["choices"][0]["message"]["content"]
        assert b.run(FIGURES)[2] == f"{answer['verbatim']['accepted']} of {answer['verbatim']['drafted']} drafts accepted" and answer["verbatim"]["drafted"]
        b.open(f"http://127.0.0.1:{server.port}/")
        ready(b)
        assert b.run("['temperature', 'max_tokens', 'draft'].map(n => document.querySelector(`[name=${n}]`).value)") == ["0", "30", "ngram"], "settings are lost"


def alternatives_appear_at_the_pointer_and_by_keyboard():
    body = {"messages": [{"role": "user", "content": "Once upon a time"}], "temperature": 1, "seed": 3, "max_tokens": 40, "logprobs": True, "top_logprobs": 5}
    with Server(TALE, *DRAFTING) as server, page(server, settings={"seed": "3", "max_tokens": "40"}) as b:
        ready(b)
        send(b, "Once upon a time")
        choice, _ = check_answer(b, server, "/v1/chat/completions", body)
        assert b.run(f"{TOKENS}.filter(e => e.tabIndex === 0).length") == 1, "one stop for the Tab key"
        for i, entry in enumerate(choice["logprobs"]["content"]):
            if i == 0:
                b.run(f"{TOKENS}[0].focus()")
            elif i == 1:
                b.run(f"{TOKENS}[0].blur()")
                b.wait_for("document.getElementById('tip').hidden")
                b.run(f"{TOKENS}[1].id = 'pointed'")
                b.point("#pointed")
                b.wait_for("!document.getElementById('tip').hidden")
                b.run(f"{TOKENS}[1].focus()")
            else:
                b.key("ArrowRight")
            assert b.run(f"document.activeElement === {TOKENS}[{i}] || {i} === 1")
            assert b.run(f"{TOKENS}[{i}].getAttribute('aria-describedby') === 'tip' && document.getElementById('tip').checkVisibility()")
            check_tip(b, entry)
        b.key("ArrowUp")
        b.key("Home")
        assert b.run(f"document.activeElement === {TOKENS}[0]")
        b.key("ArrowDown")
        b.key("End")
        assert b.run(f"document.activeElement === {TOKENS}.pop()")
        b.key("Escape")
        assert b.run("document.getElementById('tip').hidden")


def check_tip(b, entry):
    rows = [[t["token"], t["logprob"]] for t in entry["top_logprobs"]]
    if entry["token"] not in [name for name, _ in rows]:
        rows.append([entry["token"], entry["logprob"]])
    wanted = []
    for name, logprob in rows:
        p = 100 * math.exp(logprob)
        wanted.append([name.replace(" ", "\u2423").replace("\n", "\u21b5"), "< 0.1 %" if p < 0.05 else f"{p:.1f} %", name == entry["token"]])
    shown = b.run("[...document.querySelectorAll('#tip tr')].map(r => [r.querySelector('th').textContent, r.lastChild.textContent, r.className === 'chosen'])")
    assert [row[0::2] for row in shown] == [row[0::2] for row in wanted], (shown, wanted)
    for (_, is_, _), (_, want, _) in zip(shown, wanted):  # a tie in the last digit may be rounded either way
        assert is_ == want or abs(float(is_.strip("< %")) - float(want.strip("< %"))) < 0.11, (shown, wanted)
    box = b.run("(r => [r.left, r.top, innerWidth - r.right, innerHeight - r.bottom])(document.getElementById('tip').getBoundingClientRect())")
    assert min(box) >= 0, f"the alternatives leave the window: {box}"


def hold(size, then):
    """Lets so many bytes of a stream through to the page; then something else happens."""
    return """window.fetch = (real => async (path, options) => {
        const answer = await real(path, options);
        let left = %d;
        return path.includes("completions") ? new Response(answer.body.pipeThrough(new TransformStream({transform(piece, out) {
            out.enqueue(piece.subarray(0, left));
            left -= Math.min(left, piece.length);
            return left ? undefined : %s;
        }})), answer) : answer;
    })(window.fetch)""" % (size, then)


def stop_keeps_what_was_said():
    settings = {"temperature": "0", "mode": "chat"}
    with Server(TALE) as server, page(server, settings=settings) as b:
        whole = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once upon a time"}], "temperature": 0})["choices"][0]["message"]["content"]
        for how in ("click", "key", "new"):
            b.open(f"http://127.0.0.1:{server.port}/")
            ready(b)
            b.run(hold(5000, "new Promise((_, stop) => options.signal.addEventListener('abort', () => stop(options.signal.reason)))"))
            send(b, "Once upon a time", wait=False)
            b.wait_for(f"{TOKENS}.length > 0")
            assert b.run("document.getElementById('send').getAttribute('aria-label')") == "Stop"
            if how == "new":
                b.run("document.getElementById('new').click()")
                assert b.run("document.querySelectorAll('.turn').length") == 0
            elif how == "click":
                b.run("document.getElementById('send').click()")
            else:
                b.key("Escape")
            b.wait_for("!document.body.classList.contains('running')")
            assert b.run("document.getElementById('send').getAttribute('aria-label')") == "Send"
            if how != "new":
                assert 0 < len(text_of(b)) < len(whole) and whole.startswith(text_of(b))
                assert b.run("document.querySelector('.turn:last-child .ended').textContent") == "stopped"
                assert not b.run("!!document.querySelector('.problem:not([hidden])')")
            server.wait_for("the end of the request", lambda: server.sequences() == 0)


# ---- errors ----

def errors_are_shown_as_their_sentence():
    with Server(TALE, "--max-sequences", "1", "--max-waiting", "1") as server, page(server, settings={"max_tokens": "5"}, expected_errors=["Failed to load resource"]) as b:
        ready(b)
        send(b, "very " * 4000)
        assert re.match(r"The prompt has \d+ tokens, and the context holds 2048 with the answer\.", problem_of(b)), problem_of(b)
        send_once(b, "Once upon a time")  # takes the place of the one that failed
        assert len(text_of(b)) > 5
        slow = [full_line(server), full_line(server)]
        server.wait_for("a full line", lambda: server.sequences() == 2)
        send(b, "And then", wait=False)
        assert "trying again in 1 second" in problem_of(b)
        for sock in slow:
            sock.close()
        b.wait_for(IDLE)
        assert len(text_of(b)) > 5 and not b.run("!!document.querySelector('.problem:not([hidden])')"), problem_of(b)
        server.process.kill()
        server.process.wait()
        send(b, "And then")
        assert problem_of(b) == "The server cannot be reached."


def send_once(b, text):
    b.run("document.querySelector('.turn:last-child').id = 'failed'")
    b.type(text)
    b.run("document.getElementById('send').click()")
    b.wait_for(f"!document.getElementById('failed') && {IDLE}")


def full_line(server):
    """A connection whose answer is not read."""
    return server.send({"prompt": "a", "max_tokens": 2000, "stream": True, "ignore_eos": True, "logprobs": 20}, small=True)


def a_lost_connection_is_said():
    with Server(TALE) as server, page(server) as b:
        for how in ("out.error(new TypeError('network error'))", "out.terminate()"):
            b.open(f"http://127.0.0.1:{server.port}/")
            ready(b)
            b.run(hold(5000, how))
            send(b, "Once upon a time")
            assert problem_of(b) == "The connection to the server was lost, and the answer is not complete."


def a_key_is_asked_for_and_kept_in_this_tab_alone():
    path = key_file("sesame")
    with Server(TALE, "--api-key-file", path) as server, page(server, settings={"max_tokens": "5"}, expected_errors=["status of 401"]) as b:
        assert "key is missing" in b.wait_for("!document.getElementById('notice').hidden && document.getElementById('notice').textContent")
        for key, wanted in (("sesamf", "The API key is wrong."), ("sesame", "")):
            b.run("document.getElementById('open').click()")
            b.wait_for("document.activeElement.name === 'key'")
            b.run("document.activeElement.select()")
            b.type(key)
            b.key("Enter")
            if wanted:
                b.wait_for(f"document.getElementById('notice').textContent.includes({json.dumps(wanted)})")
        ready(b)
        assert b.run("document.getElementById('notice').hidden")
        send(b, "Once upon a time")
        assert len(text_of(b)) > 5
        assert b.run("Object.values(sessionStorage)") == ["sesame"] and "sesame" not in b.run("JSON.stringify(Object.entries(localStorage)) + document.cookie + location.href")
    os.unlink(path)


# ---- models ----

THINKS = ("{{ bos_token }}{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
          "{% if add_generation_prompt and thinking is defined and thinking %}{{ '<think>' }}{% endif %}")


def thinking_can_be_switched_on():
    body = {"messages": [{"role": "user", "content": "Once upon a time"}], "temperature": 0, "max_tokens": 30, "seed": 1, "return_token_ids": True}
    with tempfile.TemporaryDirectory() as folder:
        with Server(tale_with(f"{folder}/thinks", {"chat_template.jinja": THINKS}), *DRAFTING) as server:
            for switch, kwargs in (("", {}), ("on", {"thinking": True}), ("off", {"thinking": False})):
                answer = server.post("/v1/chat/completions", dict(body, chat_template_kwargs=kwargs))
                message = answer["choices"][0]["message"]
                with page(server, settings={"temperature": "0", "max_tokens": "30", "seed": "1", "thinking": switch}) as b:
                    ready(b)
                    send(b, "Once upon a time")
                    thought = b.run("document.querySelector('.thinking .text').textContent")
                    assert [text_of(b), thought] == [message["content"] or "", message.get("reasoning_content") or ""], (text_of(b), thought, message)
                    assert (thought != "") == (switch == "on") == b.run("document.querySelector('.thinking').checkVisibility()")
                    shown = b.run("[...document.querySelectorAll('.answer .tok')].map(e => [e.textContent, e.classList.contains('draft')])")
                    wanted = [[t["text"], t["draft"] > 0] for t in answer["verbatim"]["tokens"]]
                    assert [[s.strip(), d] for s, d in shown] == [[s.strip(), d] for s, d in wanted], (shown, wanted)


def a_model_without_a_template_completes():
    with tempfile.TemporaryDirectory() as folder:
        model = tale_with(f"{folder}/plain", {"chat_template.jinja": None})
        with Server(model, *DRAFTING) as server, page(server, settings={"temperature": "0", "mode": "chat", "seed": "2"}) as b:
            ready(b)
            about = json.loads(server.get("/v1/models"))["data"][0]["verbatim"]
            assert about["chat"] is False and "chat template" in about["chat_error"], about
            notice = b.run("document.getElementById('notice').textContent")
            assert notice.startswith("plain has no chat template") and about["chat_error"] in notice, notice
            for said in ("Once upon a time", "In a deep forest"):  # each by itself
                send(b, said)
                check_answer(b, server, "/v1/completions", {"prompt": said, "temperature": 0, "max_tokens": 256, "seed": 2})


def a_model_without_a_tokenizer_is_given_ids():
    with Server(TINY) as server, page(server, settings={"temperature": "0", "max_tokens": "9"}) as b:
        ready(b)
        send(b, "5, 6 7")
        answer = server.post("/v1/completions", {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 9, "return_token_ids": True})["choices"][0]
        assert text_of(b).split() == [str(i) for i in answer["token_ids"]], text_of(b)
        b.run(f"{TOKENS}[0].focus()")
        assert b.run("document.querySelector('#tip tr.chosen th').textContent").startswith(str(answer["token_ids"][0]))


# ---- what a stream can be like ----

def token(text, draft=0, number=0):
    return {"id": 1, "text": text, "draft": draft, "pass": number}


def chunk(tokens, content=None, reasoning=None, finish=None, calls=None):
    delta = {name: value for name, value in (("content", content), ("reasoning_content", reasoning), ("tool_calls", calls)) if value is not None}
    verdict = {"tokens": tokens}
    if finish:
        verdict.update(fingerprint="0123456789abcdef", seed=1, drafted=0, accepted=0, passes=1)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, "verbatim": verdict}]}


def answer_with(b, chunks, size, pause=-1):
    """The page's next answers are this stream, in pieces of so many bytes; after `pause` bytes it waits for more()."""
    text = "".join(f"data: {json.dumps(c, ensure_ascii=False)}\n\n" for c in chunks) + ": keep-alive\n\ndata: [DONE]\n\n"
    b.run("""window.fetch = async () => { const bytes = new TextEncoder().encode(%s); let at = 0;
        return new Response(new ReadableStream({async pull(c) {
            if (at === %d)
                await new Promise(go => { window.more = go; });
            at < bytes.length ? c.enqueue(bytes.slice(at, at += %d)) : c.close();
        }})); }""" % (json.dumps(text), pause, size))


def thinking_is_folded_and_no_character_is_lost():
    said, thought = "\u00e9\U0001f600 <b>no markup</b>\n\n  two  spaces\n", "Let me see.\nYes"
    chunks = [chunk([token("<think>"), token("\n")]), chunk([token("Let"), token(" me", 1)], reasoning="Let me"), chunk([token(" see.\n"), token("Yes", 1)], reasoning=" see.\nYes"),
              chunk([token("\n"), token("</think>"), token("\n\n\u00e9"), token("bytes:\\xf0\\x9f")], content="\u00e9"),
              chunk([token("bytes:\\x98\\x80", 1), token(" <b>no"), token(" markup</b>\n\n", 1)], content="\U0001f600 <b>no markup</b>\n\n"),
              chunk([token("  two"), token("  spaces\n", 1), token("<end>")], content="  two  spaces\n", finish="stop")]
    with Server(TALE) as server, page(server) as b:
        ready(b)
        for size in (1, 7, 100000):
            answer_with(b, chunks, size)
            send(b, "Think")
            assert text_of(b) == said and b.run("document.querySelector('.turn:last-child .thinking .text').textContent") == thought
            assert not b.run("document.querySelector('.turn:last-child .thinking').open") and b.run("document.querySelector('.turn:last-child .thinking').checkVisibility()")
            assert b.run(f"{TOKENS}.map(e => [e.textContent, e.classList.contains('draft'), e.tokens.length])") == [
                ["\u00e9", False, 1], ["\U0001f600", True, 2], [" <b>no", False, 1], [" markup</b>\n\n", True, 1], ["  two", False, 1], ["  spaces\n", True, 1]]
        b.run("document.querySelector('.turn:last-child summary').focus()")
        b.key("Enter")
        assert b.run("document.querySelector('.turn:last-child .thinking').open")
        answer_with(b, [chunk([token("a")], content="a"), {"error": {"message": "the row is not finite"}}], 50)
        send(b, "Fail")
        assert problem_of(b) == "The row is not finite." and text_of(b) == "a"
        b.wait_for(AT_END)
        body = b.run("JSON.stringify(messagesBefore(turns[1]))")
        assert json.loads(body) == [{"role": "user", "content": "Think"}, {"role": "assistant", "content": said}], "thinking is not sent back"


def calls_are_shown_and_sent_back():
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    begin = lambda i, name: {"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": ""}}
    piece = lambda i, text: {"index": i, "function": {"arguments": text}}
    chunks = [chunk([token("<think>")]), chunk([token("Hm")], reasoning="Hm"), chunk([token("Look: ")], content="Look: "),
              chunk([token("<call>"), token("weather")], calls=[begin(0, "weather")]), chunk([token("{")], calls=[piece(0, "{")]),
              chunk([token('"a": 1}'), token("clock")], calls=[piece(0, '"a": 1}'), begin(1, "clock")]), chunk([token("{}")], calls=[piece(1, "{}")]),
              chunk([token("<end>"), token("done")], content="done", finish="tool_calls")]
    with Server(TALE) as server, page(server, settings={"tools": json.dumps(tools)}) as b:
        ready(b)
        for size in (1, 100000):
            answer_with(b, chunks, size)
            send(b, "Weather?")
            assert text_of(b) == "Look: done" and b.run("document.querySelector('.turn:last-child .thinking .text').textContent") == "Hm"
            assert b.run("[...document.querySelectorAll('.turn:last-child .call')].map(e => e.textContent)") == ['weather({"a": 1})', "clock({})"]
        body = json.loads(b.run("JSON.stringify(bodyOf(turns[1]))"))
        assert body["tools"] == tools and [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
        assert body["messages"][1]["tool_calls"] == [{"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": text}}
                                                     for i, (name, text) in enumerate((("weather", '{"a": 1}'), ("clock", "{}")))]
        server.post("/apply-template", {"messages": body["messages"], "tools": tools})
        for wrong in ("[", "{}", "5"):
            b.run(f"field('tools').value = '{wrong}'; show()")
            assert not b.run("form.checkValidity()"), f"{wrong} are no tools"
        b.run("field('tools').value = ''; show()")
        assert b.run("form.checkValidity()") and "tools" not in json.loads(b.run("JSON.stringify(bodyOf(turns[1]))"))


def a_long_paragraph_is_drawn_in_pieces_whose_lines_stay():
    words = [f"word{i} "[::-1] for i in range(3000)]  # a space before each, as tokens have it
    chunks = [chunk([token(w, i % 3, i)], content=w, finish="length" if i == 2999 else None) for i, w in enumerate(words)]
    places = f"{TOKENS}.slice(0, 2000).map(e => [...e.getClientRects()].pop()).map(r => [r.right, r.bottom].map(Math.round).join()).join(' ')"
    blocks = "[...document.querySelectorAll('.turn:last-child .answer > .text > div')].map(e => e.childElementCount)"
    stream = "".join(f"data: {json.dumps(c, ensure_ascii=False)}\n\n" for c in chunks[:2500])
    with Server(TALE) as server, page(server) as b:
        ready(b)
        answer_with(b, chunks, 1000, pause=len(stream) // 1000 * 1000)
        send(b, "Say much", wait=False)
        b.wait_for(f"!!window.more && {TOKENS}.length > 2400")
        assert max(b.run(blocks)) < 300, f"blocks of {b.run(blocks)} tokens"
        b.run("document.getElementById('scroll').scrollTop = 0")
        b.wait_for("document.getElementById('scroll').scrollTop === 0")
        b.run(f"{TOKENS}[2300].focus({{preventScroll: true}})")
        before, scrolled = b.run(places), b.run("document.getElementById('scroll').scrollTop")
        b.run("more()")
        b.wait_for(IDLE)
        assert b.run(blocks) == [3000], "one paragraph at the end"
        assert b.run(f"document.activeElement === {TOKENS}[2300]"), "the focus is lost"
        b.run(f"document.getElementById('scroll').scrollTop = {scrolled}")
        assert b.run(places) == before, "lines have moved"
        assert text_of(b) == "".join(words)


def a_long_answer_is_drawn_in_few_steps_and_pieces():
    """No test measures time: this one counts what the page does to its elements."""
    words = [f"word{i}" + ("\n" if i % 50 == 49 else " ") for i in range(6000)]
    chunks = [chunk([token(w, i % 3, i)], content=w, finish="length" if i == 5999 else None) for i, w in enumerate(words)]
    with Server(TALE) as server, page(server) as b:
        ready(b)
        b.run("window.changes = 0; new MutationObserver(list => { for (const m of list) changes += m.addedNodes.length + m.removedNodes.length; }).observe(log, {childList: true, subtree: true})")
        b.run("window.spoken = 0; new MutationObserver(list => { spoken += list.length; }).observe(document.getElementById('status'), {childList: true})")
        answer_with(b, chunks, 100000)
        send(b, "Say much")
        assert text_of(b) == "".join(words)
        assert b.run("Math.max(...[...document.querySelectorAll('.turn:last-child .answer > .text > div')].map(e => e.childElementCount))") <= 250, "one long block"
        changes = b.run("changes")
        assert changes < 3 * len(words) + 200, f"{changes} elements were made and removed for {len(words)} tokens"
        assert b.run("spoken") <= 6, "the live region speaks every token"
        assert b.run("document.querySelectorAll('[aria-live], [role=log]').length") == 0
        b.wait_for(AT_END)
        answer_with(b, [chunk([token("a")], content="a"), {"error": {"message": "wrong"}}], 1)
        send(b, "Say little")
        b.wait_for(AT_END)


def a_reader_who_has_scrolled_up_stays_there():
    words = [f"word{i}" + ("\n" if i % 5 == 4 else " ") for i in range(300)]
    chunks = [chunk([token(w, 0, i)], content=w, finish="stop" if i == 299 else None) for i, w in enumerate(words)]
    with Server(TALE) as server, page(server) as b:
        ready(b)
        answer_with(b, chunks, 1000, pause=30000)
        send(b, "Say much", wait=False)
        b.wait_for("!!window.more && document.getElementById('scroll').scrollTop > 100")
        b.wait_for(AT_END)
        b.run("document.getElementById('scroll').scrollTop = 50")
        b.wait_for("!document.getElementById('latest').hidden")
        b.run("more()")
        b.wait_for(IDLE)
        assert b.run("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(() => go(document.getElementById('scroll').scrollTop))))") == 50
        b.run("document.getElementById('latest').click()")
        b.wait_for(AT_END + " && document.getElementById('latest').hidden")


def a_phone_has_no_horizontal_scrolling():
    with Server(TALE, *DRAFTING) as server, page(server, 360, {"max_tokens": "120", "seed": "5"}) as b:
        ready(b)
        wide = "[document.documentElement, document.body, document.getElementById('scroll'), document.getElementById('settings')].map(e => e.scrollWidth - e.clientWidth).concat(document.documentElement.clientWidth - 360)"
        assert b.run(wide) == [0] * 5
        send(b, "x" * 300 + " Once upon a time")
        assert b.run(wide) == [0] * 5
        b.run(f"{TOKENS}[10].focus()")
        assert b.run("(r => r.left >= 0 && r.right <= 360)(document.getElementById('tip').getBoundingClientRect())") and b.run(wide) == [0] * 5
        b.run("document.getElementById('open').click()")
        assert b.run("document.getElementById('settings').getBoundingClientRect().width") == 360 and b.run(wide) == [0] * 5
        outside = b.run("[...document.querySelectorAll('header *, #composer *, dialog *')].filter(e => e.checkVisibility() && !e.closest('.unseen') && (r => r.width && (r.left < -1 || r.right > 361))(e.getBoundingClientRect())).map(e => e.outerHTML.slice(0, 80))")
        assert not outside, outside


TESTS = [the_page_is_one_file_that_reaches_nothing_else, a_conversation_is_that_of_the_api_with_its_drafts_marked, everything_works_by_keyboard,
         alternatives_appear_at_the_pointer_and_by_keyboard, stop_keeps_what_was_said, errors_are_shown_as_their_sentence, a_lost_connection_is_said,
         a_key_is_asked_for_and_kept_in_this_tab_alone, thinking_can_be_switched_on, a_model_without_a_template_completes, a_model_without_a_tokenizer_is_given_ids,
         thinking_is_folded_and_no_character_is_lost, calls_are_shown_and_sent_back,
         a_long_paragraph_is_drawn_in_pieces_whose_lines_stay, a_long_answer_is_drawn_in_few_steps_and_pieces, a_reader_who_has_scrolled_up_stays_there,
         a_phone_has_no_horizontal_scrolling]

if __name__ == "__main__":
    if not find_browser():
        print("skipped: no browser found (chromium-headless-shell or chromium)")
        sys.exit(0)
    sys.exit(run_tests(TESTS))
