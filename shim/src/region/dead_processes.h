/*
 * Processes of the container that died: whose slot nobody locks any more is dead, and what it was charged is
 * given back (settled) by one that lives.
 */
#ifndef MIZAR_DEAD_PROCESSES_H
#define MIZAR_DEAD_PROCESSES_H

#include <stdbool.h>

#include "region/regions.h"

/* Gives back the bytes of every dead process of the container. False: one is not quite gone. */
bool dead_processes_settle(struct regions *regions);

/* The same, but at most every 100 ms: for answers and turns that should not count the dead. */
void dead_processes_settle_sometimes(struct regions *regions);

/* ---- one by one, for a process that looks for a slot; `fd` is of the usage file ---- */

/* The lock that says that a slot's process lives. False: it does. */
bool dead_processes_lock(int fd, unsigned slot);
void dead_processes_unlock(int fd, unsigned slot);

/* The slot becomes empty, unless its owner is not quite gone. The caller holds the slot's lock. */
bool dead_processes_settle_slot(struct mizar_usage *usage, unsigned slot);

/* Looks at up to `count` slots, from `first` on and around. False: one is not quite gone. */
bool dead_processes_settle_some(struct mizar_usage *usage, int fd, unsigned first, unsigned count);

#endif
