/* tools/trace/page_draw.js -- draws a pass: text, rows, drafts, figures, caches. */
/* ---- the parts of the page ---------------------------------------------------------------------------------------- */

function word(t, more, extra) {
    const what = t.from === "prompt" ? "prompt" : t.from === "draft" ? "accepted draft " + t.depth : "the target's own";
    const kind = t.from === "draft" ? colour(t.depth) : t.from;
    const text = typeof t.piece === "string" && t.piece !== "" ? visible(t.piece).replace(/\u21b5/g, "\u21b5\n") : "#" + t.id;
    return make("span", {class: "tok " + kind + (more ? " " + more : ""), "data-depth": t.from === "draft" ? t.depth : null,
                         "data-from": t.from, title: "token " + t.id + ", " + (extra || what)}, text);
}

/* Drafts of the round that pass p belongs to, as far as they are proposed when p has run. */
function proposed(p) {
    const round = rounds[roundOf[p]], found = [];
    for (let q = round.first; q <= p; q++)
        if (!isTarget(passes[q]))
            for (const c of passes[q].chosen)
                if (c.token >= 0 && (round.target === null || q < round.target))
                    found[c.draft - 1] = {id: c.token, piece: c.piece, pass: q};
    return found;
}

function drawWords(p) {
    const pass = passes[p], round = rounds[roundOf[p]], judged = isTarget(pass) ? pass.chosen.length : 0, count = known[p] + judged;
    const box = $("words"), head = count > MOST_WORDS ? 8 : 0, start = count > MOST_WORDS ? count - MOST_WORDS : 0;
    box.replaceChildren();
    for (let i = 0; i < count; i++) {
        if (i === head && start > head) {
            box.append(make("span", {class: "soft", title: many(start - head, "token") + " not shown"}, " .. "));
            i = start;
        }
        box.append(word(timeline[i], i >= known[p] ? "fresh" : "", null));
    }
    const guesses = proposed(p);
    if (round.target === null || p < round.target)
        guesses.forEach((g, j) => box.append(word({id: g.id, piece: g.piece, from: "maybe"}, "", "draft " + (j + 1) + ", not judged yet")));
    else if (p === round.target)
        guesses.slice(pass.accepted).forEach((g, j) => box.append(word({id: g.id, piece: g.piece, from: "wrong"}, "", "draft " + (pass.accepted + j + 1) + ", rejected")));
}

function drawLegend() {
    const K = Math.max(0, ...passes.filter(isTarget).map(drafts));
    const box = $("legend"), item = (kind, text, depth) => box.append(make("span", {}, make("span", {class: "tok " + kind, "data-depth": depth}, "ab"), " " + text));
    item("prompt", "prompt", null);
    item("own", "the target's own", null);
    for (let d = 1; d <= K; d++)
        item(colour(d), "accepted draft " + d, d);
    box.append(make("span", {}, "framed: from this pass"), make("span", {}, "dashed: draft not judged yet"), make("span", {}, "struck: rejected"));
}

/* columns that are shown: all, or both ends and a gap (null) */
function columns(n) {
    const all = Array.from({length: n}, (_, i) => i);
    return n <= MOST_COLUMNS ? all : all.slice(0, 4).concat([null], all.slice(n - 12));
}

function originCell(pass, j, state) {
    const o = pass.hidden[j], td = make("td", {class: pass.draft[j] < 0 ? "pad" : null});
    if (!o) {
        td.append("zeros");
        return td;
    }
    const name = o.from === "target" ? "target" : cacheName(o.depth);
    const short = o.from === "target" ? "h" + o.row : o.depth === pass.depth ? "m" + o.row : "m" + o.depth + ":" + o.row;
    const at = (state.made[name] || [])[o.row + (offset[name] || 0)];
    const what = (o.from === "target" ? "the target's" : o.depth === pass.depth ? "its own" : "depth " + o.depth + "'s") + " row " + o.row;
    if (at) {
        const b = make("button", {title: "hidden row of " + what + ", made in pass " + (at[0] + 1) + ": go there"}, short);
        b.addEventListener("click", () => show(at[0]));
        td.append(b, make("span", {class: "origin"}, "\u2190 " + what, make("br"),
            passes[at[0]].draft[at[1]] < 0 ? "padding" : label(passes[at[0]].input_ids[at[1]], passes[at[0]].pieces[at[1]])));
    } else {
        td.append(short, make("span", {class: "origin"}, what));
    }
    return td;
}

