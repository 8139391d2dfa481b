#include "region/regions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/kept_directory.h"
#include "base/message.h"
#include "base/proc.h"
#include "base/sys.h"
#include "region/limits_file.h"

#define DIRECTORY "/run/mizar"
#define PATIENCE 100 /* milliseconds that a process waits in total for a writer to finish */

struct regions *regions_current;

static struct regions inert = {.mode = REGIONS_INERT};
static int told;

static const char *directory(void) {
#ifdef MIZAR_TESTING
    const char *other = getenv("MIZAR_DIR");
    if (other) return other;
#endif
    return DIRECTORY;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* Opened when the library is loaded, so that the program cannot hide Mizar's directory later. */
static struct kept_directory place = KEPT_NONE;
static uint32_t looked;

static struct regions *publish(struct regions *made);

static void look_for_mizar(void) {
    if (__atomic_exchange_n(&looked, 1, __ATOMIC_ACQ_REL)) return;
    if (kept_directory_open(&place, directory()) == -ENOENT)
        publish(&inert);
    else
        proc_keep();
}

__attribute__((constructor)) static void look_at_load(void) {
    look_for_mizar();
}

static int open_file(const char *name, int flags) {
    char path[4096];
    int fd = kept_directory_entry(&place, name, flags);
    if (fd != -EBADF) return fd;
    snprintf(path, sizeof path, "%s/%s", directory(), name);
    return sys_open(path, flags);
}

int regions_open_usage(void) {
    return open_file("usage", O_RDWR);
}

/* Maps the whole file. Returns NULL on success, otherwise what is wrong, for a message. */
static const char *map_file(const char *name, int flags, size_t bytes, void **mapped) {
    int protection = flags == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ;
    int fd = open_file(name, flags);
    if (fd < 0) return "cannot be opened";
    long size = sys_size(fd);
    *mapped = size == (long)bytes ? sys_map(bytes, protection, MAP_SHARED, fd) : NULL;
    sys_close(fd);
    if (size == 0) return "is empty: the node agent has not written it yet";
    if (size != (long)bytes) return "has the wrong size";
    return *mapped ? NULL : "cannot be mapped";
}

static const char *check_usage(const struct mizar_usage *usage) {
    if (memcmp(usage->magic, MIZAR_USAGE_MAGIC, sizeof usage->magic)) return "is not a usage file";
    if (usage->version != MIZAR_REGIONS_VERSION) return "has a different version from this shim";
    if (usage->size != MIZAR_USAGE_SIZE || usage->card_max != MIZAR_CARD_MAX ||
        usage->slot_max != MIZAR_SLOT_MAX)
        return "has different table sizes from those of this shim";
    return NULL;
}

/*
 * Devices without a card are looked up again, since the limits may name their card now. Others keep
 * their card, even while the limits cannot be read.
 */
static void ask_again_for_unknown(struct process *process) {
    for (unsigned i = 0; i < DEVICES_MAX; i++) {
        int8_t none = -1;
        __atomic_compare_exchange_n(&process->device_card[i], &none, 0, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    }
}

static void store_uuid(struct process_card *card, const char *uuid) {
    uint64_t words[MIZAR_UUID_SIZE / 8];
    memcpy(words, uuid, sizeof words);
    for (unsigned i = 0; i < MIZAR_UUID_SIZE / 8; i++)
        __atomic_store_n(&card->uuid[i], words[i], __ATOMIC_RELAXED);
}

/*
 * Not atomic as a whole: a card's UUID never changes, and while a card is added, a reader's UUID
 * matches none.
 */
static void load_uuid(const struct process_card *card, char *uuid) {
    uint64_t words[MIZAR_UUID_SIZE / 8];
    for (unsigned i = 0; i < MIZAR_UUID_SIZE / 8; i++)
        words[i] = __atomic_load_n(&card->uuid[i], __ATOMIC_RELAXED);
    memcpy(uuid, words, sizeof words);
}

static void store_limits(struct process *process, const struct limits_file_copy *copy) {
    for (unsigned i = 0; i < MIZAR_CARD_MAX; i++) {
        uint64_t limit = i < copy->card_count ? copy->cards[i].memory_limit : 0;
        if (limit > MIZAR_BYTES_MAX) limit = MIZAR_BYTES_MAX;
        store_uuid(&process->cards[i], copy->cards[i].uuid);
        __atomic_store_n(&process->cards[i].limit, limit, __ATOMIC_RELAXED);
        __atomic_store_n(&process->cards[i].context_bytes, copy->cards[i].context_bytes,
                         __ATOMIC_RELAXED);
        __atomic_store_n(&process->cards[i].oversubscribe,
                         copy->cards[i].memory_mode == MIZAR_MEMORY_OVERSUBSCRIBE,
                         __ATOMIC_RELAXED);
        __atomic_store_n(&process->cards[i].core_share, copy->cards[i].core_share, __ATOMIC_RELAXED);
        __atomic_store_n(&process->cards[i].compute_mode, copy->cards[i].compute_mode,
                         __ATOMIC_RELAXED);
    }
    __atomic_store_n(&process->card_count, copy->card_count, __ATOMIC_RELEASE);
    ask_again_for_unknown(process);
    __atomic_store_n(&process->limits_seq, copy->seq, __ATOMIC_RELEASE);
    __atomic_store_n(&process->limits_known, 1, __ATOMIC_RELEASE);
}

static const char *read_limits(const struct mizar_limits *limits, struct process *process) {
    struct limits_file_copy copy;
    const char *wrong = limits_file_read(limits, &copy);
    if (!wrong) store_limits(process, &copy);
    return wrong;
}

static const char *read_limits_patiently(const struct mizar_limits *limits,
                                         struct process *process) {
    static int patience = PATIENCE;
    const char *wrong = read_limits(limits, process);
    while (wrong == limits_file_busy && __atomic_sub_fetch(&patience, 1, __ATOMIC_RELAXED) > 0) {
        sys_sleep(1000);
        wrong = read_limits(limits, process);
    }
    return wrong;
}

bool regions_refresh(struct regions *regions) {
    struct process *process = regions->process;
    const char *wrong = NULL;
    if (__atomic_load_n(&process->limits_known, __ATOMIC_ACQUIRE)) {
        /*
         * While another thread reads the limits or the agent writes them, the known ones are used.
         */
        if (!lock_try(&process->refresh_lock)) return true;
        read_limits(regions->limits, process);
    } else {
        lock_take(&process->refresh_lock);
        if (!process->limits_known) wrong = read_limits_patiently(regions->limits, process);
    }
    lock_release(&process->refresh_lock);
    if (wrong) message_once(&told, "CUDA is refused: %s/limits %s", directory(), wrong);
    return !wrong;
}

static unsigned card_count(const struct regions *regions) {
    return __atomic_load_n(&regions->process->card_count, __ATOMIC_ACQUIRE);
}

int regions_card(struct regions *regions, const char *uuid) {
    char own[MIZAR_UUID_SIZE];
    if (!regions_fresh(regions)) return CARD_NONE;
    for (unsigned i = 0; i < card_count(regions); i++) {
        load_uuid(&regions->process->cards[i], own);
        if (!strcasecmp(own, uuid)) return (int)i;
    }
    return CARD_NONE;
}

bool regions_uuid(struct regions *regions, int card, char *uuid) {
    if (!regions_fresh(regions) || (unsigned)card >= card_count(regions)) return false;
    load_uuid(&regions->process->cards[card], uuid);
    return true;
}

static void drop(struct regions *made) {
    if (made->limits) sys_unmap((void *)made->limits, MIZAR_LIMITS_SIZE);
    if (made->usage) sys_unmap(made->usage, MIZAR_USAGE_SIZE);
    if (made->process) process_state_drop(made->process);
    free(made);
}

/* Fills `made`; on failure names the file and what is wrong with it. */
static const char *fill(struct regions *made, const char **file) {
    void *mapped = NULL;
    *file = "limits";
    const char *wrong = map_file("limits", O_RDONLY, MIZAR_LIMITS_SIZE, &mapped);
    if (wrong) return wrong;
    made->limits = mapped;
    *file = "usage";
    wrong = map_file("usage", O_RDWR, MIZAR_USAGE_SIZE, &mapped);
    if (wrong) return wrong;
    made->usage = mapped;
    wrong = check_usage(made->usage);
    if (wrong) return wrong;
    *file = "limits";
    made->process = process_state_new();
    return made->process ? read_limits_patiently(made->limits, made->process)
                         : "cannot be kept: no memory, or a kernel older than 4.14";
}

/* Publishes the regions. If another thread was faster, drops them and returns that thread's. */
static struct regions *publish(struct regions *made) {
    struct regions *first = NULL;
    if (__atomic_compare_exchange_n(&regions_current, &first, made, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return made;
    if (made != &inert) drop(made);
    return first;
}

bool regions_inert(void) {
    look_for_mizar(); /* other libraries' constructors may run before this one's */
    return __atomic_load_n(&regions_current, __ATOMIC_ACQUIRE) == &inert;
}

struct regions *regions_open(void) {
    const char *file;
    if (regions_inert()) return &inert;
    struct regions *made = calloc(1, sizeof *made);
    const char *wrong = made ? fill(made, &file) : "no memory";
    if (!wrong) {
        made->mode = REGIONS_ACTIVE;
        return publish(made);
    }
    message_once(&told, "CUDA is refused: %s/%s %s", directory(), made ? file : "", wrong);
    if (made) drop(made);
    return NULL;
}
