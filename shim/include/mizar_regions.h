/*
 * mizar_regions.h: the two files through which the node agent and the shim talk.
 *
 *   limits   written by the node agent, read by the shim   (0644 root, mounted read-only)
 *   usage    written by the shim, read by the node agent   (0666, mounted read-write)
 *
 * One slot directory on the node holds both, for one container. The node agent creates both
 * files before the container starts: `limits` MIZAR_LIMITS_SIZE zero bytes ("empty": CUDA fails
 * closed until it is written) but for magic, version and size, `usage` MIZAR_USAGE_SIZE zero bytes (sparse)
 * with the header filled in (magic, version, size, card_max, slot_max). Everything else in `usage` starts as
 * zero, and zero means unused. All numbers are little-endian. Files are never replaced or resized once mounted.
 *
 * The layout is mirrored in the node agent (nodeagent/mizar_nodeagent/regions/layout.py); a test compares
 * it with what build/shim/regions-layout prints. What may change, and what a new MIZAR_REGIONS_VERSION
 * means for containers that run with an older one, is in shim/README.md.
 *
 * ---- limits: how it is written and read -------------------------------------------------------
 * There is one writer. It (1) makes `seq` odd, (2) writes state, identity and cards, (3) sets `crc`
 * to the CRC-32 (zlib's) of the bytes [MIZAR_LIMITS_CRC_FROM, MIZAR_LIMITS_CRC_TO), (4) makes `seq`
 * even again: a number it never had before. A reader copies the region while `seq` is even
 * and unchanged, and checks the CRC: a bit flipped on disk must not lift a limit. A process that
 * runs already keeps its last good copy while the region is being written or is damaged; one that
 * starts fails closed. A writer that died half-way is cured by its successor writing everything
 * again. The `live` part is outside seq and crc: each field in it is one aligned word that is valid
 * by itself; the shim clamps it.
 * cards[i] of the limits, cards[i] and held[i] of the usage are the same card: the order never
 * changes while the container lives (values do; a card may be added at the end).
 *
 * ---- usage: how it is written and read --------------------------------------------------------
 * Ownership of process slot i is an open-file-description write lock (F_OFD_SETLK) on byte
 * MIZAR_SLOT_LOCK(i) of the usage file, taken by the process whose slot it is and kept by a memory
 * mapping of that open file description which children do not inherit. The kernel drops it when the
 * process dies or execs, in whatever PID namespace it lives; nothing else frees a slot. So
 *     slot i is alive  <=>  F_OFD_GETLK(F_WRLCK, MIZAR_SLOT_LOCK(i), 1) finds a lock,
 * and whoever takes the lock of a slot with `pid` != 0 settles what its last owner left.
 * pid and start_time are as the container sees them; they tell people which process it is.
 *
 * Bytes per card: `ledger` is one 128-bit word, changed by compare-and-swap only:
 *     lo = seq (32 bits, lowest) | slot (10 bits) | high 22 bits of slot_bytes
 *     hi = low 21 bits of slot_bytes (lowest) | total (43 bits)
 * It says: `total` bytes are taken in the container on this card, and by the last change process
 * slot `slot` holds `slot_bytes` of them. slots[slot].held[card] is brought up to date (bytes and
 * seq) before another slot's change replaces that statement. Hence at every instant, also when
 * every process is killed between two instructions:
 *     bytes of slot i = (ledger.slot == i) ? ledger.slot_bytes : slots[i].held[card].bytes
 *     ledger.total    = sum over all slots i of bytes of slot i
 * A reader that wants both halves of one instant reads lo, hi, lo until lo is the same twice.
 * A dead slot's bytes stay in `total` until another process of the container settles them (it does
 * so before refusing memory): the node agent should sum over living slots, of 0 .. slot_high - 1.
 *
 * Copies and memsets: each process counts in its slot, on cache lines of its own, those of one card:
 * of the first that was ever counted there. Those of other cards it counts in copies[card], with all
 * other processes. Counters only grow, and no slot's are given back, so nobody's death loses any. Hence
 *     copies of a card = copies[card] + sum over all slots i with slots[i].copies.card == card + 1
 */
