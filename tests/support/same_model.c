/* tests/support/same_model.c -- checks that two models are equal. */
#include "tests/support/same_model.h"

void check_same_runs(const char *what, const vb_model *directory, const vb_model *file)
{
    static struct record x, y;
    int32_t prompt[40];
    int modules = vb_mtp_modules(directory);
    random_tokens(directory, 7, prompt, COUNT(prompt));
    vb_session_options o = {.threads = 1, .drafting.method = modules ? "mtp-eagle" : "none", .drafting.tokens = 2,
                            .context = COUNT(prompt) + 12};
    assert_int_equal(vb_mtp_modules(file), modules);
    run(directory, &o, prompt, COUNT(prompt), 12, &x);
    run(file, &o, prompt, COUNT(prompt), 12, &y);
    check_same(what, &x, &y);
}

void check_same_real(const char *what, const char *key, double directory, double file)
{
    if (memcmp(&directory, &file, sizeof file))
        fail_msg("%s: %s is %.17g in the file, %.17g in config.json", what, key, file, directory);
}

void check_same_config(const char *what, const struct config *directory, const struct config *file)
{
    const struct config *a = directory, *b = file;
    const char *key;
    char x[32], y[32];
    int preset;
    for (size_t k = 0; config_row(a, k, &key, x, &preset); k++) {
        assert_true(config_row(b, k, &key, y, &preset));
        if (strcmp(x, y))
            fail_msg("%s: %s is %s in the file, %s in config.json", what, key, y, x);
    }
    check_same_real(what, "rms_norm_eps", a->rms_norm_eps, b->rms_norm_eps);
    check_same_real(what, "rope_theta", a->rope_theta, b->rope_theta);
    check_same_real(what, "routed_scaling_factor", a->routed_scaling_factor, b->routed_scaling_factor);
    check_same_real(what, "factor", a->rope_factor, b->rope_factor);
    check_same_real(what, "beta_fast", a->rope_beta_fast, b->rope_beta_fast);
    check_same_real(what, "beta_slow", a->rope_beta_slow, b->rope_beta_slow);
    check_same_real(what, "mscale", a->rope_mscale, b->rope_mscale);
    check_same_real(what, "mscale_all_dim", a->rope_mscale_all_dim, b->rope_mscale_all_dim);
    check_same_real(what, "the scale", config_attention_scale_f64(a), config_attention_scale_f64(b));
    assert_int_equal(a->rope_yarn, b->rope_yarn);
    assert_int_equal(a->rope_original_max_position_embeddings, b->rope_original_max_position_embeddings);
    assert_memory_equal(a->shared_set, b->shared_set, sizeof a->shared_set);
    assert_int_equal(a->num_eos, b->num_eos);
    assert_memory_equal(a->eos_token_ids, b->eos_token_ids, (size_t)a->num_eos * sizeof *a->eos_token_ids);
    assert_true(b->gguf && !b->no_groups && !b->no_query_scale);
}

void check_same_ids(const struct vb_tokenizer *a, const struct vb_tokenizer *b, const char *text, int parse_special)
{
    int32_t *x, *y;
    size_t n, m;
    OK(tokenizer_encode(a, text, strlen(text), parse_special, &x, &n, &err));
    OK(tokenizer_encode(b, text, strlen(text), parse_special, &y, &m, &err));
    if (n != m || memcmp(x, y, n * sizeof *x))
        fail_msg("other ids for \"%s\"", text);
    vb_free(NULL, x);
    vb_free(NULL, y);
}

void check_same_texts(const struct vb_tokenizer *a, const struct vb_tokenizer *b)
{
    static const char *const texts[] = {
        "",
        "Once upon a time there was a miller",
        "  two  spaces\t\tand\n\nlines \r\n",
        "12345 1 22 333 4444",
        "it's o'clock, isn't it?!",
        "<|begin_of_sentence|>Hansel<|end_of_sentence|> ",
        "<|begin|>a<|hole|>b<|end|>",
        "\u00e9t\u00e9 \u4e2d\u6587\u3042 \u1e9e\u01c5",
        "a.b(c)[d]{e}; #!$%&'*+,-./",
        "\U0001F600\u200d\ufe0f",
        "[PAD1023]",
    };
    for (size_t i = 0; i < COUNT(texts); i++)
        for (int special = 0; special < 2; special++)
            check_same_ids(a, b, texts[i], special);
}

void check_same_tokenizer(const struct vb_tokenizer *a, const struct vb_tokenizer *b, int32_t size)
{
    for (int32_t id = 0; id < size; id++) {
        size_t n, m;
        const char *x = tokenizer_piece(a, id, &n), *y = tokenizer_piece(b, id, &m);
        if (!x != !y || (x && (n != m || memcmp(x, y, n))))
            fail_msg("token %d is another", (int)id);
        assert_int_equal(tokenizer_is_special(a, id), tokenizer_is_special(b, id));
    }
    assert_int_equal(tokenizer_bos(a), tokenizer_bos(b));
    assert_int_equal(tokenizer_eos(a), tokenizer_eos(b));
    assert_int_equal(tokenizer_add_bos(a), tokenizer_add_bos(b));
    check_same_texts(a, b);
}