function drawGrid(p, state) {
    const pass = passes[p], shown = columns(pass.input_ids.length), table = $("grid"), target = isTarget(pass);
    const row = (name, title, cell) => {
        const tr = make("tr", {}, make("th", {scope: "row", title}, name));
        for (const j of shown)
            tr.append(j === null ? make("td", {class: "soft"}, "..") : cell(j));
        table.append(tr);
    };
    const head = j => pass.lm_head_indices.includes(j);
    const td = (j, ...what) => make("td", {class: pass.draft[j] < 0 ? "pad" : null}, ...what);
    const read = (j, ...what) => make("td", {class: head(j) ? "read" : pass.draft[j] < 0 ? "pad" : null}, ...what);
    table.replaceChildren();
    $("grid-title").replaceChildren(capital(passName(pass)) + ": " + many(pass.input_ids.length, "row"),
        make("small", {}, " context " + pass.context_length + (shown.includes(null) ? ", " + (pass.input_ids.length - shown.length + 1) + " of the rows not shown" : "")));
    row("token", "whose embedding the row starts from", j => pass.draft[j] < 0 ? td(j, "padding") : td(j, token(pass.input_ids[j], pass.pieces[j])));
    row("input id", "its number in the vocabulary", j => td(j, pass.draft[j] < 0 ? "(" + pass.input_ids[j] + ")" : "" + pass.input_ids[j]));
    row("what it is", "committed, or a draft of this round", j => td(j, pass.draft[j] < 0 ? "padding" : pass.draft[j] > 0 ? "draft " + pass.draft[j] : "committed"));
    row("slot", "where its cache row lies", j => td(j, "" + pass.slots[j]));
    row("position", "what RoPE is told", j => td(j, "" + pass.positions[j]));
    if (!target)
        row("hidden row", "the vector beside the embedding", j => originCell(pass, j, state));
    row("head reads", "the rows that choose a token", j => read(j, head(j) ? "yes" : ""));
    row(target ? "chosen" : "proposes", "the token that the head gives after this row", j => {
        const c = pass.chosen.find(x => x.row === j), cell = read(j), d = c && pass.lm_head_indices.indexOf(j) + 1;
        if (!c) {
            cell.append(target && head(j) ? "not looked at" : "");
        } else if (c.token < 0) {
            cell.append("not finite");
        } else {
            cell.append(token(c.token, c.piece));
            if (target && c.draft)
                cell.append(make("span", {class: "yes"}, " \u2713 draft " + c.draft));
            else if (target && d <= drafts(pass))
                cell.append(make("span", {class: "no"}, " \u2717 draft " + d));
            else if (!target)
                cell.append(" = draft " + c.draft);
        }
        return cell;
    });
}

function drawChain(p) {
    const round = rounds[roundOf[p]], chain = $("chain"), pass = passes[p], judged = round.target !== null && p >= round.target;
    const found = proposed(p), target = judged ? passes[round.target] : null;
    const li = (kind, name, t, verdict, yes) => chain.append(make("li", {class: kind}, make("span", {class: "label"}, name),
        token(t.id, t.piece), make("span", {class: "verdict " + (yes === null ? "" : yes ? "yes" : "no")}, verdict)));
    const arrow = () => chain.append(make("li", {class: "arrow", "aria-hidden": true}, "\u2192"));
    chain.replaceChildren();
    li("known", "last token", timeline[known[judged ? round.target : p] - 1], "committed", null);
    found.forEach((d, i) => {
        arrow();
        const c = target && target.chosen[i];
        if (!target)
            li("open", "draft " + (i + 1), d, "?", null);
        else if (c && c.draft)
            li("hit", "draft " + (i + 1), d, "\u2713 accepted", true);
        else if (c)
            li("miss", "draft " + (i + 1), d, "\u2717 target: " + label(c.token, c.piece), false);
        else
            li("unread", "draft " + (i + 1), d, target.chosen.length ? "falls with it" : "not judged", null);
    });
    const own = target && target.chosen.find(c => !c.draft);
    if (own) {
        arrow();
        const why = !found.length ? "chosen" : own === target.chosen[found.length] ? "a token more" : "in its place";
        li("new", "target's own", {id: own.token, piece: own.piece}, why, null);
    }
    if (!found.length && !own)
        chain.append(make("li", {class: "arrow"}, isTarget(pass) || judged ? "nothing is chosen from this part of the prompt" : "no draft yet"));
}

