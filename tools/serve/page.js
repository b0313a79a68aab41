/* tools/serve/page.js -- the page at /: its settings, its turns, and what the keys and buttons do. */
"use strict";
const form = $("form"), input = $("input"), scroller = $("scroll");
const SPOKEN = 600; /* longer answers are announced by their length */
let model = null, running = null, editing = false, turns = [];

const many = (n, what) => n + " " + what + (n === 1 ? "" : "s");
const whole = sentence => sentence && sentence[0].toUpperCase() + sentence.slice(1) + (/[.!?]$/.test(sentence) ? "" : ".");
const say = text => { $("status").textContent = text; };

function button(name, kind, act) {
    const b = make("button", {type: "button", class: kind}, name);
    b.addEventListener("click", act);
    return b;
}

/* ---- the server ---- */

function notice(text, ...more) {
    $("notice").replaceChildren(...(text ? [text, ...more] : []));
    $("notice").hidden = !text;
}

let connecting = 0;
async function connect() {
    const me = ++connecting;
    model = null;
    show();
    while (!model && me === connecting) {
        try {
            const list = await (await ask("v1/models")).json();
            if (me === connecting) {
                model = list.data[0];
                listDrafts();
            }
        } catch (e) {
            if (me !== connecting)
                return;
            if (e.status && e.status !== 503) {
                notice(whole(e.message), e.status === 401 ? button("Enter the key", "", openSettings) : button("Try again", "", connect));
                return;
            }
            notice(whole(e.status ? e.message + "; this page waits" : "the server cannot be reached; this page tries again"));
            await wait(e.status ? 0.5 : 2);
        }
    }
    if (model && me === connecting)
        show();
}

/* ---- settings ---- */

const field = name => form.elements[name];
const able = () => model && model.verbatim || {tokenizer: true, chat: true, chat_error: null, draft: "none", draft_tokens: 0, draft_methods: []};
const isChat = () => able().chat && field("mode").value === "chat";
const SAVED = ["mode", "system", "tools", "thinking", "temperature", "top_p", "top_k", "max_tokens", "seed", "draft", "draft_tokens", "mark", "alternatives"];

/* The number in a field; if there is none, the other. */
const number = (name, other) => field(name).value === "" ? other : Number(field(name).value);

function save() {
    const all = {};
    for (const name of SAVED)
        all[name] = name === "mark" ? field(name).checked : name === "draft" ? field(name).dataset.wanted : field(name).value;
    localStorage.setItem("verbatim-settings", JSON.stringify(all));
}

function restore() {
    let all = {};
    try {
        all = JSON.parse(localStorage.getItem("verbatim-settings")) || {};
    } catch (e) { /* spoiled: as if there were none */ }
    for (let k = 1; k <= 15; k++)
        field("draft_tokens").append(make("option", {value: k}, "" + k));
    for (const name of SAVED)
        if (name === "mark")
            field(name).checked = all[name] !== false;
        else if (typeof all[name] === "string" && name !== "draft")
            field(name).value = all[name];
    field("draft").dataset.wanted = all.draft || "";
    field("key").value = sessionStorage.getItem("verbatim-key") || "";
}

function openSettings() {
    hideTip();
    if (!$("settings").open)
        $("settings").showModal();
    if (!model)
        field("key").focus();
}

function listDrafts() {
    const list = field("draft"), a = able();
    list.replaceChildren(make("option", {value: ""}, "server\u2019s default: " + a.draft), ...a.draft_methods.map(m => make("option", {value: m}, m)));
    list.value = a.draft_methods.includes(list.dataset.wanted) ? list.dataset.wanted : "";
}

