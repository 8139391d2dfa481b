/* What this process has met before, by a key of 64 bits: first uses of code, kinds of handles. */
#ifndef MIZAR_SEEN_H
#define MIZAR_SEEN_H

#include <stdbool.h>
#include <stdint.h>

struct seen; /* a table; NULL: nothing so far */

/* Keys are neither 0 nor UINT64_MAX. */
bool seen_has(struct seen **table, uint64_t key);

/* Whose it is; NULL: it was not met, or has no owner. */
const void *seen_owner(struct seen **table, uint64_t key);

/* Where there are too many, or no memory, what was met is forgotten: it may be met again. */
void seen_add(struct seen **table, uint64_t key, const void *owner);

void seen_remove(struct seen **table, uint64_t key);

/* The owner, a module or library, ends: what was its own may be another one's. Or all of it may be. */
void seen_forget(struct seen **table, const void *owner);
void seen_forget_all(struct seen **table);

#endif
