#!/bin/sh
# The manual pages, made from what cannot go out of date: the command's own help, and the header.
#   man.sh 1 VERBATIM VERSION     verbatim(1) from `VERBATIM --help` and `VERBATIM help TOPIC`
#   man.sh 3 HEADER VERSION       verbatim(3) from the comments and declarations of HEADER and the headers that it includes from its
#                                 folder, and examples/generate.c
set -eu

head_of() { # SECTION VERSION SUMMARY
    printf '.TH VERBATIM %s "" "Verbatim %s"\n.SH NAME\nverbatim \\- %s\n' "$1" "$2" "$3"
}

# Text as it stands: backslashes, dashes, and the dots and quotes that would begin a request.
as_is() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/"; }

# Help: "usage: LINE", "Heading:", "  OPTION  words" with words that go on further right, and prose.
from_help() {
    as_is | awk '
        /^$/                  { print ".PP"; next }
        /^usage: /            { print ".PP\n.B " substr($0, 8); next }
        /^[A-Z][a-z ]*:$/     { print ".PP\n.B " substr($0, 1, length($0) - 1); next }
        # a line that begins with . or \047 would be a request to groff
        function text(line) { sub(/^[.\047]/, "\\\\\\&&", line); return line }
        /^          /         { sub(/^ +/, ""); print text($0); next }
        /^  /                 {
            sub(/^ +/, "")
            if (match($0, /  +/)) { words = substr($0, RSTART + RLENGTH); tag = substr($0, 1, RSTART - 1) }
            else { words = ""; tag = $0 }
            print ".TP\n.B " tag
            if (words != "") print text(words)
            listed = 1
            next
        }
        listed                { print ".PP"; listed = 0 }
                              { print }'
}

# The names below a heading of `verbatim --help`.
names_below() { printf '%s\n' "$help" | awk -v heading="$1" '/:$/ { on = $0 == heading; next } /^$/ { on = 0 } on { print $1 }'; }

case $1 in
1)
    verbatim=$2
    head_of 1 "$3" "reference engine for DeepSeek\\-style language models"
    # a program that fails here must fail the page
    help=$($verbatim --help)
    echo .SH DESCRIPTION
    printf '%s\n' "$help" | sed 1d | from_help
    echo .SH COMMANDS
    for command in $(names_below Commands:); do
        page=$($verbatim help --short "$command")
        printf '.SS %s\n' "$command"
        printf '%s\n' "$page" | sed "1s/^verbatim $command: //" | from_help
    done
    echo .SH OPTIONS
    for group in $(names_below "Groups of options:"); do
        page=$($verbatim help "$group")
        printf '.SS "%s"\n' "$(printf '%s\n' "$page" | sed -n '1s/:$//p')"
        printf '%s\n' "$page" | sed -e 1d -e '/^There is also a command/d' | from_help
    done
    printf '.SH SEE ALSO\n.BR verbatim (3)\n'
    ;;
3)
    head_of 3 "$3" "C interface of the reference engine"
    printf '.SH SYNOPSIS\n.B #include <verbatim.h>\n.PP\ncc ... $(pkg\\-config \\-\\-cflags \\-\\-libs verbatim)\n'
    echo .SH DESCRIPTION
    # the comment at the head, then what is declared between the two marks of visibility
    sed -n '1,/\*\//p' "$2" | sed -e '1s/.*-- //' -e 's/^ \* \{0,1\}//' -e 's/ *\*\/$//' | as_is | sed 's/^$/.PP/'
    printf '.SH INTERFACE\n.nf\n'
    {
        sed -n '/visibility push/,/visibility pop/p' "$2" | sed '/^#include/d'
        for part in $(sed -n 's/^#include "\(.*\)"$/\1/p' "$2"); do
            sed -e "1s,.* -- \(.*\); a part of the public interface\.$,/* ---- \1 ---- */," -e '/^ \* verbatim.h includes this file/d' -e '/^#define VERBATIM_.*_H$/d' "$(dirname "$2")/$part"
        done
    } | sed -e '/^#if/d' -e '/^#endif/d' -e '/^#pragma/d' | as_is |
        awk '/^\/\* (\\-)+ .*(\\-)+ \*\/$/ { gsub(/(\\-)(\\-)+|\/\*|\*\//, ""); gsub(/^ +| +$/, ""); print ".fi\n.SS " $0 "\n.nf"; next } { print }'
    printf '.fi\n.SH EXAMPLES\n.nf\n'
    as_is <"$(dirname "$2")/../examples/generate.c"
    printf '.fi\n.SH SEE ALSO\n.BR verbatim (1)\n'
    ;;
esac
