/* engine/verbatim_text.h -- tokenizers, UTF-8, chat templates; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_TEXT_H
#define VERBATIM_TEXT_H

/* Opens the byte-level BPE tokenizer of a checkpoint. `dir` is a GGUF file, or a directory with tokenizer.json or
 * tiktoken.model. `allocator` may be NULL. A directory with neither file is VB_IO. A tokenizer that needs something that is
 * not implemented is VB_UNSUPPORTED. An open tokenizer is read-only, and threads may share it. The caller closes *out; on
 * an error it is NULL. */
int vb_tokenizer_open(vb_tokenizer **out, const char *dir, const vb_allocator *allocator, vb_error *err);
void vb_tokenizer_close(vb_tokenizer *tokenizer);
/* Converts `size` bytes of text to token ids. Writes at most `room` ids to `ids`, and the number of all ids to *count. If
 * *count is larger than `room`, call the function again with more room. Special tokens that are written in the text become
 * single ids. BOS is not added. Invalid UTF-8 is VB_BAD_ARGUMENT. */
int vb_encode(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room, size_t *count,
              vb_error *err);
/* Returns the bytes of one token, and their number in *size. The bytes may be only a part of a UTF-8 character. Returns
 * NULL if no token has this id. The memory belongs to the tokenizer. */
const char *vb_piece(const vb_tokenizer *tokenizer, int32_t id, size_t *size);
int32_t vb_bos_token(const vb_tokenizer *tokenizer); /* id of the BOS token; -1: there is none */
/* Returns VB_OK if two tokenizers have the same tokens: the same bytes for each id, the same BOS and the same EOS. If the
 * tokenizers differ, returns VB_BAD_ARGUMENT, and the message names a difference. */
int vb_tokenizers_match(const vb_tokenizer *a, const vb_tokenizer *b, vb_error *err);
int vb_add_bos(const vb_tokenizer *tokenizer);       /* 1: a text should begin with BOS (add_bos_token of tokenizer_config.json) */
int32_t vb_tokenizer_size(const vb_tokenizer *tokenizer); /* the largest token id plus 1 */
/* Does what vb_encode does, but encodes special tokens that are written in the text like ordinary text. */
int vb_encode_plain(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room, size_t *count,
                    vb_error *err);

/* A stream decoder for text that arrives token by token. A token may end inside a character, so only complete characters
 * are written. Invalid bytes become U+FFFD. A new stream is all zeros. */
typedef struct vb_utf8 {
    unsigned char pending[4]; /* the first `count` bytes of a character that is not complete yet */
    int count;
} vb_utf8;
/* Adds `size` bytes to the stream, writes all characters that are now complete to `out`, and returns how many bytes it
 * wrote. The caller provides `out` with room for 3 * (size + 4) bytes. */
size_t vb_utf8_push(vb_utf8 *stream, const char *bytes, size_t size, char *out);
/* Ends the stream: an incomplete character becomes U+FFFD. Returns how many bytes it wrote to `out`, which has room for 12.
 * The stream can then be used for another text. */
size_t vb_utf8_finish(vb_utf8 *stream, char *out);
/* Returns the offset of the first byte that is not valid UTF-8, or `size` if all bytes are valid. */
size_t vb_utf8_valid(const char *text, size_t size);

/* Opens the chat template of a checkpoint, which is written in Jinja2. In a GGUF file it is the key
 * tokenizer.chat_template. In a directory it is chat_template.jinja, or else chat_template in tokenizer_config.json. A
 * checkpoint without a template is VB_IO. A template that uses a part of Jinja2 that is not implemented is VB_UNSUPPORTED;
 * the message names it. `allocator` may be NULL. An open template is read-only, and threads may share it. */
typedef struct chat_template vb_template;
int vb_template_open(vb_template **out, const char *dir, const vb_allocator *allocator, vb_error *err);
void vb_template_close(vb_template *chat);
/* Renders the prompt for a conversation. `messages` is the text, `size` bytes long, of a JSON array of objects that have a
 * `role`. `variables` is NULL or the text of a JSON object with more variables for the template, such as tools, documents
 * or enable_thinking; it cannot replace the messages.
 *
 * The prompt contains special tokens as text, which vb_encode recognises. *text has *text_size bytes, followed by a 0 byte.
 * The caller frees it with vb_text_free. Wrong JSON, and an error that the template raises, are VB_BAD_ARGUMENT. */
int vb_template_render(const vb_template *chat, const vb_tokenizer *tokenizer, const char *messages, size_t size,
                       int add_generation_prompt, const char *variables, char **text, size_t *text_size, vb_error *err);
void vb_text_free(char *text); /* frees a text that a function of this library returned; NULL is allowed */

#endif
