/* tools/training/train.c -- `verbatim train`: the loop of a training run, and what is done before and after it. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/file.h"
#include "tools/training/training.h"

/* ---- sequences --------------------------------------------------------------------------------------------------- */

static void release(const struct training *r, struct training_sequence *list, size_t count)
{
    if (r->c->train.hidden_states)
        dumps_release(list, count);
}

/* The sequences of the next batch, of the documents to train on or of those held out, with the rows of the frozen model
 * that are not computed again. `list` and `numbers` have room for all pieces. The caller releases the list, except
 * after an error. */
static int next_batch(struct training *r, int held, struct order_place *place, size_t *numbers,
                      struct training_sequence *list, size_t *count)
{
    struct order *o = held ? &r->held_order : &r->order;
    const struct documents *d = held ? &r->held : &r->data;
    *count = order_next(o, place, (size_t)r->c->train.batch_tokens, numbers);
    for (size_t i = 0; i < *count; i++) {
        const struct order_piece *p = &o->piece[numbers[i]];
        list[i] = (struct training_sequence){.tokens = d->ids + p->first, .count = p->count};
        if (d->is_masked)
            list[i].loss_mask = d->mask + p->first;
    }
    if (!r->c->train.hidden_states)
        return r->kept ? kept_give(r, held, numbers, list, *count) : EXIT_DONE;
    int code = dumps_give(r, held, numbers, list, *count);
    if (code != EXIT_DONE)
        release(r, list, *count);
    return code;
}

static size_t tokens_of(const struct training_sequence *list, size_t count)
{
    size_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += list[i].count;
    return sum;
}

/* ---- the data ---------------------------------------------------------------------------------------------------- */

/* Moves a share of the documents to those held out. */
static int hold_out(struct training *r)
{
    struct cli *c = r->c;
    struct documents all = r->data;
    unsigned char *held = cli_must(calloc(all.count + 1, 1));
    int code = EXIT_DONE;
    if (!order_hold_out(held, all.count, c->train.eval_share, (uint64_t)c->train.seed))
        code = cli_fail(c, EXIT_USAGE,
                        "--eval-share is %g, and --data has %zu document%s, of which none can be held out: give "
                        "--eval-data, lines <|endoftext|> "
                        "between documents, or --eval-share 0",
                        c->train.eval_share, all.count, all.count == 1 ? "" : "s");
    if (code == EXIT_DONE) {
        r->data = (struct documents){0};
        for (size_t i = 0; i < all.count; i++) {
            size_t first = i ? all.end[i - 1] : 0;
            struct documents *to = held[i] ? &r->held : &r->data;
            documents_add(to, all.ids + first, all.mask + first, all.end[i] - first);
            to->file[to->count - 1] = all.file[i];
            all.file[i].name = NULL;
        }
        documents_close(&all);
    }
    free(held);
    return code;
}

static int read_data(struct training *r)
{
    struct cli *c = r->c;
    if (c->train.data && c->train.hidden_states)
        return cli_fail(c, EXIT_USAGE, "--data and --hidden-states do not go together: the tokens come from either");
    if (!c->train.data && !c->train.hidden_states)
        return cli_fail(c, EXIT_USAGE, "--data is missing; see verbatim train --help");
    if (c->train.eval_data && c->train.eval_share > 0)
        return cli_fail(c, EXIT_USAGE, "--eval-data and --eval-share do not go together");
    int code = c->train.data ? documents_read(c, &r->data, c->train.data) : dumps_read(r);
    if (code == EXIT_DONE && !r->data.count)
        code = cli_fail(c, EXIT_OTHER, "--data %s has no documents", c->train.data);
    if (code == EXIT_DONE && c->train.eval_data)
        code = documents_read(c, &r->held, c->train.eval_data);
    return code == EXIT_DONE && c->train.eval_share > 0 ? hold_out(r) : code;
}

