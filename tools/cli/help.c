/* tools/cli/help.c -- prints help texts, from the table of options and from the descriptions in struct command. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/options.h"

#define WIDTH 100
#define INDENT 26

static const struct {
    const char *name, *title, *about;
} headings[HEADINGS] = {
    [MODEL_OPTIONS] = {"model", "Model", "the model, its precision and its conventions"},
    [PROMPT_OPTIONS] = {"prompt", "Prompt", "the text or the tokens that the model reads"},
    [CHAT_OPTIONS] = {"conversation", "Conversation", "messages and the chat template"},
    [SAMPLING_OPTIONS] = {"sampling", "Sampling", "how the next token is chosen from the logits"},
    [DRAFT_OPTIONS] = {"draft", "Drafting", "how tokens are drafted (proposed for verification)"},
    [ACCEPTANCE_OPTIONS] = {"acceptance", "Acceptance of drafts", "the rules for accepting drafts"},
    [OUTPUT_OPTIONS] = {"output", "Output", "the length and the format of the output"},
    [MACHINE_OPTIONS] = {"machine", "Machine", "threads, instruction set, memory"},
    [SESSION_OPTIONS] = {"sessions", "Saved sessions", "save a session and continue it later"},
    [MANY_OPTIONS] = {"many", "Many prompts", "answer many prompts at the same time"},
    [SERVE_OPTIONS] = {"server", "Server", "address, API keys, and how many requests are answered at the same time"},
    [COMPARE_OPTIONS] = {"compare", "Dumps and comparisons",
                         "which values a dump contains, and how dumps are compared"},
    [MEASURE_OPTIONS] = {"measure", "Checks and measurements", "which checks and measurements are made"},
    [QUANTIZE_OPTIONS] = {"types", "Types of weights in a file", "the types in which quantize stores weights"},
    [PLAN_OPTIONS] = {"machines", "Machines to plan for", "how many machines compute a model, and how fast they are"},
    [TRAIN_OPTIONS] = {"training", "Training",
                       "what is trained, on which texts, and how; a run keeps them when it is resumed"},
    [RUN_OPTIONS] = {"run", "Training runs", "how long a training run takes, and what it saves and prints"},
};

/* Prints the words of a text, starting at `column`. Each further line begins at the indent. A newline in the text ends
 * a line. */
