/* tools/trace/batch_page.js -- the page of a batch: stepping, the rows and lists of a pass, the cache rows of each sequence. */
const isTarget = pass => pass.depth === null, firstOf = [];
passes.forEach((pass, p) => { if (!p || pass.round !== passes[p - 1].round) firstOf.push(p); });

/* The target's cache rows of each sequence, as they are while pass p runs (`during`), and how many are left after it. */
function replay(p) {
    const rows = begin.sequences.map(() => []);
    let during = null;
    const cut = (s, length) => { rows[s].length = Math.min(rows[s].length, length); };
    for (let q = 0; q <= p; q++) {
        const pass = passes[q];
        (pass.preempted || []).forEach(s => cut(s, 0));
        for (const part of isTarget(pass) ? pass.parts : []) {
            const own = rows[part.sequence];
            while (own.length < part.index[0])
                own.push(null); /* shared with another sequence */
            part.slots.forEach((slot, j) => own.push({slot, token: part.input_ids[j], piece: part.pieces[j], pad: part.draft[j] < 0, pass: q}));
        }
        if (q === p)
            during = rows.map(r => r.slice());
        pass.parts.forEach(part => part.cut.filter(c => c.depth === null).forEach(c => cut(part.sequence, c.first)));
        (pass.finished || []).forEach(s => cut(s, 0));
    }
    return {during, left: rows.map(r => r.length)};
}

function drawGrid(pass) {
    const line = (name, cell) => [name, ...pass.parts.flatMap(part => part.input_ids.map((_, j) => make("td", {class: part.draft[j] < 0 ? "pad" : null}, cell(part, j))))];
    const chosen = (part, j) => {
        const c = part.chosen.find(x => x.row === j);
        return !c ? "" : c.token < 0 ? "not finite" : make("span", {}, token(c.token, c.piece), c.draft ? " \u2713 draft " + c.draft : "");
    };
    $("grid-title").replaceChildren((isTarget(pass) ? "The target" : "Module " + pass.depth) + (pass.rank === undefined ? "" : ", rank " + pass.rank) + ": " +
        many(pass.input_ids.length, "row") + (pass.padded_to ? ", padded to " + pass.padded_to : ""));
    table("grid", [
        ["sequence", ...pass.parts.map(part => make("td", {colspan: part.input_ids.length}, part.sequence + (part.stage ? ": " + part.stage : "")))],
        line("token", (part, j) => part.draft[j] < 0 ? "padding" : token(part.input_ids[j], part.pieces[j])),
        line("input id", (part, j) => "" + part.input_ids[j]),
        line("what it is", (part, j) => part.draft[j] < 0 ? "padding" : part.draft[j] > 0 ? "draft " + part.draft[j] : "committed"),
        line("slot", (part, j) => "" + part.slots[j]),
        line("position", (part, j) => "" + part.positions[j]),
        line("head reads", (part, j) => part.lm_head_indices.includes(j) ? "yes" : ""),
        line("chosen", chosen)]);
}

function drawLists(pass) {
    const keys = ["sequences", "q_lens", "context_lengths", "lm_head_indices", "drafts", "num_drafts", "accepted", "tokens", "num_tokens", "started", "preempted", "finished"];
    table("lists", keys.filter(k => pass[k]).map(k => [k, make("td", {}, "[" + pass[k].join(", ") + "]")]));
}

function drawCaches(p) {
    const state = replay(p), box = $("caches");
    box.replaceChildren();
    state.during.forEach((rows, s) => {
        if (!rows.length)
            return;
        const strip = make("ol", {class: "strip", tabindex: 0, "aria-label": "cache rows of sequence " + s}), start = Math.max(0, rows.length - MOST_CELLS);
        if (start)
            strip.append(make("li", {class: "more"}, ".. " + many(start, "row")));
        rows.slice(start).forEach((r, i) => strip.append(make("li", {class: start + i >= state.left[s] ? "cut" : r && r.pass === p ? "written" : null},
            !r ? "shared" : r.pad ? make("span", {class: "tok"}, "pad") : token(r.token, r.piece), make("span", {class: "slot"}, r ? "" + r.slot : ""))));
        box.append(make("div", {class: "cache", "data-sequence": s, "data-rows": state.left[s]},
            make("div", {class: "name"}, make("strong", {}, "sequence " + s), make("span", {class: "soft"}, many(state.left[s], "row"))), strip));
    });
}

