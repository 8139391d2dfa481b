/*
 * A card of the container that is lent while the container is idle. Every use of it by the
 * container tells the node agent that the container is active. Allocations that do not fit beside
 * the borrower's memory wait until the borrower is gone.
 */
#ifndef MIZAR_LENT_CARD_H
#define MIZAR_LENT_CARD_H

#include "region/regions.h"

/* Tells the node agent that the container uses the card, if the card is lent. */
void lent_card_tell(struct regions *regions, int card);

/*
 * To be called before an allocation of that many bytes: if the card is lent, waits until they are
 * free, for 3 s at most, after which the driver may refuse them.
 */
void lent_card_await(struct regions *regions, int card, uint64_t bytes);

#endif
