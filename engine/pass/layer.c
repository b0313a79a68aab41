/* engine/pass/layer.c -- one decoder layer and one MTP module, in the order of the DeepSeek-V3 report.
 *
 * A step computes one value, or several, of all rows of the pass (engine/pass/step.h). engine/model/values.c says from
 * what. A value that a layer does not have is left out: q_a_proj in a model without q_lora_rank, or the indexer in one
 * without sparse attention. */
#include "engine/pass/layer.h"

#include "engine/pass/attend.h"
#include "engine/pass/feed_forward.h"
#include "engine/pass/indexing.h"
#include "engine/pass/step.h"

/* ---- attention ---- */

/* Multi-head latent attention (2.1.1, equations 1 to 11), in the absorbed form of the DeepSeek-V2 report. */
static void attention_mla(struct pass *p)
{
    linears(p, Q_A, Q_PROJ, KV_A, INDEX_WK); /* c^Q (or q), c^KV with k^R, an indexer's key: they read one row */
    norm(p, Q_A_NORM);
    linear(p, Q_B);   /* q^C and q^R of each head */
    cache_rows(p);    /* RoPE; c^KV passes its norm; c^KV and k^R go to the cache */
    choose_tokens(p); /* sparse attention: the tokens that the indexer scores highest */
    attend(p);        /* softmax(q^T k / sqrt(n + r)) v of each head */
    linear(p, O_PROJ);
}

/* Grouped-query attention (Ainslie et al. 2023): the heads of a group share their keys and values. */
static void attention_gqa(struct pass *p)
{
    linears(p, Q_PROJ, K_PROJ, V_PROJ);
    cache_keys(p);     /* RoPE; keys and values go to the cache */
    attend_grouped(p); /* softmax(q^T k / sqrt(r)) v of each head */
    linear(p, O_PROJ);
}

static void (*const attention[])(struct pass *p) = {[ATTENTION_MLA] = attention_mla, [ATTENTION_GQA] = attention_gqa};

/* ---- feed-forward ---- */

/* Mixture of experts (2.1.2, equations 12 to 16). */
static void experts(struct pass *p)
{
    router_logits(p);  /* u^T e_i */
    route(p);          /* s_i, the experts with the largest s_i + b_i, and their weights g_i */
    routed_experts(p); /* sum of g_i FFN_i(u), and the shared experts */
}

/* ---- the layer ---- */

void layer_attention(struct pass *p)
{
    norm(p, INPUT_NORM);
    attention[p->l->kind](p);
    residual(p, MIDDLE);
}

void layer_feed_forward(struct pass *p)
{
    norm(p, POST_ATTENTION_NORM);
    p->l->is_moe ? experts(p) : dense_mlp(p);
    residual(p, LAYER_OUTPUT);
}

void decoder_layer(struct pass *p)
{
    layer_attention(p);
    layer_feed_forward(p);
}

/* ---- modules: what goes before and after their layer ---- */

/* An MTP module (2.2, equations 21 to 23). */
static void mtp_input(struct pass *p)
{
    embed_tokens(p, MODULE_EMBEDDING);
    norm(p, ENORM);
    norm(p, HNORM);
    join(p, EH_INPUT); /* [RMSNorm(Emb(t)) ; RMSNorm(h)] */
}

/* A parallel head reads the hidden state alone. */
static void parallel_input(struct pass *p) { begin_stream(p, HNORM_INPUT); }

/* EAGLE-1: the module without its norms. */
static void eagle1_input(struct pass *p)
{
    embed_tokens(p, MODULE_EMBEDDING);
    join(p, EH_INPUT); /* [Emb(t) ; h] */
}

/* EAGLE-3: attention reads the joined halves themselves, and the residual stream begins with h. */
static void eagle3_input(struct pass *p)
{
    mtp_input(p);
    begin_stream(p, p->module->norm_before_residual ? HNORM : HNORM_INPUT);
}

void module_input(struct pass *p)
{
    static void (*const input[])(struct pass *p) = {[MODULE_MTP] = mtp_input, [MODULE_PARALLEL] = parallel_input,
                                                    [MODULE_EAGLE1] = eagle1_input, [MODULE_EAGLE3] = eagle3_input};
    input[p->model->config.module_kind](p);
}

void module_projection(struct pass *p) { linear(p, EH_PROJ); }

void module_layer(struct pass *p)
{
    module_projection(p);
    decoder_layer(p);
}

void module_output(struct pass *p)
{
    p->model->config.module_kind == MODULE_EAGLE1 ? give_stream(p) : norm(p, MODULE_NORM);
}
