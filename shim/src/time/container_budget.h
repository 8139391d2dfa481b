/* The container's budget of GPU time on one card: the shared words, and how they are changed. */
#ifndef MIZAR_CONTAINER_BUDGET_H
#define MIZAR_CONTAINER_BUDGET_H

#include "region/regions.h"
#include "time/token_bucket.h"

/* False: the card's time is not limited for this container. */
bool budget_terms(struct regions *regions, int card, uint64_t now, struct terms *terms);

/* Reserves cost + *extra ns (*extra is made smaller where it must), or says when to ask again. */
bool budget_take(struct regions *regions, int card, const struct terms *terms, struct ask *ask,
                 uint64_t *extra, uint64_t *again);

/* Work that is behind us. */
struct done {
    uint64_t from, to; /* it was on the card in this time, perhaps not alone */
    uint64_t since;    /* the process has had some work there all the time since then */
    uint64_t most;     /* ns that it took at most, as far as is known */
    uint64_t reserved;
    bool fresh;      /* of work that is not well known: by the clock, which may have run for others */
    uint64_t passed; /* set: the part of the time in which the process had no other work there */
};

/*
 * Charges it in place of what was reserved. A process pays for no moment twice, whatever it has on
 * the card at once; the container pays for no more moments than there were. Returns the ns that the
 * process has to pay.
 */
uint64_t budget_settle(struct regions *regions, int card, const struct terms *terms, uint64_t now,
                       struct done *done);

/* So many reserved ns will not be used. */
void budget_refund(struct regions *regions, int card, uint64_t ns);

/* So many of them were used by work that is not measured: it counts as what it cost. */
void budget_count(struct regions *regions, int card, uint64_t ns);

/* This process has work on the card since `since`, until `until` if the guess is right. */
void budget_open(struct regions *regions, int card, uint64_t since, uint64_t until);

/*
 * The longest time within [from, to] in which a process of the container says that it has work on
 * the card; `but` is a slot to leave out, MIZAR_SLOT_MAX for none.
 */
uint64_t budget_open_time(struct regions *regions, int card, uint64_t from, uint64_t to,
                          unsigned but);

/* Waits until about `until`, at most a moment; less when the limits change. */
void budget_wait(struct regions *regions, int card, uint32_t wake, uint64_t now, uint64_t until);

/* To be read before the terms are, and given to budget_wait(). */
uint32_t budget_wake(struct regions *regions, int card);

/* Somebody wants GPU time now. `longest`: the piece of work at hand, as far as known. */
void budget_want(struct regions *regions, int card, uint64_t now, uint64_t longest);

#endif
