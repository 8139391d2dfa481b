/* cuInit: determines the cards that this process sees, and their order. */
#define _GNU_SOURCE
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver.h"

enum life { LIFE_NEW, LIFE_READY, LIFE_FORKED };

struct driver driver = {.sim = {.fd = -1, .slot = -1}};
__thread int per_thread_default;

static _Atomic int life;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

/* As with the real driver, a forked child cannot use its parent's contexts. */
static void in_forked_child(void) {
    if (life != LIFE_READY) return;
    life = LIFE_FORKED;
    sim_abandon(&driver.sim);
}

static bool usable(unsigned card) {
    return sim_card_visible(&driver.sim, card) && !sim_card_lost(&driver.sim, card) &&
           !driver.sim.state->cards[card].divided;
}

/* Lists whole cards and MIG instances; a divided card itself cannot be used. */
static int usable_cards(unsigned *cards) {
    int count = 0;
    for (unsigned card = 0; card < driver.sim.state->card_count; card++)
        if (usable(card)) cards[count++] = card;
    return count;
}

/* The card for one token of CUDA_VISIBLE_DEVICES: an index, or an unambiguous prefix of a UUID. -1
 * if it is neither. */
static int find_token(const char *token, size_t length, const unsigned *cards, int count) {
    char *end;
    long index = strtol(token, &end, 10);
    if (length && end == token + length) return index >= 0 && index < count ? (int)index : -1;
    int found = -1;
    if (length < 5 || (strncasecmp(token, "GPU-", 4) != 0 && strncasecmp(token, "MIG-", 4) != 0))
        return -1;
    for (int i = 0; i < count; i++) {
        if (strncasecmp(driver.sim.state->cards[cards[i]].uuid, token, length) != 0) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

static bool already_chosen(unsigned card) {
    for (int i = 0; i < driver.count; i++)
        if (driver.card[i] == card) return true;
    return false;
}

/* As in the real driver, the list ends at the first invalid token, and a repeated card empties
 * it. */
static void choose_listed(const char *list, const unsigned *cards, int count) {
    while (*list) {
        while (isspace((unsigned char)*list)) list++;
        size_t length = strcspn(list, ", \t");
        int found = find_token(list, length, cards, count);
        if (found < 0) return;
        if (already_chosen(cards[found])) {
            driver.count = 0;
            return;
        }
        driver.card[driver.count++] = cards[found];
        list += length;
        list += strspn(list, " \t");
        if (*list == ',') list++;
    }
}

/* A process can use one MIG instance, and then no other card. */
static void keep_one_instance(void) {
    for (int i = 0; i < driver.count; i++)
        if (sim_card_is_instance(&driver.sim, driver.card[i])) {
            driver.card[0] = driver.card[i];
            driver.count = 1;
            return;
        }
}

static void choose_cards(void) {
    unsigned cards[SIM_MAX_CARDS];
    int count = usable_cards(cards);
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    driver.count = 0;
    if (list) {
        choose_listed(list, cards, count);
    } else {
        driver.count = count;
        memcpy(driver.card, cards, sizeof cards);
    }
    keep_one_instance();
}

static CUresult start(void) {
    if (sim_open(&driver.sim, sim_path())) return CUDA_ERROR_NO_DEVICE;
    choose_cards();
    if (!driver.count) return CUDA_ERROR_NO_DEVICE;
    if (sim_claim(&driver.sim)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    pthread_atfork(NULL, NULL, in_forked_child);
    return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (life == LIFE_READY) return CUDA_SUCCESS;
    if (life == LIFE_FORKED) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_lock);
    CUresult result = CUDA_SUCCESS;
    if (life == LIFE_NEW) {
        result = start();
        if (result && driver.sim.fd >= 0) sim_close(&driver.sim);
        if (!result) life = LIFE_READY;
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

CUresult driver_ready(void) {
    return life == LIFE_READY ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_device(CUdevice device) {
    TRY(driver_ready());
    return device >= 0 && device < driver.count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
