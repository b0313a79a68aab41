/* tools/serve/page_request.js -- the page at /: requests, and answers as they arrive. */
"use strict";

class Refused extends Error {
    constructor(sentence, status, seconds) {
        super(sentence);
        this.status = status;
        this.seconds = seconds;
    }
}

/* All addresses are relative to the page's: it asks its own server alone. */
async function ask(path, body, signal) {
    const headers = {}, key = sessionStorage.getItem("verbatim-key");
    if (key)
        headers.Authorization = "Bearer " + key;
    if (body)
        headers["Content-Type"] = "application/json";
    const answer = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store", credentials: "omit", redirect: "error"});
    if (answer.ok)
        return answer;
    let sentence = "the server answered with status " + answer.status;
    try {
        sentence = JSON.parse(await answer.text()).error.message;
    } catch (e) { /* not Verbatim's answer, but a proxy's */ }
    throw new Refused(sentence, answer.status, Math.max(1, Number(answer.headers.get("Retry-After")) || 1));
}

const wait = (seconds, signal) => new Promise((go, stop) => {
    const timer = setTimeout(go, 1000 * seconds);
    if (signal)
        signal.addEventListener("abort", () => { clearTimeout(timer); stop(new DOMException("stopped", "AbortError")); });
});

/* ---- a request ---- */

function messagesBefore(turn) {
    const messages = field("system").value.trim() ? [{role: "system", content: field("system").value}] : [];
    for (const t of turns.slice(0, turns.indexOf(turn)))
        messages.push({role: "user", content: t.said}, {role: "assistant", content: t.content, ...(t.calls.length && {tool_calls: t.calls.map(c => ({id: c.id, type: "function", function: {name: c.name, arguments: c.arguments}}))})});
    return messages;
}

/* The tools of the settings: null if there are none, undefined if they are not a list in JSON. */
function toolsOf() {
    try {
        const tools = JSON.parse(field("tools").value.trim() || "null");
        return tools === null || Array.isArray(tools) ? tools : undefined;
    } catch (e) {
        return undefined;
    }
}

function bodyOf(turn) {
    const body = {model: model.id, stream: true, return_token_ids: true}, top = number("alternatives", 5), max = number("max_tokens", turn.chat ? null : 256);
    for (const name of ["temperature", "top_p", "top_k", "seed"])
        if (number(name, null) !== null)
            body[name] = number(name, null);
    if (max !== null)
        body.max_tokens = max;
    if (field("draft").value)
        body.draft = field("draft").value;
    if (field("draft_tokens").value && !field("draft_tokens").disabled)
        body.draft_tokens = field("draft_tokens").value === "auto" ? "auto" : Number(field("draft_tokens").value);
    if (turn.chat && field("thinking").value) /* the two names that templates have for it */
        body.chat_template_kwargs = {thinking: field("thinking").value === "on", enable_thinking: field("thinking").value === "on"};
    if (turn.chat && toolsOf())
        body.tools = toolsOf();
    if (turn.chat)
        body.messages = messagesBefore(turn).concat([{role: "user", content: turn.said}]);
    else
        body.prompt = able().tokenizer ? turn.said : (turn.said.match(/\d+/g) || []).map(Number);
    if (top)
        Object.assign(body, turn.chat ? {logprobs: true, top_logprobs: top} : {logprobs: top});
    return body;
}

/* The tokens of an event: {id, text, draft, pass, logprob, top: [[name, log-probability], ...]}, for both kinds of request. */
function tokensOf(choice) {
    const tokens = choice.verbatim && choice.verbatim.tokens || [], l = choice.logprobs;
    tokens.forEach((t, i) => {
        if (!able().tokenizer)
            t.text = t.id + " ";
        if (l && l.content && l.content[i]) {
            t.logprob = l.content[i].logprob;
            t.top = l.content[i].top_logprobs.map(x => [x.token, x.logprob]);
        } else if (l && l.top_logprobs && l.top_logprobs[i]) {
            t.logprob = l.token_logprobs[i];
            t.top = Object.entries(l.top_logprobs[i]);
        }
        if (t.top && !able().tokenizer)
            t.top = t.top.map(([name, logprob]) => [name.replace("token_id:", "") + " ", logprob]);
        if (t.top)
            t.top.sort((a, b) => b[1] - a[1]);
    });
    return tokens;
}

/* ---- an answer ---- */

