/* tools/trace/page_replay.js -- rounds, caches and origins of hidden states, replayed from the passes of one sequence. */
/* ---- what the passes say together --------------------------------------------------------------------------------- */

const isTarget = pass => pass.depth === null;
const cacheName = depth => depth === null ? "target" : "depth " + depth;
const moduleName = pass => pass.module === undefined || pass.module === pass.depth ? "module " + pass.depth : "module " + pass.module + " (depth " + pass.depth + ")";
const passName = pass => isTarget(pass) ? "the target" : moduleName(pass);
const capital = text => text.charAt(0).toUpperCase() + text.slice(1);
const isPrompt = pass => isTarget(pass) && pass.index[0] < begin.prompt.length && !pass.draft.some(d => d > 0);

/* rounds: their passes, and the one of the target, which judges; timeline: every token with its origin */
const rounds = [], roundOf = [], timeline = begin.prompt.map((id, i) => ({id, piece: begin.prompt_pieces[i], from: "prompt"}));
const known = [];        /* [pass]: tokens of the timeline before the pass chose */
const names = [], offset = {}, loaded = {}; /* loaded: rows of each cache that a session file had */
passes.forEach((pass, p) => {
    let round = rounds[rounds.length - 1];
    if (!round || round.number !== pass.round)
        rounds.push(round = {number: pass.round, first: p, passes: 0, target: null, prompt: false});
    round.passes++;
    roundOf.push(rounds.length - 1);
    known.push(timeline.length);
    const name = cacheName(pass.depth);
    if (!names.includes(name)) {
        names.push(name);
        loaded[name] = begin.loaded ? pass.context_length - pass.input_ids.length : 0;
    }
    if (isTarget(pass)) {
        round.target = p;
        round.prompt = isPrompt(pass);
        for (const c of pass.chosen)
            timeline.push({id: c.token, piece: c.piece, from: c.draft ? "draft" : "own", depth: c.draft, pass: p});
    } else {
        /* a cache that begins with a row of zeros numbers its rows one higher than the hidden rows */
        const i = pass.hidden.findIndex(o => o && !(o.from === "module" && o.depth === pass.depth));
        if (i >= 0 && offset[name] === undefined)
            offset[name] = pass.index[i] - pass.hidden[i].row;
    }
});
names.sort((a, b) => (a === "target" ? -1 : +a.slice(6)) - (b === "target" ? -1 : +b.slice(6)));
const drafts = pass => pass.draft.filter(d => d > 0).length;
const moduleOf = {};
passes.forEach(pass => { if (!isTarget(pass)) moduleOf[cacheName(pass.depth)] = moduleName(pass); });

/* The caches as pass p leaves them, and as they were while it ran; who made each hidden row that it could take. A cell is
 * [pass, column], or [-1, place] if a session file had the row. */
function replay(p) {
    const cells = {}, made = {}, curve = {};
    names.forEach(n => { cells[n] = Array.from({length: loaded[n]}, (_, i) => [-1, i]); made[n] = []; curve[n] = [[0, loaded[n]]]; });
    const cut = (c, at) => { const n = cacheName(c.depth); if (cells[n].length > c.first) { cells[n].length = c.first; curve[n].push([at, c.first]); } };
    let during = null, cutBefore = null;
    for (let q = 0; q <= p; q++) {
        const pass = passes[q], name = cacheName(pass.depth);
        (pass.cut_before || []).forEach(c => cut(c, q));
        if (q === p) {
            cutBefore = {};
            names.forEach(n => { cutBefore[n] = cells[n].length; });
        }
        for (let j = 0; j < pass.input_ids.length; j++) {
            cells[name].push([q, j]);
            if (q < p)
                made[name][pass.index[j]] = [q, j];
        }
        curve[name].push([q + 1, cells[name].length]);
        if (q === p) {
            during = {};
            names.forEach(n => { during[n] = cells[n].slice(); });
        }
        pass.cut.forEach(c => cut(c, q + 1));
    }
    return {cells, during, before: cutBefore, made, curve};
}

