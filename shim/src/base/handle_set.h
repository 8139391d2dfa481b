/* A set of 64-bit keys, each with an owner: code that was used, kinds of handles. */
#ifndef MIZAR_HANDLE_SET_H
#define MIZAR_HANDLE_SET_H

#include <stdbool.h>
#include <stdint.h>

struct handle_set; /* NULL: empty */

/* Whether the key is in the set. Keys must be neither 0 nor UINT64_MAX. */
bool handle_set_has(struct handle_set **table, uint64_t key);

/* The owner with which the key was added; NULL if it is not in the set or has none. */
const void *handle_set_owner(struct handle_set **table, uint64_t key);

/*
 * Adds a key. If there are too many keys, all others are removed first; without memory, nothing is
 * added.
 */
void handle_set_add(struct handle_set **table, uint64_t key, const void *owner);

void handle_set_remove(struct handle_set **table, uint64_t key);

/*
 * Remove the keys of an owner, a module or library that ends, or all keys: the handles may be
 * reused.
 */
void handle_set_forget(struct handle_set **table, const void *owner);
void handle_set_forget_all(struct handle_set **table);

#endif
