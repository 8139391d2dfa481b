/*
 * Code that drivers load when it is first used (CUDA_MODULE_LOADING=LAZY, the default since CUDA
 * 12.2). Nobody tells a program how much that takes, but NVML tells the node agent of each process.
 * So first uses are counted in the usage file (code_uses; code_begun while the driver is at it). The
 * agent notices, asks NVML, and answers in the limits file with the bytes (unaccounted_bytes) and with
 * the uses that are in them (code_seen). Room is kept for those that are not.
 */
#ifndef MIZAR_LAZY_CODE_H
#define MIZAR_LAZY_CODE_H

#include <stdbool.h>

#include "region/regions.h"

/* While the driver is at something of which nobody knows yet what it takes: by 1, and by -1. */
void lazy_code_change_begun(struct regions *regions, int card, int by);

/* Whether it comes when it is used, not as a whole with its module. */
bool lazy_code_comes_late(void);

/*
 * The three that may wait for the agent's look do so for a second at most: *waited is how long the program's call
 * has waited already (ns), and grows. An agent that is alive looks within a third of one, but it may have no
 * processor, NVML may be slow, or the container's account never stand still. When the second is over, the
 * call is refused memory or a launch: too early now and then, but no limit is passed, and no program stands still.
 */

/*
 * Room for so many uses, which are begun and counted then: where there is none, the call looks for the
 * dead, reclaims and waits for the agent's look. False: there still is none.
 */
bool lazy_code_claim(struct regions *regions, int card, unsigned uses, uint64_t *waited);

/* Code came with something that was charged already. */
void lazy_code_count(struct regions *regions, int card);

/* Whether it comes when it is used, not as a whole with its module, and there is an agent to ask NVML. */
bool lazy_code_is_watched(struct regions *regions, int card);

/*
 * So much more may have come to the card: room is kept for it, until the agent has looked. False: it is more
 * than there is room for, also after that look.
 */
bool lazy_code_admit(struct regions *regions, int card, uint64_t bytes, uint64_t *waited);

/* Gives a charge back, and keeps room for so much code that may have come behind it: estimates.h. */
void lazy_code_release(struct regions *regions, int card, uint64_t bytes, uint64_t doubtful);

/* Waits for the agent if so many bytes might be had when it has looked; whether it did. */
bool lazy_code_await_look(struct regions *regions, int card, uint64_t bytes, uint64_t *waited);

#endif
