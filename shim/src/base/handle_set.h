/* What this process has met before, by a key of 64 bits: first uses of code, kinds of handles. */
#ifndef MIZAR_HANDLE_SET_H
#define MIZAR_HANDLE_SET_H

#include <stdbool.h>
#include <stdint.h>

struct handle_set; /* a table; NULL: nothing so far */

/* Keys are neither 0 nor UINT64_MAX. */
bool handle_set_has(struct handle_set **table, uint64_t key);

/* The owner it was added with; NULL: it was not met, or has none. */
const void *handle_set_owner(struct handle_set **table, uint64_t key);

/* Where there are too many, or no memory, what was met is forgotten: it may be met again. */
void handle_set_add(struct handle_set **table, uint64_t key, const void *owner);

void handle_set_remove(struct handle_set **table, uint64_t key);

/* The owner, a module or library, ends: what was its own may be another one's. Or all of it may be. */
void handle_set_forget(struct handle_set **table, const void *owner);
void handle_set_forget_all(struct handle_set **table);

#endif
