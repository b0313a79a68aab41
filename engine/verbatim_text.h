/* engine/verbatim_text.h -- tokenizers, UTF-8, chat templates; a part of the public interface.
 * verbatim.h includes this file; it cannot be used without it. */
#ifndef VERBATIM_TEXT_H
#define VERBATIM_TEXT_H

/* Text and ids, by DIR/tokenizer.json, DIR/tiktoken.model or a GGUF file's metadata (byte-level BPE). Read-only once open. */
int vb_tokenizer_open(vb_tokenizer **out, const char *dir, const vb_allocator *allocator, vb_error *err);
void vb_tokenizer_close(vb_tokenizer *tokenizer);
/* Ids of exactly this text, at most `room` of them to ids; *count is how many there are (more than room: call again).
 * Special tokens written in the text are recognised; BOS is not added. Invalid UTF-8 is VB_BAD_ARGUMENT. */
int vb_encode(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room, size_t *count,
              vb_error *err);
/* The bytes of one token, which may be a part of a character; NULL for an id without a token. */
const char *vb_piece(const vb_tokenizer *tokenizer, int32_t id, size_t *size);
int32_t vb_bos_token(const vb_tokenizer *tokenizer); /* -1: none */
/* Whether two models speak of the same tokens: the bytes of each id, BOS and EOS. VB_BAD_ARGUMENT says where they differ. */
int vb_tokenizers_match(const vb_tokenizer *a, const vb_tokenizer *b, vb_error *err);
int vb_add_bos(const vb_tokenizer *tokenizer);       /* whether a text should have it in front: add_bos_token */
int32_t vb_tokenizer_size(const vb_tokenizer *tokenizer); /* one more than the largest id */
/* vb_encode, but that tokens marked special are text like any other. */
int vb_encode_plain(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room, size_t *count,
                    vb_error *err);

/* Pieces of text as they come, joined to whole characters. Starts as zeros. Invalid bytes become U+FFFD. */
typedef struct vb_utf8 {
    unsigned char pending[4];
    int count;
} vb_utf8;
/* Writes the characters that `bytes` completes to out, which has room for 3 * (size + 4) bytes; returns how many bytes. */
size_t vb_utf8_push(vb_utf8 *stream, const char *bytes, size_t size, char *out);
/* At the end: an unfinished character becomes U+FFFD. out has room for 12 bytes. The stream begins anew. */
size_t vb_utf8_finish(vb_utf8 *stream, char *out);
/* The offset of the first byte that is not valid UTF-8; `size` where all is valid. */
size_t vb_utf8_valid(const char *text, size_t size);

/* A checkpoint's chat template, a part of Jinja2: DIR/chat_template.jinja, else chat_template of tokenizer_config.json, or
 * tokenizer.chat_template of a GGUF file. None is VB_IO; one that uses what is not implemented is VB_UNSUPPORTED and names
 * it. Read-only once open. */
typedef struct chat_template vb_template;
int vb_template_open(vb_template **out, const char *dir, const vb_allocator *allocator, vb_error *err);
void vb_template_close(vb_template *chat);
/* The prompt for a conversation. messages: a JSON array of objects with a `role`, `size` bytes. variables: NULL, or a JSON object
 * whose members the template sees too (tools, documents, enable_thinking ...); messages stay messages. The text has the
 * special tokens written out: vb_encode recognises them. What the template raises is VB_BAD_ARGUMENT.
 * *text, *text_size bytes and a 0 byte behind, is freed with vb_text_free. */
int vb_template_render(const vb_template *chat, const vb_tokenizer *tokenizer, const char *messages, size_t size,
                       int add_generation_prompt, const char *variables, char **text, size_t *text_size, vb_error *err);
void vb_text_free(char *text); /* a text that this library returned; NULL is allowed */

#endif
