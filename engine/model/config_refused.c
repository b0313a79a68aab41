/* engine/model/config_refused.c -- the architectures that a user may well try, and why they are refused.
 * docs/ROADMAP.md says what each of them would take. */
#include "engine/model/config_reader.h"

#include <string.h>

static const struct {
    const char *architecture, *gguf; /* the name in config.json, and general.architecture of a GGUF file; NULL: there is
                                        none */
    const char *why;
} refused[] = {
    {"DeepseekV4ForCausalLM", "deepseek4",
     "the compressed sparse attention and hyper-connections of DeepSeek-V4 are not computed here"},
    {"LongcatFlashForCausalLM", NULL, "the zero experts of LongCat are not computed here"},
    {"KimiLinearForCausalLM", "kimi-linear", "the linear attention of Kimi-Linear is not computed here"},
    {"Qwen3NextForCausalLM", "qwen3next", "the linear attention of Qwen3-Next is not computed here"},
    {"BailingHybridForCausalLM", NULL, "the linear attention of Bailing's hybrid models is not computed here"},
    {"Glm5NextForConditionalGeneration", NULL, "the linear attention of GLM-5.3-Flash is not computed here"},
    {"MistralLarge4ForConditionalGeneration", NULL,
     "the layers without RoPE, and with the cache of another layer, of Mistral Large 4 "
     "are not computed here"},
    {NULL, "deepseek", "the first DeepSeek MoE models have no latent attention (MLA)"},
    {NULL, "deepseek2-ocr", "the language model of DeepSeek-OCR has no latent attention (MLA)"},
    {NULL, "glm4", "GLM-4 has no latent attention (MLA)"},
    {NULL, "glm4moe",
     "GLM-4.5 to 4.7 have no latent attention (MLA), except for GLM-4.7-Flash, whose architecture is deepseek2"},
    {NULL, "mistral3", "Mistral 3 and Ministral have no latent attention (MLA)"},
    {NULL, "minicpm3", "the scaled embeddings and residuals of MiniCPM3 are not computed here"},
    {NULL, "plm", "the squared ReLU of PLM is not computed here"},
    {NULL, "clip", "it holds a vision tower, and only text is computed"},
};

const char *config_why_refused(const char *name, size_t size, int gguf)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *known = gguf ? refused[i].gguf : refused[i].architecture;
        if (known && strlen(known) == size && !memcmp(known, name, size))
            return refused[i].why;
    }
    return NULL;
}
