/* tests/support/tiny.h -- the checkpoints of golden/tiny, each with the number of its MTP modules. Checkpoints with
 * modules come first. Tests that run on all tiny checkpoints use this list. */
#ifndef VB_TEST_TINY_H
#define VB_TEST_TINY_H

#define TINY_CHECKPOINTS(X) \
    X("v3", 1) X("v3-mtp3", 3) X("glm", 1) X("v2", 0) X("v2-lite", 0) X("moonlight", 0) X("mistral4", 0)

/* Checkpoints with an indexer (sparse attention). */
#define TINY_WITH_INDEXER(X) X("v32", 1) X("glm5", 1)

/* Checkpoints that only the tests of truth use, because they compute nothing that the others do not: the shapes of
 * GigaChat3 and Youtu-LLM. */
#define TINY_SHAPES(X) X("gigachat", 1) X("youtu", 0)

/* The first three macros make the elements of an array: the names of the checkpoints, their paths, or their numbers of
 * modules. TINY_COUNT is the number of checkpoints, and TINY_WITH_MODULES the number of checkpoints with modules. */
#define TINY_NAME(name, modules) name,
#define TINY_PATH(name, modules) "golden/tiny/" name,
#define TINY_MODULES(name, modules) modules,
#define TINY_HAS_MODULES(name, modules) +(modules > 0)
#define TINY_ONE(name, modules) +1
#define TINY_COUNT (0 TINY_CHECKPOINTS(TINY_ONE))
#define TINY_WITH_MODULES (0 TINY_CHECKPOINTS(TINY_HAS_MODULES))

#endif
