/*
 * A card that is lent while the container sleeps. Whatever the container does with it tells the node agent that
 * it is awake; what does not fit beside the borrower waits until that is gone.
 */
#ifndef MIZAR_BORROWED_H
#define MIZAR_BORROWED_H

#include "region/regions.h"

/* Tells that the container works on the card, if that is lent. */
void borrowed_tell(struct regions *regions, int card);

/* Before so many bytes are asked of the driver. It may refuse them all the same: nobody waits for ever. */
void borrowed_await(struct regions *regions, int card, uint64_t bytes);

#endif
