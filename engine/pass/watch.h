/* engine/pass/watch.h -- watchers: they look at a pass at certain moments, and change nothing of it. */
#ifndef VB_WATCH_H
#define VB_WATCH_H

struct pass;

enum moment {
    PASS_BEGINS,
    LAYER_BEGINS,   /* before each layer, also of an MTP module; not if a device replays its layers */
    EXPERTS_CHOSEN, /* the router has chosen the experts of all rows (pass.w.experts) */
    LAYER_ENDS,     /* after each layer of the target */
    PASS_ENDS,      /* not if `stop` ended the pass */
    MOMENTS
};

/* The caller has the watcher's memory, and puts it into pass.watchers. */
struct pass_watcher {
    void (*at[MOMENTS])(struct pass_watcher *w, const struct pass *p); /* NULL: not interested */
    struct pass_watcher *next;
};

void pass_watch(const struct pass *p, enum moment moment);

/* Asks for the weights of the layer that begins, and of the experts that were chosen (engine/model/prefetch.h). */
struct pass_watcher watch_prefetch(void);

#endif
