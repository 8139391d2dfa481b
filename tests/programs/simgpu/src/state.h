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
#define SIM_LAYOUT 8u

enum {
    SIM_MAX_CARDS = 16,
    SIM_MAX_PROCESSES = 1024,
    SIM_MAX_XIDS = 64,
    SIM_RUNS = 1 << 16,
    SIM_ENDS = 1024, /* newest ends of kernels per process and card, for a card that cannot
                        interrupt kernels */
    SIM_COPY_ENGINES = 3,
    SIM_NAME_BYTES = 96,
    SIM_UUID_BYTES = 48,
    SIM_PROFILE_BYTES = 32,
};

typedef _Atomic uint64_t sim_u64;
typedef _Atomic uint32_t sim_u32;

/* The states of a process slot. */
enum sim_slot_state { SIM_SLOT_FREE = 0, SIM_SLOT_CLAIMED = 1, SIM_SLOT_LIVE = 2 };

/* How simulated time advances. */
enum sim_clock {
    SIM_CLOCK_REAL = 0,    /* by the machine's monotonic clock */
    SIM_CLOCK_MANUAL = 1,  /* by calls of tests */
    SIM_CLOCK_STEPPED = 2, /* by each waiting thread, to the moment that it waits for */
};

/* What NVML tells of processes to one that is not in the node's PID namespace. */
enum sim_foreign {
    SIM_FOREIGN_OWN = 0,    /* those that it may see, by the PIDs that they have for it */
    SIM_FOREIGN_NOBODY = 1, /* none */
    SIM_FOREIGN_HOST = 2,   /* all, by PIDs that mean nothing to it, as those of a host do */
};

struct sim_process {
    sim_u32 state;
    sim_u32 pid;                    /* in the owner's PID namespace; for people, never used in
                                       logic */
    sim_u64 memory[SIM_MAX_CARDS];  /* bytes that cannot be moved off the card */
    sim_u64 managed[SIM_MAX_CARDS]; /* bytes of managed memory, which can be moved off the card */
    sim_u32 contexts[SIM_MAX_CARDS];
    sim_u32 unwatched;                 /* set for a neighbour, whose memory watch_bytes does not
                                          count */
    sim_u64 asked[SIM_MAX_CARDS];      /* ns of work given to the card in total; see time_sharing.h */
    uint64_t inherited[SIM_MAX_CARDS]; /* ns of work done for the slot's earlier owners */
    sim_u64 died_at; /* when a process first noticed that the owner had died; 0: not yet */
    /* The number of kernels placed, and the amounts of work at which the newest of them end,
     * ascending. */
    sim_u64 placed[SIM_MAX_CARDS], ends[SIM_MAX_CARDS][SIM_ENDS];
};

/* An interval in which the card worked for one slot without interruption. */
struct sim_run {
    uint32_t slot;
    uint32_t change; /* ns of the context switch right before it */
    uint64_t start;  /* simulated time */
    uint64_t before; /* work of the slot done before it */
    uint64_t length;
};

/* The time line of a card up to `now`. All values are ns. */
struct sim_timeline {
    uint64_t now;
    int32_t running, last;            /* slots; -1: none */
    uint64_t slice_left, switch_left; /* of `running` */
    uint64_t run_start, run_before;   /* the current run, if run_open */
    uint64_t run_change, change;      /* ns of the context switch before it, and before the next
                                         one */
    uint64_t run_open;
    uint64_t runs; /* number of runs that have ended */
    uint64_t switches;
    uint64_t busy;
    uint64_t period;                 /* number of the sampling period that contains `now` */
    uint64_t busy_before, busy_then; /* at the beginning of the previous period, and of this one */
    uint64_t work[SIM_MAX_PROCESSES];
    uint64_t work_before[SIM_MAX_PROCESSES], work_then[SIM_MAX_PROCESSES];
};