/* Cuts the documents into pieces that every depth predicts a token of. */
static int cut_data(struct training *r)
{
    struct cli *c = r->c;
    const struct cli_training *t = &c->train;
    size_t longest = (size_t)t->seq_length, shortest = (size_t)t->depths + 2;
    if (!order_open(&r->order, r->data.end, r->data.count, documents_mask(&r->data), longest, shortest,
                    (uint64_t)t->seed) ||
        !order_open(&r->held_order, r->held.end, r->held.count, documents_mask(&r->held), longest, shortest,
                    (uint64_t)t->seed))
        return cli_fail(c, EXIT_OTHER, "no memory for the list of sequences");
    for (size_t i = 0; i < r->held_order.pieces; i++) /* those held out are read in their own order */
        r->held_order.shuffled[i] = i;
    r->held_order.epoch = 0;
    if (!r->order.pieces)
        return cli_fail(c, EXIT_OTHER, "--data has no sequence of %zu tokens or more to train on%s", shortest,
                        r->data.is_masked ? " whose loss mask has labels" : "");
    if (t->eval_data && !r->held_order.pieces)
        return cli_fail(c, EXIT_OTHER, "--eval-data has no sequence of %zu tokens or more%s", shortest,
                        r->held.is_masked ? " whose loss mask has labels" : "");
    return EXIT_DONE;
}

static const char *plural(size_t count) { return count == 1 ? "" : "s"; }

static void tell_some(const struct documents *d, const struct order *o, const char *what)
{
    size_t labels = 0;
    for (size_t i = 0; i < o->pieces && d->is_masked; i++)
        for (size_t k = 0; k < o->piece[i].count; k++)
            labels += d->mask[o->piece[i].first + k];
    printf("%zu document%s, %zu sequence%s, %zu tokens", d->count, plural(d->count), o->pieces, plural(o->pieces),
           o->tokens);
    if (d->is_masked)
        printf(" (%zu of them labels)", labels);
    printf(" %s", what);
    if (o->left_out)
        printf(", %zu tokens left out", o->left_out);
}