#ifndef MIZAR_REGIONS_H
#define MIZAR_REGIONS_H

#include <stddef.h>
#include <stdint.h>

#define MIZAR_REGIONS_VERSION 1u

#define MIZAR_LIMITS_MAGIC "MIZARLIM" /* 8 bytes, no NUL */
#define MIZAR_USAGE_MAGIC "MIZARUSE"

#define MIZAR_CARD_MAX 16u
#define MIZAR_SLOT_MAX 1024u
#define MIZAR_UUID_SIZE 64u

#define MIZAR_STATE_EMPTY 0u
#define MIZAR_STATE_READY 1u

#define MIZAR_MEMORY_HARD 0u
#define MIZAR_MEMORY_OVERSUBSCRIBE 1u

#define MIZAR_COMPUTE_NONE 0u
#define MIZAR_COMPUTE_HARD 1u
#define MIZAR_COMPUTE_SOFT 2u
#define MIZAR_COMPUTE_WEIGHTED 3u
#define MIZAR_COMPUTE_STOPPED 4u /* no new work, whoever lives: the card is not the container's any more */

#define MIZAR_SHARE_FULL 10000u /* basis points: the whole card */

/* Bytes that one card can be limited to: what the ledger's 43 bits hold (8 TiB less one byte). */
#define MIZAR_BYTES_MAX ((UINT64_C(1) << 43) - 1)

/*
 * Drivers take memory for code by the page. So many functions (uses of code that nobody has measured yet)
 * are taken to fit one: most need much less than 512 KiB.
 */
#define MIZAR_CODE_PAGE (UINT64_C(2) << 20)
#define MIZAR_CODE_PER_PAGE 4u

/* ---- limits ---------------------------------------------------------------------------------- */

struct mizar_limits_card {
    char uuid[MIZAR_UUID_SIZE]; /* "GPU-..." or "MIG-...", NUL-padded */
    uint64_t memory_limit;      /* bytes this container may hold; 0: none */
    uint64_t memory_physical;   /* bytes of the card itself; 0: not told */
    uint32_t memory_mode;       /* MIZAR_MEMORY_* */
    uint32_t compute_mode;      /* MIZAR_COMPUTE_* */
    uint32_t core_share;        /* basis points of the card's time; ignored for COMPUTE_NONE; 0 with
                                   COMPUTE_SOFT: only what an agent that lives lends by spare_share */
    uint32_t priority;          /* 0 lowest; a borrower is paused for a higher one. Only the agent reads it;
                                   UINT32_MAX: a borrower that has its notice */
    uint64_t context_bytes;     /* of a context on this card, as the agent learned; 0: the shim measures */
    uint8_t reserved[24];
};

/* Changes often, one aligned word at a time; not covered by seq and crc. */
struct mizar_limits_live {
    uint32_t spare_share;       /* basis points that others leave unused just now (Soft) */
    uint32_t paused;            /* not 0: start no new work on this card */
    uint32_t active_weight;     /* sum of core_share of the busy containers on the card (Weighted) */
    uint32_t beat;              /* counts up with each round of the node agent */
    uint64_t unaccounted_bytes; /* what NVML says of the container beyond its own account */
    uint64_t window; /* when to work, MIZAR_WINDOW_*; 0: at any time */
    uint32_t wake;   /* a futex: changes when a waiter should look again */
    uint32_t borrowed; /* not 0: the card is lent while the container sleeps, or is just being given back */
    uint64_t code_seen; /* uses of code (code_uses) that unaccounted_bytes counts; written after it */
    uint8_t reserved[80];
};

