/* tests/engine/test_offload.c -- which parts of a model a device computes (engine/model/offload.h), chosen from the
 * sizes of its tensors alone. Runs in the repository's root. */
#include "engine/model/offload.h"

#include "tests/support/engine_support.h"
#include "tests/support/tiny.h"

#define MOST_LAYERS 64
#define STEPS 60 /* sizes of the device's memory */

static const char *const tiny[] = {TINY_CHECKPOINTS(TINY_PATH) TINY_WITH_INDEXER(TINY_PATH)};

struct sizes {
    int L;
    size_t attention[MOST_LAYERS], mlp[MOST_LAYERS], all; /* bytes of layers; `all`: of all tensors */
    size_t read[MOST_LAYERS];                             /* bytes of the mlp that are read for one token */
    int is_moe[MOST_LAYERS];
    size_t ends;                                          /* bytes of all other tensors */
};

static struct sizes sizes_of(const struct config *c, const struct checkpoint *tensors)
{
    struct sizes s = {.L = c->num_hidden_layers};
    assert_true(s.L <= MOST_LAYERS);
    for (size_t i = 0; i < checkpoint_count(tensors); i++) {
        const struct tensor *t = checkpoint_at(tensors, i);
        int layer = strncmp(t->name, "model.layers.", 13) ? s.L : atoi(t->name + 13);
        s.all += t->bytes;
        if (layer >= s.L)
            s.ends += t->bytes;
        else if (!strstr(t->name, ".mlp."))
            s.attention[layer] += t->bytes;
        else {
            int routed = strstr(t->name, ".mlp.experts.") != NULL;
            s.mlp[layer] += t->bytes;
            s.read[layer] += routed ? t->bytes * (size_t)c->num_experts_per_tok / (size_t)c->n_routed_experts
                                    : t->bytes;
            s.is_moe[layer] |= routed;
        }
    }
    return s;
}

/* Whether attention and dense layers from number a on, and experts from number f on, fit into `room` bytes with the
 * ends. If they do, *read: the bytes that the CPU then reads for a token. */
static int fits(const struct sizes *s, int a, int f, int experts, size_t room, size_t *read)
{
    size_t bytes = s->ends;
    *read = 0;
    for (int l = 0; l < s->L; l++) {
        int has_mlp = s->is_moe[l] ? experts && l >= f : l >= a;
        bytes += (l >= a ? s->attention[l] : 0) + (has_mlp ? s->mlp[l] : 0);
        *read += (l >= a ? 0 : s->attention[l]) + (has_mlp ? 0 : s->read[l]);
    }
    return bytes <= room;
}

/* The fewest bytes that the CPU reads for a token, with as many whole layers as fit, or with attention before experts;
 * SIZE_MAX if the ends do not fit. */
static size_t fewest_bytes(const struct sizes *s, int experts, size_t room)
{
    size_t best = SIZE_MAX, read;
    int first = s->L;
    while (first && fits(s, first - 1, s->L, experts, room, &read))
        first--;
    for (int l = 0; l <= s->L; l++) {
        if (fits(s, l, l, experts, room, &read) && read < best)
            best = read;
        if (l >= first && fits(s, first, l, experts, room, &read) && read < best)
            best = read;
    }
    return best;
}

/* Tries many sizes of memory. Returns for how many of them the choice had attention before experts. */
static int check_choices(const char *name, const struct config *c, const struct checkpoint *tensors, int experts)
{
    struct sizes s = sizes_of(c, tensors);
    int parts = 0;
    for (size_t i = 0; i <= STEPS; i++) {
        size_t room = s.all / STEPS * i * 7 / 6, read;
        struct device d = {.memory = room + 1000, .taken = 1000}; /* of which an eighth stays free */
        struct offload_options o = {.device = &d, .layers = OFFLOAD_AUTO, .without_experts = !experts};
        struct offload_plan plan = offload_choose(&o, c, tensors);
        room -= room / 8;
        size_t best = fewest_bytes(&s, experts, room);
        if (plan.ends != (best < SIZE_MAX))
            fail_msg("%s, room for %zu of %zu bytes: the head is on the %s", name, room, s.all,
                     plan.ends ? "device" : "CPU");
        if (!plan.ends) {
            assert_true(plan.first_layer == s.L && plan.first_attention == s.L);
            continue;
        }
        if (!fits(&s, plan.first_attention, plan.first_layer, experts, room, &read))
            fail_msg("%s: attention from layer %d and experts from layer %d do not fit into %zu bytes", name,
                     plan.first_attention, plan.first_layer, room);
        if (read != best)
            fail_msg("%s, room for %zu bytes: the CPU reads %zu bytes for a token, and %zu is possible", name, room,
                     read, best);
        assert_true(plan.without_experts == !experts && plan.first_attention <= plan.first_layer);
        parts += plan.first_attention < plan.first_layer;
    }
    return parts;
}

TEST(auto_leaves_the_cpu_as_few_bytes_as_possible)
{
    for (size_t i = 0; i < COUNT(tiny); i++) {
        vb_model *m = open_model(tiny[i]);
        for (int experts = 0; experts < 2; experts++)
            check_choices(tiny[i], &m->config, m->checkpoint, experts);
        vb_model_close(m);
    }
}

/* Of the many experts of this model a token reads few, so attention comes first wherever not all fits. */
TEST(auto_puts_the_attention_of_a_large_model_before_its_experts)
{
    json_error_t why;
    json_t *all = json_load_file("golden/published/configs.json", 0, &why);
    char dir[64], *text = json_dumps(json_object_get(all, "DeepSeek-V3"), 0);
    struct vb_model *m;
    int from_config;
    assert_non_null(text);
    make_dir(dir);
    write_text(dir, "config.json", text);
    OK(model_open_shapes(&m, dir, "bf16", &(struct model_options){.threads = 1}, &from_config, NULL, &err));
    assert_true(check_choices("DeepSeek-V3", &m->config, m->checkpoint, 1) > STEPS / 2);
    model_close(m);
    remove_dir(dir);
    free(text);
    json_decref(all);
}

TEST(layers_are_counted_from_the_last)
{
    vb_model *m = open_model("golden/tiny/v3");
    struct device d = {.memory = 1}; /* what was asked for is not compared with the memory here */
    int L = m->config.num_hidden_layers;
    for (int n = 0; n <= L + 2; n++) {
        struct offload_plan plan = offload_choose(&(struct offload_options){.device = &d, .layers = n}, &m->config,
                                                  m->checkpoint);
        assert_int_equal(plan.first_layer, n < L ? L - n : 0);
        assert_int_equal(plan.first_attention, plan.first_layer);
        assert_int_equal(plan.ends, n > L);
    }
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(auto_leaves_the_cpu_as_few_bytes_as_possible),
                                       cmocka_unit_test(auto_puts_the_attention_of_a_large_model_before_its_experts),
                                       cmocka_unit_test(layers_are_counted_from_the_last)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