function drawFigures(p) {
    let forwards = 0, tokens = 0;
    const drafted = [], accepted = [], box = $("figures");
    for (let q = 0; q <= p; q++) {
        const pass = passes[q];
        if (!isTarget(pass))
            continue;
        forwards += !isPrompt(pass);
        tokens += pass.chosen.length;
        for (const d of pass.draft)
            if (d > 0)
                drafted[d] = (drafted[d] || 0) + 1;
        for (const c of pass.chosen)
            if (c.draft)
                accepted[c.draft] = (accepted[c.draft] || 0) + 1;
    }
    const each = forwards ? (tokens - 1) / forwards : null, table = make("table", {});
    const rate = each === null ? "no pass after the prompt yet"
        : each.toFixed(2) + " tokens per forward in " + forwards + (forwards === 1 ? " pass" : " passes") + " of the target after the prompt";
    box.replaceChildren(make("p", {style: "margin:0 0 .3rem", id: "per-forward"}, many(tokens, "token") + " chosen; " + rate));
    table.append(make("tr", {}, ...["draft", "drafted", "accepted", ""].map(t => make("th", {scope: "col"}, t))));
    for (let d = 1; d < drafted.length; d++) {
        const hits = 100 * (accepted[d] || 0) / drafted[d], bar = make("span", {});
        bar.style.width = hits + "%";
        table.append(make("tr", {"data-draft": d}, make("td", {}, "" + d), make("td", {}, "" + drafted[d]), make("td", {}, "" + (accepted[d] || 0)),
            make("td", {}, make("span", {class: "meter", "aria-hidden": true}, bar), hits.toFixed(0) + " %")));
    }
    if (drafted.length > 1)
        box.append(table);
}

/* How a cache grew and was cut in the last passes. */
function curveOf(points, p) {
    const svg = $("curve").content.firstElementChild.cloneNode(true);
    const from = Math.max(0, p + 1 - 40), seen = points.filter(x => x[0] >= from), before = points.filter(x => x[0] < from).pop();
    if (before)
        seen.unshift([from, before[1]]);
    const least = Math.min(...seen.map(x => x[1])), most = Math.max(...seen.map(x => x[1]), least + 1), path = [];
    let last = null;
    for (const [at, n] of seen.concat([[p + 1, seen[seen.length - 1][1]]])) {
        const x = 2 + 146 * (at - from) / Math.max(1, p + 1 - from), y = 20 - 18 * (n - least) / (most - least);
        if (last !== null)
            path.push(x.toFixed(1) + "," + last);
        path.push(x.toFixed(1) + "," + (last = y.toFixed(1)));
    }
    svg.firstElementChild.setAttribute("points", path.join(" "));
    return svg;
}

function drawCaches(p, state) {
    const box = $("caches"), pass = passes[p], own = cacheName(pass.depth);
    box.replaceChildren();
    for (const name of names) {
        const cells = state.during[name], left = state.cells[name].length, written = name === own ? state.before[name] : cells.length;
        const start = cells.length > MOST_CELLS ? cells.length - MOST_CELLS : 0, strip = make("ol", {class: "strip", tabindex: 0, "aria-label": "rows of the cache of " + name});
        const title = name === "target" ? "target" : moduleOf[name];
        let what = many(left, "row");
        if (name === own)
            what += ": " + (cells.length - written) + " written" + (left < cells.length ? ", " + (cells.length - left) + " cut" : "");
        else if (left < cells.length)
            what += ": " + (cells.length - left) + " cut";
        if (start)
            strip.append(make("li", {class: "more"}, ".. " + many(start, "row")));
        for (let i = start; i < cells.length; i++) {
            const [q, j] = cells[i], from = passes[q];
            if (q < 0) {
                const t = timeline[name === "target" ? j : j + 1 + +name.slice(6)];
                strip.append(make("li", {class: i >= left ? "cut" : null, title: "loaded from the session file"},
                    t ? token(t.id, t.piece) : "", make("span", {class: "slot"}, "" + j)));
                continue;
            }
            const pad = from.draft[j] < 0;
            const what = (i >= left ? "cut after this pass; " : "") + "written in pass " + (q + 1) + ", round " + from.round +
                (pad ? ", padding" : from.draft[j] > 0 ? ", draft " + from.draft[j] : "") + ", position " + from.positions[j];
            strip.append(make("li", {class: i >= left ? "cut" : i >= written ? "written" : null, title: what},
                pad ? make("span", {class: "tok"}, "pad") : token(from.input_ids[j], from.pieces[j]),
                make("span", {class: "slot"}, "" + from.slots[j])));
        }
        if (!cells.length)
            strip.append(make("li", {class: "more"}, "empty"));
        box.append(make("div", {class: "cache", "data-cache": name, "data-rows": left, "data-during": cells.length},
            make("div", {class: "name"}, make("strong", {}, title), make("span", {class: "soft"}, what), curveOf(state.curve[name], p)), strip));
        strip.scrollLeft = strip.scrollWidth;
    }
}

