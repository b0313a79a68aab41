/* tools/serve/page_tokens.js -- the page at /: the text of an answer, and what is known of each of its tokens. */
"use strict";
const $ = id => document.getElementById(id);

function make(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const name of Object.keys(attributes))
        e.setAttribute(name, attributes[name]);
    e.append(...children);
    return e;
}

/* ---- which token is behind which part of the text ---- */

const MOST_PENDING = 64;

/* A token's bytes. The server writes those that are not UTF-8 as bytes:\xe2\x80. */
function bytesOf(name) {
    const hex = /^bytes:((?:\\x[0-9a-f]{2})+)$/.exec(name);
    return hex ? Uint8Array.from(hex[1].slice(2).split("\\x"), h => parseInt(h, 16)) : new TextEncoder().encode(name);
}

/* Tokens whose text has not come. A stop string holds text back, and the tokens around the thinking are in no text. */
class Pending {
    constructor() {
        this.decoder = new TextDecoder("utf-8", {ignoreBOM: true});
        this.units = []; /* {text, tokens}: one token, or several that share a character */
        this.open = [];
    }
    add(token) {
        const text = this.decoder.decode(bytesOf(token.text), {stream: true});
        this.open.push(token);
        if (text) {
            this.units.push({text, tokens: this.open});
            this.open = [];
        }
    }
    /* Of what came so far no more text follows: it was the text of calls. */
    drop() {
        this.units = [];
    }
    /* The text in parts: [[part, its tokens, or null if they are not known], ...]. */
    take(text) {
        const parts = [], fits = piece => piece && (piece.startsWith(text) || text.startsWith(piece));
        while (text) {
            const at = this.units.slice(0, MOST_PENDING).findIndex(u => fits(u.text) || fits(u.text.trimStart()));
            if (at < 0) {
                parts.push([text, null]);
                break;
            }
            this.units.splice(0, at);
            const unit = this.units[0], piece = fits(unit.text) ? unit.text : unit.text.trimStart(), size = Math.min(piece.length, text.length);
            parts.push([text.slice(0, size), unit.tokens]);
            if (size === piece.length)
                this.units.shift();
            else
                unit.text = piece.slice(size);
            text = text.slice(size);
        }
        return parts;
    }
}

const SPANS_OF_A_BLOCK = 200;

/* An element that is moved loses the focus. */
function keepFocus(act) {
    const held = document.activeElement;
    act();
    if (held !== document.activeElement && held.isConnected)
        held.focus({preventScroll: true});
}

/* A text that grows at its end, in blocks: the layout of a long answer costs no more for each token than that of a short one. A block ends
 * with a line break of the text; a long paragraph is divided where a line of the screen ends, until the text is complete. */
class Text {
    constructor(element) {
        this.element = element;
        this.block = null;
        this.count = 0;
        this.divided = []; /* blocks that go on with the line behind another block's last */
        this.current = null; /* the span that the Tab key reaches */
    }
    add(parts) {
        for (const [text, tokens] of parts) {
            this.block = this.block || this.element.appendChild(make("div", {}));
            this.block.append(tokens ? this.span(text, tokens) : text);
            if (this.block.childElementCount >= SPANS_OF_A_BLOCK && text.endsWith("\n"))
                this.block = null;
            else if (tokens && this.block.childElementCount >= SPANS_OF_A_BLOCK && this.block.childElementCount % 20 === 0)
                keepFocus(() => this.divide());
        }
    }
    /* The last line goes to a new block. The space before its first word hangs at the end of the line before; the new block begins with it, and
     * with a negative indent of its width. */
    divide() {
        const spans = this.block.children, lineOf = span => Array.from(span.getClientRects()).pop();
        let first = spans.length - 1;
        const last = lineOf(spans[first]), isLast = line => line && Math.abs(line.top - last.top) < 4;
        while (last && first > 0 && isLast(lineOf(spans[first - 1])))
            first--;
        const span = spans[first];
        if (!last || !first || (span.getClientRects().length > 1 && !/^ [\p{L}\p{N}]*$/u.test(span.textContent)))
            return; /* nothing is shown, or all of it is one line, or a token's text is in both lines */
        const width = lineOf(span).width, nodes = Array.from(this.block.childNodes), block = make("div", {});
        block.append(...nodes.slice(nodes.indexOf(span)));
        this.element.append(block);
        block.style.textIndent = width - lineOf(span).width + "px";
        this.divided.push(block);
        this.block = block;
    }
    /* Paragraphs are whole again, so that their lines follow the window's width. What a reader has selected is left alone. */
    join() {
        if (!this.divided.length || (!getSelection().isCollapsed && getSelection().containsNode(this.element, true)))
            return;
        keepFocus(() => {
            for (const block of this.divided.splice(0)) {
                block.previousElementSibling.append(...block.childNodes);
                block.remove();
            }
        });
        this.block = this.block && this.element.lastElementChild;
    }
    span(text, tokens) {
        const depth = Math.max(...tokens.map(t => t.draft)), span = make("span", {class: depth ? "tok draft" : "tok", tabindex: this.current ? -1 : 0}, text);
        span.tokens = tokens;
        span.within = this;
        this.current = this.current || span;
        this.count += tokens.length;
        return span;
    }
}

