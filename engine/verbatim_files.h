/* engine/verbatim_files.h -- saving and loading sessions; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_FILES_H
#define VERBATIM_FILES_H

typedef struct vb_file_options {
    size_t size;        /* sizeof(vb_file_options), or 0 */
    int without_hidden; /* for saving. 1: the target's hidden states are not saved. After loading, the first draft then
                           uses zeros in place of the newest hidden state, and the cache row that was computed from
                           these zeros is removed again. Later drafts are the same as without saving and loading */
    int replace;        /* for saving. 1: an existing file at `path` is replaced; 0: an existing file is an error */
    /* Reports progress. `done` is the number of bytes processed so far, and `total` the number of all bytes.
     * vb_session_save counts the bytes of the target's cache, and vb_session_load and vb_session_info_read count the
     * bytes of the file. If the callback returns a value other than 0, the function stops and returns VB_STOPPED.
     * `progress` may be NULL. */
    int (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
} vb_file_options;

/* Saves a session to a file: its tokens, the target's KV cache, the state of its draft method, and how often each token
 * occurs in the output (for penalties). Sampling options are not saved. No state of a random number generator is saved,
 * because each random number depends only on the seed and the token's index. The file appears at `path` only when it is
 * complete and on the disk. engine/pass/session_file.h describes the format of the file. `options` may be NULL.
 *
 * The session continues as if it had not been saved. There is one exception: if without_hidden is 1, the draft method
 * eagle-reroll may make different drafts after saving. Returns VB_BAD_ARGUMENT if the session has no tokens, and VB_IO
 * if the file cannot be written. */
int vb_session_save(vb_session *session, const char *path, const vb_file_options *options, vb_error *err);

/* Opens a session of `model` with `options` and loads its tokens and caches from a file. The loaded session continues
 * with the same bits as the saved session. The number of threads, the instruction set, the prefill chunk and the draft
 * method may differ from those of the saved session. `file_options` may be NULL.
 *
 * With the same draft method and the same options of this method, the drafts are also the same. In acceptance modes
 * rejection and relaxed, the output depends on the drafts. In these two modes, the output is the same only if the draft
 * method and its options are the same and hidden states were saved. The saved state of the draft method cannot be used
 * if the file was saved with another draft method or with other conventions of drafting. With method mtp-vanilla, the
 * state cannot be used either if K was smaller in the saved session than in `options`. A draft method without saved
 * state starts from the tokens alone, with zeros as hidden states. If the method uses MTP modules, fewer of its drafts
 * are then accepted for some time.
 *
 * Returns VB_BAD_CHECKPOINT if the file is not a session file, is cut short or is damaged. Returns VB_UNSUPPORTED if
 * the file has another version. Returns VB_BAD_ARGUMENT if the session was saved with another model, another precision
 * or other conventions of the target (engine/session/identity.h says how models are compared). Also returns
 * VB_BAD_ARGUMENT if the forced routes of the computed tokens differ (vb_session_options.routes), or if the context is
 * too small for the saved tokens. Also returns VB_BAD_ARGUMENT if the option `prefill` differs from the saved one and a
 * part of the prompt has not been computed yet. On an error *out is NULL. */
int vb_session_load(vb_session **out, const vb_model *model, const vb_session_options *options, const char *path,
                    const vb_file_options *file_options, vb_error *err);

/* Facts about a session file. Strings that are too long for their array are cut off. */
typedef struct vb_session_info {
    uint32_t version;
    size_t bytes, tokens, computed; /* bytes: size of the file. tokens: number of tokens. computed: number of tokens
                                       that have a row in the saved KV cache; always less than `tokens` */
    size_t context;                 /* context of the saved session */
    char checkpoint[256];           /* path of the model's checkpoint when the session was saved */
    /* Facts about the model and the session. precision, cache_type, conventions and prefill have the values of the
     * options with these names. `weights` is a hexadecimal checksum of the checkpoint. */
    char architecture[64], precision[16], cache_type[16], conventions[512], weights[32], prefill[16];
    char routes[32];                /* hexadecimal hash of the forced routes of all computed tokens, or "none" */
    char draft[32], draft_conventions[512]; /* draft method, or "none"; conventions of drafting that differ from the
                                               defaults */
    int with_hidden;                /* 1: the file contains hidden states (see vb_file_options.without_hidden) */
    size_t drafter_bytes;           /* size in bytes of the draft method's saved state */
} vb_session_info;
/* Reads the facts about a session file; no model is needed. If `check` is 1, reads the whole file and compares every
 * checksum. Returns VB_BAD_CHECKPOINT if the file is damaged. `options` may be NULL; only the progress callback in
 * `options` is used. */
int vb_session_info_read_sized(vb_session_info *out, size_t size, const char *path, int check,
                               const vb_file_options *options, vb_error *err);
static inline int vb_session_info_read(vb_session_info *out, const char *path, int check,
                                       const vb_file_options *options, vb_error *err)
{
    return vb_session_info_read_sized(out, sizeof *out, path, check, options, err);
}

#endif
