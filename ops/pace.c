#include "ops/pace.h"

#include <math.h>

static size_t class_of(size_t rows)
{
    size_t c = 0;
    while (c < PACE_CLASSES - 1 && (size_t)1 << c < rows)
        c++;
    return c;
}

/* Returns the number of threads of a choice. Choice 0 is one thread, and the last choice is all threads. */
static int threads_of(const struct pace *p, int choice)
{
    return choice == p->choices - 1 ? p->most : 1 << choice;
}

static void begin_trial(struct pace_class *c, int choice)
{
    c->trial = choice;
    c->passes = 0;
    c->first = c->second = INFINITY;
}

void pace_open(struct pace *p, int threads)
{
    *p = (struct pace){.most = threads, .choices = 1};
    while (1 << (p->choices - 1) < threads)
        p->choices++;
    for (size_t i = 0; i < PACE_CLASSES; i++) {
        p->of[i].best = p->choices - 1;
        begin_trial(&p->of[i], p->choices - 1);
    }
}

int pace_threads(const struct pace *p, size_t rows)
{
    const struct pace_class *c = &p->of[class_of(rows)];
    return threads_of(p, c->trial >= 0 ? c->trial : c->best);
}

static int best_of(const struct pace *p, const struct pace_class *c)
{
    int best = 0;
    for (int i = 1; i < p->choices; i++)
        if (c->time[i] < c->time[best] && threads_of(p, i) * c->time[i] <= PACE_COST * c->time[0])
            best = i;
    return best;
}

/* The second shortest pass of a trial counts as its time. Interruptions only make passes longer, but a single pass may
 * be short by chance. */
static void end_trial(const struct pace *p, struct pace_class *c)
{
    c->time[c->trial] = c->second;
    c->passes = 0;
    if (c->trial == p->choices - 1 && c->second > PACE_LONG) {
        c->best = c->trial;
        c->trial = -1;
    } else if (c->trial > 0) {
        begin_trial(c, c->trial - 1);
    } else {
        c->best = best_of(p, c);
        c->trial = -1;
    }
}

void pace_took(struct pace *p, size_t rows, double seconds)
{
    struct pace_class *c = &p->of[class_of(rows)];
    c->passes++;
    if (p->choices < 2)
        return;
    if (c->trial < 0) {
        if (c->passes == PACE_AGAIN)
            begin_trial(c, p->choices - 1);
        return;
    }
    if (seconds < c->first) {
        c->second = c->first;
        c->first = seconds;
    } else if (seconds < c->second) {
        c->second = seconds;
    }
    if (c->passes == PACE_PASSES || (c->trial == p->choices - 1 && c->passes == 2 && c->second > PACE_LONG))
        end_trial(p, c);
}
