/* tools/cli/options_train.c -- the options of `train`. Those with Megatron's names have the meaning that they have
 * there.
 *
 * Below TRAIN_OPTIONS stands what the trained weights depend on: it cannot change when a run is resumed. Below
 * RUN_OPTIONS stands what may change (tools/training/settings.c). */
#include <stddef.h>

#include "tools/cli/options.h"

#define AT(field) offsetof(struct cli, field)
#define TRAIN(field) offsetof(struct cli, train.field)
#define MOST (1ll << 40)

const struct option options_to_train[] = {
    /* ---- what is trained ---- */
    {"--part", NULL, "PART", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(part), 0, 0,
     "Train only the MTP modules, and leave the rest of the model as it is (modules), or train parallel heads or an "
     "EAGLE head of a model that stays as it is (parallel-heads, eagle, eagle3), or train every weight (model), or "
     "every weight and parallel heads (model-with-heads; default modules)."},
    {"--from-scratch", NULL, NULL, TRAIN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(from_scratch), 0, 0,
     "Begin with random weights everywhere, as --part model. MODEL needs no weights: its config.json gives the shape "
     "of the model. DIR/initial becomes the model before the first step."},
    {"--mtp-num-layers", NULL, "D", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(depths), 0, VB_MAX_DRAFT,
     "Train D depths: depth k drafts the token k+2 places after a row (default: as many as the checkpoint has MTP "
     "modules, or 1). With 0 and --part model, no module is trained. For parallel heads, D is their number (default: "
     "as many as --heads has, or 3). For EAGLE heads with the loss hass or eagle3, the default is 3."},
    {"--mtp-modules", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(modules), 1, VB_MAX_DRAFT,
     "Let the trained model have N MTP modules; depth k uses module k mod N (default: as many as the checkpoint has; "
     "if it has none, --mtp-num-layers, or 1 if the loss runs one module at every depth). Modules that the checkpoint "
     "lacks begin with random weights."},
    {"--mtp-new", NULL, NULL, TRAIN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(new_modules), 0, 0,
     "Begin with random weights in all MTP modules, even if the checkpoint has modules."},
    {"--mtp-weights", NULL, "FILE", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(mtp_weights), 0, 0,
     "Begin with the weights of MTP modules in this safetensors file, under the names of the checkpoint or of "
     "Megatron."},
    {"--mtp-ends", NULL, "KIND", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(ends), 0, 0,
     "Choose the embedding and the output head of the modules. stored: their own if the checkpoint stores some, else "
     "those of the model. shared: those of the model. own: their own, which begin as copies (default stored)."},
    {"--heads", NULL, "DIR", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(heads), 0, 0,
     "Begin with the parallel heads in this folder, which may be MODEL. Without this option, the heads are new, and "
     "the next three options choose their kind."},
    {"--heads-init", NULL, "KIND", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(heads_init), 0, 0,
     "Let each new head begin as a copy of the model's last layer, as far as shapes agree (copy), or with random "
     "weights, and 0 in o_proj and down_proj, so that it first passes its input on (zero; default copy)."},
    {"--heads-trunk", NULL, "PLACE", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(heads_trunk), 0, 0,
     "Let new heads read the residual stream before the model's last layer, or after it (before, after; default "
     "before)."},
    {"--heads-mlp", NULL, "KIND", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(heads_mlp), 0, 0,
     "Let new heads be of the kind of the model's last layer, with experts if it has some (same), or have a dense MLP "
     "(dense; default same)."},
    {"--eagle-head", NULL, "DIR", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(eagle_head), 0, 0,
     "With --part eagle or eagle3: begin with the head in this folder. Without this option, the head is new, and the "
     "next nine options choose its shape."},
    {"--num-attention-heads", NULL, "H", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(attention_heads), 1, 4096,
     "Let a new EAGLE head have H attention heads (default: as many as fill the hidden size)."},
    {"--num-query-groups", NULL, "G", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(query_groups), 1, 4096,
     "Let them share G keys and values (default: H)."},
    {"--kv-channels", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(kv_channels), 2, 4096,
     "Let a head of its attention have N numbers (default: 128, 64 or 32, the largest that divides the hidden size)."},
    {"--ffn-hidden-size", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(ffn_hidden_size), 1, 1 << 24,
     "Let the MLP of a new EAGLE head have the width N (default: intermediate_size of the model)."},
    {"--draft-vocab-size", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(draft_vocab_size), 1, 1 << 24,
     "Let a new EAGLE-3 head draft only the N most frequent tokens of --data, without those that a loss mask leaves "
     "out; of tokens that are equally frequent, those with the lowest ids (default: 32000, or all tokens if there are "
     "fewer)."},
    {"--norm-before-residual", NULL, NULL, TRAIN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(norm_before_residual), 0, 0,
     "Let the residual stream of a new EAGLE-3 head begin with the normalised hidden state, as most heads of "
     "vllm-project/speculators do."},
    {"--norm-before-fc", NULL, NULL, TRAIN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(norm_before_fc), 0, 0,
     "Let a new EAGLE-3 head normalise the three rows that it takes from the model, together."},
    {"--fc-norm", NULL, NULL, TRAIN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(fc_norm), 0, 0,
     "Let a new EAGLE-3 head normalise each of these rows on its own, instead of --norm-before-fc."},
    {"--norm-output", NULL, NULL, TRAIN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(norm_output), 0, 0,
     "Let the rows of a new EAGLE-3 head take the normalised output of the row before."},
    {"--loss", NULL, "NAME", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(loss), 0, 0,
     "Train a published loss: megatron, fastmtp, sum, eagle, eagle3 or hass (docs/TRAINING.md has the formulas; "
     "default megatron; for parallel heads sum; for EAGLE heads eagle or eagle3, as --part says)."},
    {"--mtp-loss-scaling-factor", NULL, "F", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(mtp_loss_scaling_factor),
     0, 0,
     "The factor of the loss. For megatron, the loss is main + F * mean(MTP losses of all depths) (default: the "
     "published factor; for megatron 0.1)."},
    {"--soft-targets", NULL, "W", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(soft_targets), 0, 0,
     "Let modules learn from the model: mix the cross entropy with the text's token (1 - W) and that with the model's "
     "own distribution (W, from 0 to 1; default: what the loss says, for megatron 0)."},

    /* ---- the texts ---- */
    {"--data", NULL, "FILE,...", TRAIN_OPTIONS, TAKES_TRAIN, LIST_VALUE, TRAIN(data), 0, 0,
     "Train on these files. The name of a file of JSON Lines ends with .jsonl: each line is a document and has the key "
     "text, messages (for the chat template) or tokens (with loss_mask, if not all of them are labels). Every other "
     "file is UTF-8 text, in which lines <|endoftext|> separate documents. The option can be given several times."},
    {"--eval-data", NULL, "FILE,...", TRAIN_OPTIONS, TAKES_TRAIN, LIST_VALUE, TRAIN(eval_data), 0, 0,
     "Hold these files out: they are not trained on, but measured. They have the formats of --data."},
    {"--eval-share", NULL, "P", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(eval_share), 0, 0,
     "Without --eval-data: hold out this share of the documents of --data, at least one (default 0.05; 0: none)."},
    {"--assistant-only-loss", NULL, NULL, TRAIN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(assistant_only), 0, 0,
     "Let only the tokens of the assistant's turns be labels: rows that predict other tokens have no loss. All "
     "documents must be messages, or tokens with a loss_mask. The option has the name of TRL's assistant_only_loss."},
    {"--hidden-states", NULL, "DIR", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(hidden_states), 0, 0,
     "Train on the files of this folder instead of --data: each has the tokens of a text and the frozen model's hidden "
     "states of these, as vLLM's ExampleHiddenStatesConnector or `verbatim dump` writes them. MODEL does not compute "
     "them again."},
    {"--hidden-states-layers", NULL, "LIST", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(hidden_layers), 0, 0,
     "The layers of the files' hidden_states, separated by commas: vLLM's eagle_aux_hidden_state_layer_ids. A number "
     "names the stream before this layer, and the number of all layers the stream after the last one (default: the "
     "last is that after the last layer)."},
    {"--seq-length", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(seq_length), 2, 1 << 30,
     "Cut documents into sequences of at most N tokens (default 512, or max_position_embeddings if that is smaller). A "
     "sequence never has tokens of two documents."},
    {"--batch-tokens", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(batch_tokens), 2, MOST,
     "Let each step read as many sequences as have at most N tokens together (default 4096)."},
    {"--seed", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(seed), 0, INT64_MAX,
     "Seed of the order of the sequences, of the held-out share and of new weights (default 1234)."},

    /* ---- the optimizer ---- */
    {"--lr", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(lr), 0, 0,
     "Largest learning rate of AdamW (default 3e-4)."},
    {"--min-lr", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(min_lr), 0, 0,
     "Smallest learning rate, at the end of the decay (default 0)."},
    {"--lr-warmup-iters", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(warmup_iters), 0, MOST,
     "Raise the learning rate from 0 to --lr in the first N steps (default 0). As in Megatron, the first step then has "
     "the rate 0."},
    {"--lr-decay-style", NULL, "STYLE", TRAIN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(lr_decay_style), 0, 0,
     "How the learning rate falls from --lr to --min-lr: constant, linear, cosine or inverse-square-root (default "
     "linear)."},
    {"--lr-decay-iters", NULL, "N", TRAIN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(decay_iters), 1, MOST,
     "Reach --min-lr after N steps (default: --train-iters)."},
    {"--weight-decay", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(weight_decay), 0, 0,
     "Weight decay of matrices; vectors have none (default 0.01)."},
    {"--clip-grad", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(clip_grad), 0, 0,
     "Scale the gradients down if their norm is larger than X (default 1; 0: never)."},
    {"--adam-beta1", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(beta1), 0, 0,
     "AdamW's beta1 (default 0.9)."},
    {"--adam-beta2", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(beta2), 0, 0,
     "AdamW's beta2 (default 0.999)."},
    {"--adam-eps", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(eps), 0, 0,
     "AdamW's epsilon (default 1e-8)."},
    {"--moe-router-bias-update-rate", NULL, "X", TRAIN_OPTIONS, TAKES_TRAIN, DOUBLE_VALUE, TRAIN(bias_rate), 0, 0,
     "After each step, lower e_score_correction_bias of experts with more tokens than the average by X, and raise that "
     "of the others (default 0.001 with --part model, else 0)."},

    /* ---- the run ---- */
    {"-o", NULL, "DIR", RUN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, AT(out), 0, 0,
     "Make this folder for the run. It gets the state of the run, curves.csv, curves.svg and, at the end, result.json "
     "and the folder model or head. DIR must not exist, or must be empty."},
    {"--resume", NULL, "DIR", RUN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(resume), 0, 0,
     "Continue the run in this folder where its newest state ends. The result has the same bits as that of a run "
     "without interruption. Options under \"Training\" cannot change, and need not be given again. MODEL is needed "
     "only if the model is no longer where it was."},
    {"--train-iters", NULL, "N", RUN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(train_iters), 0, MOST,
     "Train N steps. With --resume, a larger N continues a run that has ended; --lr-decay-iters then stays as it was."},
    {"--save-interval", NULL, "N", RUN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(save_interval), 1, MOST,
     "Save the state of the run after every N steps (default 100). It takes 12 bytes for each trained weight."},
    {"--eval-interval", NULL, "N", RUN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(eval_interval), 1, MOST,
     "Compute the losses of held-out sequences after every N steps, and before the first and after the last (default "
     "100)."},
    {"--eval-iters", NULL, "N", RUN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(eval_iters), 1, MOST,
     "Use the first N batches of the held-out sequences (default 10)."},
    {"--log-interval", NULL, "N", RUN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(log_interval), 1, MOST,
     "Print the losses after every N steps, as means over these steps (default 10)."},
    {"--eval-prompts", NULL, "N", RUN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(prompts), 0, 4096,
     "At the end, continue the beginnings of N held-out documents with the old and with the new modules, and compare "
     "them (default 8)."},
    {"--micro-tokens", NULL, "N", RUN_OPTIONS, TAKES_TRAIN, LONG_VALUE, TRAIN(micro_tokens), 1, MOST,
     "Compute at most N tokens of a step together (default 2048). Fewer need less memory. This option changes no "
     "bits."},
    {"--keep-hidden-states", NULL, NULL, RUN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(keep_hidden), 0, 0,
     "Keep the hidden states of the frozen model in DIR/hidden_states.safetensors, so that each sequence is computed "
     "by it once and not in each epoch. The file takes 4 bytes for each token and each number of a hidden state. The "
     "result has the same bits."},
    {"--type", NULL, "TYPE", RUN_OPTIONS, TAKES_TRAIN, TEXT_VALUE, TRAIN(type), 0, 0,
     "Write trained weights as bf16 or f32 (default bf16)."},
    {"--save-megatron", NULL, NULL, RUN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(save_megatron), 0, 0,
     "At the end, also write DIR/megatron.safetensors: the trained modules in F32, under the names that Megatron has "
     "for them."},
    {"--copy-target", NULL, NULL, RUN_OPTIONS, TAKES_TRAIN, FLAG, TRAIN(copy_target), 0, 0,
     "Copy the model's files to DIR/model. Without this option, DIR/model has symbolic links to the files in which "
     "nothing has changed, so it takes hardly any space, and needs MODEL."},
    {0},
};
