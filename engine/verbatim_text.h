/* engine/verbatim_text.h -- tokenizers, UTF-8, chat templates; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_TEXT_H
#define VERBATIM_TEXT_H

/* Opens the byte-level BPE tokenizer of a checkpoint. `dir` is a GGUF file, or a directory with tokenizer.json,
 * tiktoken.model or tekken.json. `allocator` may be NULL. Returns VB_IO if the directory has none of these files.
 * Returns VB_UNSUPPORTED if the tokenizer uses a feature that is not implemented. An open tokenizer is read-only, and
 * threads may share it. The caller closes *out with vb_tokenizer_close. On an error *out is NULL. */
int vb_tokenizer_open(vb_tokenizer **out, const char *dir, const vb_allocator *allocator, vb_error *err);
void vb_tokenizer_close(vb_tokenizer *tokenizer);
/* Converts `size` bytes of text to token ids. Sets *count to the number of ids, and writes the first `room` of them to
 * `ids`. If *count is larger than `room`, call the function again with more room. If the text contains the name of a
 * special token, this name becomes a single id. BOS is not added. Returns VB_BAD_ARGUMENT if the text is not valid
 * UTF-8. */
int vb_encode(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room, size_t *count,
              vb_error *err);
/* Returns the bytes of the token with this id, and sets *size to their number. The bytes may be only a part of a UTF-8
 * character. Returns NULL if no token has this id. The memory belongs to the tokenizer. */
const char *vb_piece(const vb_tokenizer *tokenizer, int32_t id, size_t *size);
int32_t vb_bos_token(const vb_tokenizer *tokenizer); /* id of the BOS token; -1: there is none */
/* Returns VB_OK if two tokenizers have the same bytes for each id, the same BOS token and the same EOS token. Returns
 * VB_BAD_ARGUMENT if they differ, and the message names a difference. */
int vb_tokenizers_match(const vb_tokenizer *a, const vb_tokenizer *b, vb_error *err);
int vb_add_bos(const vb_tokenizer *tokenizer);       /* 1: a text should begin with BOS (add_bos_token of
                                                        tokenizer_config.json) */
int32_t vb_tokenizer_size(const vb_tokenizer *tokenizer); /* the largest token id plus 1 */
/* Returns a hash of the tokenizer: tokens, merges, added tokens and flags, and the patterns that cut text into words.
 * Two tokenizers with the same fingerprint give the same ids for each text and the same text for each id. */
uint64_t vb_tokenizer_fingerprint(const vb_tokenizer *tokenizer);
/* Does what vb_encode does, but encodes the names of special tokens like ordinary text. */
int vb_encode_plain(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room,
                    size_t *count, vb_error *err);

/* A decoder for UTF-8 text that arrives token by token. A token may end inside a character, so the decoder writes only
 * complete characters. Invalid bytes become U+FFFD. For a new stream, the caller sets the struct to zeros. */
typedef struct vb_utf8 {
    unsigned char pending[4]; /* the first `count` bytes of a character that is not complete yet */
    int count;
} vb_utf8;
/* Adds `size` bytes to the stream, writes all characters that are now complete to `out`, and returns how many bytes it
 * wrote. The caller provides `out` with room for 3 * (size + 4) bytes. */
size_t vb_utf8_push(vb_utf8 *stream, const char *bytes, size_t size, char *out);
/* Ends the stream. An incomplete character at the end becomes U+FFFD. Returns how many bytes it wrote to `out`, which
 * must have room for 12 bytes. The stream can then be used for another text. */
size_t vb_utf8_finish(vb_utf8 *stream, char *out);
/* Returns the offset of the first byte that is not valid UTF-8, or `size` if all bytes are valid. */
size_t vb_utf8_valid(const char *text, size_t size);

/* Opens the chat template of a checkpoint. Chat templates are written in Jinja2. A GGUF file stores the template under
 * the key tokenizer.chat_template. A directory stores it in the file chat_template.jinja, or, if there is no such file,
 * under the key chat_template of tokenizer_config.json. Returns VB_IO if the checkpoint has no template. Returns
 * VB_UNSUPPORTED if the template uses a part of Jinja2 that is not implemented; the message names this part.
 * `allocator` may be NULL. An open template is read-only, and threads may share it. */
typedef struct vb_template vb_template;
int vb_template_open(vb_template **out, const char *dir, const vb_allocator *allocator, vb_error *err);
void vb_template_close(vb_template *chat);
/* Returns the text of the template, followed by a 0 byte, and sets *size to its size in bytes; `size` may be NULL. The
 * memory belongs to the template. */
const char *vb_template_source(const vb_template *chat, size_t *size);
/* Renders the prompt for a conversation. `messages` is the JSON text of an array of objects, each of which has a
 * `role`; `size` is the length of this text in bytes. `variables` is NULL, or the JSON text of an object with more
 * variables for the template, such as tools, documents or enable_thinking. This object cannot replace the variable
 * `messages`.
 *
 * The prompt contains the names of special tokens as text, which vb_encode converts to single ids. *text has *text_size
 * bytes, followed by a 0 byte. The caller frees *text with vb_text_free. Returns VB_BAD_ARGUMENT if the JSON text is
 * invalid, or if the template raises an error. */
int vb_template_render(const vb_template *chat, const vb_tokenizer *tokenizer, const char *messages, size_t size,
                       int add_generation_prompt, const char *variables, char **text, size_t *text_size, vb_error *err);
void vb_text_free(char *text); /* frees a text that a function of this library returned; NULL is allowed */

#endif
