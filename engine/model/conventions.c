/* engine/model/conventions.c -- the table of conventions, the table of systems, and the parser for lists of
 * conventions. */
#include "engine/model/conventions.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/support.h"

static const struct convention_row rows[CONVENTIONS] = {
    [MAIN_HIDDEN] = {"main-hidden", {"post-norm", "pre-norm", 0},
                     "post: vLLM, SGLang, TensorRT-LLM, Megatron, llama.cpp; pre: MindIE", 0},
    [DRAFT_HIDDEN] = {"draft-hidden", {"post-norm", "pre-norm", 0},
                      "post: SGLang, TensorRT-LLM, Megatron, llama.cpp, vLLM since 2026; pre: vLLM before, MindIE", 0},
    [CONCAT] = {"concat", {"embedding-hidden", "hidden-embedding", 0},
                "embedding first: all DeepSeek code; hidden first: the paper's formula, MiMo", 0},
    [DRAFT_POSITION] = {"draft-position", {"hidden", "token", 0},
                        "hidden: vLLM, SGLang, TensorRT-LLM, Megatron; token: MindIE's code, llama.cpp", 0},
    [FIRST_EMBEDDING] = {"first-embedding", {"kept", "zeroed"}, "zeroed: vLLM", 0},
    [FIRST_ROW] = {"first-row", {"none", "phantom"}, "phantom: llama.cpp", 0},
    [PREFILL_DRAFT] = {"prefill-draft", {"used", "discarded"}, "discarded: MindIE", 0},
    [MISSING_HIDDEN] = {"missing-hidden", {"sent", "zeros"},
                        "zeros, in a dummy slot: MindIE, when another machine computed the prompt", 0},
    [MODULE_HIDDEN] = {"module-hidden", {"module", "target"},
                       "module: the paper, Megatron; target: TensorRT-LLM's MTP Vanilla", 0},
    [CHAIN_MODULE] = {"chain-module", {"first", "step", 0},
                      "first: vLLM since V1, SGLang, TensorRT-LLM's MTP Eagle, llama.cpp; step (k mod D): vLLM V0 and "
                      "the model code of vLLM (spec_step_idx)", 0},
    [MTP_INDEXER] = {"mtp-indexer", {"own", "none"}, "none: llama.cpp", 1},
    [MTP_SET] = {"mtp-set", {"config", "own", "first"}, "config: vLLM, SGLang", 1},
    [LATENT_EPS] = {"latent-eps", {"1e-6", "config"},
                    "1e-6: Hugging Face's class default; config: vLLM, SGLang, llama.cpp", 0},
    [GROUP_MASK] = {"group-mask", {"inf", "zero"}, "zero: older Hugging Face code", 0},
    [NORMALISER_EPS] = {"normaliser-eps", {"0", "1e-20", "6.1e-5"},
                        "1e-20: Hugging Face; 6.1e-5 (the least sum): llama.cpp", 0},
    [YARN] = {"yarn", {"config", "max-len"}, "max-len: the official script", 0},
    [YARN_SCALE] = {"yarn-scale", {"config", "always", "never", 0},
                    "always: for Mistral 4, Hugging Face since July 2026, llama.cpp, SGLang before May 2026; never: "
                    "Hugging Face's DeepSeek-V2 before July 2026", 0},
    [ROPE_ANGLE] = {"rope-angle", {"f64", "f32"}, "f32: the official script, Hugging Face", 0},
    [GATE] = {"gate", {"f32", "bf16"}, "bf16: the official V3 script; f32: Hugging Face", 0},
    [INDEXER_ROPE] = {"indexer-rope", {"config", "pairs", "halves"},
                      "pairs: the first V3.2-Exp script, a known bug; config: all others", 1},
    [INDEXER_CODES] = {"indexer-codes", {"hadamard-fp8", "fp8", "hadamard", "none", 0},
                       "hadamard-fp8: the official script, SGLang; fp8: vLLM; hadamard: llama.cpp; none: Hugging "
                       "Face", 1},
    [INDEXER_WEIGHTS] = {"indexer-weights", {"f32", "bf16"},
                         "bf16: the first V3.2-Exp script; f32: the later script, Hugging Face", 1},
    [INDEXER_SCORES] = {"indexer-scores", {"f32", "bf16"}, "f32: the official script, Hugging Face; bf16: oMLX", 1},
    [INDEXER_TIES] = {"indexer-ties", {"lowest", "highest"},
                      "lowest: AITER; undefined in torch.topk, on which most rely", 1},
    [LATENT_CACHE] = {"latent-cache", {"as-is", "fp8"},
                      "fp8: the later official script; as-is: the first one, Hugging Face", 1},
};

