#!/usr/bin/env python3
"""`verbatim serve`: reasoning and tool calls in chats. Needs Python's standard library alone. Run in the repository's root.

    test_serve_meaning.py [VERBATIM [NAME...]]     NAME: these tests alone

A small model writes no tool calls. So its tokenizer gets tokens with the texts that are wanted, and logit_bias, falling by 40 from token
to token, together with a presence penalty makes the model say each of them once, in the order of the request.
"""

import json
import os
import sys
import tempfile

from serving import TALE, Server, events, run_tests, tale_with

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "required": ["text"], "properties": {
              "text": {"type": "string"}, "count": {"type": "integer"}}}}},
         {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}]
USER = [{"role": "user", "content": "Once upon a time"}]
CHAT = "/v1/chat/completions"

# Short templates in the style of each family: the same markers, the same form of arguments.
V3 = ("{{ bos_token }}{% for t in tools or [] %}T{{ t.function.name }}{% endfor %}{% for m in messages %}{% if m['role'] == 'assistant' and 'tool_calls' in m %}"
      "<｜Assistant｜>{{ '' if m['content'] is none else m['content'] }}<｜tool▁calls▁begin｜>{% for c in m['tool_calls'] %}"
      "{{ '<｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\\n```json\\n' + c['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}"
      "{% endfor %}<｜tool▁calls▁end｜>{% else %}{{ '<｜' + m['role'] + '｜>' + m['content'].split('</think>')[-1] }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}")
V31 = ("{{ bos_token }}{% for m in messages %}{{ '<｜' + m['role'] + '｜>' }}{% if m['tool_calls'] %}{% if m['content'] %}{{ m['content'] }}{% endif %}"
       "<｜tool▁calls▁begin｜>{% for c in m['tool_calls'] %}"
       "{{ '<｜tool▁call▁begin｜>' + c['function']['name'] + '<｜tool▁sep｜>' + c['function']['arguments'] | tojson + '<｜tool▁call▁end｜>' }}{% endfor %}<｜tool▁calls▁end｜>"
       "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
       "{% if add_generation_prompt %}<｜Assistant｜>{{ '<think>' if thinking is defined and thinking else '<think></think>' }}{% endif %}")
KIMI = ("{% for m in messages %}<|im_{{ m['role'] }}|>{% if m.get('reasoning_content') %}<think>{{ m['reasoning_content'] }}</think>{% endif %}"
        "{% if m['content'] is not none %}{{ m['content'] }}{% endif %}{% if m.get('tool_calls') %}<|tool_calls_section_begin|>{% for c in m['tool_calls'] %}"
        "<|tool_call_begin|>functions.{{ c['function']['name'] }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
        "{% if c['function']['arguments'] is string %}{{ c['function']['arguments'] }}{% else %}{{ c['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>"
        "{% endfor %}<|tool_calls_section_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_assistant|>{% endif %}")
GLM = ("[gMASK]<sop>{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
       "{% if m.reasoning_content is string %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
       "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>"
       "<arg_value>{{ v | tojson if v is not string else v }}</arg_value>{% endfor %}</tool_call>{% endfor %}{% endfor %}"
       "{% if add_generation_prompt %}<|assistant|>{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}{% endif %}")
V32 = ("{% set dsml = '｜DSML｜' %}{{ bos_token }}{% for m in messages %}{{ '<｜' + m['role'] + '｜>' }}{{ m['content'] or '' }}{% if m['tool_calls'] %}"
       "{{ '<' + dsml + 'function_calls>\\n' }}{% for c in m['tool_calls'] %}{{ '<' + dsml + 'invoke name=\"' + c['function']['name'] + '\">\\n' }}"
       "{% for k, v in c['function']['arguments'].items() %}{{ '<' + dsml + 'parameter name=\"' + k + '\" string=\"' + ('true' if v is string else 'false') + '\">' }}"
       "{{ v if v is string else v | tojson }}{{ '</' + dsml + 'parameter>\\n' }}{% endfor %}{{ '</' + dsml + 'invoke>\\n' }}{% endfor %}{{ '</' + dsml + 'function_calls>' }}{% endif %}{% endfor %}"
       "{% if add_generation_prompt %}<｜Assistant｜>{{ '<think>' if thinking is defined and thinking else '</think>' }}{% endif %}")

