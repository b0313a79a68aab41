/* tests/page.js -- runs inside the page of `verbatim trace --html`, at its end (tests/browser.sh puts it there): steps
 * through every pass as a reader would and compares what the page shows with the trace. Ends in <pre id="report">. */
"use strict";
(function () {
const root = document.documentElement, $ = id => document.getElementById(id), all = s => Array.from(document.querySelectorAll(s));
const trace = JSON.parse($("trace").textContent), begin = trace.begin, passes = trace.passes;
let checks = 0;

function same(what, is, wanted) {
    checks++;
    if (JSON.stringify(is) !== JSON.stringify(wanted))
        throw new Error("pass " + root.dataset.pass + ": " + what + " is " + JSON.stringify(is) + ", wanted " + JSON.stringify(wanted));
}
const key = name => document.body.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true, cancelable: true}));
const gridRow = name => {
    const tr = all("#grid tr").find(r => r.firstChild.textContent === name);
    return tr ? Array.from(tr.children).slice(1).map(td => td.textContent) : null;
};
const roundNumbers = Array.from(new Set(passes.map(p => p.round)));
const verdictOf = round => {
    const t = passes.findIndex(p => p.round === round && p.depth === null);
    return t >= 0 ? t : passes.map(p => p.round).lastIndexOf(round);
};

/* The caches again, counted here in another way: by their lengths alone. */
const lengths = {};
for (const pass of begin.loaded ? passes : [])
    lengths[pass.depth === null ? "target" : "depth " + pass.depth] ??= pass.context_length - pass.input_ids.length;
function count(p) {
    const pass = passes[p], name = pass.depth === null ? "target" : "depth " + pass.depth;
    const cut = c => { lengths[c.depth === null ? "target" : "depth " + c.depth] = c.first; };
    (pass.cut_before || []).forEach(cut);
    lengths[name] = (lengths[name] || 0) + pass.input_ids.length;
    const during = Object.assign({}, lengths);
    pass.cut.forEach(cut);
    return during;
}

function lookAt(p, words) {
    const pass = passes[p], during = count(p), narrow = pass.input_ids.length <= 20;
    same("data-pass", root.dataset.pass, "" + p);
    same("data-round", root.dataset.round, "" + pass.round);
    same("the round of the list", $("rounds").value, "" + pass.round);
    same("the slider", $("slider").value, "" + p);
    if (narrow) {
        same("input id", gridRow("input id"), pass.input_ids.map((id, j) => pass.draft[j] < 0 ? "(" + id + ")" : "" + id));
        same("slot", gridRow("slot"), pass.slots.map(String));
        same("position", gridRow("position"), pass.positions.map(String));
        same("head", gridRow("head reads"), pass.input_ids.map((_, j) => pass.lm_head_indices.includes(j) ? "yes" : ""));
        if (pass.depth !== null)
            same("hidden", gridRow("hidden row").map(t => t.split("\u2190")[0]), pass.hidden.map(o => !o ? "zeros" : o.from === "target" ? "h" + o.row : o.depth === pass.depth ? "m" + o.row : "m" + o.depth + ":" + o.row));
    }
    if (pass.depth === null) {
        pass.chosen.forEach(c => words.push([c.draft ? "draft" : "own", c.draft ? "" + c.draft : null]));
        const n = pass.draft.filter(d => d > 0).length, own = pass.chosen.some(c => !c.draft);
        same("accepted", all("#chain .hit").length, pass.accepted);
        same("rejected", all("#chain .miss").length, own && pass.accepted < n ? 1 : 0);
        same("fallen with it", all("#chain .unread").length, n - pass.accepted - (own && pass.accepted < n ? 1 : 0));
        same("the target's own", all("#chain .new").length, own ? 1 : 0);
        same("struck words", all("#words .wrong").length, n - pass.accepted);
        same("new words", all("#words .fresh").length, pass.chosen.length);
    } else {
        same("no verdict yet", passes.slice(0, p).some(q => q.depth === null && q.round === pass.round) || all("#chain .hit, #chain .miss").length === 0, true);
    }
    if (words.length <= 300)
        same("words", all("#words .prompt, #words .own, #words [data-from=draft]").map(w => [w.dataset.from, w.dataset.depth || null]), words);
    for (const name of Object.keys(lengths)) {
        const box = all(".cache").find(c => c.dataset.cache === name), cells = Math.min(32, during[name] || 0);
        same("rows of " + name, box.dataset.rows, "" + lengths[name]);
        same("struck rows of " + name, box.querySelectorAll(".cut").length, Math.min(32, during[name] - lengths[name]));
        same("cells of " + name, box.querySelectorAll("li:not(.more)").length, cells);
    }
    same("books of an asynchronous scheduler", $("books-section").hidden, !pass.async);
    if (pass.async)
        same("placeholders", all("#books tr").find(r => r.firstChild.textContent === "num_output_placeholders").lastChild.textContent, "" + pass.async.num_output_placeholders);
    same("a sentence", $("say").textContent.length > 20, true);
    same("nothing but text in tokens", all(".tok *").length, 0);
}

