/* tools/cli/session.c -- loads and saves sessions for the commands that have --session or --save-session. */
#include <string.h>

#include "tools/cli/cli.h"

int cli_file_progress(void *label, size_t done, size_t total)
{
    cli_progress(label, done, total);
    return cli_stopped();
}

int cli_save_session(const struct cli *c, vb_session *session, const char *path)
{
    vb_error err;
    char label[] = "saving";
    vb_file_options o = {.without_hidden = c->without_hidden, .replace = c->force, .progress = cli_file_progress,
                         .progress_context = label};
    cli_listen_to_signals();
    int failed = vb_session_save(session, path, &o, &err);
    cli_progress(label, 1, 1);
    if (failed && cli_stopped())
        return cli_tell_stopped(c, path);
    if (failed)
        cli_error(c, &err);
    return failed ? EXIT_OTHER : EXIT_DONE;
}

/* Warns that a file has no state of the draft method, if this state cannot be computed from the tokens alone. */
static void tell_drafts(const struct cli *c, const vb_session_info *info)
{
    vb_draft_method method;
    if (vb_draft_method_find(&method, cli_draft_name(c), NULL) || !method.keeps_state ||
        !strcmp(method.name, info->draft) || !info->computed)
        return;
    fprintf(stderr,
            "verbatim: %s holds nothing for drafts by %s (it was saved with --draft %s); the first of them will be "
            "poor\n",
            c->load, cli_draft_name(c), info->draft);
}

int cli_load_session(struct cli *c, size_t more, long long n, vb_session **out)
{
    vb_session_info info;
    vb_session_options o;
    vb_error err;
    char label[] = "loading";
    vb_file_options file = {.progress = cli_file_progress, .progress_context = label};
    *out = NULL;
    if (vb_session_info_read(&info, c->load, 0, NULL, &err))
        return cli_error(c, &err);
    int code = cli_session_options(c, info.tokens + more, n, &o);
    if (code != EXIT_DONE)
        return code;
    tell_drafts(c, &info);
    int failed = vb_session_load(out, c->model, &o, c->load, &file, &err);
    cli_progress(label, 1, 1);
    return failed ? cli_error(c, &err) : EXIT_DONE;
}