/*
 * A window of the card's time that comes again and again, in one word so that it is always whole:
 *     length (20 bits, lowest) | start (20 bits) | period (20 bits) | 1 (the highest 4 bits)
 * all in microseconds. The container should have work on the card only while
 *     (CLOCK_MONOTONIC - start) modulo period < length
 * so that containers whose windows do not overlap never share a moment of the card, without one
 * knowing of another.
 */
#define MIZAR_WINDOW_BITS 20u
#define MIZAR_WINDOW_VALID (UINT64_C(1) << 60)

struct mizar_limits {
    char magic[8];
    uint32_t version; /* MIZAR_REGIONS_VERSION */
    uint32_t size;    /* MIZAR_LIMITS_SIZE */
    uint32_t seq;     /* odd while it is being written */
    uint32_t crc;
    uint32_t state; /* MIZAR_STATE_*; here the CRC begins */
    uint32_t card_count;
    uint32_t body_version; /* as `version`, which no CRC covers; 0: written before there was this */
    uint8_t reserved0[28];
    char pod_namespace[64]; /* NUL-padded, all of these */
    char pod_name[256];
    char pod_uid[64];
    char container[64];
    char slot_name[64]; /* the node agent's name of the slot */
    uint8_t reserved1[448];
    struct mizar_limits_card cards[MIZAR_CARD_MAX];
    uint8_t reserved2[1024]; /* here the CRC ends */
    struct mizar_limits_live live[MIZAR_CARD_MAX];
    uint32_t asleep; /* not 0: a card is lent while the container sleeps: every launch says that it wakes */
    uint8_t reserved3[2044];
};

#define MIZAR_LIMITS_SIZE 8192u
#define MIZAR_LIMITS_CRC_FROM 24u
#define MIZAR_LIMITS_CRC_TO 4096u

/* ---- usage ----------------------------------------------------------------------------------- */

struct mizar_ledger {
    uint64_t lo;
    uint64_t hi;
};

struct mizar_held {
    uint64_t bytes;
    uint64_t seq; /* of the ledger when this was true; the low 32 bits count */
};

/*
 * The container's GPU time on one card. All times in ns of CLOCK_MONOTONIC. One aligned word each,
 * changed by compare-and-swap or addition.
 */
struct mizar_compute {
    uint64_t paid_until; /* work up to this moment is paid for, at the container's share */
    uint64_t busy_until; /* the container's work on the card was measured up to this moment */
    uint64_t charged_ns; /* GPU time charged so far: the length of all moments with work */
    uint64_t wanted_at;  /* when a process last asked for GPU time, or was waiting for it */
    uint64_t longest_ns; /* the longest piece of work (a kernel, a graph) of late; advisory */
    uint64_t waited_ns;  /* how long launches were held up, all in all; advisory */
    uint64_t longest_at; /* when such a long one was last seen */
    uint64_t load;       /* the last look at charged_ns, for NVML: utilization.c */
    uint64_t uncharged_ns; /* moments with work that nobody was charged for yet: the shim's own */
    uint64_t turn;        /* whose turn it is among the processes, and until when: the shim's own */
    uint64_t turn_wanted; /* until when another one waits for it */
    uint64_t window_end;  /* of the window in which work began last ... */
    uint64_t work_end;    /* ... and of the last of that work */
    int64_t over;         /* ns by which these differed of late, in all: the shim's own */
    uint8_t reserved[144];
};

struct mizar_usage_card {
    struct mizar_ledger ledger; /* a cache line pair of its own */
    uint8_t reserved0[112];
    uint64_t peak_bytes; /* highest total seen at a refusal or an attach; advisory */
    uint64_t refused;    /* requests refused for want of memory; advisory */
    uint64_t settled;    /* dead slots whose bytes were given back; advisory */
    uint64_t learned_contexts[3]; /* measured costs of contexts, plus one; 0: none. The shim's own */
    uint64_t code_uses; /* first uses of code, which may have come to the card with them, so far */
    uint8_t reserved1[72];
    struct mizar_compute compute;
};

