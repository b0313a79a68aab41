/* tools/trace/page.js -- a pass in words, and stepping. */
/* ---- this pass in words ------------------------------------------------------------------------------------------- */

function inWordsTarget(pass) {
    const n = drafts(pass), hits = pass.chosen.filter(c => c.draft), own = pass.chosen.find(c => !c.draft);
    const newest = quoted(pass.input_ids[0], pass.pieces[0]), kept = pass.hidden_kept || [], said = [];
    if (isPrompt(pass)) {
        const read = "The target reads the prompt, " + span(pass.index[0], pass.index[pass.draft.filter(d => d >= 0).length - 1]);
        said.push(read + (own ? ", and chooses " + quoted(own.token, own.piece) + " after the last." : "; more of it follows, so nothing is chosen yet."));
    } else if (!n) {
        said.push("The target reads its newest token, " + newest + ", with no draft behind it" + (own ? ", and chooses " + quoted(own.token, own.piece) + "." : "."));
    } else {
        let text = "The target reads its newest token, " + newest + ", and " + many(n, "draft") + " in one pass. ";
        if (hits.length) {
            const which = hits.length === n ? (n > 1 ? "All " + n + " drafts are" : "The draft is")
                : hits.length > 1 ? "Drafts 1 " + (hits.length > 2 ? "to " : "and ") + hits.length + " are" : "Draft 1 is";
            text += which + " what it chooses itself: " + list(hits.map(c => quoted(c.token, c.piece))) + ". ";
        }
        if (own && hits.length < n) {
            const at = pass.lm_head_indices[hits.length] + 1; /* the row of the draft that falls */
            text += (hits.length ? "Then it" : "It") + " chooses " + quoted(own.token, own.piece) + " where draft " + (hits.length + 1) +
                " says " + quoted(pass.input_ids[at], pass.pieces[at]) + ", so that draft falls" + (hits.length + 1 < n ? ", and those after it with it. " : ". ");
        } else if (own) {
            text += "After " + (n > 1 ? "them" : "it") + " it chooses one token more, " + quoted(own.token, own.piece) + ". ";
        }
        said.push(text + capital(many(pass.chosen.length, "token")) + " from one forward pass.");
    }
    if (kept.length > 1)
        said.push("Its hidden rows h" + kept[0] + " to h" + kept[kept.length - 1] + ", of the tokens that stand, go to the drafter.");
    else if (kept.length)
        said.push("Its hidden row h" + kept[0] + ", of the token that stands, goes to the drafter.");
    return said;
}

function inWordsModule(pass, round, p) {
    const n = pass.draft.filter(d => d >= 0).length, pads = pass.input_ids.length - n, said = [];
    const c = pass.chosen[0], j = c ? c.row : n - 1, o = pass.hidden[j];
    const beside = !o ? "zeros in place of a hidden row"
        : o.from === "target" ? "the target's hidden row h" + o.row
        : o.depth === pass.depth ? "the hidden row that it gave itself for row " + o.row
        : "the hidden row that depth " + o.depth + " gave for row " + o.row;
    let text = capital(moduleName(pass)) + " reads ";
    if (n > 1)
        text += n + " rows, " + pass.index[0] + " to " + pass.index[n - 1] + ". " + (c ? "The one that counts, row " : "The last, row ") + pass.index[j] + ", is";
    else
        text += "one row, " + pass.index[0] + ":";
    text += " the embedding of " + (pass.draft[j] > 0 ? "draft " + pass.draft[j] + ", " : "") + quoted(pass.input_ids[j], pass.pieces[j]) + ", beside " + beside;
    if (c && c.token < 0)
        text += "; its logits are not finite, so it proposes nothing";
    else if (c)
        text += "; it proposes " + quoted(c.token, c.piece) + " as draft " + c.draft;
    said.push(text + ".");
    if (!c)
        said.push("Nothing is chosen here: the pass only fills the module's cache with rows that are final, for rounds to come.");
    if (c && round.target !== null && p > round.target)
        said.push("This draft is discarded: the pass was run for the module's cache (convention prefill-draft=discarded).");
    if (pads)
        said.push(many(pads, "row") + " of padding " + (pads > 1 ? "fill" : "fills") + " the pass up to " + pass.input_ids.length + "; what comes of it counts for nothing.");
    return said;
}

function drawSay(p, state) {
    const pass = passes[p], round = rounds[roundOf[p]];
    const said = isTarget(pass) ? inWordsTarget(pass) : inWordsModule(pass, round, p);
    for (const c of pass.cut_before || [])
        said.push("Before it, the cache of " + (c.depth === null ? "the target" : moduleOf[cacheName(c.depth)] || "depth " + c.depth) +
            " was cut back to " + many(c.first, "row") + ": what went is computed again.");
    const cut = names.filter(n => state.cells[n].length < state.during[n].length);
    for (const n of cut)
        said.push("Afterwards the cache of " + (n === "target" ? "the target" : moduleOf[n]) + " is cut from " +
            state.during[n].length.toLocaleString("en") + " to " + many(state.cells[n].length, "row") +
            (n === "target" ? ": the rows of what fell are gone." : ": rows made from drafts or padding are gone."));
    $("say").replaceChildren(...said.map(s => make("p", {}, s)));
}

