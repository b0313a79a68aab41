/* engine/verbatim_files.h -- saved sessions; a part of the public interface.
 * verbatim.h includes this file; it cannot be used without it. */
#ifndef VERBATIM_FILES_H
#define VERBATIM_FILES_H

typedef struct vb_file_options {
    int without_hidden; /* saving: without the target's hidden rows. Then the first draft after a load knows nothing of the newest
                           one, and later ones are as always: it takes zeros, and its cache row goes to a dummy slot */
    int replace;        /* saving: a file of this name is replaced; else it is an error */
    int (*progress)(void *context, size_t done, size_t total); /* bytes: of the target's cache, or of the file that is read. Non-zero
                           stops (VB_STOPPED); NULL: silent */
    void *progress_context;
} vb_file_options;

/* Writes the session to a file: its tokens, the target's cache, what its draft method holds, and which of its tokens penalties
 * count as output. Options of sampling are not in it, and need not be, since random numbers depend on seed and index alone.
 * `path` is there when the file is whole and on the disk, not before; engine/pass/session_file.h draws it. The session goes on as
 * if it had not been saved, but that drafts of eagle-reroll may be others after a save without_hidden. options may be NULL. */
int vb_session_save(vb_session *session, const char *path, const vb_file_options *options, vb_error *err);

/* Opens a session of `model` with `options` and fills it from the file. From there on it gives, bit for bit, what the one
 * that was saved would have given, whatever the threads, instruction set, chunk and draft method of either; with the
 * same method and options also the same drafts (acceptance modes other than strict, which look at drafts, need these, and the
 * hidden rows). A file that was saved under another draft method, other conventions of
 * drafting or (mtp-vanilla) a smaller K has no drafter's state that could be used: the method then observes the tokens alone,
 * with zeros for hidden rows; those that have modules propose worse drafts for a while.
 * Refused: what is no session file, of another version, cut short, damaged (VB_BAD_CHECKPOINT, VB_UNSUPPORTED); a model that
 * is not the one it was saved with, another precision, other conventions of the target, another prefill while rows of the
 * prompt are due, a context smaller than the tokens (VB_BAD_ARGUMENT). engine/session/identity.h says how models are told
 * apart. *out is NULL then. file_options may be NULL. */
int vb_session_load(vb_session **out, const vb_model *model, const vb_session_options *options, const char *path,
                    const vb_file_options *file_options, vb_error *err);

/* What a session file says of itself. Text that does not fit is cut. */
typedef struct vb_session_info {
    uint32_t version;
    size_t bytes, tokens, computed; /* computed: tokens whose rows are there, fewer than tokens */
    size_t context;                 /* of the session that was saved */
    char checkpoint[256];           /* the path that its model was opened by */
    char architecture[64], precision[16], conventions[512], weights[32], prefill[16];
    char draft[32], draft_conventions[512]; /* the method, or "none" */
    int with_hidden;
    size_t drafter_bytes;           /* of its state */
} vb_session_info;
/* Reads the file's header and lines; with `check` all of it, comparing every checksum. Needs no model. */
int vb_session_info_read(vb_session_info *out, const char *path, int check, const vb_file_options *options, vb_error *err);

#endif
