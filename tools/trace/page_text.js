/* tools/trace/page_text.js -- the script of the page of `verbatim trace --html` begins here: elements and texts. html.c puts the files
 * page_text.js, page_books.js, page_replay.js, page_draw.js and page.js together, or, for a batch, the first two and batch_page.js. */
"use strict";
(function () {
const $ = id => document.getElementById(id), root = document.documentElement;
const data = JSON.parse($("trace").textContent), begin = data.begin, passes = data.passes, end = data.end;
const MOST_WORDS = 300, MOST_COLUMNS = 20, MOST_CELLS = 32;

/* ---- text: pieces may hold anything, and are only ever text ------------------------------------------------------- */

function make(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {}))
        if (value !== null && value !== undefined && value !== false)
            e.setAttribute(name, value === true ? "" : value);
    e.append(...children);
    return e;
}
/* What would be invisible is shown by a sign: controls, and characters that turn the direction or have no width. */
function visible(text) {
    return text.replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
        c => c === "\n" ? "\u21b5" : c === "\t" ? "\u21e5" : "<U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + ">");
}
const spaced = text => text.replace(/^ +| +$/g, s => "\u2423".repeat(s.length));
const label = (id, piece) => typeof piece === "string" && piece !== "" ? spaced(visible(piece)) : "#" + id;
const quoted = (id, piece) => typeof piece === "string" && piece !== "" ? "\u2018" + spaced(visible(piece)) + "\u2019" : "token " + id;
const token = (id, piece, attributes) => make("span", Object.assign({class: "tok"}, attributes), label(id, piece));
const many = (n, what) => n.toLocaleString("en") + " " + what + (n === 1 ? "" : "s");
const colour = depth => "d" + ((depth - 1) % 5 + 1);
const list = words => words.length < 2 ? words.join("") : words.slice(0, -1).join(", ") + " and " + words[words.length - 1];
const span = (first, last) => first === last ? "row " + first : "rows " + first + " to " + last;

