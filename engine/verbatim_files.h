/* engine/verbatim_files.h -- saving and loading sessions; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_FILES_H
#define VERBATIM_FILES_H

typedef struct vb_file_options {
    int without_hidden; /* for saving, 1: the target's hidden rows are not saved. The first draft after loading then uses zeros for the
                           newest hidden row, and its cache row is not kept. Later drafts are as usual */
    int replace;        /* for saving, 1: an existing file at `path` is replaced; 0: it is an error */
    /* Called with bytes done and in total: of the target's cache when saving, of the file when reading. A result other than
     * 0 stops the function, which then returns VB_STOPPED. May be NULL. */
    int (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
} vb_file_options;

/* Saves a session to a file: its tokens, the target's KV cache, the state of its draft method, and the counts of output
 * tokens that penalties use. Sampling options are not saved; random numbers depend only on the seed and the token's index.
 * The file appears at `path` only when it is complete and on the disk. engine/pass/session_file.h describes its format.
 * `options` may be NULL.
 *
 * The session continues as if it had not been saved. One exception: after saving without_hidden, the draft method
 * eagle-reroll may make other drafts. A session without tokens is VB_BAD_ARGUMENT; a file that cannot be written is VB_IO. */
int vb_session_save(vb_session *session, const char *path, const vb_file_options *options, vb_error *err);

/* Opens a session of `model` with `options` and loads its tokens and caches from a file. The loaded session continues with
 * the same bits as the saved session would have. Threads, instruction set, prefill chunk and draft method may be different
 * ones. `file_options` may be NULL.
 *
 * With the same draft method and options the drafts are the same as well. Acceptance modes other than strict depend on the
 * drafts, so they need the same draft method and options, and a file saved with hidden rows. If the file was saved with
 * another draft method, other conventions of drafting, or with mtp-vanilla a smaller K, the saved state of the draft method
 * cannot be used. The method then starts from the tokens alone, with zeros for hidden rows, and methods that use MTP
 * modules make worse drafts for a while.
 *
 * A file that is not a session file, or is cut short or damaged, is VB_BAD_CHECKPOINT; another version is VB_UNSUPPORTED.
 * The following are VB_BAD_ARGUMENT: another model than the saved one (engine/session/identity.h says how models are
 * compared), another precision, other conventions of the target, a context smaller than the tokens, and another `prefill`
 * if a part of the prompt has not been computed yet. On an error *out is NULL. */
int vb_session_load(vb_session **out, const vb_model *model, const vb_session_options *options, const char *path,
                    const vb_file_options *file_options, vb_error *err);

/* Facts about a session file. Strings that do not fit are cut. */
typedef struct vb_session_info {
    uint32_t version;
    size_t bytes, tokens, computed; /* size of the file; number of tokens; how many have been computed, always fewer than all */
    size_t context;                 /* context of the saved session */
    char checkpoint[256];           /* path of the model's checkpoint when the session was saved */
    /* About the model and the session: names as in their options. `weights` is a checksum of the checkpoint in hexadecimal. */
    char architecture[64], precision[16], conventions[512], weights[32], prefill[16];
    char draft[32], draft_conventions[512]; /* draft method, or "none"; conventions of drafting that differ from the defaults */
    int with_hidden;                /* 1: hidden rows are saved, see vb_file_options.without_hidden */
    size_t drafter_bytes;           /* bytes of the draft method's state */
} vb_session_info;
/* Reads the facts about a session file; no model is needed. With `check` = 1 it reads the whole file and compares every
 * checksum. Damage is VB_BAD_CHECKPOINT. `options` may be NULL; only its progress callback is used. */
int vb_session_info_read(vb_session_info *out, const char *path, int check, const vb_file_options *options, vb_error *err);

#endif
