/*
 * Small CUDA arrays share pages of 2 MiB with each other and with other small allocations. The
 * driver does not report which share a page, and a single array keeps a page after all others in it
 * were freed. So they are charged together: twice the bytes of all arrays made since there last was
 * none, but at most a page for each existing array.
 */
#ifndef MIZAR_SMALL_ARRAYS_H
#define MIZAR_SMALL_ARRAYS_H

#include <stdbool.h>

#include "region/regions.h"

/*
 * Adds an array of that many bytes, fewer than SMALL_BYTES. Returns false if the limit does not
 * allow it.
 */
bool small_arrays_add(struct regions *regions, int card, uint64_t bytes);

/* Removes an array. */
void small_arrays_remove(struct regions *regions, int card);

/*
 * To be called when the last allocation with an address in a page was freed; an array may still lie
 * in the page. Returns true if the page's charge now belongs to the arrays.
 */
bool small_arrays_inherit_page(struct regions *regions, int card);

#endif