/* A card, or a MIG instance of one: an instance has memory, SMs and a time line of its own. */
struct sim_card {
    char uuid[SIM_UUID_BYTES];
    char name[SIM_NAME_BYTES];
    sim_u64 minor;
    sim_u64 numa;   /* NUMA node + 1; 0: not known */
    sim_u64 divided; /* 1: MIG is on, so the card itself cannot be used */
    sim_u64 parent; /* of a MIG instance: its card's number + 1; 0: a whole card */
    char profile[SIM_PROFILE_BYTES];          /* size of a MIG instance, such as 1g.5gb */
    sim_u64 gpu_instance, compute_instance;   /* the instance's IDs on its card */
    sim_u64 gpu_capability, compute_capability; /* numbers of nodes in /dev/nvidia-caps */
    sim_u64 slices;                           /* of the seven of a card */
    sim_u64 memory_bytes;
    sim_u64 reserved_bytes; /* reserved by the driver */
    sim_u64 context_bytes;  /* taken by one context */
    sim_u64 context_ns;     /* real time that it takes to make a context */
    sim_u64 module_bytes;   /* code of a module that is loaded as a whole ... */
    sim_u64 function_bytes; /* ... and of one function that is loaded when needed */
    sim_u64 handles_load;   /* 1: a function is loaded when its handle is asked for; 0: at its
                               first use */
    sim_u64 sm_count;
    sim_u64 compute_major, compute_minor;
    sim_u64 clock_mhz, memory_clock_mhz, bus_bits;
    sim_u64 power_milliwatts, temperature_celsius, slowdown_celsius;
    sim_u64 nvlinks, nvlinks_down; /* number of NVLinks, and number of failed ones */
    sim_u64 remap_failed; /* 1: remapping a row of memory has failed */
    sim_u64 slice_ns, switch_ns; /* time slice of a context, and time of a context switch */
    sim_u64 period_ns;           /* length of NVML's utilization samples */
    sim_u64 kernel_ns;           /* time of kernels that do not specify any */
    sim_u64 link_bytes_per_us;   /* bandwidth of copies between host and card */
    sim_u64 memory_bytes_per_us; /* bandwidth of copies within the card */
    /* What makes a card harsh; all 0 on an ideal card. */
    sim_u64 slice_spread_ns, switch_spread_ns; /* random addition to slices and switches, at most */
    sim_u64 uninterrupted;       /* 1: the card changes to another process only between kernels */
    sim_u64 launch_ns, launch_spread_ns;       /* time of the calling thread for a launch, */
    sim_u64 first_launch_ns;                   /* for the first launch of a function in addition, */
    sim_u64 event_ns, event_spread_ns;         /* and for recording an event */
    sim_u64 event_grain_ns, event_drift_ppm;   /* resolution and drift of the times that events
                                                  show */
    sim_u64 queue_kernels;       /* launches wait while a process has this many unfinished kernels */
    sim_u64 clock_swing_percent; /* kernels take at most this much longer, since clocks change */
    sim_u64 copying_percent;     /* and this much longer while anything is copied */
    sim_u64 return_ns;           /* time until a dead process's memory is available again */
    sim_u64 scattered_bytes;     /* free memory in pieces of less than 2 MiB */
    sim_u64 nvml_ns, nvml_spread_ns; /* time of the calling thread in NVML calls */
    sim_u64 nvml_stale_ns;       /* maximal age of the memory usage that NVML reports */
    sim_u64 nvml_missing;        /* one in this many process lists lacks a process */
    sim_u64 nvml_foreign;        /* enum sim_foreign: what NVML tells in other PID namespaces */
    sim_u64 watch_bytes;         /* bytes that processes should never exceed together; 0: not
                                    watched */
    sim_u64 over_bytes, over_count; /* the largest excess over that, and how often there was one */
    sim_u64 lost;                /* 1: fell off the bus, or a MIG instance that was removed */
    sim_u64 last_xid;            /* the last critical error since tests called the card healthy;
                                    0: none */
    sim_u64 xid_count; /* critical errors raised so far; the newest SIM_MAX_XIDS are kept */
    sim_u64 xids[SIM_MAX_XIDS];
    sim_u64 engine_free_at[SIM_COPY_ENGINES];
    sim_u32 side; /* which side is valid; changes are written to the other one, which then
                     becomes valid */
    struct sim_timeline sides[2];
    struct sim_run runs[SIM_RUNS];
};

