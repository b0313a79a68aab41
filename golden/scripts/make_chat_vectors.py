#!/usr/bin/env python3
"""Makes golden/chat/vectors.jsonl: chat templates and what Jinja2 makes of them.

    pip install jinja2 && python3 golden/scripts/make_chat_vectors.py      (from the root of the repository)

Truth, not bits: the texts come from Jinja2 (3.1.6 when this was written), set up as transformers does it: trim_blocks,
lstrip_blocks, loop controls, its own tojson, raise_exception; and from_json, which some templates expect. The templates are
golden/chat/*.jinja and the short ones below. A line has
    template   a file's name, or the template itself as source
    variables  what it is given
    expected   the text; or null: Jinja2 refuses it too
"""
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

OUT = pathlib.Path(__file__).resolve().parent.parent / "chat"


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters.update(tojson=tojson, from_json=json.loads)
    env.globals["raise_exception"] = raise_exception
    return env


TOOLS = [{"type": "function", "function": {"name": "weather", "description": "It's \"hot\" <é>\n日", "parameters": {
    "type": "object", "properties": {"days": {"type": "integer", "minimum": 1}}, "required": [], "none": None, "yes": True}}},
         {"type": "function", "function": {"name": "other", "parameters": {}}}]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(arguments, name="weather"):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


CHATS = [
    [message("user", "Hello")],
    [message("system", "You are terse."), message("user", "Hello"), message("assistant", "Hi there"), message("user", " Who? \n")],
    [message("system", "One."), message("system", "Two."), message("user", "a"), message("assistant", "<think>\nhm\n</think>\n\nyes"),
     message("user", "b/nothink"), message("assistant", "no", reasoning_content="because\n")],
    [message("user", "Wetter in Köln?"), message("assistant", "", tool_calls=[call('{"city": "Köln", "days": 3, "x": [1, 2.5, null]}'),
                                                                              call('{}')]),
     message("tool", "rain"), message("tool", "sun"), message("assistant", "Rain, then sun.")],
    [message("user", "x"), message("assistant", None, tool_calls=[call({"a": "b", "n": 1e-7, "big": 1e20, "q": "\"\\\t"})])],
    [message("user", [{"type": "text", "text": "part one, "}, "part two", {"type": "image", "url": "u"}])],
    [message("user", [message("user", {"a": ["it's", "\"", "it's \"both\"\n", None, True, 1.0]})])],
    [message("stranger", "who?")],
    [],
]
SETTINGS = [{"add_generation_prompt": True}, {}, {"add_generation_prompt": True, "tools": TOOLS, "thinking": True},
            {"add_generation_prompt": True, "enable_thinking": False}]

# white space: every sign at every end
SIGNS = [f"x \n  {{%{a} if true {b}%}} \n  y \n  {{%{b} endif {a}%}} \n z\n" for a in ("", "-", "+") for b in ("", "-", "+")]
SIGNS += [f"x \n  {{{{{a} 1 {b}}}}} \n  y\n\n" for a in ("", "-") for b in ("", "-")]
SIGNS += [f"x \n  {{#{a} c {b}#}} \n  y\n" for a in ("", "-", "+") for b in ("", "-", "+")]
SIGNS += ["{# a #}{% if true %}{% endif %}\n\n x", "  {% if true %}\n  a\n  {% endif %}\nb", "a {% if true %}\nb{% endif %}\n",
          "a\r\n{% if true %}\r\nb\rc{% endif %}\r\n", "\u00a0{%- if true -%}\u3000 x \u2028{%- endif -%}", "{% if true %}\n\n\nx{% endif %}",
          "  {{ 1 }}\n  {#- c #}\n  x", "{#\n#}\n{#-#}", "{{ '{{ }}' }} { } {x} %} }} #}", "{{ {'a': {'b': 1}}}}"]