/* The worked example of golden/trace: what a reader must see in it. */
function workedExample() {
    const see = hash => { history.replaceState(null, "", hash); window.dispatchEvent(new HashChangeEvent("hashchange")); };
    const text = s => all(s).map(e => e.textContent);
    see("#round=1");
    same("#round=1", root.dataset.pass, "4");
    same("the list", text("#rounds option"), ["round 0: prompt", "round 1: 0 of 2 accepted", "round 2: 2 of 2 accepted"]);
    same("drafts of round 1", text("#chain li:not(.arrow) .verdict"), ["committed", "\u2717 target: #6", "falls with it", "in its place"]);
    same("cut", document.querySelector(".cache[data-cache=target] .name .soft").textContent, "5 rows: 3 written, 2 cut");
    see("#round=1&pass=1");
    same("#round=1&pass=1", root.dataset.pass, "2");
    same("tokens", gridRow("token"), ["</script><img src=x onerror=document.documentElement.dataset.error=1>", "padding", "padding"]);
    same("hidden", gridRow("hidden row"), ["h3\u2190 the target's row 3\u2423\u2423bell<U+0007>", "zeros", "zeros"]);
    same("in words", $("say").textContent.includes("beside the target's hidden row h3; it proposes \u2018\ufffd<U+202E>turned\u2019 as draft 1."), true);
    all("#grid button")[0].click();
    same("the button of h3", root.dataset.pass, "0");
    same("the prompt", gridRow("token"), ["<script>document.documentElement.dataset.error='a piece ran'</script>", "\"quoted\" & 'single' <b>bold</b>", "\u21b5", "\u2423\u2423bell<U+0007>"]);
    see("#pass=2");
    same("discarded", $("say").textContent.includes("discarded"), true);
    see("#round=2");
    same("drafts of round 2", text("#chain li:not(.arrow) .verdict"), ["committed", "\u2713 accepted", "\u2713 accepted", "a token more"]);
    same("figures", $("per-forward").textContent, "5 tokens chosen; 2.00 tokens per forward in 2 passes of the target after the prompt");
    same("by depth", text("#figures tr[data-draft]"), ["12150 %", "22150 %"]);
    same("chosen", gridRow("chosen"), ["G \u2713 draft 1", "H \u2713 draft 2", "I"]);
    see("#round=99");
    same("beyond the end", root.dataset.pass, "7");
}

function run() {
    same("data-passes", root.dataset.passes, "" + passes.length);
    same("data-rounds", root.dataset.rounds, "" + roundNumbers.length);
    if (location.search)
        same("the pass that the address leads to", root.dataset.pass, new URLSearchParams(location.search).get("began"));
    same("scripts", document.scripts.length, 4);
    if (!passes.length) {
        same("the page of an empty trace", $("say").textContent, "The trace holds no pass.");
        return;
    }
    same("rounds listed", all("#rounds option").map(o => o.value), roundNumbers.map(String));
    const words = begin.prompt.map(() => ["prompt", null]);
    key("Home");
    for (let p = 0; p < passes.length; p++, key("ArrowRight"))
        lookAt(p, words);
    same("the end is the end", root.dataset.pass, "" + (passes.length - 1));
    same("address", location.hash.includes("round=" + passes[passes.length - 1].round), true);
    key("ArrowLeft");
    same("left", root.dataset.pass, "" + Math.max(0, passes.length - 2));
    key("Home");
    same("Home", [root.dataset.pass, $("back").disabled, $("on").disabled], ["0", true, passes.length === 1]);
    for (const round of roundNumbers.slice(1)) {
        key("PageDown");
        same("Page Down", [root.dataset.round, root.dataset.pass], ["" + round, "" + verdictOf(round)]);
    }
    key("End");
    $("round-back").click();
    same("round before", root.dataset.round, "" + roundNumbers[Math.max(0, roundNumbers.length - 2)]);
    $("first").click();
    $("on").click();
    same("buttons", root.dataset.pass, "" + Math.min(1, passes.length - 1));
    $("slider").value = passes.length - 1;
    $("slider").dispatchEvent(new Event("input"));
    same("slider", root.dataset.pass, "" + (passes.length - 1));
    $("rounds").selectedIndex = 0;
    $("rounds").dispatchEvent(new Event("change"));
    same("list", root.dataset.pass, "" + verdictOf(roundNumbers[0]));
    same("elements", document.getElementsByTagName("*").length < 4000, true);
    if (begin.draft === "worked example")
        workedExample();
}

let said;
try {
    same("data-ready", root.dataset.ready, "");
    run();
    same("errors", root.dataset.error, undefined);
    said = "passed " + checks + " checks, " + passes.length + " passes, " + roundNumbers.length + " rounds";
} catch (e) {
    said = "FAILED " + e.message;
}
const report = document.createElement("pre");
report.id = "report";
report.textContent = said;
document.body.append(report);
})();
