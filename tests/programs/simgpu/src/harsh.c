#define _GNU_SOURCE
#include "harsh.h"

#include <time.h>

#include "clock.h"

static const uint64_t clock_period = 50000000; /* ns for which the card's clocks stay the same */
static const uint64_t busy_at_most = 50000;    /* ns; longer delays of drivers are slept, shorter
                                                  ones are spent busy */

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t harsh_draw(uint64_t seed, uint64_t most) {
    return most ? mix(seed) % (most + 1) : 0;
}

void harsh_spend(const struct sim *sim, uint64_t least, uint64_t spread) {
    if (!(least | spread) || sim->state->clock_mode != SIM_CLOCK_REAL) return;
    uint64_t begin = sim_now(sim), ns = least + harsh_draw(begin, spread);
    if (ns > busy_at_most) {
        struct timespec pause = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
        nanosleep(&pause, NULL);
    } else {
        while (sim_now(sim) - begin < ns);
    }
}

static bool copies_run(const struct sim_card *card, uint64_t now) {
    for (int engine = 0; engine < SIM_COPY_ENGINES; engine++)
        if (card->engine_free_at[engine] > now) return true;
    return false;
}

uint64_t harsh_duration(const struct sim_card *card, uint64_t now, uint64_t ns) {
    uint64_t percent = harsh_draw(now / clock_period, card->clock_swing_percent);
    if (card->copying_percent && copies_run(card, now)) percent += card->copying_percent;
    return ns + ns * percent / 100;
}

uint64_t harsh_event_time(const struct sim_card *card, uint64_t time) {
    uint64_t shown = time + time / 1000000 * card->event_drift_ppm;
    return card->event_grain_ns ? shown - shown % card->event_grain_ns : shown;
}

bool harsh_returned(const struct sim *sim, struct sim_process *process) {
    uint64_t now = sim_now(sim);
    if (!process->died_at) process->died_at = now;
    for (uint32_t card = 0; card < sim->state->card_count; card++)
        if (process->contexts[card] && now < process->died_at + sim->state->cards[card].return_ns)
            return false;
    process->died_at = 0;
    return true;
}