SHORT = SIGNS + """
{{ 1 + 2 * 3 - 4 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 6 / 2 }}
{{ 'a' 'b' "c" }}{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] }} {{ 'x' + 1 ~ 2 + 'y' }}
{{ 1 ~ 2 + 3 }}
{{ '\\n' }}|{{ '\\x41\\u00e9\\U0001f600\\q\\'' }}|{{ "\\"" }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 'é' > 'z' }} {{ [1, 2] == [1, 2.0] }} {{ {'a': 1} == {'a': 1} }} {{ none == false }}
{{ 'b' in 'abc' }} {{ 'x' not in 'abc' }} {{ 1 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ '' in '' }} {{ 1 in x }} {{ not 1 in [2] }}
{{ 1 and 2 }} {{ 0 or 'x' }} {{ not '' }} {{ [] or {} or none or 0.0 or 'end' }} {{ 1 if 0 else 2 if 0 else 3 }}|{{ 1 if 0 }}|
{{ x }}|{{ x is defined }}|{{ x is not defined }}|{{ x is undefined }}|{{ y.z is defined }}|{{ [x] }}|{{ y is none }}
{{ y is mapping }}{{ 's' is string }}{{ [] is iterable }}{{ 1 is number }}{{ 1.5 is float }}{{ 1 is integer }}{{ true is integer }}{{ true is boolean }}{{ 's' is sequence }}{{ true is true }}{{ 1 is true }}{{ 0 is false }}{{ none is none }}
{{ [1, 2, 3, 4][1:] }}{{ [1, 2, 3, 4][:-1] }}{{ [1, 2, 3, 4][-3:-1] }}{{ [1, 2, 3, 4][::2] }}{{ [1, 2, 3, 4][::-1] }}{{ [1, 2, 3, 4][3:0:-2] }}{{ [1, 2][9:] }}{{ [1, 2][-9:9] }}
{{ 'añ日😀b'[1:4] }} {{ 'añ日😀b'[::-1] }} {{ 'añ日😀b'[2] }} {{ 'añ日😀b'[-1] }} {{ 'añ日😀b' | length }} {{ 'ab'[7] }}|{{ [1][5] }}|{{ [1]['k'] }}|
{{ y['k'] }} {{ y.k }} {{ y.items() | list | length }} {{ y.get('k') }} {{ y.get('no') }} {{ y.get('no', 7) }} {{ y.keys() | list }} {{ y.values() | list }} {{ y | items | list | length }}
{{ 'a, b, c'.split(', ') }} {{ 'a b  c '.split() }} {{ ' a b  c '.split(none, 1) }} {{ 'abcbd'.split('b', 1) }} {{ 'abc'.split('b')[-1] }} {{ ''.split() }} {{ ''.split('x') }}
{{ '  x '.strip() }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'ñaxñ'.strip('ñx') }}|{{ ' t ' | trim }}|{{ '-t-' | trim('-') }}|{{ '\\u3000x\\x1f'.strip() }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.endswith('') }} {{ 'aXbX'.replace('X', '--') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ ', '.join(['a', 'b']) }} {{ [1, 'b', none] | join('+') }}
{{ [1, 2] | first }}{{ [1, 2] | last }}{{ 'xyz' | first }}{{ [] | first }}{{ 'ab' | list }}{{ y | list }}{{ x | default('d') }}{{ '' | default('e') }}{{ '' | d('e', true) }}{{ none | default('n') }}{{ x | length }}{{ y | count }}
{{ y | tojson }} {{ 'é"\\n\\x01' | tojson }} {{ 'é😀' | tojson(ensure_ascii=true) }} {{ [1.0, 1e1, 2.5e-7, 1E+20, 0.1, 123456789012.5, true, none, []] | tojson }}
{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=2) }}
{{ '{"a": [1, 2.50, "x"]}' | from_json }} {{ '3' | from_json + 1 }}
{{ [{'n': 1}, {'n': 'x'}, {}] | map(attribute='n') | list }}
{{ {'a': 'it\\'s', 'b': "\\"", 'c': [none, 1.50, 'x\\n\\\\']} }} {{ (1, 2) | list }} {{ (1) }} {{ [] }} {{ {} }}
{{ range(3) | list }}{{ range(1, 8, 3) | list }}{{ range(3, 0, -1) | list }}{{ range(0) | list }}
{% for a in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for a in [1, 2, 3, 4] if a % 2 %}{{ a }}{{ loop.index }}{{ loop.last }} {% else %}none{% endfor %}{% for a in [] %}{% else %}empty{% endfor %}{% for a in x %}{% else %}undefined{% endfor %}
{% for k, v in y.items() %}{{ k }}={{ v }};{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}{% for k in y %}{{ k }}{% endfor %}{% for (a, b) in [[1, 2]] %}{{ a + b }}{% endfor %}
{% for a in [1, 2, 3, 4] %}{% if a == 2 %}{% continue %}{% endif %}{% if a == 4 %}{% break %}{% endif %}{{ a }}{% endfor %}
{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}{% if true %}{% set a = 9 %}{% endif %}{{ a }}
{% set ns = namespace(n=0, l=[]) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% set _ = ns.l.append(i) %}{% endfor %}{{ ns.n }}{{ ns.l }}{{ ns.l.pop() }}{{ ns.l.pop(0) }}{{ ns.l }}{{ ns.no }}|
{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(c=5, a=4) }}{{ m() }}{{ m('x') | length }}{% set s = m(7) %}{{ s + s }}
{% set g = 1 %}{% macro m() %}{{ g }}{% set g = 5 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}{% set ns = namespace(i=0) %}{% macro count() %}{% set ns.i = ns.i + 1 %}{{ ns.i }}{% endmacro %}{{ count() }}{{ count() }}
{% macro fac(n) %}{{ 1 if n < 2 else n * (fac(n - 1) | length) }}{% endmacro %}{{ fac(5) }}
{% set a %}x{{ 1 + 1 }}{% if true %} y{% endif %}{% endset %}[{{ a }}]{{ a is string }}{% set a -%}  {% set b = 3 %}{{ b }} {%- endset %}[{{ a }}]{{ b is defined }}{% set a %}{% endset %}[{{ a }}]
{% set ns = namespace(t='') %}{% for i in [1, 2] %}{% set ns.t %}{{ ns.t }}<{{ i }}>{% endset %}{% endfor %}{{ ns.t }}{% macro m(x) %}{% set y %}({{ x }}){% endset %}{{ y }}{{ y }}{% endmacro %}{{ m('q') }}{% set a %}{{ m(1) }}{% endset %}{{ a | length }}
{{ [3, 1, 2.5, 1] | sort }} {{ [3, 1, 2] | sort(true) }} {{ ['b', 'A', 'a', 'B', 'c'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ 'cab' | sort }} {{ [] | sort }} {{ y | sort }}
{{ [{'t': 'text', 'n': 1}, {'t': 'image', 'n': 2}, {'t': 'Image', 'n': 3}, {'t': 'text', 'n': 4}] | sort(attribute='t') | map(attribute='n') | list }} {{ [{'t': 1, 'n': 1}, {'t': 2, 'n': 2}, {'t': 1, 'n': 3}] | sort(attribute='t', reverse=true) | map(attribute='n') | list }} {{ [{}, {}] | sort(attribute='t') | length }}
{% set l = [{'r': 'user', 'n': 3}, {'r': 'tool', 'n': 1}, {'r': 'user', 'n': 2}, {'n': none}] %}{{ l | selectattr('r', 'equalto', 'user') | map(attribute='n') | list }}{{ l | rejectattr('r', '==', 'user') | list | length }}{{ l | selectattr('r') | list | length }}{{ l | rejectattr('r') | list }}{{ l | selectattr('r', 'in', ['tool', 'x']) | first }}{{ l | selectattr('r', 'defined') | rejectattr('n', 'gt', 1) | list }}{{ l | selectattr('n', 'none') | list | length }}{{ l | selectattr('r', 'undefined') | list | length }}
{{ [1, 0, 'a', '', none] | select | list }}{{ [1, 0, 'a'] | reject | list }}{{ [1, 2, 3, 4] | select('ge', 3) | list }}{{ ['brave', 'code_interpreter'] | reject('equalto', 'code_interpreter') | join(', ') }}{{ [1, 'a', none] | select('string') | list }}{{ 'abc' | reject('eq', 'b') | list }}{{ {'a': 1, 'b': 2} | select('ne', 'a') | list }}{{ [] | select('lt', 1) | list }}{{ x | select | list }}{{ none | selectattr('a', 'eq', 1) | list }}{{ none | map(attribute='a') | list }}
{{ 1 is eq 1 }}{{ 1 is not equalto 2 }}{{ 'a' is in ['a', 'b'] }}{{ 'a' is not in 'xyz' }}{{ 2 is gt 1 and 1 is lt(2) }}{{ 3 is ge 3 }}{{ 3 is le 2 }}{{ y.n is eq y['n'] }}{{ 'b' is ne 'a' ~ 'b' }}{{ 1 if y.k is eq 'v' else 2 }}{{ 'x' is greaterthan 'a' }}
{{ 'Low MAX' | capitalize }} {{ 'low' | upper }} {{ 'HIGH-9_z' | lower }} {{ 'aB'.upper() }}{{ 'aB'.lower() }}{{ 'aB cD'.capitalize() }}{{ '' | capitalize }} {{ true | lower }} {{ 12 | upper }} {{ none | capitalize }}
{{ '12' | int }} {{ ' -7 ' | int }} {{ '3.9' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ none | int }} {{ 2.9 | int }} {{ -2.9 | int }} {{ true | int }} {{ '' | int(default=-1) }} {{ '1e3' | int }} {{ [] | int }} {{ '0x10' | int }} {{ '+4' | int + 1 }} {{ '.' | int }} {{ '1e999' | int }} {{ '12a' | int }}
{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}{{ ['b', 'A', 'c'] | min }}{{ ['b', 'A', 'a'] | min(case_sensitive=true) }}{{ [] | min }}|{{ l | d([{'n': 2, 'k': 1}, {'n': 1, 'k': 2}, {'n': 1, 'k': 3}]) | min(attribute='n') }}{{ [{'n': 1, 'k': 1}, {'n': 2, 'k': 2}, {'n': 2, 'k': 3}] | max(attribute='n') }}{{ 'hello' | max }}
{% for k, v in {'b': 1, 'A': 3, 'c': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'b': 1, 'A': 3} | dictsort(true) %}{{ k }}{% endfor %}{% for k, v in {'b': 1, 'a': 3, 'c': 2} | dictsort(by='value') %}{{ k }}{% endfor %}{% for k, v in {'b': 1, 'a': 1, 'c': 2} | dictsort(false, 'value', true) %}{{ k }}{% endfor %}{% for k, v in {'z': 1, 'y': [2]} | dictsort %}{{ k }}={{ v }};{% endfor %}{{ {} | dictsort }}
{% set e = x if x is defined and x in ['low'] else 'max' %}{{ e | capitalize }}{% macro a(m) %}{% if b(m) %}{{ b(m) ~ e }}{% endif %}{% endmacro %}{% macro b(m) -%} {% for i in range(m, 9 + 1) %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {%- endmacro %}{{ a(2) }}{{ a(4) }}{% set tool = {'f': {'n': 1}} %}{% for t in [tool] %}{% if 'f' in t %}{% set t = t['f'] %}{% endif %}{{ t.n }}{% endfor %}
{% set m = [{'c': [{'t': 'x'}]}, {'c': 'no'}] %}{{ m.0.c.0.t }}{{ m.1.c }}{{ m.0.c.0.u is defined }}{{ m[0].c.0 }}{{ 'abc'.1 }}
{{ [1] | selectattr | list }}
{{ [1] | select('nothing') | list }}
{{ [1, 'a'] | select('gt', 0) | list }}
{{ [1] | select('gt') | list }}
{{ [1] | select('string', 1) | list }}
{{ x | int }}
{{ 5 | dictsort }}
{{ {'a': 1} | dictsort(by='x') }}
{{ 1 is eq }}
{{ 1 is eq 1 is eq 1 }}
{{ [1, 'a'] | max }}
{{ [1] | selectattr(attribute='a') | list }}
{{ '<a>' | safe }} {{ 5 | safe }} {{ 'x' + ({'a': '<'} | tojson | safe) }}
{% if 0 %}a{% elif '' %}b{% elif x %}c{% elif 1 %}d{% else %}e{% endif %}{% if x is not defined and not x %}f{% endif %}
{{ -y.n | string ~ 'x' }} {{ -(1 + 2) }} {{ +3 }} {{ - -3 }} {{ not not 1 }} {{ 'a' + 'b' | length | string }} {{ 2 - 1 is number }}
{{ raise_exception('no') }}
{{ x.y }}
{{ 'a' + 1 }}
{{ 'a' + x }}
{{ 1 // 0 }}
{{ 1 < 'a' }}
{{ none.x.y }}
{% for a in 1 %}{% endfor %}
{{ 'a' | nothing }}
{{ 'a' is nothing }}
{% nothing %}
{% if %}x{% endif %}
{% if 1 %}x
{{ 1
{{ 'a }}
{# never
{% endif %}
{{ 1 + }}
{{ (1 }}
{% for in x %}{% endfor %}
{% set 1 = 2 %}
{% set a %}x
{% endset %}
{{ [1, 'a'] | sort }}
{{ 1 | sort }}
{{ m(a=1, 2) }}
{{ 012 }}
{{ [1].pop(3) }}
{{ 'a'.split('') }}
""".strip("\n").split("\n")


def main():
    env, lines = environment(), []

    def render(text, variables, **which):
        try:
            expected = env.from_string(text).render(**json.loads(json.dumps(variables)))
        except Exception:  # whatever Python says
            expected = None
        lines.append({**which, "variables": variables, "expected": expected})

    for path in sorted(OUT.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for chat in CHATS:
            for setting in SETTINGS:
                render(source, {"messages": chat, "bos_token": "<s>", "eos_token": "</s>", **setting}, template=path.name)
    for source in SHORT:
        render(source, {"y": {"k": "v", "n": 3}}, source=source)
    with open(OUT / "vectors.jsonl", "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(len(lines), "renderings,", sum(line["expected"] is None for line in lines), "refused")


if __name__ == "__main__":
    main()
