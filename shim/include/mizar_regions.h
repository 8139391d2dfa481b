/*
 * mizar_regions.h: the layout of the two shared files (memory-mapped regions) by which the node
 * agent and the shim communicate.
 *
 *   limits   written by the node agent, read by the shim   (0644 root, mounted read-only)
 *   usage    written by the shim, read by the node agent   (0666, mounted read-write)
 *
 * One slot directory on the node holds both files of one container. The node agent creates both
 * before the container starts. `limits` has MIZAR_LIMITS_SIZE bytes, all zero except magic, version
 * and size; while its state is EMPTY, CUDA fails closed. `usage` is sparse and has MIZAR_USAGE_SIZE
 * bytes, all zero except the header (magic, version, size, card_max, slot_max); zero means unused.
 * All numbers are little-endian. Files are never replaced or resized once they are mounted.
 *
 * The node agent has a copy of the layout (nodeagent/mizar_nodeagent/regions/layout.py); a test
 * compares it with the output of build/shim/regions-layout. shim/README.md says what may change,
 * and what a new MIZAR_REGIONS_VERSION means for containers that run with an older one.
 *
 * ---- limits: how it is written and read -------------------------------------------------------
 * A seqlock with a checksum and a single writer. The writer (1) makes `seq` odd, (2) writes state,
 * identity and cards, (3) sets `crc` to the CRC-32 (zlib's) of the bytes
 * [MIZAR_LIMITS_CRC_FROM, MIZAR_LIMITS_CRC_TO), (4) makes `seq` even again, with a value that it
 * never had before. A reader copies the region while `seq` is even and unchanged, and checks the
 * CRC, so that a bit flipped on disk does not lift a limit. While the region is being written or is
 * damaged, a process that already runs keeps its last good copy, and a process that starts fails
 * closed. If the writer dies in between, the next writer repairs the region by writing everything
 * again. `live` is not covered by seq and crc: each of its fields is one aligned word that is valid
 * by itself, and the shim clamps its value.
 * cards[i] of the limits and cards[i] and held[i] of the usage are the same card. The order never
 * changes while the container lives; values do, and a card may be added at the end.
 *
 * ---- usage: how it is written and read --------------------------------------------------------
 * A process owns slot i while it holds an open-file-description write lock (F_OFD_SETLK) on byte
 * MIZAR_SLOT_LOCK(i) of the usage file. A memory mapping, which children do not inherit, keeps that
 * open file description. The kernel drops the lock when the process dies or execs, in any PID
 * namespace; nothing else frees a slot. So
 *     slot i is alive  <=>  F_OFD_GETLK(F_WRLCK, MIZAR_SLOT_LOCK(i), 1) finds a lock,
 * and a process that takes the lock of a slot with `pid` != 0 settles what the last owner left.
 * pid and start_time have the container's view; they tell people which process it is.
 *
 * Bytes per card: `ledger` is one 128-bit word, changed only by compare-and-swap:
 *     lo = seq (32 bits, lowest) | slot (10 bits) | high 22 bits of slot_bytes
 *     hi = low 21 bits of slot_bytes (lowest) | total (43 bits)
 * It states that `total` bytes are taken in the container on this card, and that after the last
 * change process slot `slot` holds `slot_bytes` of them. Before another slot's change replaces that
 * statement, it is copied to slots[slot].held[card] (bytes and seq). Hence at every instant, even if
 * every process is killed between two instructions:
 *     bytes of slot i = (ledger.slot == i) ? ledger.slot_bytes : slots[i].held[card].bytes
 *     ledger.total    = sum over all slots i of bytes of slot i
 * A reader that needs both halves of one instant reads lo, hi, lo until both values of lo are equal.
 * A dead slot's bytes stay in `total` until another process of the container settles them, which it
 * does before memory is refused. The node agent should therefore sum over the living slots among
 * 0 .. slot_high - 1.
 *
 * Copies and memsets: each process counts those of one card, the first that was counted in its slot,
 * in that slot, on cache lines of its own. It counts those of other cards in copies[card], which all
 * processes share. Counters only grow, and a slot's counters are never reset, so that the death of a
 * process loses nothing. Hence
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
#define MIZAR_COMPUTE_STOPPED 4u /* no work may start, whether or not the agent is alive: the
                                    card is no longer the container's */

#define MIZAR_SHARE_FULL 10000u /* basis points of the whole card's time */

/*
 * The most bytes that one card can be limited to, which is what the ledger's 43 bits hold: 8 TiB
 * less one byte.
 */
#define MIZAR_BYTES_MAX ((UINT64_C(1) << 43) - 1)

/*
 * Drivers allocate memory for code in pages of 2 MiB. One page is assumed to hold
 * MIZAR_CODE_PER_PAGE functions (first uses of code that were not measured yet): most functions
 * need much less than 512 KiB.
 */
