/* engine/drafter.c -- the list of drafters. */
#include "drafter.h"

const struct drafter_type *const drafter_types[] = {&draft_mtp_vanilla, &draft_mtp_eagle, &draft_eagle_reroll,
                                                     &draft_eagle_keep, NULL};
