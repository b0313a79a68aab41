/* engine/verbatim_device.h -- a GPU that computes parts of a model; a part of the public interface. verbatim.h includes
 * this file. Programs include only verbatim.h.
 *
 * The GPU computes decoder layers, MTP modules and the output head, and the CPU computes the rest. Results have the
 * same bits as without a GPU. Weights are copied to the GPU's memory when the model is opened. The KV cache rows of
 * layers whose attention the GPU computes are in its memory, too.
 *
 * The CPU computes everything in passes with taps, with forced or recorded routes, and with prefill "expanded" or
 * "onednn". EAGLE heads are computed by the CPU. A draft model has its own vb_model_options.offload, which says what
 * the GPU computes of it. */
#ifndef VERBATIM_DEVICE_H
#define VERBATIM_DEVICE_H

/* vb_session_options.prefill "cublas", for performance: in passes over the prompt, cuBLAS multiplies the matrices of
 * the layers that the GPU computes, in BF16 with sums in f32. So weights that are not BF16 are rounded to it. It
 * multiplies no quantized matrices, and not W_uk and W_uv. The prompt is computed in chunks of 512 tokens, and rows of
 * vb_evaluate count as rows of a prompt. Results have other bits, which depend on the version of cuBLAS, on the kind of
 * GPU and on which layers it computes, but not on drafts, threads or `isa`. cuBLAS is opened with the first such
 * session: libcublas.so.13, .12 or .11. Taps, forced and recorded routes, and batches do not go with it. It has not yet
 * run on a GPU. */

/* vb_model_options.precision "tensor", for performance: weights are those of "bf16", and in all passes the GPU's tensor
 * cores multiply the matrices that it has, but not quantized ones, and not W_uk and W_uv. Results have other bits than
 * with "bf16". They depend on the kind of GPU and on which parts of the model it computes, but not on drafts, batches,
 * chunks, threads or `isa`. The GPU must have tensor cores for BF16 (compute capability 8.0). Taps, forced and recorded
 * routes, and prefill "expanded" and "onednn" do not go with it. It has not yet run on a GPU. */

/* Used as vb_model_options.offload. */
typedef struct vb_offload {
    size_t size;             /* sizeof(vb_offload), or 0 */
    /* "cuda" or "cuda:N": NVIDIA GPU number N (0), an error if it cannot be used. "auto" or "auto:N": that GPU if it
     * can be used, else the CPU. NULL or "cpu": the CPU. */
    const char *device;
    int32_t layers;          /* how many decoder layers the GPU computes, counted from the last one. More than the model
                                has: the output head and the MTP modules, too. VB_OFFLOAD_AUTO: these, and what fits
                                into the GPU's memory: whole layers, or attention before experts, whichever leaves fewer
                                bytes that the CPU reads for a token */
    int32_t without_experts; /* 1: the feed-forward part of layers with experts stays on the CPU */
} vb_offload;
#define VB_OFFLOAD_AUTO (-1)

typedef struct vb_device_facts {
    char name[128];      /* the GPU's name; empty if there is none */
    char why_not[256];   /* with "auto": why there is none */
    size_t memory;       /* bytes of its memory that were free when the model was opened */
    size_t taken;        /* bytes that Verbatim uses now: weights, caches, numbers of passes */
    size_t weight_bytes; /* bytes of weights that were copied to it */
    int32_t layers, all_layers; /* number of decoder layers that it computes, and that the model has */
    int32_t attentions;  /* number of layers of which it computes the attention: `layers`, or more with
                            VB_OFFLOAD_AUTO */
    int32_t heads;       /* 1: it computes the output head and the MTP modules, too */
    int32_t no_memory;   /* 1: it had no memory for the cache of a session, whose attention the CPU computes then, or,
                            with "auto", for the numbers of its passes, which the CPU computes then. Without "auto", the
                            latter is an error */
} vb_device_facts;
void vb_device_look_sized(const vb_model *model, vb_device_facts *out, size_t size);
static inline void vb_device_look(const vb_model *model, vb_device_facts *out)
{
    vb_device_look_sized(model, out, sizeof *out);
}

#endif