/*
 * Of one process on one card. absent_bytes is not too small, but for the instant between a charge and it; it
 * shrinks after that was given back or came to the card. The others are advisory.
 */
struct mizar_slot_card {
    uint64_t absent_bytes;  /* as many of held.bytes as may not be on the card */
    uint64_t gpu_time_ns;   /* GPU time charged so far */
    uint64_t open_since;    /* work is on the card since then (ns, CLOCK_MONOTONIC); 0: none ... */
    uint64_t open_until;    /* ... and should be done by then */
};

/* What a copy is of. MIZAR_COPY_OTHER: between hosts, or the driver finds out from the addresses. */
enum mizar_copy {
    MIZAR_COPY_TO_DEVICE,
    MIZAR_COPY_TO_HOST,
    MIZAR_COPY_DEVICES, /* from device memory to device memory, of the same card or another one */
    MIZAR_COPY_OTHER,
    MIZAR_MEMSET,
    MIZAR_COPY_KINDS
};

struct mizar_copied {
    uint64_t count;
    uint64_t bytes;
};

/* Work of copy engines that was started so far, as far as the driver took it. */
struct mizar_copies {
    struct mizar_copied kinds[MIZAR_COPY_KINDS];
    uint64_t card; /* in a slot: the card plus one; 0: none yet */
    uint8_t reserved[40];
};

struct mizar_usage_slot {
    uint32_t pid;          /* 0: never used. As the process itself sees it */
    uint32_t state;        /* MIZAR_STATE_*: READY once pid ... comm are written */
    uint64_t start_time;   /* field 22 of /proc/pid/stat: clock ticks since boot */
    uint64_t generation;   /* one more for each owner of the slot */
    uint64_t pid_ns;       /* inode number of /proc/self/ns/pid */
    uint64_t attached_ns;  /* CLOCK_REALTIME when it attached */
    uint32_t uid;
    uint32_t shim_version; /* MIZAR_SHIM_VERSION: the handshake; MIZAR_SHIM_PAST: part of it goes past */
    char comm[16];
    uint32_t code_begun[MIZAR_CARD_MAX]; /* uses in code_uses that may not have come yet */
    struct mizar_held held[MIZAR_CARD_MAX];
    struct mizar_slot_card cards[MIZAR_CARD_MAX];
    struct mizar_copies copies;
};

struct mizar_usage {
    char magic[8];
    uint32_t version;
    uint32_t size; /* MIZAR_USAGE_SIZE */
    uint32_t card_max;
    uint32_t slot_max;
    uint32_t slot_high;    /* slots below this one were used at some time; only grows */
    uint32_t attached;     /* processes that attached so far: the handshake; wraps */
    uint32_t no_slot;      /* processes that were refused because every slot was taken */
    uint32_t shim_version; /* of the process that attached last */
    uint8_t reserved[2008];
    struct mizar_copies copies[MIZAR_CARD_MAX]; /* of what slots do not count */
    struct mizar_usage_card cards[MIZAR_CARD_MAX];
    struct mizar_usage_slot slots[MIZAR_SLOT_MAX];
};

#define MIZAR_USAGE_SIZE 1060864u

/* The byte of the usage file that process slot i locks: inside its own structure. */
#define MIZAR_SLOT_LOCK(i) (12288u + 1024u * (uint32_t)(i))

#define MIZAR_SHIM_VERSION 1u
#define MIZAR_SHIM_PAST UINT32_MAX /* the process has a second driver, whose calls nobody limits */

/*
 * Every field: struct, field, offset, size. The one table behind the static asserts and behind
 * build/shim/regions-layout.
 */