struct sim_state {
    char magic[8];
    sim_u64 layout;
    sim_u64 card_count;
    sim_u64 bytes;        /* sizeof(struct sim_state) of the program that created it */
    sim_u64 cuda_version; /* 1000 * major + 10 * minor */
    sim_u64 node_pids;    /* the node's PID namespace: that of the program that created the file */
    sim_u64 clock_mode;   /* enum sim_clock */
    sim_u64 clock_ns;     /* the present time, unless the clock is real */
    sim_u32 clock_ticks;  /* futex word: changes when a test advances the clock */
    char driver_version[32];
    char mig_strategy[16]; /* of the device plugin: none, single or mixed */
    sim_u32 slots_touched; /* slots from this one on were never used */
    struct sim_card cards[SIM_MAX_CARDS];
    struct sim_process processes[SIM_MAX_PROCESSES];
};

struct sim {
    struct sim_state *state;
    int fd;
    int slot; /* -1: the process only reads */
};

/* Maps the state file. Returns 0, or -1 with errno (EPROTO: not a state file of this layout). */
int sim_open(struct sim *sim, const char *path);
void sim_close(struct sim *sim);
/* The path of the state file: SIMGPU_STATE, or /run/simgpu/state. */
const char *sim_path(void);

/* Takes a process slot. Returns 0, or -1 if every slot belongs to a living process. */
int sim_claim(struct sim *sim);
/* To be called in a forked child: drops the slot and the file, which are the parent's. */
void sim_abandon(struct sim *sim);
/* Frees the slots of dead processes and what they held. */
void sim_reap(struct sim *sim);
/* PID of the slot's owner in this process's PID namespace; 0 if the owner is dead or not
 * visible. */
pid_t sim_owner(const struct sim *sim, int slot);

/* The number of this process's PID namespace. */
uint64_t sim_pid_namespace(void);
/* Whether the slot's owner is alive. Works also for this process's own slot. */
bool sim_slot_alive(const struct sim *sim, int slot);

/* Locks or unlocks one byte of the state file by this fcntl command. Returns false if another has
 * the lock. */
bool sim_lock_byte(int fd, int command, short type, off_t at);
/* Takes the card's lock, which excludes all processes and threads. It is released if the holder
 * dies. */
void sim_lock_card(struct sim *sim, unsigned card);
void sim_unlock_card(struct sim *sim, unsigned card);
/* Whether another process holds the lock. */
bool sim_card_is_locked(const struct sim *sim, unsigned card);

/* A process can see a card iff the card's device node exists; a MIG instance, iff its capabilities'
 * nodes exist as well. */
bool sim_card_visible(const struct sim *sim, unsigned card);
/* Whether the card, or the card of a MIG instance, is lost. */
bool sim_card_lost(const struct sim *sim, unsigned card);
/* The card of a MIG instance; a whole card itself. */
unsigned sim_card_whole(const struct sim *sim, unsigned card);
bool sim_card_is_instance(const struct sim *sim, unsigned card);
/* The next MIG instance of the card that this process can use, after number `after` (-1: the first
 * one). -1 if there is none. */
int sim_next_instance(const struct sim *sim, unsigned whole, int after);

struct sim_usage {
    uint64_t total, free, used, reserved;
};
/* The memory in use on the card, without that of dead processes. */
struct sim_usage sim_card_usage(struct sim *sim, unsigned card);
/* Takes memory for this process. Returns false if the card has no room. */
bool sim_take(struct sim *sim, unsigned card, uint64_t bytes);
void sim_give(struct sim *sim, unsigned card, uint64_t bytes);
/* Adds managed memory, which always fits; a negative number gives it back. */
void sim_move_managed(struct sim *sim, unsigned card, int64_t bytes);

#endif