/* ---- stepping ----------------------------------------------------------------------------------------------------- */

let current = -1;

function show(p) {
    p = Math.max(0, Math.min(passes.length - 1, p));
    const r = roundOf[p], round = rounds[r], state = replay(p);
    current = p;
    drawSay(p, state);
    drawWords(p);
    drawGrid(p, state);
    drawChain(p);
    drawFigures(p);
    drawBooks([passes[p]]);
    drawCaches(p, state);
    $("slider").value = p;
    $("slider").setAttribute("aria-valuetext", "pass " + (p + 1) + " of " + passes.length);
    $("rounds").selectedIndex = r;
    $("where").textContent = "round " + round.number + ", pass " + (p - round.first + 1) + " of " + round.passes + " \u00b7 " + (p + 1) + "/" + passes.length;
    $("first").disabled = $("back").disabled = p === 0;
    $("last").disabled = $("on").disabled = p === passes.length - 1;
    $("round-back").disabled = r === 0;
    $("round-on").disabled = r === rounds.length - 1;
    root.dataset.pass = p;
    root.dataset.round = round.number;
    try { history.replaceState(null, "", "#round=" + round.number + "&pass=" + (p - round.first + 1)); } catch (e) { /* the address stays */ }
}
const ofRound = r => { const x = rounds[Math.max(0, Math.min(rounds.length - 1, r))]; return x.target === null ? x.first + x.passes - 1 : x.target; };

/* #round=3: where that round is judged; #round=3&pass=1: its first pass */
function fromAddress() {
    const want = new URLSearchParams(location.hash.slice(1));
    if (!want.has("round") && !want.has("pass"))
        return 0;
    const number = Number(want.get("round") || 0), r = rounds.findIndex(x => x.number >= number);
    if (r < 0)
        return passes.length - 1;
    const q = Number(want.get("pass") || 0);
    return q >= 1 ? rounds[r].first + Math.min(rounds[r].passes, Math.floor(q)) - 1 : ofRound(r);
}

function start() {
    const about = ["draft method " + begin.draft + (begin.draft === "none" ? "" : ", up to " + many(begin.draft_tokens, "draft") + " a round") + (begin.padded ? ", padded passes" : "")];
    if (begin.conventions)
        about.push("conventions " + begin.conventions);
    about.push("prompt of " + many(begin.prompt.length, "token") + ", " + many(end.tokens.length, "token") + " chosen in " +
        many(rounds.filter(r => !r.prompt).length, "round") + (end.finish_reason === "stop" ? ", ended by an end token" : ""));
    if (end.fingerprint)
        about.push("fingerprint " + end.fingerprint);
    $("about").textContent = about.join("; ");
    document.title = "verbatim trace: " + begin.draft;
    root.dataset.passes = passes.length;
    root.dataset.rounds = rounds.length;
    if (!passes.length) {
        $("say").textContent = "The trace holds no pass.";
        root.dataset.ready = "";
        return;
    }
    for (const r of rounds) {
        const t = r.target === null ? null : passes[r.target];
        $("rounds").append(make("option", {value: r.number}, "round " + r.number + ": " + (r.prompt ? "prompt" : !t ? "not judged" : drafts(t) ? t.accepted + " of " + drafts(t) + " accepted" : "no drafts")));
    }
    $("slider").max = passes.length - 1;
    drawLegend();
    const go = {first: () => 0, back: () => current - 1, on: () => current + 1, last: () => passes.length - 1,
                "round-back": () => ofRound(roundOf[current] - 1), "round-on": () => ofRound(roundOf[current] + 1)};
    for (const id of Object.keys(go))
        $(id).addEventListener("click", () => show(go[id]()));
    const keys = {ArrowLeft: "back", ArrowRight: "on", Home: "first", End: "last", PageUp: "round-back", PageDown: "round-on"};
    document.addEventListener("keydown", e => {
        const id = keys[e.key], tag = e.target && e.target.tagName;
        if (!id || e.altKey || e.ctrlKey || e.metaKey || tag === "SELECT" || tag === "INPUT" || (e.target.classList && e.target.classList.contains("strip")))
            return;
        e.preventDefault();
        if (!$(id).disabled)
            show(go[id]());
    });
    $("slider").addEventListener("input", () => show(Number($("slider").value)));
    $("rounds").addEventListener("change", () => show(ofRound($("rounds").selectedIndex)));
    window.addEventListener("hashchange", () => show(fromAddress()));
    show(fromAddress());
    root.dataset.ready = "";
}
start();
})();