#define MIZAR_LAYOUT(FIELD)                                    \
    FIELD(mizar_limits_card, uuid, 0, 64)                      \
    FIELD(mizar_limits_card, memory_limit, 64, 8)              \
    FIELD(mizar_limits_card, memory_physical, 72, 8)           \
    FIELD(mizar_limits_card, memory_mode, 80, 4)               \
    FIELD(mizar_limits_card, compute_mode, 84, 4)              \
    FIELD(mizar_limits_card, core_share, 88, 4)                \
    FIELD(mizar_limits_card, priority, 92, 4)                  \
    FIELD(mizar_limits_card, context_bytes, 96, 8)             \
    FIELD(mizar_limits_live, spare_share, 0, 4)                \
    FIELD(mizar_limits_live, paused, 4, 4)                     \
    FIELD(mizar_limits_live, active_weight, 8, 4)              \
    FIELD(mizar_limits_live, beat, 12, 4)                      \
    FIELD(mizar_limits_live, unaccounted_bytes, 16, 8)         \
    FIELD(mizar_limits_live, window, 24, 8)                    \
    FIELD(mizar_limits_live, wake, 32, 4)                      \
    FIELD(mizar_limits_live, borrowed, 36, 4)                  \
    FIELD(mizar_limits_live, code_seen, 40, 8)                 \
    FIELD(mizar_limits, magic, 0, 8)                           \
    FIELD(mizar_limits, version, 8, 4)                         \
    FIELD(mizar_limits, size, 12, 4)                           \
    FIELD(mizar_limits, seq, 16, 4)                            \
    FIELD(mizar_limits, crc, 20, 4)                            \
    FIELD(mizar_limits, state, 24, 4)                          \
    FIELD(mizar_limits, card_count, 28, 4)                     \
    FIELD(mizar_limits, body_version, 32, 4)                   \
    FIELD(mizar_limits, pod_namespace, 64, 64)                 \
    FIELD(mizar_limits, pod_name, 128, 256)                    \
    FIELD(mizar_limits, pod_uid, 384, 64)                      \
    FIELD(mizar_limits, container, 448, 64)                    \
    FIELD(mizar_limits, slot_name, 512, 64)                    \
    FIELD(mizar_limits, cards, 1024, 2048)                     \
    FIELD(mizar_limits, live, 4096, 2048)                      \
    FIELD(mizar_limits, asleep, 6144, 4)                       \
    FIELD(mizar_ledger, lo, 0, 8)                              \
    FIELD(mizar_ledger, hi, 8, 8)                              \
    FIELD(mizar_compute, paid_until, 0, 8)                     \
    FIELD(mizar_compute, busy_until, 8, 8)                     \
    FIELD(mizar_compute, charged_ns, 16, 8)                    \
    FIELD(mizar_compute, wanted_at, 24, 8)                     \
    FIELD(mizar_compute, longest_ns, 32, 8)                    \
    FIELD(mizar_compute, waited_ns, 40, 8)                     \
    FIELD(mizar_compute, longest_at, 48, 8)                    \
    FIELD(mizar_compute, load, 56, 8)                          \
    FIELD(mizar_compute, uncharged_ns, 64, 8)                  \
    FIELD(mizar_compute, turn, 72, 8)                          \
    FIELD(mizar_compute, turn_wanted, 80, 8)                   \
    FIELD(mizar_compute, window_end, 88, 8)                    \
    FIELD(mizar_compute, work_end, 96, 8)                      \
    FIELD(mizar_compute, over, 104, 8)                         \
    FIELD(mizar_held, bytes, 0, 8)                             \
    FIELD(mizar_held, seq, 8, 8)                               \
    FIELD(mizar_usage_card, ledger, 0, 16)                     \
    FIELD(mizar_usage_card, peak_bytes, 128, 8)                \
    FIELD(mizar_usage_card, refused, 136, 8)                   \
    FIELD(mizar_usage_card, settled, 144, 8)                   \
    FIELD(mizar_usage_card, code_uses, 176, 8)                 \
    FIELD(mizar_usage_card, compute, 256, 256)                 \
    FIELD(mizar_slot_card, absent_bytes, 0, 8)                 \
    FIELD(mizar_slot_card, gpu_time_ns, 8, 8)                  \
    FIELD(mizar_slot_card, open_since, 16, 8)                  \
    FIELD(mizar_slot_card, open_until, 24, 8)                  \
    FIELD(mizar_copied, count, 0, 8)                           \
    FIELD(mizar_copied, bytes, 8, 8)                           \
    FIELD(mizar_copies, kinds, 0, 80)                          \
    FIELD(mizar_copies, card, 80, 8)                           \
    FIELD(mizar_usage_slot, pid, 0, 4)                         \
    FIELD(mizar_usage_slot, state, 4, 4)                       \
    FIELD(mizar_usage_slot, start_time, 8, 8)                  \
    FIELD(mizar_usage_slot, generation, 16, 8)                 \
    FIELD(mizar_usage_slot, pid_ns, 24, 8)                     \
    FIELD(mizar_usage_slot, attached_ns, 32, 8)                \
    FIELD(mizar_usage_slot, uid, 40, 4)                        \
    FIELD(mizar_usage_slot, shim_version, 44, 4)               \
    FIELD(mizar_usage_slot, comm, 48, 16)                      \
    FIELD(mizar_usage_slot, code_begun, 64, 64)                \
    FIELD(mizar_usage_slot, held, 128, 256)                    \
    FIELD(mizar_usage_slot, cards, 384, 512)                   \
    FIELD(mizar_usage_slot, copies, 896, 128)                  \
    FIELD(mizar_usage, magic, 0, 8)                            \
    FIELD(mizar_usage, version, 8, 4)                          \
    FIELD(mizar_usage, size, 12, 4)                            \
    FIELD(mizar_usage, card_max, 16, 4)                        \
    FIELD(mizar_usage, slot_max, 20, 4)                        \
    FIELD(mizar_usage, slot_high, 24, 4)                       \
    FIELD(mizar_usage, attached, 28, 4)                        \
    FIELD(mizar_usage, no_slot, 32, 4)                         \
    FIELD(mizar_usage, shim_version, 36, 4)                    \
    FIELD(mizar_usage, copies, 2048, 2048)                     \
    FIELD(mizar_usage, cards, 4096, 8192)                      \
    FIELD(mizar_usage, slots, 12288, 1048576)

