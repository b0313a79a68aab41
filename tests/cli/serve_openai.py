#!/usr/bin/env python3
"""The openai Python client against `verbatim serve`. Run by tests/cli/serve_openai.sh, which installs the client.

    serve_openai.py [VERBATIM [NAME...]]     SERVE_RECORD=FILE: what the client sent is written there, for test_serve_openai.py
"""

import asyncio
import json
import os
import sys
import tempfile
from typing import Literal

import openai
import pydantic

from serving import TALE, Server, generate, run_tests

RECORD = os.environ.get("SERVE_RECORD")
HELLO = [{"role": "system", "content": "In a deep forest"}, {"role": "user", "content": [{"type": "text", "text": "there lived"}]}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a place", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"], "additionalProperties": False}, "strict": True}}
PLAIN = {"model": "tale", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
recorded = []


class Story(pydantic.BaseModel):
    name: Literal["king", "miller"]
    sons: int | None
    true: bool


def client_of(server, key="sesame", **more):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, **{"max_retries": 0, "timeout": 60, **more})
    client._client.event_hooks = {"response": [record]}
    return client


def record(response):
    """Notes a request and its status, if both are the same at any time."""
    request = response.request
    body = json.loads(request.content) if request.content else None
    if response.status_code == 429 or (body and body.get("max_tokens", 0) > 1000):
        return
    headers = {key: value for key, value in request.headers.items() if key.lower() not in ("host", "content-length")}
    recorded.append({"method": request.method, "path": request.url.path, "headers": headers, "body": body, "status": response.status_code})


def with_server(test):
    def run():
        with tempfile.NamedTemporaryFile("w") as key:
            key.write("sesame")
            key.flush()
            with Server(TALE, "--api-key-file", key.name, "--max-sequences", "1", "--max-waiting", "1") as server:
                test(server)
    run.__name__ = test.__name__
    return run


def client_completions(server):
    client = client_of(server)
    wanted = generate(TALE, PLAIN)
    answer = client.completions.create(**PLAIN)
    assert answer.choices[0].text == wanted["text"] and answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 12
    assert answer.model_extra["verbatim"]["fingerprint"] == wanted["fingerprint"]
    text, usage = "", None
    for chunk in client.completions.create(**PLAIN, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == wanted["text"] and usage.completion_tokens == 12
    answer = client.completions.create(**dict(PLAIN, prompt=[[0, 48, 79], [5, 6]], max_tokens=1), logprobs=2, echo=True, n=2, seed=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    rows = answer.choices[0].logprobs
    assert rows.token_logprobs[0] is None and len(rows.tokens) == len(rows.top_logprobs) == len(rows.text_offset) == 4
    answer = client.completions.create(**PLAIN, extra_body={"draft": "mtp-eagle", "return_token_ids": True}, stop=[" king"], user="me")
    assert answer.choices[0].model_extra["token_ids"]


def client_chat(server):
    client = client_of(server)
    ask = {"model": "tale", "messages": HELLO, "max_completion_tokens": 12, "temperature": 0}
    answer = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3, presence_penalty=0, frequency_penalty=0, logit_bias={}, n=1, top_p=1)
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content and message.refusal is None and answer.object == "chat.completion"
    rows = answer.choices[0].logprobs.content
    assert len(rows) == 12 and all(len(row.top_logprobs) == 3 for row in rows) and bytes(rows[0].bytes)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and not chunks[-1].choices and chunks[-1].usage.completion_tokens == 12
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == message.content
    answer = client.chat.completions.create(**ask, tools=[TOOL], tool_choice="auto", metadata={"a": "b"}, store=False)
    assert answer.choices[0].message.content is not None and answer.usage.prompt_tokens > 0
    assert client.models.list().data[0].id == client.models.retrieve("tale").id == "tale"


def client_parse(server):
    client = client_of(server)
    parse = getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse
    answer = parse(model="tale", messages=HELLO, response_format=Story, temperature=0, max_tokens=200)
    story = answer.choices[0].message.parsed
    assert isinstance(story, Story) and story.name in ("king", "miller"), answer
    with client.chat.completions.stream(model="tale", messages=HELLO, response_format=Story, temperature=0, max_tokens=200) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == story


def refused(kind, call, **body):
    try:
        call(**body)
    except openai.OpenAIError as error:
        assert type(error) is kind, f"{type(error)} instead of {kind}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def client_errors(server):
    client = client_of(server)
    error = refused(openai.BadRequestError, client.completions.create, **dict(PLAIN, temperature=-1))
    assert error.param == "temperature" and error.type == "invalid_request_error" and "temperature" in error.body["message"]
    error = refused(openai.NotFoundError, client.chat.completions.create, model="other", messages=HELLO)
    assert error.code == "model_not_found" and error.param == "model"
    refused(openai.NotFoundError, client.responses.create if hasattr(client, "responses") else client.models.retrieve, model="x", **(
        {"input": "x"} if hasattr(client, "responses") else {}))
    refused(openai.AuthenticationError, client_of(server, "wrong").models.list)
    refused(openai.LengthFinishReasonError, getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse,
            model="tale", messages=HELLO, response_format=Story, max_tokens=1, temperature=0)
    long = dict(PLAIN, max_tokens=1900, extra_body={"ignore_eos": True}, stream=True, n=2)
    first = client.completions.create(**long)
    next(iter(first))
    error = refused(openai.RateLimitError, client.completions.create, **PLAIN)
    assert error.code == "queue_full" and error.response.headers["retry-after"]
    patient = client_of(server, max_retries=20)  # it tries again after Retry-After, and then there is room
    patient._client.event_hooks = {"response": [record, lambda response: response.status_code == 429 and first.close()]}
    assert patient.completions.create(**PLAIN).choices[0].text


def idle(server):
    text = server.ask("GET", "/metrics", headers={"Authorization": "Bearer sesame"})[2]
    values = [line.split()[-1] for line in text.split("\n") if line.startswith(("verbatim:num_requests_running{", "verbatim:num_requests_waiting{"))]
    return values == ["0", "0"]


def wait_for_idle(server):
    server.wait_for("the end of what a client has left", lambda: idle(server))


def client_timeouts(server):
    client = client_of(server)
    long = dict(PLAIN, max_tokens=1900, extra_body={"ignore_eos": True}, n=16)
    refused(openai.APITimeoutError, client.with_options(timeout=0.1).completions.create, **long)
    wait_for_idle(server)

    async def cancelled():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="sesame", max_retries=0) as many:
            task = asyncio.create_task(many.completions.create(**long))
            await asyncio.to_thread(server.wait_for, "the request", lambda: not idle(server))
            task.cancel()
            try:
                await task
                raise AssertionError("it was not cancelled")
            except asyncio.CancelledError:
                pass
    asyncio.run(cancelled())
    wait_for_idle(server)
    assert client.completions.create(**PLAIN).choices[0].text == generate(TALE, PLAIN)["text"]


if __name__ == "__main__":
    code = run_tests([with_server(test) for test in (client_completions, client_chat, client_parse, client_errors, client_timeouts)])
    if RECORD and not code:
        with open(RECORD, "w") as out:
            out.writelines(json.dumps(request) + "\n" for request in recorded)
    print(f"openai {openai.__version__}")
    sys.exit(code)