#define MIZAR_CODE_PAGE (UINT64_C(2) << 20)
#define MIZAR_CODE_PER_PAGE 4u

/* ---- limits ---------------------------------------------------------------------------------- */

struct mizar_limits_card {
    char uuid[MIZAR_UUID_SIZE]; /* "GPU-..." or "MIG-...", NUL-padded */
    uint64_t memory_limit;      /* bytes that this container may hold; 0: none at all */
    uint64_t memory_physical;   /* bytes of the whole card; 0: not known */
    uint32_t memory_mode;       /* MIZAR_MEMORY_* */
    uint32_t compute_mode;      /* MIZAR_COMPUTE_* */
    uint32_t core_share;        /* basis points of the card's time; ignored with COMPUTE_NONE; 0
                                   with COMPUTE_SOFT: the container gets only what a live agent
                                   lends by spare_share */
    uint32_t priority;          /* 0 is the lowest; a borrower is paused for a higher one. Only
                                   the agent reads it. UINT32_MAX: a borrower that has to
                                   leave */
    uint64_t context_bytes;     /* bytes that a context takes on this card, as the agent
                                   measured; 0: the shim measures it */
    uint8_t reserved[24];
};

/* Changes often, one aligned word at a time; not covered by seq and crc. */
struct mizar_limits_live {
    uint32_t spare_share;       /* basis points that other containers leave unused at present (Soft) */
    uint32_t paused;            /* not 0: no new work may start on this card */
    uint32_t active_weight;     /* sum of core_share of the busy containers on the card (Weighted) */
    uint32_t beat;              /* heartbeat of the node agent: it adds one in each round */
    uint64_t unaccounted_bytes; /* bytes that NVML reports for the container beyond its own account */
    uint64_t window; /* when to run work: MIZAR_WINDOW_*; 0: at any time */
    uint32_t wake;   /* futex word: changes when a waiting thread should check again */
    uint32_t borrowed; /* not 0: the card is lent while the container is idle, or is being given back */
    uint64_t code_seen; /* the part of code_uses that unaccounted_bytes includes; written after
                           unaccounted_bytes */
    uint8_t reserved[80];
};

/*
 * A recurring window of the card's time. It is one word, so that a reader always gets a consistent
 * window:
 *     length (20 bits, lowest) | start (20 bits) | period (20 bits) | 1 (the highest 4 bits)
 * all in microseconds. The container should have work on the card only while
 *     (CLOCK_MONOTONIC - start) modulo period < length
 * so that containers whose windows do not overlap never use the card at the same time, although
 * none knows of another.
 */
#define MIZAR_WINDOW_BITS 20u
#define MIZAR_WINDOW_VALID (UINT64_C(1) << 60)

struct mizar_limits {
    char magic[8];
    uint32_t version; /* MIZAR_REGIONS_VERSION */
    uint32_t size;    /* MIZAR_LIMITS_SIZE */
    uint32_t seq;     /* odd while the agent is writing */
    uint32_t crc;
    uint32_t state; /* MIZAR_STATE_*; the CRC's range begins here */
    uint32_t card_count;
    uint32_t body_version; /* a copy of `version` that the CRC covers; 0: written before this field existed */
    uint32_t heartbeat_ms; /* ms without a heartbeat (`beat`) after which the agent counts as dead; 0: 1,000 */
    uint32_t owner_wait_ms; /* the most ms that an allocation waits for memory on a lent card; 0: 3,000 */
    uint8_t reserved0[20];
    char pod_namespace[64]; /* this and the next four strings are NUL-padded */
    char pod_name[256];
    char pod_uid[64];
    char container[64];
    char slot_name[64]; /* the node agent's name of the slot */
    uint8_t reserved1[448];
    struct mizar_limits_card cards[MIZAR_CARD_MAX];
    uint8_t reserved2[1024]; /* the CRC's range ends here */
    struct mizar_limits_live live[MIZAR_CARD_MAX];
    uint32_t asleep; /* not 0: a card is lent while the container is idle, so every launch must
                        report that it is active */
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
    uint64_t seq; /* the ledger's seq when `bytes` was recorded; only the low 32 bits are used */
};

/*
 * The container's GPU time on one card. Times are ns, moments are ns of CLOCK_MONOTONIC. Each field
 * is one aligned word that is changed by compare-and-swap or addition.
 */
