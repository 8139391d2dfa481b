/*
 * Dead processes of the container. A process is dead if its slot is no longer locked. A live
 * process gives back what a dead one was charged; this is called settling.
 */
#ifndef MIZAR_DEAD_PROCESSES_H
#define MIZAR_DEAD_PROCESSES_H

#include <stdbool.h>

#include "region/regions.h"

/*
 * Gives back the bytes of every dead process of the container. Returns false if one is still
 * exiting, or if the usage file cannot be opened.
 */
bool dead_processes_settle(struct regions *regions);

/*
 * dead_processes_settle(), but at most every 100 ms, for queries and waits that should not count
 * dead processes.
 */
void dead_processes_settle_sometimes(struct regions *regions);

/* ---- single slots, for a process that claims one; `fd` is a descriptor of the usage file ---- */

/*
 * Takes and releases the lock of a slot, which its process holds while it lives. Returns false if
 * that process is alive.
 */
bool dead_processes_lock(int fd, unsigned slot);
void dead_processes_unlock(int fd, unsigned slot);

/*
 * Empties the slot. Returns false, without a change, if its owner is still exiting. The caller
 * holds the slot's lock.
 */
bool dead_processes_settle_slot(struct mizar_usage *usage, unsigned slot);

/*
 * Settles up to `count` slots, from `first` on and wrapping around. Returns false if the process of
 * one is still exiting.
 */
bool dead_processes_settle_some(struct mizar_usage *usage, int fd, unsigned first, unsigned count);

#endif