static void put_words(FILE *to, const char *text, size_t column, size_t indent)
{
    while (*text) {
        size_t size = strcspn(text, " ");
        if (column > indent && column + 1 + size > WIDTH) {
            fprintf(to, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", (int)size, text);
        column += size;
        text += size;
        text += strspn(text, " ");
    }
    fputc('\n', to);
}

static void add_name(char *names, size_t room, const char *name, size_t length)
{
    size_t used = strlen(names);
    snprintf(names + used, room - used, "%s%.*s", used ? ", " : "", (int)length, name);
}

/* Writes all names of an option, short names first, for example "-c, --context, --ctx-size". */
static void names_of(const struct option *o, char *names, size_t room)
{
    *names = '\0';
    for (int is_long = 0; is_long < 2; is_long++) {
        if ((o->name[1] == '-') == is_long)
            add_name(names, room, o->name, strlen(o->name));
        for (const char *also = o->also; also && *also; also += strspn(also, " ")) {
            size_t size = strcspn(also, " ");
            if ((also[1] == '-') == is_long)
                add_name(names, room, also, size);
            also += size;
        }
    }
}

static void put_option(FILE *to, const struct option *o, const char *text)
{
    char names[96], left[160];
    names_of(o, names, sizeof names);
    size_t size = (size_t)snprintf(left, sizeof left, "  %s%s%s", names, o->value ? " " : "", o->value ? o->value : "");
    fputs(left, to);
    if (size + 2 > INDENT)
        fprintf(to, "\n%*s", INDENT, "");
    else
        fprintf(to, "%*s", (int)(INDENT - size), "");
    put_words(to, text, INDENT, INDENT);
}

static const char *note_of(const struct command *k, const struct option *o)
{
    for (const struct note *n = k->notes; n && n->option; n++)
        if (option_is_called(o, n->option, strlen(n->option)))
            return n->text;
    return NULL;
}

/* Prints the options below one heading: those that command k accepts, or all if k is NULL. Returns how many were
 * printed. */
static size_t put_heading(FILE *to, int heading, const struct command *k)
{
    const struct option *o;
    size_t count = 0;
    for (size_t i = 0; (o = option_at(i)); i++) {
        if ((int)o->heading != heading || (k && !option_is_taken(o, k)))
            continue;
        if (!count++)
            fprintf(to, "%s%s:\n", k ? "\n" : "", headings[heading].title);
        put_option(to, o, k && note_of(k, o) ? note_of(k, o) : o->help);
    }
    return count;
}

/* Prints the options that have a note of this command, and then the names of all other options. */
static void put_short(FILE *to, const struct command *k)
{
    const struct option *o;
    char names[2048], one[96];
    size_t count = 0;
    for (size_t i = 0; (o = option_at(i)); i++)
        if (option_is_taken(o, k) && note_of(k, o)) {
            fputs(count++ ? "" : "\n", to);
            put_option(to, o, note_of(k, o));
        }
    fputc('\n', to);
    for (int h = 0; h < HEADINGS; h++) {
        names[0] = '\0';
        for (size_t i = 0; (o = option_at(i)); i++)
            if ((int)o->heading == h && option_is_taken(o, k)) {
                names_of(o, one, sizeof one);
                add_name(names, sizeof names, one, strlen(one));
            }
        if (*names) {
            fprintf(to, "  %s%*s", headings[h].title, (int)(INDENT - 2 - strlen(headings[h].title)), "");
            put_words(to, names, INDENT, INDENT);
        }
    }
}

static void put_usage(FILE *to, const char *name, const char *usage)
{
    for (const char *end; *usage; usage = end + (*end == '\n')) {
        end = usage + strcspn(usage, "\n");
        fprintf(to, "usage: verbatim %s %.*s\n", name, (int)(end - usage), usage);
    }
}

/* Returns a copy of the command that accepts the options of all its actions too. */
static struct command with_actions(const struct command *k)
{
    struct command all = *k;
    for (const struct command *const *a = k->actions; a && *a; a++)
        all.takes |= (*a)->takes;
    return all;
}

void cli_help_command(FILE *to, const struct command *command, int is_short)
{
    struct command k = with_actions(command);
    fprintf(to, "verbatim %s: %s\n\n", k.name, k.summary);
    put_usage(to, k.name, k.usage);
    fprintf(to, "\n%s", k.about);
    if (is_short)
        put_short(to, &k);
    for (int h = 0; h < HEADINGS && !is_short; h++)
        put_heading(to, h, &k);
}

void cli_help(const struct cli *c, FILE *to)
{
    fputs("verbatim: a reference engine for DeepSeek-style language models (MLA, MoE, MTP)\n"
          "Verbatim drafts tokens with the model's own MTP modules, and its output has the same bits as plain "
          "decoding.\n\n"
          "usage: verbatim COMMAND MODEL [OPTIONS]\n\n"
          "Commands:\n", to);
    for (const struct command *const *k = c->commands; *k; k++)
        fprintf(to, "  %-13s %s\n", (*k)->name, (*k)->summary);
    fputs("\nGroups of options:\n", to);
    for (int h = 0; h < HEADINGS; h++)
        fprintf(to, "  %-13s %s\n", headings[h].name, headings[h].about);
    fputs("\nMODEL is a directory in the Hugging Face layout, or a GGUF file (if the model is split, its first file).\n"
          "`verbatim COMMAND --help` explains a command. `verbatim help TOPIC` explains a command, an option or a "
          "group of options.\n"
          "Exit codes: 0 success, 1 an error, 2 a wrong command line, 3 a difference was found, 130 interrupted by "
          "Ctrl-C.\n", to);
}

static const struct command *command_called(const struct cli *c, const char *name)
{
    for (const struct command *const *k = c->commands; *k; k++)
        if (!strcmp((*k)->name, name))
            return *k;
    return NULL;
}

/* Prints the options with this name; "--" may be missing (`verbatim help threads`). */
static size_t put_options_called(const char *topic)
{
    char name[64];
    const struct option *o;
    size_t count = 0;
    snprintf(name, sizeof name, "%s%.48s", topic[0] == '-' ? "" : "--", topic);
    for (size_t i = 0; (o = option_at(i)); i++)
        if (option_is_called(o, name, strlen(name))) {
            put_option(stdout, o, o->help);
            count++;
        }
    return count;
}

/* Prints the methods of --draft, from the table of the library. */
static void put_draft_methods(FILE *to)
{
    vb_draft_method m;
    fputs("\nDraft methods:\n", to);
    for (size_t i = 0; vb_draft_methods(i, &m); i++)
        if (!m.needs_callback) { /* the command line offers no callbacks */
            char about[256];
            snprintf(about, sizeof about, "%s%s%s", m.about, *m.settings ? ". Settings: " : "", m.settings);
            fprintf(to, "  %-*s", INDENT - 2, m.name);
            put_words(to, about, INDENT, INDENT);
        }
}

int cli_help_topic(const struct cli *c, const char *topic, int is_short)
{
    const struct command *k = command_called(c, topic);
    int heading = 0;
    while (heading < HEADINGS && strcmp(headings[heading].name, topic))
        heading++;
    if (heading < HEADINGS && !(k && is_short)) {
        put_heading(stdout, heading, NULL);
        if (heading == DRAFT_OPTIONS)
            put_draft_methods(stdout);
        if (k)
            printf("\nThere is also a command of this name: `verbatim %s --help` explains it.\n", topic);
        return EXIT_DONE;
    }
    if (k)
        cli_help_command(stdout, k, is_short);
    else if (!put_options_called(topic))
        return cli_fail(c, EXIT_USAGE,
                        "there is no help for %.64s; see verbatim --help for commands and groups of options", topic);
    return EXIT_DONE;
}

size_t cli_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][64], *before = rows[0], *last = rows[1], *now = rows[2];
    if (a_length > 62 || b_length > 62)
        return 64;
    for (size_t j = 0; j <= b_length; j++)
        last[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t changed = last[j - 1] + (a[i - 1] != b[j - 1]),
                   shorter = (last[j] < now[j - 1] ? last[j] : now[j - 1]) + 1;
            now[j] = changed < shorter ? changed : shorter;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1; /* two neighbouring letters were swapped */
        }
        size_t *oldest = before;
        before = last;
        last = now;
        now = oldest;
    }
    return last[b_length];
}