struct mizar_compute {
    uint64_t paid_until; /* moment up to which the container's share has been spent: token_bucket.h */
    uint64_t busy_until; /* moment up to which the container's work on the card was measured */
    uint64_t charged_ns; /* GPU time charged so far: the union of all intervals with work */
    uint64_t wanted_at;  /* when a process last asked for GPU time or waited for it */
    uint64_t longest_ns; /* the longest recent piece of work (a kernel or a graph); advisory */
    uint64_t waited_ns;  /* total time for which launches had to wait; advisory */
    uint64_t longest_at; /* when a piece as long as longest_ns was last seen */
    uint64_t load;       /* the last sample of charged_ns, for NVML: charged_utilization.c */
    uint64_t uncharged_ns; /* time with work for which no process was charged yet; only the shim uses it */
    uint64_t turn;        /* which process may add work, and until when: process_turns.c; only
                             the shim uses it */
    uint64_t turn_wanted; /* about when another process wants the turn */
    uint64_t window_end;  /* the end of the last window in which work began ... */
    uint64_t work_end;    /* ... and the expected end of the last work in it */
    int64_t over;         /* recent sum (ns) by which work_end exceeded window_end; only the shim uses it */
    uint8_t reserved[144];
};

struct mizar_usage_card {
    struct mizar_ledger ledger; /* on a pair of cache lines of its own */
    uint8_t reserved0[112];
    uint64_t peak_bytes; /* highest total seen when a request was refused; advisory */
    uint64_t refused;    /* requests refused because the memory limit was reached; advisory */
    uint64_t settled;    /* dead slots whose bytes were given back to the container; advisory */
    uint64_t learned_contexts[3]; /* measured costs of contexts (bytes + 1); 0: none; only the
                                     shim uses them */
    uint64_t code_uses; /* number of first uses of code so far, each of which may have loaded
                           code, and of deaths after the first use */
    uint8_t reserved1[72];
    struct mizar_compute compute;
};

/*
 * One process's state on one card. absent_bytes is never too small, except between a charge and its
 * update; it shrinks only after the bytes were given back or came to the card. The other fields are
 * advisory.
 */
struct mizar_slot_card {
    uint64_t absent_bytes;  /* the part of held.bytes that may not be on the card */
    uint64_t gpu_time_ns;   /* GPU time charged so far */
    uint64_t open_since;    /* when the process's present work on the card began (ns,
                               CLOCK_MONOTONIC); 0: it has none ... */
    uint64_t open_until;    /* ... and when that work should be done */
};

/*
 * Kinds of copies. MIZAR_COPY_OTHER: between host memory, or between unified addresses, whose type
 * only the driver knows.
 */
enum mizar_copy {
    MIZAR_COPY_TO_DEVICE,
    MIZAR_COPY_TO_HOST,
    MIZAR_COPY_DEVICES, /* between device memory of the same card or of two cards */
    MIZAR_COPY_OTHER,
    MIZAR_MEMSET,
    MIZAR_COPY_KINDS
};

struct mizar_copied {
    uint64_t count;
    uint64_t bytes;
};

/* Copies and memsets that the driver has accepted so far. */
struct mizar_copies {
    struct mizar_copied kinds[MIZAR_COPY_KINDS];
    uint64_t card; /* in a slot: the card's number plus one; 0: none yet */
    uint8_t reserved[40];
};

struct mizar_usage_slot {
    uint32_t pid;          /* in the container's PID namespace; 0: the slot was never used */
    uint32_t state;        /* MIZAR_STATE_*: READY once pid ... comm are written */
    uint64_t start_time;   /* field 22 of /proc/pid/stat: clock ticks since boot */
    uint64_t generation;   /* number of owners that the slot has had */
    uint64_t pid_ns;       /* inode number of /proc/self/ns/pid */
    uint64_t attached_ns;  /* CLOCK_REALTIME when the process attached */
    uint32_t uid;
    uint32_t shim_version; /* MIZAR_SHIM_VERSION, by which the agent knows that the shim is
                              loaded; MIZAR_SHIM_PAST: see there */
    char comm[16];
    uint32_t code_begun[MIZAR_CARD_MAX]; /* uses counted in code_uses whose code may still be loading */
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
    uint32_t slot_high;    /* slots from this one on were never used; only grows */
    uint32_t attached;     /* number of processes that attached so far; wraps around */
    uint32_t no_slot;      /* number of processes refused because every slot was taken */
    uint32_t shim_version; /* version of the shim of the process that attached last */
    uint8_t reserved[2008];
    struct mizar_copies copies[MIZAR_CARD_MAX]; /* copies that are not counted in slots */
    struct mizar_usage_card cards[MIZAR_CARD_MAX];
    struct mizar_usage_slot slots[MIZAR_SLOT_MAX];
};

#define MIZAR_USAGE_SIZE 1060864u

/*
 * The byte of the usage file that the owner of process slot i locks. It lies inside the slot's
 * structure.
 */
#define MIZAR_SLOT_LOCK(i) (12288u + 1024u * (uint32_t)(i))

#define MIZAR_SHIM_VERSION 1u
#define MIZAR_SHIM_PAST UINT32_MAX /* the process has a second driver, whose calls are not limited */

/*
 * Every field: structure, name, offset, size. The static asserts and build/shim/regions-layout are
 * generated from this one table.
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
    FIELD(mizar_limits, heartbeat_ms, 36, 4)                   \
    FIELD(mizar_limits, owner_wait_ms, 40, 4)                  \
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