/* ---- a token's alternatives ---- */

const visible = name => name.replace(/ /g, "\u2423").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/[\x00-\x1f\x7f]/g, c => "<" + c.charCodeAt(0).toString(16).padStart(2, "0") + ">");

function percent(logprob) {
    const p = 100 * Math.exp(logprob);
    return p < 0.05 ? "< 0.1 %" : p.toFixed(1) + " %";
}

function describe(token) {
    const how = token.draft ? ": draft " + token.draft + " of pass " + token.pass + ", accepted" : ": the model\u2019s own choice in pass " + token.pass;
    const head = make("p", {}, make("code", {}, visible(token.text)), how);
    if (!token.top)
        return [head];
    const known = token.top.some(([name]) => name === token.text), table = make("table", {});
    for (const [name, logprob] of known ? token.top : token.top.concat([[token.text, token.logprob]])) {
        const bar = make("span", {}), chosen = name === token.text;
        bar.style.width = 100 * Math.exp(logprob) + "%";
        table.append(make("tr", chosen ? {class: "chosen"} : {}, make("th", {scope: "row"}, make("code", {}, visible(name))), make("td", {class: "meter"}, bar), make("td", {}, percent(logprob))));
    }
    return [head, table];
}

let shown = null, timer = 0;

/* Above the token, or below it where there is no room. */
function placeTip() {
    const tip = $("tip"), at = shown.getClientRects()[0] || shown.getBoundingClientRect(), box = tip.getBoundingClientRect(), above = at.top - box.height - 6;
    tip.style.left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(8, Math.min(above >= 8 ? above : at.bottom + 6, innerHeight - box.height - 8)) + "px";
}

function showTip(span) {
    clearTimeout(timer);
    if (shown === span)
        return;
    hideTip();
    shown = span;
    span.classList.add("shown");
    span.setAttribute("aria-describedby", "tip");
    $("tip").replaceChildren(...span.tokens.slice(0, 4).flatMap(describe));
    $("tip").hidden = false;
    placeTip();
}

function hideTip() {
    clearTimeout(timer);
    if (shown) {
        shown.classList.remove("shown");
        shown.removeAttribute("aria-describedby");
    }
    shown = null;
    $("tip").hidden = true;
}

/* ---- from token to token ---- */

function neighbour(span, forward) {
    const near = forward ? span.nextElementSibling : span.previousElementSibling;
    const block = forward ? span.parentElement.nextElementSibling : span.parentElement.previousElementSibling;
    return near || (block && (forward ? block.firstElementChild : block.lastElementChild));
}

/* The nearest token of the line above or below. */
function inNextLine(span, forward) {
    const from = span.getClientRects()[0];
    let top = null, best = null, distance = Infinity;
    for (let s = neighbour(span, forward); s; s = neighbour(s, forward)) {
        const at = s.getClientRects()[0];
        if (Math.abs(at.top - from.top) < 4)
            continue;
        top = top === null ? at.top : top;
        if (Math.abs(at.top - top) > 4)
            break;
        if (Math.abs(at.left - from.left) < distance) {
            distance = Math.abs(at.left - from.left);
            best = s;
        }
    }
    return best;
}

const MOVES = {
    ArrowRight: s => neighbour(s, true), ArrowLeft: s => neighbour(s, false), ArrowDown: s => inNextLine(s, true), ArrowUp: s => inNextLine(s, false),
    Home: s => s.within.element.querySelector(".tok"), End: s => Array.from(s.within.element.lastElementChild.children).pop(),
};

const spanOf = target => target instanceof Element && target.closest("#log .tok");
const later = (act, ms) => { clearTimeout(timer); timer = setTimeout(act, ms); };

function listenToTokens() {
    const log = $("log");
    log.addEventListener("keydown", e => {
        const span = spanOf(e.target), move = span && !e.ctrlKey && !e.altKey && !e.metaKey && !e.shiftKey && MOVES[e.key], to = move && move(span);
        if (move)
            e.preventDefault();
        if (to)
            to.focus();
    });
    log.addEventListener("focusin", e => {
        const span = spanOf(e.target);
        if (!span)
            return;
        span.within.current.tabIndex = -1;
        span.within.current = span;
        span.tabIndex = 0;
        span.scrollIntoView({block: "nearest"});
        showTip(span);
    });
    log.addEventListener("focusout", hideTip);
    log.addEventListener("pointerover", e => {
        const span = spanOf(e.target);
        if (span && e.pointerType === "mouse" && !e.buttons)
            later(() => showTip(span), 60);
    });
    log.addEventListener("pointerout", e => {
        if (spanOf(e.target))
            later(() => shown === document.activeElement || hideTip(), 160);
    });
    $("tip").addEventListener("pointerover", () => clearTimeout(timer));
    $("tip").addEventListener("pointerout", () => later(() => shown === document.activeElement || hideTip(), 160));
    $("scroll").addEventListener("scroll", () => {
        if (shown && shown === document.activeElement)
            placeTip();
        else
            hideTip();
    }, {passive: true});
}
