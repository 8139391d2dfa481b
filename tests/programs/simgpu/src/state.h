/* The simulated machine: one file, mapped by every process that uses the cards.
 *
 * Every rule here serves one property: a process may be killed at any instruction and no other
 * process hangs, and no byte stays counted.
 *   - What a process holds is written only in its own slot, each figure by a single store.
 *   - Totals are never stored: they are sums over the slots.
 *   - A slot is alive while its owner holds an fcntl lock on the slot's byte; the kernel lets go of
 *     it when the owner dies, whatever the cause, across PID namespaces.
 *   - Locks are fcntl locks too, so that a dead holder never blocks the others. */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_MAGIC "SIMGPU1"
#define SIM_LAYOUT 7u

enum {
    SIM_MAX_CARDS = 16,
    SIM_MAX_PROCESSES = 1024,
    SIM_MAX_XIDS = 64,
    SIM_RUNS = 1 << 16,
    SIM_ENDS = 1024, /* of a process's kernels, kept for a card that cannot interrupt them */
    SIM_COPY_ENGINES = 3,
    SIM_NAME_BYTES = 96,
    SIM_UUID_BYTES = 48,
    SIM_PROFILE_BYTES = 32,
};

typedef _Atomic uint64_t sim_u64;
typedef _Atomic uint32_t sim_u32;

/* A process slot's life. */
enum sim_slot_state { SIM_SLOT_FREE = 0, SIM_SLOT_CLAIMED = 1, SIM_SLOT_LIVE = 2 };

/* What makes simulated time pass. */
enum sim_clock {
    SIM_CLOCK_REAL = 0,    /* the machine's monotonic clock */
    SIM_CLOCK_MANUAL = 1,  /* a test moves it */
    SIM_CLOCK_STEPPED = 2, /* whoever waits moves it to the moment that it waits for */
};

struct sim_process {
    sim_u32 state;
    sim_u32 pid;                    /* as its owner sees itself; for people, never for logic */
    sim_u64 memory[SIM_MAX_CARDS];  /* bytes that cannot be moved off the card */
    sim_u64 managed[SIM_MAX_CARDS]; /* bytes that give way: managed memory */
    sim_u32 contexts[SIM_MAX_CARDS];
    sim_u32 unwatched;                 /* a neighbour: what it holds is not watched */
    sim_u64 asked[SIM_MAX_CARDS];      /* ns of work given to the card, ever; see timeline.h */
    uint64_t inherited[SIM_MAX_CARDS]; /* ns of work done for the slot's earlier owners */
    sim_u64 died_at; /* when somebody first saw its owner dead; 0: nobody has */
    /* Amounts of work at which kernels end, each at least the one before. */
    sim_u64 placed[SIM_MAX_CARDS], ends[SIM_MAX_CARDS][SIM_ENDS];
};

/* A stretch of time in which the card worked for one slot without a break. */
struct sim_run {
    uint32_t slot;
    uint32_t change; /* ns that the change to it took, right before */
    uint64_t start;  /* simulated time */
    uint64_t before; /* the slot's work done before it */
    uint64_t length;
};

/* What the card has done up to `now`. All in ns. */
struct sim_timeline {
    uint64_t now;
    int32_t running, last;            /* slots, or -1 */
    uint64_t slice_left, switch_left; /* of `running` */
    uint64_t run_start, run_before;   /* the run that is going on, if running and run_open */
    uint64_t run_change, change;      /* of it, and of the next one */
    uint64_t run_open;
    uint64_t runs; /* how many have ended, ever */
    uint64_t switches;
    uint64_t busy;
    uint64_t period;                 /* number of the sampling period that `now` lies in */
    uint64_t busy_before, busy_then; /* at the start of the last period, and of this one */
    uint64_t work[SIM_MAX_PROCESSES];
    uint64_t work_before[SIM_MAX_PROCESSES], work_then[SIM_MAX_PROCESSES];
};

