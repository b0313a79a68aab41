#!/bin/sh
# The page of `verbatim trace --html` in a real browser without a window: tests/page.js steps through it. Of real traces, of the
# worked example with pieces that would be markup if they were not kept text, of a long one, and of an empty one. Run in the
# repository's root.
#     browser.sh [VERBATIM]
set -eu
verbatim=${1:-build/verbatim}
browser=
for b in chromium-headless-shell chromium chromium-browser google-chrome; do
    if command -v "$b" >/dev/null; then
        browser=$b
        break
    fi
done
if [ -z "$browser" ]; then
    echo "skipped: no browser found (chromium-headless-shell or chromium)"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0

fail() {
    echo "browser.sh: $*"
    exit 1
}

# The page asks for nothing beyond itself.
if grep -nEi 'https?:|url\(|@import|[^a-z]src=|href=|fetch\(|XMLHttpRequest|WebSocket|innerHTML|document\.write|eval\(' tools/trace/*.html tools/trace/*.js; then
    fail "a file in tools/trace has what may reach the network, or makes markup out of text"
fi
passed=$((passed + 1))

# NAME [?began=PASS#HASH]: $dir/NAME.html with tests/page.js (of a batch, tests/page_batch.js) at its end; began: the pass that the address
# leads to
look() {
    case $1 in batch*) script=page_batch.js ;; *) script=page.js ;; esac
    sed "s|^</body>|<script src=\"$script\"></script>&|" "$dir/$1.html" >"$dir/$1-looked-at.html"
    timeout 600 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$dir/profile" --dump-dom "file://$dir/$1-looked-at.html${2:-}" \
        >"$dir/dom" 2>"$dir/err" || fail "$1: $browser ended with $?: $(tail -n 3 "$dir/err")"
    report=$(sed -n 's/.*<pre id="report">\([^<]*\).*/\1/p' "$dir/dom")
    echo "$1: ${report:-no report}"
    case $report in
    passed*) passed=$((passed + 1)) ;;
    *) fail "$1 does not show what it should: ${report:-nothing ran, $(grep -o '<html[^>]*>' "$dir/dom" || echo no page)}" ;;
    esac
}

# NAME: from the trace in $dir/NAME.json, put into a page in place of that page's trace
page_of() {
    sed 's/</\\u003c/g' "$dir/$1.json" | awk 'FNR == NR { data = data $0 "\n"; next } (at = index($0, "id=\"trace\">")) {
        print substr($0, 1, at + 10) data "</script>"; next } { print }' - "$dir/none.html" >"$dir/$1.html"
}

tiny="golden/tiny/v3-mtp3 --tokens 5,6,7,8"
# shellcheck disable=SC2086
{
    "$verbatim" trace $tiny -n 12 --draft mtp-vanilla --schedule async --html "$dir/vanilla.html"
    "$verbatim" trace $tiny -n 12 --draft eagle-keep --draft-tokens 5 --padded --convention first-row=phantom --html "$dir/keep.html"
    "$verbatim" trace $tiny -n 12 --draft none --html "$dir/none.html"
    "$verbatim" trace golden/tiny/v3 --tokens 5,6,7,8,9,10,11 --prefill-chunk 3 -n 9 --draft mtp-vanilla --draft-tokens 2 --html "$dir/chunks.html"
    "$verbatim" generate $tiny -n 6 --draft mtp-eagle --save-session "$dir/session" --without-hidden >"$dir/said" 2>&1
    "$verbatim" trace golden/tiny/v3-mtp3 --session "$dir/session" -n 9 --draft mtp-eagle --html "$dir/loaded.html"
    "$verbatim" trace golden/tale --prompt "Once upon a time" -n 24 --draft mtp-eagle --html "$dir/tale.html"
    "$verbatim" trace golden/tale --tokens "$(seq -s, 1 400)" -n 60 --draft eagle-reroll --as mindie --padded --html "$dir/long.html"
}
cp golden/trace/worked-example.json "$dir/worked-example.json"
page_of worked-example
echo '{"begin":{"draft":"none","draft_tokens":0,"conventions":"","padded":false,"prompt":[5],"prompt_pieces":[null]},"passes":[],"end":{"tokens":[],"pieces":[]}}' >"$dir/empty.json"
page_of empty
"$verbatim" trace golden/tiny/v3-mtp3 --prompts golden/trace/prompts.jsonl --draft mtp-eagle --schedule async --html "$dir/batch.html"
"$verbatim" trace golden/tale --prompts golden/trace/prompts.jsonl -n 20 --dp 3 --html "$dir/batch-ranks.html"
cp tests/page.js tests/page_batch.js "$dir"
for name in batch batch-ranks vanilla keep none chunks loaded tale long worked-example empty; do
    look $name
done
look worked-example "?began=5#round=2&pass=1"
echo "[  PASSED  ] $passed test(s)."