static const struct convention_preset presets[] = {
    {"vllm-2025", "draft-hidden=pre-norm,first-embedding=zeroed,latent-eps=config,indexer-codes=fp8", "mtp-eagle",
     "hands on a module's row before shared_head.norm; zeroes the embedding at position 0"},
    {"vllm-2026", "first-embedding=zeroed,latent-eps=config,indexer-codes=fp8", "mtp-eagle",
     "as vllm-2025, the row after the norm"},
    {"sglang", "latent-eps=config", "mtp-eagle", "norms of the latents take config.json's eps"},
    {"tensorrt-llm", "module-hidden=target", "mtp-eagle",
     "with use_mtp_vanilla it drafts with mtp-vanilla, whose modules read the target's hidden states; one module has "
     "no such choice"},
    {"mindie", "main-hidden=pre-norm,draft-hidden=pre-norm,draft-position=token,prefill-draft=discarded",
     "eagle-reroll",
     "its graph hands on rows before the norm; its code counts positions by token, though its documentation shows a "
     "prompt's from 0; missing-hidden=zeros when another machine computed the prompt"},
    {"llama.cpp",
     "draft-position=token,first-row=phantom,latent-eps=config,normaliser-eps=6.1e-5,yarn-scale=always,indexer-codes="
     "hadamard,mtp-indexer=none",
     "mtp-eagle", "positions are those of the batch's tokens; the first pair has a zero hidden state"},
    {"paper", "concat=hidden-embedding", "mtp-vanilla",
     "eq. 21 of the DeepSeek-V3 report writes the hidden state first"},
    {"transformers", "normaliser-eps=1e-20,yarn-scale=always,rope-angle=f32,indexer-codes=none,mtp-set=own", "none",
     "modeling_deepseek_v3.py, modeling_deepseek_v32.py; these have no MTP layer"},
    {"official", "yarn=max-len,rope-angle=f32,gate=bf16", "none",
     "DeepSeek-V3's inference script; it has no MTP layer"},
    {"official-v3.2", "yarn=max-len,rope-angle=f32,latent-cache=fp8", "none",
     "inference script of DeepSeek-V3.2 since November 2025; its router computes in f32"},
};

const struct convention_row *convention_row(size_t i) { return i < CONVENTIONS ? &rows[i] : NULL; }
const struct convention_preset *convention_preset(size_t i)
{
    return i < sizeof presets / sizeof *presets ? &presets[i] : NULL;
}

static int is(const char *name, const char *text, size_t size)
{
    return strlen(name) == size && !memcmp(name, text, size);
}

/* Appends an item to a list such as "a, b, c". */
static void append(char *text, size_t room, const char *item)
{
    size_t used = strlen(text);
    snprintf(text + used, room - used, "%s%s", used ? ", " : "", item);
}

static int unknown_name(const char *name, size_t size, vb_error *err)
{
    char known[384] = "as";
    for (size_t i = 0; i < CONVENTIONS; i++)
        append(known, sizeof known, rows[i].name);
    return vb_fail(err, VB_BAD_ARGUMENT, "unknown convention %.*s; known are %s", size < 40 ? (int)size : 40, name,
                   known);
}

static int preset(struct conventions *c, const char *value, size_t size, vb_error *err)
{
    char known[384] = "";
    for (size_t i = 0; convention_preset(i); i++) {
        if (is(presets[i].name, value, size))
            return conventions_parse(c, presets[i].list, err);
        append(known, sizeof known, presets[i].name);
    }
    return vb_fail(err, VB_BAD_ARGUMENT, "unknown system %.*s; known are %s", size < 40 ? (int)size : 40, value, known);
}

static int set(struct conventions *c, const char *name, size_t name_size, const char *value, size_t size, vb_error *err)
{
    char known[128] = "";
    size_t i = 0;
    if (is("as", name, name_size))
        return preset(c, value, size, err);
    while (i < CONVENTIONS && !is(rows[i].name, name, name_size))
        i++;
    if (i == CONVENTIONS)
        return unknown_name(name, name_size, err);
    for (unsigned char v = 0; rows[i].values[v]; v++) {
        if (is(rows[i].values[v], value, size)) {
            c->value[i] = v;
            return VB_OK;
        }
        append(known, sizeof known, rows[i].values[v]);
    }
    return vb_fail(err, VB_BAD_ARGUMENT, "convention %s is %.*s; known are %s", rows[i].name,
                   size < 40 ? (int)size : 40, value, known);
}

int conventions_parse(struct conventions *c, const char *list, vb_error *err)
{
    int code = VB_OK;
    for (const char *p = list ? list : ""; *p && !code;) {
        size_t size = strcspn(p, ","), name = strcspn(p, "=,");
        if (name == size)
            return vb_fail(err, VB_BAD_ARGUMENT, "convention %.*s has no value; wanted name=value",
                           size < 40 ? (int)size : 40, p);
        code = set(c, p, name, p + name + 1, size - name - 1, err);
        p += size;
        p += *p == ',';
    }
    return code;
}

void conventions_list(const struct conventions *c, char *list, size_t room)
{
    size_t used = 0;
    list[0] = '\0';
    for (size_t i = 0; i < CONVENTIONS; i++)
        if (c->value[i] && used < room)
            used += (size_t)snprintf(list + used, room - used, "%s%s=%s", used ? "," : "", rows[i].name,
                                     rows[i].values[c->value[i]]);
}

/* Does what conventions_list does, for conventions [first, end) only. */
static void list_some(const struct conventions *c, size_t first, size_t end, char *list, size_t room)
{
    struct conventions some = {{0}};
    memcpy(some.value + first, c->value + first, end - first);
    conventions_list(&some, list, room);
}

void conventions_list_draft(const struct conventions *c, char *list, size_t room)
{
    list_some(c, 0, FIRST_TARGET_CONVENTION, list, room);
}

void conventions_list_target(const struct conventions *c, char *list, size_t room)
{
    list_some(c, FIRST_TARGET_CONVENTION, CONVENTIONS, list, room);
}
