/* tests/support/tiny.h -- the checkpoints of golden/tiny, each with the number of its MTP modules; those that have modules first.
 * For tests that run on all of them. */
#ifndef VB_TEST_TINY_H
#define VB_TEST_TINY_H

#define TINY_CHECKPOINTS(X) X("v3", 1) X("v3-mtp3", 3) X("glm", 1) X("v2", 0) X("v2-lite", 0) X("moonlight", 0)

/* The elements of an array of their names, paths or numbers of modules. TINY_COUNT: how many there are. TINY_WITH_MODULES: how many
 * have modules. */
#define TINY_NAME(name, modules) name,
#define TINY_PATH(name, modules) "golden/tiny/" name,
#define TINY_MODULES(name, modules) modules,
#define TINY_HAS_MODULES(name, modules) +(modules > 0)
#define TINY_ONE(name, modules) +1
#define TINY_COUNT (0 TINY_CHECKPOINTS(TINY_ONE))
#define TINY_WITH_MODULES (0 TINY_CHECKPOINTS(TINY_HAS_MODULES))

#endif
