/*
 * The container's budget of GPU time on one card, in words that its processes share. All times are
 * ns, moments of CLOCK_MONOTONIC.
 */
#ifndef MIZAR_CONTAINER_BUDGET_H
#define MIZAR_CONTAINER_BUDGET_H

#include "region/regions.h"
#include "time/token_bucket.h"

/*
 * Reads the terms at the moment `now`. Returns false if the container's time on the card is not
 * limited; *terms is unchanged then.
 */
bool budget_terms(struct regions *regions, int card, uint64_t now, struct terms *terms);

/*
 * Reserves ask->cost + *extra ns, after lowering *extra where necessary. Returns false if work may
 * not start now; *again is when to ask again.
 */
bool budget_take(struct regions *regions, int card, const struct terms *terms, struct ask *ask,
                 uint64_t *extra, uint64_t *again);

/* Finished work. */
struct done {
    uint64_t from, to; /* the work was on the card between these moments, perhaps with other work */
    uint64_t since;    /* since this moment the process has had work on the card without a gap */
    uint64_t most;     /* the most ns that the work took, as far as is known */
    uint64_t reserved; /* ns that were reserved for it */
    bool fresh;        /* measured too seldom: the time may include other containers' work */
    uint64_t passed;   /* result: ns in which the process had no other work on the card */
};

/*
 * Replaces the reservation by a charge for the work as measured. A process pays for no moment
 * twice, however much work it has on the card at once, and the same holds for the container.
 * Returns the ns that the process has to pay.
 */
uint64_t budget_settle(struct regions *regions, int card, const struct terms *terms, uint64_t now,
                       struct done *done);

/* Gives back ns that were reserved and will not be used. */
void budget_refund(struct regions *regions, int card, uint64_t ns);

/* Counts reserved ns as GPU time of work that is not measured. */
void budget_count(struct regions *regions, int card, uint64_t ns);

/* Announces that this process has work on the card since `since`, probably until `until`. */
void budget_open(struct regions *regions, int card, uint64_t since, uint64_t until);

/*
 * The most ns within [from, to] for which any process of the container has announced work on the
 * card. `but`: a slot to leave out, MIZAR_SLOT_MAX for none.
 */
uint64_t budget_open_time(struct regions *regions, int card, uint64_t from, uint64_t to,
                          unsigned but);

/*
 * Waits until about `until`, at most 100 ms, or until `wake` changes. `wake`: from budget_wake().
 */
void budget_wait(struct regions *regions, int card, uint32_t wake, uint64_t now, uint64_t until);

/* The futex word for budget_wait(). Must be read before the terms, so that no change is missed. */
uint32_t budget_wake(struct regions *regions, int card);

/*
 * Tells the node agent that the container wants GPU time now. `longest`: expected ns of the piece
 * of work.
 */
void budget_want(struct regions *regions, int card, uint64_t now, uint64_t longest);

#endif
