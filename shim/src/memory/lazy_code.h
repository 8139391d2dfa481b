/*
 * Code that drivers load at its first use (CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2).
 * The driver does not report how much memory it takes, but the node agent can ask NVML for each
 * process. So first uses are counted in the usage file (code_uses, and code_begun while the driver
 * loads). The agent notices, asks NVML, and writes to the limits file the bytes (unaccounted_bytes)
 * and the number of uses that they include (code_seen). Memory is reserved for the uses that are
 * not included yet.
 */
#ifndef MIZAR_LAZY_CODE_H
#define MIZAR_LAZY_CODE_H

#include <stdbool.h>

#include "region/regions.h"

/*
 * Changes the number of uses in progress, whose memory is not known yet: by 1 before each, by -1
 * after.
 */
void lazy_code_change_begun(struct regions *regions, int card, int by);

/* Whether the driver loads code at its first use, and not with its module. */
bool lazy_code_comes_late(void);

/*
 * Three functions may wait until the agent has asked NVML, for a second at most: *waited is how
 * long the program's call has waited already (ns), and is updated. A live agent asks within a third
 * of a second, but it may get no processor, NVML may be slow, or the account of a process may change
 * while it asks. After the second, the call is refused memory or a launch. That may be too early,
 * but no limit is exceeded and no program hangs.
 */

/*
 * Reserves room for `uses`, which are then counted and in progress. If there is none, settles dead
 * processes, releases unused memory and waits for the agent. Returns false if there still is none.
 */
bool lazy_code_claim(struct regions *regions, int card, unsigned uses, uint64_t *waited);

/* Counts a use whose code may have been loaded together with something that was charged. */
void lazy_code_count(struct regions *regions, int card);

/* Whether the driver loads code at its first use, and there is a live agent that asks NVML. */
bool lazy_code_is_watched(struct regions *regions, int card);

/*
 * Reserves room for code of `bytes` that may have been loaded, until the agent has asked NVML.
 * Returns false if there is no room, even after that.
 */
bool lazy_code_admit(struct regions *regions, int card, uint64_t bytes, uint64_t *waited);

/*
 * Gives a charge back, but keeps room for `doubtful` bytes of code that it may have hidden:
 * estimates.h.
 */
void lazy_code_release(struct regions *regions, int card, uint64_t bytes, uint64_t doubtful);

/*
 * Waits for the agent if that many bytes might fit once it has asked NVML. Returns whether they
 * might.
 */
bool lazy_code_await_look(struct regions *regions, int card, uint64_t bytes, uint64_t *waited);

#endif