/* What depends on the model, and on the settings. */
function show() {
    const a = able(), name = model ? model.id : "", drafts = field("draft").value || a.draft;
    document.title = name ? name + " \u2013 Verbatim" : "Verbatim";
    $("model").textContent = name;
    field("mode").forEach(radio => { radio.disabled = radio.value === "chat" && !a.chat; });
    if (!a.chat)
        field("mode").value = "completion";
    if (model && !a.tokenizer)
        notice(name + " has no tokenizer. Write token ids, such as 5 6 7; the answer consists of token ids, too.");
    else if (model && !a.chat)
        notice(name + " has no chat template that can be used (" + a.chat_error + "). So there is no conversation: the model continues each text that you send.");
    else if (model)
        notice("");
    field("draft_tokens").disabled = drafts === "none";
    field("tools").setCustomValidity(isChat() && toolsOf() === undefined ? "Tools are a list in JSON." : "");
    field("max_tokens").placeholder = isChat() ? "as many as fit" : "256";
    input.placeholder = !a.tokenizer ? "Token ids" : isChat() ? "Message" : "Text to continue";
    input.setAttribute("aria-label", input.placeholder);
    $("title").textContent = !model ? "Connecting" : isChat() ? "Talk to " + name : "Let " + name + " continue a text";
    $("about").textContent = !model ? "\u00a0" : "Point at a token of an answer, tap it, or go to it with the arrow keys, to see what else the model considered.";
    document.body.classList.toggle("plain", !field("mark").checked);
    document.body.classList.toggle("completion", !isChat());
    $("send").disabled = !running && (!model || !input.value.trim());
}

/* ---- turns ---- */

function newTurn(said) {
    const turn = {said, chat: isChat(), content: "", thought: "", calls: [], article: null};
    const figure = name => (turn[name] = make("b", {}));
    turn.bubble = make("div", {class: "bubble"}, said);
    turn.problem = make("p", {class: "problem", role: "alert"});
    turn.problem.hidden = true;
    turn.thinking = make("details", {class: "thinking"}, turn.summary = make("summary", {}, "Thinking"), turn.thinkingText = make("div", {class: "text", role: "group", "aria-label": "Thinking; the arrow keys go from token to token"}));
    turn.text = make("div", {class: "text", role: "group", "aria-label": "Answer; the arrow keys go from token to token"});
    turn.callsBox = make("div", {role: "group", "aria-label": "Tool calls"});
    turn.print = make("code", {});
    turn.seed = make("code", {});
    turn.ended = make("span", {class: "ended"});
    const drafts = make("li", {}, figure("accepted"), turn.draftWords = make("span", {}, " drafts accepted"));
    turn.prints = make("li", {}, make("span", {}, "fingerprint ", turn.print), make("span", {}, "seed ", turn.seed));
    turn.figures = make("ul", {class: "figures"}, make("li", {}, figure("speed"), " tokens/s"), make("li", {}, figure("perPass"), " tokens per pass"), drafts, turn.prints);
    const tools = make("div", {class: "tools"}, button("Copy", "", e => copy(turn, e.target)), button("Answer again", "last", () => answer(turn)), button("Edit", "last", () => edit(turn)), turn.ended);
    turn.answer = make("section", {class: "answer"}, make("h3", {class: "unseen"}, model.id), turn.thinking, turn.text, turn.callsBox, turn.problem, make("div", {class: "foot"}, turn.figures, tools));
    turn.article = make("article", {class: "turn"}, make("section", {class: "you"}, make("h3", {class: "unseen"}, "You"), turn.bubble), turn.answer);
    turns.push(turn);
    $("log").append(turn.article);
    $("empty").hidden = true;
    return turn;
}

async function copy(turn, where) {
    try {
        await navigator.clipboard.writeText(turn.content);
        say("Copied");
        where.textContent = "Copied";
    } catch (e) { /* not allowed here: select the text instead */
        getSelection().selectAllChildren(turn.text);
        where.textContent = "Selected";
    }
    setTimeout(() => { where.textContent = "Copy"; }, 1500);
}

function edit(turn) {
    editing = true;
    $("editing").hidden = false;
    input.value = turn.said;
    grow();
    input.focus();
}

function keep() {
    editing = false;
    $("editing").hidden = true;
}

function newConversation() {
    if (running) {
        running.stopper.abort();
        mark(running.turn, false);
    }
    running = null;
    keep();
    hideTip();
    turns = [];
    $("log").replaceChildren();
    $("empty").hidden = false;
    say("New conversation");
    input.focus();
}

/* ---- answers ---- */

function fail(turn, sentence) {
    turn.problem.textContent = whole(sentence);
    turn.problem.hidden = !sentence;
}

function clear(turn) {
    turn.content = turn.thought = "";
    turn.calls = [];
    turn.text.replaceChildren();
    turn.callsBox.replaceChildren();
    turn.thinkingText.replaceChildren();
    turn.thinking.hidden = true;
    for (const f of [turn.speed, turn.perPass, turn.accepted])
        f.textContent = "\u2013";
    turn.print.textContent = turn.seed.textContent = "\u2013";
    turn.prints.classList.add("open");
    turn.prints.hidden = false;
    turn.draftWords.textContent = " drafts accepted";
    turn.ended.textContent = "";
    fail(turn, "");
}