function inWords(pass) {
    if (pass.dummy)
        return "Rank " + pass.rank + " has nothing to compute. It takes part with " + many(pass.padded_to, "row") + " of padding.";
    if (!isTarget(pass))
        return "Module " + pass.depth + " computes " + many(pass.input_ids.length, "row") + " of " + many(pass.parts.length, "sequence") + ".";
    const said = pass.parts.map(part => {
        const n = part.draft.filter(d => d > 0).length, own = part.chosen[part.chosen.length - 1];
        return "Sequence " + part.sequence + (part.stage === "prefill" ? " computes " + many(part.input_ids.length, "row") + " that are given" : " verifies " + many(n, "draft")) +
            (n ? ", of which " + part.accepted + " " + (part.accepted === 1 ? "is" : "are") + " accepted" : "") + (own ? ", and ends with " + quoted(own.token, own.piece) : "") + ".";
    });
    for (const [key, text] of [["preempted", "is preempted: its cache rows are removed, and computed again later"], ["finished", "is finished"]])
        pass[key].forEach(s => said.push("Sequence " + s + " " + text + "."));
    return said.join(" ");
}

let current = -1;

function show(p) {
    current = p = Math.max(0, Math.min(passes.length - 1, p));
    const pass = passes[p];
    $("say").replaceChildren(make("p", {}, inWords(pass)));
    drawGrid(pass);
    drawLists(pass);
    drawBooks(pass.parts);
    drawCaches(p);
    $("slider").value = p;
    $("where").textContent = "round " + pass.round + " \u00b7 " + (p + 1) + "/" + passes.length;
    $("first").disabled = $("back").disabled = p === 0;
    $("last").disabled = $("on").disabled = p === passes.length - 1;
    root.dataset.pass = p;
    root.dataset.round = pass.round;
}

function start() {
    const roundAt = p => firstOf.filter(f => f <= p).length - 1, ofRound = r => firstOf[Math.max(0, Math.min(firstOf.length - 1, r))];
    $("about").textContent = "draft method " + begin.draft + "; " + many(begin.sequences.length, "sequence") + ", " + many(begin.ranks, "rank") + ", a cache of " +
        many(begin.cache_tokens, "row") + "; " + many(end.preemptions, "preemption") + "; fingerprints " + end.sequences.map(s => s.fingerprint || s.error).join(", ");
    root.dataset.passes = passes.length;
    const go = {first: () => 0, back: () => current - 1, on: () => current + 1, last: () => passes.length - 1,
                "round-back": () => ofRound(roundAt(current) - 1), "round-on": () => ofRound(roundAt(current) + 1)};
    const keys = {ArrowLeft: "back", ArrowRight: "on", Home: "first", End: "last", PageUp: "round-back", PageDown: "round-on"};
    if (passes.length) {
        for (const id of Object.keys(go))
            $(id).addEventListener("click", () => show(go[id]()));
        document.addEventListener("keydown", e => {
            if (!keys[e.key] || e.altKey || e.ctrlKey || e.metaKey || e.target.tagName === "INPUT" || (e.target.classList && e.target.classList.contains("strip")))
                return;
            e.preventDefault();
            show(go[keys[e.key]]());
        });
        $("slider").max = passes.length - 1;
        $("slider").addEventListener("input", () => show(Number($("slider").value)));
        show(0);
    }
    root.dataset.ready = "";
}
start();
})();
