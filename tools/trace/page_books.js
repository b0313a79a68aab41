/* tools/trace/page_books.js -- tables of texts, and the books of an asynchronous scheduler (trace --schedule async). */
function table(id, lines) {
    $(id).replaceChildren(...lines.map(([name, ...cells]) => make("tr", {}, make("th", {scope: "row"}, name), ...cells)));
}

/* parts: the sequences of a pass, or the only pass of a sequence. */
function drawBooks(parts) {
    const plans = parts.filter(part => part.async), keys = ["planned_ids", "planned_positions", "num_tokens", "num_computed_tokens", "num_output_placeholders", "correction",
        "reserved", "rejected", "kv_committed_len", "kv_allocated_len", "planned_in_vain"];
    const text = value => value === undefined ? "" : Array.isArray(value) ? "[" + value.join(", ") + "]" : "" + value;
    $("books-section").hidden = !plans.length;
    table("books", [...plans.some(part => part.sequence !== undefined) ? [["sequence", ...plans.map(part => make("td", {}, "" + part.sequence))]] : [],
        ...keys.map(k => [k, ...plans.map(part => make("td", {}, text(part.async[k])))])]);
}