function mark(turn, busy) {
    turn.article.classList.toggle("busy", busy);
    turn.text.classList.toggle("live", busy);
    document.body.classList.toggle("running", busy);
    $("send").setAttribute("aria-label", busy ? "Stop" : "Send");
    show();
}

async function answer(turn) {
    const run = running = new Run(turn);
    let problem = "";
    clear(turn);
    hideTip();
    mark(turn, true);
    say("The model answers.");
    toEnd();
    try {
        const got = await begin(run, turn.chat ? "v1/chat/completions" : "v1/completions", bodyOf(turn));
        run.began = true;
        await read(run, got.body);
        if (!run.finish)
            problem = "the connection to the server was lost, and the answer is not complete";
    } catch (e) {
        problem = sentenceOf(e, run);
        if (e.status === 401)
            openSettings();
    }
    if (running !== run)
        return; /* its conversation is gone */
    running = null;
    run.end(problem);
    mark(turn, false);
    say(problem === "stopped" ? "Stopped." : problem ? "" : turn.content.length > SPOKEN ? "The answer is complete: " + many(run.count, "token") + "." : turn.content || turn.calls.map(c => "The model calls " + c.name + ".").join(" "));
}

function send() {
    const said = input.value, last = turns[turns.length - 1];
    if (running || !model || !said.trim())
        return;
    if (!form.checkValidity()) {
        openSettings();
        form.reportValidity();
        return;
    }
    if (last && (editing || (!last.content && !last.problem.hidden)))
        turns.pop().article.remove(); /* it is replaced, or was never answered */
    keep();
    input.value = "";
    grow();
    answer(newTurn(said));
}

/* ---- where the reader is ---- */

let follow = true, reached = 0; /* whether the end of a growing answer stays in sight */
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;

function toEnd() {
    follow = true;
    scroller.scrollTop = scroller.scrollHeight;
    reached = scroller.scrollTop;
}

function scrolled() {
    if (scroller.scrollTop < reached || atEnd())
        follow = atEnd();
    reached = scroller.scrollTop;
    $("latest").hidden = follow;
}

function grow() {
    input.style.height = "auto";
    input.style.height = input.scrollHeight + "px";
    $("send").disabled = !running && (!model || !input.value.trim());
}

/* ---- events ---- */

listenToTokens();
scroller.addEventListener("scroll", scrolled, {passive: true});
new ResizeObserver(() => { if (follow) toEnd(); }).observe($("log"));
addEventListener("resize", () => turns.forEach(t => t.run.rejoin()));
$("log").addEventListener("click", e => { /* what is unfolded stays where it is */
    if (e.target.closest("summary"))
        follow = false;
});
document.addEventListener("keydown", e => {
    if (e.key !== "Escape" || $("settings").open || e.isComposing)
        return;
    if (shown)
        hideTip();
    else if (running)
        running.stopper.abort();
    else if (editing)
        keep();
});
input.addEventListener("input", grow);
input.addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing && !running && !matchMedia("(pointer: coarse)").matches) {
        e.preventDefault();
        send();
    }
});
$("composer").addEventListener("submit", e => {
    e.preventDefault();
    if (running)
        running.stopper.abort();
    else
        send();
});
$("new").addEventListener("click", newConversation);
$("open").addEventListener("click", openSettings);
$("keep").addEventListener("click", () => { keep(); input.value = ""; grow(); });
$("latest").addEventListener("click", toEnd);
form.addEventListener("input", e => {
    if (e.target.name === "draft")
        e.target.dataset.wanted = e.target.value;
    if (e.target.name === "key")
        return;
    if (e.target.name === "mode" && turns.length)
        newConversation();
    save();
    show();
});
form.addEventListener("submit", e => { /* Done, or Enter in a field; the browser has checked the fields */
    e.preventDefault();
    $("settings").close();
});
$("settings").addEventListener("close", () => {
    const key = field("key").value.trim();
    if (key !== (sessionStorage.getItem("verbatim-key") || "") || !model) {
        sessionStorage.setItem("verbatim-key", key);
        connect();
    }
    input.focus();
});

restore();
connect();