# How each family writes find({"text": "a king", "count": 2}) and stop({}).
FIND, STOP = {"text": "a king", "count": 2}, {}
CALLS = {
    V3: "<｜tool▁calls▁begin｜>" + "\n".join(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(value)}\n```<｜tool▁call▁end｜>"
                                          for name, value in (("find", FIND), ("stop", STOP))) + "<｜tool▁calls▁end｜>",
    V31: "<｜tool▁calls▁begin｜>" + "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(value)}<｜tool▁call▁end｜>"
                                         for name, value in (("find", FIND), ("stop", STOP))) + "<｜tool▁calls▁end｜>",
    KIMI: "<|tool_calls_section_begin|>" + "".join(f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{json.dumps(value)}<|tool_call_end|>"
                                                   for i, (name, value) in enumerate((("find", FIND), ("stop", STOP)))) + "<|tool_calls_section_end|>",
    GLM: "<tool_call>find<arg_key>text</arg_key><arg_value>a king</arg_value><arg_key>count</arg_key><arg_value>2</arg_value></tool_call><tool_call>stop</tool_call>",
    V32: '<｜DSML｜function_calls>\n<｜DSML｜invoke name="find">\n<｜DSML｜parameter name="text" string="true">a king</｜DSML｜parameter>\n'
         '<｜DSML｜parameter name="count" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="stop">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
}


class Model:
    """golden/tale with a chat template and with tokens that have these texts."""

    def __init__(self, template, texts=()):
        self.folder = tempfile.TemporaryDirectory()
        with open(f"{TALE}/tokenizer.json") as file:
            tokenizer = json.load(file)
        vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
        parts = {part for merge in merges for part in (merge.split() if isinstance(merge, str) else merge)}
        free = sorted(i for name, i in vocabulary.items() if name not in parts and i > 300)
        self.ids = dict(zip(texts, free))
        gone = {name for name, i in vocabulary.items() if i in self.ids.values()}
        tokenizer["model"]["vocab"] = {name: i for name, i in vocabulary.items() if name not in gone}
        tokenizer["model"]["merges"] = [merge for merge in merges if (merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)) not in gone]
        tokenizer["added_tokens"] += [dict(tokenizer["added_tokens"][0], id=i, content=text, special=False) for text, i in self.ids.items()]
        tale_with(self.folder.name, {"tokenizer.json": json.dumps(tokenizer), "chat_template.jinja": template})

    def serve(self, *options):
        return Server(self.folder.name, *options)

    def say(self, *texts, then_free=False, **more):
        """A request whose answer is these texts, at most four, and the end token; or whatever follows."""
        order = [self.ids[text] for text in texts] + [1]
        bias = {} if then_free else {str(token): -100 for token in range(1024)}
        bias.update({str(token): 100 - 40 * i for i, token in enumerate(order[:-1] if then_free else order)})
        return {"messages": USER, "temperature": 0, "presence_penalty": 1000, "logit_bias": bias, "max_tokens": 20, "seed": 1, **more}


def joined(chunks):
    """The message that the deltas of choice 0 make, and its finish_reason."""
    message, finish = {}, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] == 0 and finish is None, chunk
            finish = choice["finish_reason"]
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    calls = message.setdefault("tool_calls", [])
                    for piece in value:
                        if "id" in piece:
                            assert piece["index"] == len(calls) and piece["type"] == "function", piece
                            calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
                        else:
                            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
                elif value is not None:
                    message[key] = message.get(key, "") + value
    return message, finish


def ask(server, body):
    """The message and the finish_reason, which are the same as a whole and streamed, with drafts and without."""
    answer = server.post(CHAT, body)
    choice = answer["choices"][0]
    assert choice["message"].pop("refusal") is None
    wanted = {key: value for key, value in choice["message"].items() if value}, choice["finish_reason"]
    for more in ({}, {"draft": "mtp-eagle"}, {"draft": "ngram"}):
        status, _, text = server.ask("POST", CHAT, dict(body, stream=True, **more))
        assert status == 200, text
        message, finish = joined(events(text))
        got = {key: value for key, value in message.items() if value}, finish
        assert got == wanted, f"{more}: {got}, whole: {wanted}"
    return choice["message"], choice["finish_reason"]


def calls_of(message):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", [])]


def calls_are_parsed_in_every_format():
    for template, text in CALLS.items():
        cut = len(text) // 2
        halves = text[:cut], text[cut:]
        model = Model(template, ["I look. ", *halves, "\n", "</think>", "<think>"])
        with model.serve() as server:
            for pieces, content in ((halves, None), (("I look. ", *halves, "\n"), "I look.")):
                off = {"chat_template_kwargs": {"enable_thinking": False}}
                body = model.say(*pieces, tools=TOOLS, logprobs=True, return_token_ids=True, **off)
                message, finish = ask(server, body)
                assert calls_of(message) == [("find", FIND), ("stop", STOP)] and finish == "tool_calls", (message, finish)
                assert message["content"] == content and "reasoning_content" not in message, message
                ids = [call["id"] for call in message["tool_calls"]]
                assert len(set(ids)) == 2 and ids == [call["id"] for call in ask(server, body)[0]["tool_calls"]]
                assert template != KIMI or ids == ["functions.find:0", "functions.stop:1"]
                answer = server.post(CHAT, body)
                said = len(pieces) + 1  # and the end token
                assert len(answer["choices"][0]["logprobs"]["content"]) == said == answer["usage"]["completion_tokens"]
                assert "".join(token["text"] for token in answer["verbatim"]["tokens"][:-1]) == "".join(pieces)
                # nobody asked for calls
                for more in ({"tools": None}, {"tool_choice": "none"}):
                    message, finish = ask(server, dict(body, **more))
                    assert message["content"] == "".join(pieces) and finish == "stop" and "tool_calls" not in message, message
            one = ask(server, model.say(*halves, tools=TOOLS, parallel_tool_calls=False, **off))[0]
            assert calls_of(one) == [("find", FIND)], one
            broken, finish = ask(server, model.say(halves[0], "I look. ", tools=TOOLS, **off))
            assert broken["content"] == halves[0] + "I look. " and finish == "stop" and "tool_calls" not in broken, broken


def reasoning_is_apart_from_content():
    thought = "<p> a < b\n"
    for template, on, off in ((V31, {"thinking": True}, {}), (GLM, {}, {"enable_thinking": False})):
        model = Model(template, [thought, "</think>", "\n\nYes.", "<think>", CALLS[template]])
        with model.serve() as server:
            message, finish = ask(server, model.say(thought, "</think>", "\n\nYes.", chat_template_kwargs=on))
            assert message == {"role": "assistant", "reasoning_content": thought.strip(), "content": "Yes."} and finish == "stop", message
            message, finish = ask(server, model.say(thought, "</think>", CALLS[template], tools=TOOLS, chat_template_kwargs=on))
            assert message["reasoning_content"] == thought.strip() and message["content"] is None and finish == "tool_calls", message
            assert calls_of(message) == [("find", FIND), ("stop", STOP)]
            message, finish = ask(server, model.say(CALLS[template], tools=TOOLS, chat_template_kwargs=on))
            assert message["reasoning_content"] == CALLS[template] and finish == "stop", "a call inside of the reasoning is no call"
            message, _ = ask(server, model.say(thought, "</think>", chat_template_kwargs=off))
            assert message == {"role": "assistant", "content": thought + "</think>"}, message
    model = Model(V3, ["<think>", thought, "</think>", "\n\nYes."])
    with model.serve() as server:
        message, _ = ask(server, model.say("<think>", thought, "</think>", "\n\nYes."))
        assert message == {"role": "assistant", "reasoning_content": thought.strip(), "content": "Yes."}, message
        message, _ = ask(server, model.say(thought, "</think>"))
        assert message == {"role": "assistant", "content": thought + "</think>"}, message
        answer = server.post(CHAT, dict(model.say("<think>", thought, "</think>", "\n\nYes."), n=2))
        assert answer["choices"][0]["message"] == answer["choices"][1]["message"]


def a_format_holds_after_the_reasoning():
    kind = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}}
    thought = "<p> \"so\""
    model = Model(GLM, [thought, "</think>", "<think>"])
    with model.serve() as server:
        message, finish = ask(server, model.say(thought, "</think>", then_free=True, response_format=kind, max_tokens=60))
        assert message["reasoning_content"] == thought and json.loads(message["content"])["n"] in (1, 2) and finish == "stop", message
        body = model.say(response_format=kind, max_tokens=5) # the end token, which the bias asks for at once, is not allowed before
        assert server.post(CHAT, body)["usage"]["completion_tokens"] == 5
        message, _ = ask(server, model.say(then_free=True, response_format=kind, max_tokens=60, chat_template_kwargs={"enable_thinking": False}))
        assert json.loads(message["content"])["n"] in (1, 2) and "reasoning_content" not in message
    for pieces in (("</th", "ink>"), ("</", "think>{\"n\": "), ("hm</thin", "k>")):  # not one token
        model = Model(GLM, [thought, *pieces])
        with model.serve() as server:
            message, finish = ask(server, model.say(thought, *pieces, then_free=True, response_format=kind, max_tokens=60, tools=TOOLS))
            assert message["reasoning_content"] == thought + pieces[0].split("<")[0] and finish == "stop", message
            assert json.loads(message["content"])["n"] in (1, 2) and "tool_calls" not in message, message


def history():
    call = lambda arguments: {"id": "i", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return [{"role": "user", "content": "u", "name": None},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call(json.dumps(FIND))], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "i", "content": "found"}, {"role": "assistant", "content": "ok", "tool_calls": []}]


def earlier_calls_reach_the_template():
    written = {V3: "find\n```json\n" + json.dumps(FIND) + "\n```", V31: "find<｜tool▁sep｜>" + json.dumps(FIND) + "<", GLM:
               "<think>hm</think><tool_call>find<arg_key>text</arg_key><arg_value>a king</arg_value><arg_key>count</arg_key><arg_value>2</arg_value></tool_call>",
               V32: CALLS[V32].split('<｜DSML｜invoke name="stop">')[0],
               KIMI: "<think>hm</think><|tool_calls_section_begin|><|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>" + json.dumps(FIND)}
    folder = "../shared/assets/chat-templates"
    theirs = {"Kimi-K2-Instruct": KIMI, "GLM-4.7-Flash": GLM, "deepseek-ai-DeepSeek-V3.1": V31, "deepseek-ai-DeepSeek-R1.jan2025": V3, "llama-cpp-deepseek-r1": V3}
    for name, style in theirs.items():
        if os.path.exists(f"{folder}/{name}.jinja"):
            with open(f"{folder}/{name}.jinja") as file:
                text = file.read()
            written[text] = written[style] if style != KIMI else written[KIMI].replace("<think>hm</think>", "")
    for template, wanted in written.items():
        with Model(template).serve() as server:
            for arguments in (json.dumps(FIND), FIND):
                messages = history()
                messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
                prompt = server.post("/apply-template", {"messages": messages})["prompt"]
                assert wanted in prompt and "None" not in prompt and "found" in prompt, f"{prompt}\nwanted {wanted}"
                assert prompt.count("calls▁begin") <= 1, f"empty tool_calls are calls: {prompt}"
            value = {"a": 0.1, "b": [12345.678, 7, True, None, "\"é\n"], "c": {}, "d": []}
            messages[1]["tool_calls"][0]["function"]["arguments"] = value
            prompt = server.post("/apply-template", {"messages": messages})["prompt"]
            assert "12345.678" in prompt and "0.1000" not in prompt, prompt
            assert template != V3 or json.dumps(value, ensure_ascii=False) in prompt, prompt
            large = '{"n": 123456789012345678901234567890, "x": [-1e400, 1.5], "t": "9e999", "y": 2E+999}'
            messages[1]["tool_calls"][0]["function"]["arguments"] = large
            prompt = server.post("/apply-template", {"messages": messages})["prompt"]
            assert all(text in prompt for text in ("123456789012345678901234567890", "[-1e400, 1.5]", "2E+999", "9e999")) and "!" not in prompt, prompt
            assert '"123456' not in prompt and (">2E+999</" in prompt or '"y": 2E+999}' in prompt), prompt
            end = "<|end_of_sentence|>"
            messages[1]["tool_calls"][0]["function"]["arguments"] = json.dumps({end: end})
            assert 1 not in server.post("/tokenize", {"messages": messages[:3]})["tokens"], "an argument made a special token"
            messages[1]["tool_calls"][0]["function"]["arguments"] = '{"a": "' + end + '<\\ufdd0>"}'  # the first mark that is tried
            prompt = server.post("/apply-template", {"messages": messages[:3]})["prompt"]
            assert "<\ufdd0>" in prompt or "<\\ufdd0>" in prompt, prompt


MARKS = {V3: ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
         KIMI: ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"]}
MARKS[V31] = MARKS[V3]
MARKS[V32] = ['<｜DSML｜function_calls>', '<｜DSML｜invoke name="', '<｜DSML｜parameter name="', "</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"]
MARKS[GLM] = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
SMALL_TOOLS = [
    {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "required": ["text", "kind"], "additionalProperties": False, "properties": {
        "text": {"type": "string", "maxLength": 8}, "count": {"type": "integer"}, "kind": {"$ref": "#/$defs/kind"}},
        "$defs": {"kind": {"enum": ["king", "queen", 7]}}}}},
    {"type": "function", "function": {"name": "find_all", "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}}},
    {"type": "function", "function": {"name": "stop"}}]
FORCED = {"messages": USER, "tools": SMALL_TOOLS, "temperature": 0, "max_tokens": 1900, "seed": 4, "return_token_ids": True,
          "chat_template_kwargs": {"enable_thinking": False}}


def check_forced(message, finish, names, most):
    calls = calls_of(message)
    assert finish == "tool_calls" and not message["content"] and 1 <= len(calls) <= most, (message, finish)
    for name, value in calls:
        assert name in names, calls
        if name == "find":
            assert {"text", "kind"} <= set(value) <= {"text", "kind", "count"} and value["kind"] in ("king", "queen", 7) and len(value["text"]) <= 8, calls
            assert "count" not in value or type(value["count"]) is int
        else:
            assert set(value) == ({"on"} if name == "find_all" else set()), calls


def written_calls(template, text, calls):
    """Whether the text is exactly what the format wants for these calls."""
    rest = text
    for i, call in enumerate(calls):
        name, value = call["function"]["name"], call["function"]["arguments"]
        marks = MARKS[template]
        one = {V3: f"{marks[1]}function{marks[2]}{name}\n```json\n{value}\n```{marks[3]}", V31: f"{marks[1]}{name}{marks[2]}{value}{marks[3]}"}
        one = one[template] if template in one else f"{marks[1]}{call['id']}{marks[2]}{value}{marks[3]}"
        begin = marks[0] if i == 0 else "\n" if template == V3 else ""
        assert rest.startswith(begin + one), f"{rest!r} does not begin with {begin + one!r}"
        rest = rest[len(begin + one):]
    assert rest == MARKS[template][4], rest


def a_call_can_be_forced():
    named = {"type": "function", "function": {"name": "find_all"}}
    names = [tool["function"]["name"] for tool in SMALL_TOOLS]
    for template in (V3, V31, KIMI, GLM, V32):
        begin = {GLM: "<", V32: "｜DSML｜"}.get(template, "｜>" if template != KIMI else "|>")  # each marker has it once
        for texts in (MARKS[template], []):  # markers that are tokens, and markers that are text
            with Model(template, texts).serve() as server:
                lines = {str(server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][0]): -100 for text in ("\n", "\n\n")}
                for choice, allowed, most in (("required", names, 16), (named, ["find_all"], 1)):
                    for more in ({}, {"parallel_tool_calls": False}, {"temperature": 1.5}):
                        body = {**FORCED, "tool_choice": choice, "logit_bias": lines, **more}  # fewer lines inside of the JSON
                        message, finish = ask(server, body)
                        check_forced(message, finish, allowed, 1 if "parallel_tool_calls" in more else most)
                        answer = server.post(CHAT, body)
                        ids = [token["id"] for token in answer["verbatim"]["tokens"][:-1]]
                        text = server.post("/detokenize", {"tokens": ids})["prompt"]
                        if template == GLM:
                            assert text.count("<tool_call>") == text.count("</tool_call>") == len(message["tool_calls"]), text
                        elif template == V32:
                            assert text.count("<｜DSML｜invoke name=") == text.count("</｜DSML｜invoke>") == len(message["tool_calls"]), text
                        elif template != KIMI or all(call["id"].startswith("functions") for call in message["tool_calls"]):
                            written_calls(template, text, message["tool_calls"])
                        if texts:
                            assert len(ids) >= 4 and text.count(begin) == sum(i >= 300 and t["text"] in texts
                                   for i, t in zip(ids, answer["verbatim"]["tokens"])), "a marker is not its token"
                stop = {"type": "function", "function": {"name": "stop"}}
                message, _ = ask(server, dict(FORCED, tool_choice=stop))
                assert calls_of(message) == [("stop", {})], message
                chunks = events(server.ask("POST", CHAT, dict(FORCED, tool_choice=named, stream=True))[2])
                pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
                assert len(pieces) >= 2 and all("id" not in piece for piece in pieces[1:]), "the arguments do not come in pieces"
                cut = server.post(CHAT, dict(FORCED, tool_choice=named, max_tokens=len(answer["verbatim"]["tokens"]) // 2))
                assert cut["choices"][0]["finish_reason"] == "length"
                cut, finish = ask(server, dict(FORCED, tool_choice=named, stop=['"on"']))  # the parameter of find_all
                begun = [call["function"]["arguments"].strip() for call in cut.get("tool_calls", [])]
                assert template in (GLM, V32) or (begun == ["{"] and finish == "stop"), (cut, finish)


def a_forced_call_comes_after_the_reasoning():
    for end in (("</think>",), ("</thi", "nk>")):
        model = Model(V31, ["hm", *end, "<think>", *MARKS[V31]])
        with model.serve() as server:
            body = model.say("hm", *end, then_free=True, chat_template_kwargs={"thinking": True}, tools=SMALL_TOOLS, tool_choice="required", max_tokens=500)
            message, finish = ask(server, body)
            assert message["reasoning_content"] == "hm"
            check_forced(message, finish, ["find", "find_all", "stop"], 16)


def what_cannot_be_forced_is_refused():
    pattern = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string", "pattern": "a"}}}}}]
    array = [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]
    named = lambda name: {"type": "function", "function": {"name": name}}
    cases = [({"tools": None}, "tool_choice", "no tools"), ({"tool_choice": named("other")}, "tool_choice", "other"), ({"tool_choice": 5}, "tool_choice", "required"),
             ({"tool_choice": {"type": "function"}}, "tool_choice", "NAME"), ({"response_format": {"type": "json_object"}}, "tool_choice", "response_format"),
             ({"ignore_eos": True}, "ignore_eos", "ignore_eos"), ({"tools": pattern}, "tools", "pattern"), ({"tools": array}, "tools", "object"),
             ({"tools": [{"function": {"name": "two words"}}]}, "tools", "letters"), ({"tools": 101 * SMALL_TOOLS[2:]}, "tools", "101")]
    with Model(V31).serve() as server:
        for body, field, word in cases:
            status, _, text = server.ask("POST", CHAT, dict(FORCED, tool_choice="required") | body)
            error = json.loads(text)["error"]
            assert status == 400 and error["param"] == field and word in error["message"], (body, status, text)
    with Model("{{ messages[0].content }}").serve() as server:
        status, _, text = server.ask("POST", CHAT, dict(FORCED, tool_choice="required"))
        assert status == 400 and "format" in json.loads(text)["error"]["message"], text


def what_is_no_tool_is_refused():
    cases = [({"tools": 5}, "tools"), ({"tools": [5]}, "tools"), ({"tools": [{"type": "web"}]}, "tools"), ({"tools": [{"function": {"name": ""}}]}, "tools"),
             ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"), ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice")]
    bad = history()
    bad[1]["tool_calls"][0]["function"]["arguments"] = "{"
    cases += [({"messages": bad}, "messages"), ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages"),
              ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages")]
    with Model(GLM).serve() as server:
        for body, field in cases:
            status, _, text = server.ask("POST", CHAT, {"messages": USER, "max_tokens": 1, **body})
            assert status == 400 and json.loads(text)["error"]["param"] == field, (body, status, text)


TESTS = [calls_are_parsed_in_every_format, reasoning_is_apart_from_content, a_format_holds_after_the_reasoning, earlier_calls_reach_the_template,
         a_call_can_be_forced, a_forced_call_comes_after_the_reasoning, what_cannot_be_forced_is_refused, what_is_no_tool_is_refused]


if __name__ == "__main__":
    sys.exit(run_tests(TESTS))