/* A card, or a MIG instance of one: an instance has memory, SMs and a time line of its own. */
struct sim_card {
    char uuid[SIM_UUID_BYTES];
    char name[SIM_NAME_BYTES];
    sim_u64 minor;
    sim_u64 numa;   /* its NUMA node + 1; 0: none is known */
    sim_u64 divided; /* 1: MIG is on, so that the card itself can be used by nobody */
    sim_u64 parent; /* of an instance: its card's number + 1; 0: a whole card */
    char profile[SIM_PROFILE_BYTES];          /* of an instance, such as 1g.5gb */
    sim_u64 gpu_instance, compute_instance;   /* their IDs on the parent */
    sim_u64 gpu_capability, compute_capability; /* numbers of nodes in /dev/nvidia-caps */
    sim_u64 slices;                           /* of the parent's seven */
    sim_u64 memory_bytes;
    sim_u64 reserved_bytes; /* what the driver keeps for itself */
    sim_u64 context_bytes;  /* what one context costs */
    sim_u64 context_ns;     /* how long it takes to make one, of real time */
    sim_u64 module_bytes;   /* what a module's code takes as a whole, loaded at once ... */
    sim_u64 function_bytes; /* ... and one function's, loaded when it is needed */
    sim_u64 handles_load;   /* 1: it is needed when its handle is asked for; 0: when it is used */
    sim_u64 sm_count;
    sim_u64 compute_major, compute_minor;
    sim_u64 clock_mhz, memory_clock_mhz, bus_bits;
    sim_u64 power_milliwatts, temperature_celsius, slowdown_celsius;
    sim_u64 nvlinks, nvlinks_down; /* how many it has, and how many of them are down */
    sim_u64 remap_failed; /* 1: a row of its memory could not be replaced */
    sim_u64 slice_ns, switch_ns; /* time slice of a context, and what a change of context costs */
    sim_u64 period_ns;           /* of NVML's utilisation samples */
    sim_u64 kernel_ns;           /* of kernels that don't say how long they take */
    sim_u64 link_bytes_per_us;   /* copies between host and card */
    sim_u64 memory_bytes_per_us; /* copies within the card */
    /* What makes the card harsh; 0 each where it is kind. */
    sim_u64 slice_spread_ns, switch_spread_ns; /* up to so much longer, at random */
    sim_u64 uninterrupted;       /* 1: the card is taken from a process between kernels only */
    sim_u64 launch_ns, launch_spread_ns;       /* the caller's time for a launch, */
    sim_u64 first_launch_ns;                   /* for a function's first one, */
    sim_u64 event_ns, event_spread_ns;         /* and for recording an event */
    sim_u64 event_grain_ns, event_drift_ppm;   /* of the clock that events show */
    sim_u64 queue_kernels;       /* launches wait while a process has so many that have not ended */
    sim_u64 clock_swing_percent; /* kernels take up to so much longer, as clocks go */
    sim_u64 copying_percent;     /* and so much longer while something is copied */
    sim_u64 return_ns;           /* how long the memory of the dead stays taken */
    sim_u64 scattered_bytes;     /* free, but in pieces of less than 2 MiB */
    sim_u64 nvml_ns, nvml_spread_ns; /* the caller's time for a question to NVML */
    sim_u64 nvml_stale_ns;       /* memory that NVML tells of is that old at most */
    sim_u64 nvml_missing;        /* every so many lists of processes lack one */
    sim_u64 watch_bytes;         /* tests ask whether processes ever hold more together; 0: nobody asks */
    sim_u64 over_bytes, over_count; /* by how much at most, and how often */
    sim_u64 lost;                /* 1: fell off the bus, or an instance that is no more */
    sim_u64 last_xid;            /* 0: healthy, as far as tests say */
    sim_u64 xid_count; /* critical errors raised so far; the newest SIM_MAX_XIDS are kept */
    sim_u64 xids[SIM_MAX_XIDS];
    sim_u64 engine_free_at[SIM_COPY_ENGINES];
    sim_u32 side; /* which of the two is in force; the other is written, then put in force */
    struct sim_timeline sides[2];
    struct sim_run runs[SIM_RUNS];
};

struct sim_state {
    char magic[8];
    sim_u64 layout;
    sim_u64 card_count;
    sim_u64 bytes;        /* sizeof(struct sim_state) of the program that created it */
    sim_u64 cuda_version; /* 1000 * major + 10 * minor */
    sim_u64 clock_mode;   /* enum sim_clock */
    sim_u64 clock_ns;     /* the time, unless the clock is real */
    sim_u32 clock_ticks;  /* a futex: changes whenever a test moves the clock */
    char driver_version[32];
    char mig_strategy[16]; /* of the device plugin: none, single or mixed */
    sim_u32 slots_touched; /* slots from here on have never been used */
    struct sim_card cards[SIM_MAX_CARDS];
    struct sim_process processes[SIM_MAX_PROCESSES];
};

struct sim {
    struct sim_state *state;
    int fd;
    int slot; /* -1: only looking */
};

/* Map the state file. 0, or -1 with errno (EPROTO: not a state file of this layout). */
int sim_open(struct sim *sim, const char *path);
void sim_close(struct sim *sim);
/* The path that this process should use: SIMGPU_STATE, or /run/simgpu/state. */
const char *sim_path(void);

/* Take a process slot. 0, or -1 when every slot is held by a living process. */
int sim_claim(struct sim *sim);
/* In a forked child: forget the slot and the file; they are the parent's. */
void sim_abandon(struct sim *sim);
/* Free the slots of dead processes, and with them what they held. */
void sim_reap(struct sim *sim);
/* PID of the slot's owner as this process's PID namespace knows it; 0: dead or not visible. */
pid_t sim_owner(const struct sim *sim, int slot);

/* Is the slot's owner alive? Right also for a slot of this very process. */
bool sim_slot_alive(const struct sim *sim, int slot);

/* One holder among all processes and threads; a dead holder lets go. */
void sim_lock_card(struct sim *sim, unsigned card);
void sim_unlock_card(struct sim *sim, unsigned card);
/* Whether somebody else has the lock now. */
bool sim_card_is_locked(const struct sim *sim, unsigned card);

/* A card can be seen by this process iff its device node is there; an instance, iff the nodes of its
 * capabilities are there as well. */
bool sim_card_visible(const struct sim *sim, unsigned card);
/* Also an instance of a lost card. */
bool sim_card_lost(const struct sim *sim, unsigned card);
/* The card that an instance is of; a whole card is its own. */
unsigned sim_card_whole(const struct sim *sim, unsigned card);
bool sim_card_is_instance(const struct sim *sim, unsigned card);
/* The next instance of the card after number `after` that this process can use, beginning with its
 * own number; -1: there is none. */
int sim_next_instance(const struct sim *sim, unsigned whole, int after);

struct sim_usage {
    uint64_t total, free, used, reserved;
};
/* What is on the card now, dead processes left out. */
struct sim_usage sim_card_usage(struct sim *sim, unsigned card);
/* Take memory for this process, or say no: false is out of memory. */
bool sim_take(struct sim *sim, unsigned card, uint64_t bytes);
void sim_give(struct sim *sim, unsigned card, uint64_t bytes);
/* Managed memory, which always fits; negative to give it back. */
void sim_move_managed(struct sim *sim, unsigned card, int64_t bytes);

#endif