static void tell_data(const struct training *r)
{
    if (r->c->json)
        return;
    tell_some(&r->data, &r->order, "to train on");
    fputs("; ", stdout);
    tell_some(&r->held, &r->held_order, "held out");
    putchar('\n');
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* The means over the first --eval-iters batches of held-out sequences, each row with the same weight. *there: whether
 * there are any. */
static int evaluate(struct training *r, size_t *numbers, struct training_sequence *list, struct training_losses *out,
                    int *there)
{
    struct order_place place = {0};
    size_t count = 0, n;
    vb_error err;
    int code = EXIT_DONE;
    *there = r->held_order.pieces > 0;
    for (long long i = 0;
         i < r->c->train.eval_iters && *there && !place.epoch && place.next < r->held_order.pieces && code == EXIT_DONE;
         i++) {
        code = next_batch(r, 1, &place, numbers, list + count, &n);
        count += code == EXIT_DONE ? n : 0;
    }
    if (code == EXIT_DONE && *there && trainer_losses(r->trainer, list, count, out, &err))
        code = cli_error(r->c, &err);
    release(r, list, count);
    return code;
}

/* Evaluates, if there is something held out, and appends a row to the curves. */
static int log_row(struct training *r, int evaluates, size_t *numbers, struct training_sequence *list, double lr,
                   double rate)
{
    struct training_losses held;
    int there = 0, code = evaluates ? evaluate(r, numbers, list, &held, &there) : EXIT_DONE;
    if (code == EXIT_DONE && (there || r->curves.steps > 0))
        curves_row(r, lr, there ? &held : NULL, rate);
    return code;
}

/* One step. */
static int step(struct training *r, size_t *numbers, struct training_sequence *list, double *lr)
{
    struct training_losses losses;
    vb_error err;
    double norm;
    char where[64];
    size_t count;
    int code = next_batch(r, 0, &r->place, numbers, list, &count);
    if (code != EXIT_DONE)
        return code;
    *lr = settings_lr(&r->c->train, r->step + 1);
    int rc = trainer_gradients(r->trainer, list, count, &losses, &err);
    size_t tokens = tokens_of(list, count);
    release(r, list, count);
    if (rc || trainer_update(r->trainer, r->step + 1, *lr, &norm, &err)) {
        snprintf(where, sizeof where, "step %lld", (long long)r->step + 1);
        r->c->where = where;
        code = cli_error(r->c, &err);
        r->c->where = NULL;
        return code;
    }
    r->step++;
    r->tokens += tokens;
    curves_step(&r->curves, &losses, norm);
    return EXIT_DONE;
}

static int save(struct training *r)
{
    int code = state_save(r);
    return code == EXIT_DONE ? curves_write(r) : code;
}

/* Saves what a signal interrupted. */
static int stopped(struct training *r)
{
    int code = state_save(r);
    if (code == EXIT_DONE)
        fprintf(stderr, "verbatim: stopped after step %lld; verbatim train --resume %s continues\n", (long long)r->step,
                r->dir);
    return code == EXIT_DONE ? EXIT_INTERRUPTED : code;
}

static int train(struct training *r)
{
    const struct cli_training *t = &r->c->train;
    size_t most = r->order.pieces > r->held_order.pieces ? r->order.pieces : r->held_order.pieces;
    size_t *numbers = cli_must(calloc(most + 1, sizeof *numbers));
    struct training_sequence *list = cli_must(calloc(most + 1, sizeof *list));
    double seconds = 0, lr = 0; /* seconds: of the steps since the newest row */
    uint64_t tokens = r->tokens;
    int code = EXIT_DONE;
    if (!r->c->train.resume) {
        code = log_row(r, 1, numbers, list, 0, 0);
        if (code == EXIT_DONE)
            code = save(r);
    }
    while (code == EXIT_DONE && r->step < t->train_iters) {
        double begun = cli_seconds();
        code = step(r, numbers, list, &lr);
        if (code != EXIT_DONE)
            break;
        seconds += cli_seconds() - begun;
        cli_progress("training", (size_t)r->step, (size_t)t->train_iters);
        int last = r->step == t->train_iters, evaluates = last || r->step % t->eval_interval == 0;
        if (evaluates || r->step % t->log_interval == 0) {
            cli_progress("training", 1, 1);
            code = log_row(r, evaluates, numbers, list, lr, (double)(r->tokens - tokens) / fmax(seconds, 1e-9));
            seconds = 0;
            tokens = r->tokens;
        }
        if (code == EXIT_DONE && cli_stopped())
            code = stopped(r);
        else if (code == EXIT_DONE && (last || r->step % t->save_interval == 0))
            code = save(r);
    }
    free(numbers);
    free(list);
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* The options of the run, and its model. */
static int begin(struct training *r, json_t **head)
{
    struct cli *c = r->c;
    if (c->train.resume && c->out)
        return cli_fail(c, EXIT_USAGE, "-o and --resume do not go together: --resume names the folder");
    if (!c->train.resume && !c->model_dir)
        return cli_fail(c, EXIT_USAGE, "MODEL is missing; see verbatim train --help");
    if (!c->train.resume && !c->out)
        return cli_fail(c, EXIT_USAGE, "-o is missing; see verbatim train --help");
    if (c->train.hidden_states && !(r->hidden_dir = realpath(c->train.hidden_states, NULL)))
        return cli_fail(c, EXIT_OTHER, "%s: %s", c->train.hidden_states, strerror(errno));
    c->train.hidden_states = r->hidden_dir;
    int code = EXIT_DONE, scratch = c->train.from_scratch && !c->train.resume;
    if (scratch) {
        code = state_folder(r);
        if (code == EXIT_DONE)
            code = initial_make(r);
    }
    if (c->train.resume) {
        code = state_folder(r);
        if (code == EXIT_DONE)
            code = state_head(r, head);
        if (code == EXIT_DONE)
            code = settings_resume(c, r->dir, json_object_get(*head, "options"));
        if (code == EXIT_DONE && !c->model_dir)
            c->model_dir = json_string_value(json_object_get(*head, "model"));
    }
    if (code == EXIT_DONE && !is_eagle(&c->train)) /* whose model may be in any file */
        code = output_check(c, c->model_dir);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        code = settings_check(r);
    if (code == EXIT_DONE && !c->train.resume && !scratch)
        code = state_folder(r);
    return code;
}

static int open_trainer(struct training *r)
{
    struct trainer_options o = settings_trainer(r);
    vb_error err;
    int code = settings_loss(r->c, &r->loss);
    if (code == EXIT_DONE && is_eagle(&r->c->train))
        code = eagle_options(r);
    if (code != EXIT_DONE)
        return code;
    if (vb_model_fingerprint(r->c->model, 1, r->c->session.threads, &r->model_hash, &err) ||
        trainer_open(&r->trainer, r->c->model, &o, &err))
        return cli_error(r->c, &err);
    return r->c->train.mtp_weights && !r->c->train.resume ? megatron_read(r, r->c->train.mtp_weights) : EXIT_DONE;
}

static int is_heads(const struct training *r) { return has_heads(&r->c->train) && !is_whole(&r->c->train); }

static int save_megatron(const struct training *r)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/megatron.safetensors", r->dir);
    return megatron_write(r, path);
}

static int run(struct cli *c)
{
    struct training r = {.c = c, .lock = -1};
    json_t *head = NULL;
    int code = begin(&r, &head);
    if (code == EXIT_DONE) {
        r.model_dir = realpath(c->model_dir, NULL);
        r.options = settings_json(c);
        code = r.model_dir ? EXIT_DONE : cli_fail(c, EXIT_OTHER, "%s: %s", c->model_dir, strerror(errno));
    }
    /* its draft vocabulary depends on the data */
    int late = code == EXIT_DONE && !strcmp(c->train.part, "eagle3") && !c->train.eagle_head;
    if (code == EXIT_DONE && !late) /* before a long text is read */
        code = open_trainer(&r);
    if (code == EXIT_DONE)
        code = c->train.resume ? state_load_data(&r) : read_data(&r);
    if (code == EXIT_DONE && late)
        code = open_trainer(&r);
    if (code == EXIT_DONE)
        code = cut_data(&r);
    if (code == EXIT_DONE && c->train.resume)
        code = state_load(&r);
    if (code == EXIT_DONE && (c->train.resume || late) && c->train.hidden_states)
        code = dumps_check(&r);
    if (code == EXIT_DONE && !c->train.resume)
        code = state_save_data(&r);
    if (code == EXIT_DONE && c->train.keep_hidden)
        code = kept_open(&r);
    cli_listen_to_signals();
    if (code == EXIT_DONE) {
        tell_data(&r);
        code = train(&r);
    }
    if (code == EXIT_DONE)
        code = is_eagle(&c->train) ? eagle_write(&r) : is_heads(&r) ? heads_write(&r) : output_write(&r);
    if (code == EXIT_DONE && c->train.save_megatron)
        code = save_megatron(&r);
    if (code == EXIT_DONE)
        code = measure_result(&r);
    kept_close(&r);
    trainer_close(r.trainer);
    heads_close(&r);
    eagle_free(&r);
    curves_close(&r.curves);
    order_close(&r.order);
    order_close(&r.held_order);
    documents_close(&r.data);
    documents_close(&r.held);
    state_close(&r);
    free(r.initial_dir);
    free(r.hidden_dir);
    free(r.model_dir);
    json_decref(r.options);
    json_decref(head); /* options have strings in it */
    return code;
}

static const struct note notes[] = {
    {"--bos", "Put the BOS token before each text."},
    {"--no-bos", "Do not put the BOS token before each text. If neither --bos nor --no-bos is given, add_bos_token in "
                 "tokenizer_config.json decides."},
    {"--json", "Print a line of JSON for each line that would be printed: step, tokens, loss, main_loss, "
               "mtp_loss_by_depth (of heads: loss_by_depth), lr, "
               "gradient_norm, tokens_per_second and held_out; at the end the object of result.json."},
    {NULL, NULL}};

const struct command command_train = {
    "train", "train the MTP modules, parallel heads or an EAGLE head of a model, or a small model, on texts",
    "MODEL --data FILE --train-iters N -o DIR [OPTIONS]\n--resume DIR [OPTIONS]",
    "Trains with AdamW. Gradients and weights have the same bits for any number of threads, any instruction set and "
    "any\n"
    "--micro-tokens. DIR/model becomes a checkpoint with the trained weights, or DIR/head the folder of trained heads. "
    "At the\n"
    "end, texts that were held out are continued with the old and with the new modules or heads; if drafting got "
    "worse, the\n"
    "report says so first.\n",
    TAKES_MODEL | TAKES_NO_MODEL | TAKES_TRAIN, run, notes, 0, NULL};
