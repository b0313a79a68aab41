/* tests/page_batch.js -- runs inside the page of `verbatim trace --prompts --html`, at its end (tests/browser.sh puts it there): steps
 * through every pass and compares what the page shows with the trace. Ends in <pre id="report">. */
"use strict";
(function () {
const root = document.documentElement, $ = id => document.getElementById(id), all = s => Array.from(document.querySelectorAll(s));
const trace = JSON.parse($("trace").textContent), passes = trace.passes;
let checks = 0;

function same(what, is, wanted) {
    checks++;
    if (JSON.stringify(is) !== JSON.stringify(wanted))
        throw new Error("pass " + root.dataset.pass + ": " + what + " is " + JSON.stringify(is) + ", wanted " + JSON.stringify(wanted));
}
const row = (table, name) => {
    const tr = all("#" + table + " tr").find(r => r.firstChild.textContent === name);
    return tr ? Array.from(tr.children).slice(1).map(td => td.textContent) : null;
};
const key = name => document.body.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true, cancelable: true}));

/* The number of cache rows of each sequence after a pass, counted from the parts alone. */
const rows = trace.begin.sequences.map(() => 0);
function count(pass) {
    (pass.preempted || []).forEach(s => { rows[s] = 0; });
    for (const part of pass.depth === null ? pass.parts : [])
        rows[part.sequence] = part.index[part.index.length - 1] + 1;
    pass.parts.forEach(part => part.cut.filter(c => c.depth === null).forEach(c => { rows[part.sequence] = c.first; }));
    (pass.finished || []).forEach(s => { rows[s] = 0; });
}

function lookAt(p) {
    const pass = passes[p];
    count(pass);
    same("data-pass", root.dataset.pass, "" + p);
    same("slots", row("grid", "slot"), pass.slots.map(String));
    same("positions", row("grid", "position"), pass.positions.map(String));
    same("q_lens", row("lists", "q_lens"), ["[" + pass.q_lens.join(", ") + "]"]);
    same("accepted", row("lists", "accepted"), pass.accepted ? ["[" + pass.accepted.join(", ") + "]"] : null);
    for (const box of all(".cache"))
        same("rows of sequence " + box.dataset.sequence, box.dataset.rows, "" + rows[box.dataset.sequence]);
    same("books", all("#books tr").length > 0 && !$("books-section").hidden, pass.parts.some(part => part.async));
    if (pass.parts.some(part => part.async))
        same("placeholders", row("books", "num_output_placeholders"), pass.parts.map(part => "" + part.async.num_output_placeholders));
    same("a sentence", $("say").textContent.length > 20, true);
    same("a dummy pass says so", $("say").textContent.includes("nothing to compute"), !!pass.dummy);
}

let said;
try {
    same("data-passes", root.dataset.passes, "" + passes.length);
    key("Home");
    for (let p = 0; p < passes.length; p++, key("ArrowRight"))
        lookAt(p);
    key("PageUp");
    same("a round back", Number(root.dataset.pass) < passes.length - 1, true);
    same("no error", root.dataset.error, undefined);
    said = "passed " + checks + " checks, " + passes.length + " passes";
} catch (e) {
    said = "FAILED: " + e.message;
}
const report = document.createElement("pre");
report.id = "report";
report.textContent = said;
document.body.append(report);
})();