class Run {
    constructor(turn) {
        this.turn = turn;
        turn.run = this;
        this.stopper = new AbortController();
        this.pending = new Pending();
        this.queue = [];
        this.frame = 0;
        this.began = false;
        this.count = this.accepted = this.passes = this.inFirst = 0;
        this.pass = this.finish = this.result = null;
        this.asked = performance.now();
        this.first = this.last = this.atFirst = 0; /* when text arrived, and how many tokens with the first */
        this.content = new Text(turn.text);
        this.thought = new Text(turn.thinkingText);
    }
    event(data) {
        if (data === "[DONE]")
            return;
        const chunk = JSON.parse(data), choice = chunk.choices && chunk.choices[0];
        if (chunk.error)
            throw new Refused(chunk.error.message, 0, 0);
        if (!choice)
            return;
        this.first = this.first || this.last;
        this.queue.push(choice);
        if (this.first === this.last)
            this.atFirst += (choice.verbatim && choice.verbatim.tokens || []).length;
        if (choice.finish_reason) {
            this.finish = choice.finish_reason;
            this.result = choice.verbatim;
        }
        this.frame = this.frame || requestAnimationFrame(() => this.draw());
    }
    /* Once for each frame of the screen, however many events came. */
    draw() {
        const turn = this.turn;
        cancelAnimationFrame(this.frame);
        this.frame = 0;
        for (const choice of this.queue.splice(0)) {
            const delta = choice.delta || {}, thought = delta.reasoning_content || "", text = (choice.delta ? delta.content : choice.text) || "";
            if (delta.tool_calls)
                this.pending.drop();
            tokensOf(choice).forEach(t => this.token(t));
            (delta.tool_calls || []).forEach(c => this.call(c));
            const said = able().tokenizer ? text : choice.token_ids.map(id => id + " ").join("");
            turn.thought += thought;
            turn.content += said;
            this.thought.add(this.pending.take(thought));
            this.content.add(this.pending.take(said));
        }
        this.figures();
    }
    /* A call begins with its id and name; pieces of its arguments follow. */
    call(piece) {
        const turn = this.turn, f = piece.function || {};
        if (!turn.calls[piece.index]) {
            const call = turn.calls[piece.index] = {id: piece.id, name: f.name || "", arguments: "", shown: make("span", {})};
            turn.callsBox.append(make("pre", {class: "call"}, make("b", {}, call.name), "(", call.shown, ")"));
        }
        turn.calls[piece.index].arguments += f.arguments || "";
        turn.calls[piece.index].shown.append(f.arguments || "");
    }
    token(token) {
        this.count++;
        this.accepted += token.draft > 0;
        this.passes += this.pass !== null && token.pass !== this.pass;
        this.pass = token.pass;
        this.inFirst += !this.passes;
        this.pending.add(token);
    }
    /* Tokens per pass: over the passes after the prompt's, as everywhere in Verbatim. Speed: after the first piece of the stream. */
    figures() {
        const turn = this.turn, some = this.count > this.atFirst, n = some ? this.count - this.atFirst : this.count;
        const speed = 1000 * n / (this.last - (some ? this.first : this.asked));
        turn.speed.textContent = n ? speed.toFixed(speed < 100 ? 1 : 0) : "\u2013";
        turn.perPass.textContent = this.passes ? ((this.count - this.inFirst) / this.passes).toFixed(2) : "\u2013";
        turn.accepted.textContent = this.accepted;
        turn.thinking.hidden = !turn.thought;
        turn.summary.textContent = (turn.content || this.finish ? "Thought, " : "Thinking\u2026 ") + many(this.thought.count, "token");
    }
    rejoin() {
        this.content.join();
        this.thought.join();
    }
    end(problem) {
        const turn = this.turn, r = this.result;
        this.draw();
        this.rejoin();
        if (r) {
            turn.prints.classList.remove("open");
            turn.print.textContent = r.fingerprint;
            turn.seed.textContent = r.seed;
            turn.accepted.textContent = r.drafted ? r.accepted + " of " + r.drafted : "no";
            turn.draftWords.textContent = r.drafted ? " drafts accepted" : " drafts";
        }
        const why = {length: "ended at the limit of tokens", abort: "ended by the server"};
        turn.ended.textContent = problem === "stopped" ? "stopped" : why[this.finish] || "";
        turn.prints.hidden = !r;
        fail(turn, problem === "stopped" ? "" : problem);
    }
}

const MOST_RETRIES = 5;

/* A server with too many requests says when to ask again. */
async function begin(run, path, body) {
    for (let tries = 0;; tries++) {
        try {
            return await ask(path, body, run.stopper.signal);
        } catch (e) {
            if (e.status !== 429 || tries === MOST_RETRIES)
                throw e;
            fail(run.turn, e.message + "; trying again in " + many(e.seconds, "second"));
            await wait(e.seconds, run.stopper.signal);
            fail(run.turn, "");
        }
    }
}

async function read(run, stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
        const {value, done} = await reader.read();
        if (done)
            return;
        let from = 0;
        text += value;
        run.last = performance.now();
        for (let at; (at = text.indexOf("\n\n", from)) >= 0; from = at + 2)
            if (text.startsWith("data: ", from)) /* else a comment */
                run.event(text.slice(from + 6, at));
        text = text.slice(from);
    }
}

function sentenceOf(e, run) {
    if (e.name === "AbortError")
        return "stopped";
    if (e instanceof Refused)
        return e.status === 429 ? e.message + "; it stayed so, send again later" : e.message;
    if (e instanceof SyntaxError)
        return "the server sent an event that is not JSON";
    return run.began ? "the connection to the server was lost, and the answer is not complete" : "the server cannot be reached";
}