#define MIZAR_LAYOUT_SIZES(STRUCT)         \
    STRUCT(mizar_limits_card, 128)         \
    STRUCT(mizar_limits_live, 128)         \
    STRUCT(mizar_limits, MIZAR_LIMITS_SIZE) \
    STRUCT(mizar_ledger, 16)               \
    STRUCT(mizar_held, 16)                 \
    STRUCT(mizar_compute, 256)             \
    STRUCT(mizar_usage_card, 512)          \
    STRUCT(mizar_slot_card, 32)            \
    STRUCT(mizar_copied, 16)               \
    STRUCT(mizar_copies, 128)              \
    STRUCT(mizar_usage_slot, 1024)         \
    STRUCT(mizar_usage, MIZAR_USAGE_SIZE)

#define MIZAR_ASSERT_FIELD(s, f, offset, bytes)                                     \
    _Static_assert(offsetof(struct s, f) == (offset), #s "." #f " is elsewhere");    \
    _Static_assert(sizeof(((struct s *)0)->f) == (bytes), #s "." #f " changed size");
#define MIZAR_ASSERT_SIZE(s, bytes) \
    _Static_assert(sizeof(struct s) == (bytes), #s " changed size");

MIZAR_LAYOUT(MIZAR_ASSERT_FIELD)
MIZAR_LAYOUT_SIZES(MIZAR_ASSERT_SIZE)
_Static_assert(offsetof(struct mizar_limits, state) == MIZAR_LIMITS_CRC_FROM, "CRC begins at state");
_Static_assert(offsetof(struct mizar_limits, live) == MIZAR_LIMITS_CRC_TO, "CRC ends before live");
_Static_assert(offsetof(struct mizar_usage, slots[3]) == MIZAR_SLOT_LOCK(3), "lock inside its slot");

#endif
