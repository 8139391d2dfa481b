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
#define SIM_LAYOUT 1u

enum {
    SIM_MAX_CARDS = 16,
    SIM_MAX_PROCESSES = 1024,
    SIM_MAX_XIDS = 64,
    SIM_NAME_BYTES = 96,
    SIM_UUID_BYTES = 48,
};

typedef _Atomic uint64_t sim_u64;
typedef _Atomic uint32_t sim_u32;

/* A process slot's life. */
enum sim_slot_state { SIM_SLOT_FREE = 0, SIM_SLOT_LIVE = 1 };

struct sim_process {
    sim_u32 state;
    sim_u32 pid;                       /* as its owner sees itself; for people, never for logic */
    sim_u64 memory[SIM_MAX_CARDS];     /* bytes that cannot be moved off the card */
    sim_u64 managed[SIM_MAX_CARDS];    /* bytes that give way: managed memory */
    sim_u32 contexts[SIM_MAX_CARDS];
};

struct sim_card {
    char uuid[SIM_UUID_BYTES];
    char name[SIM_NAME_BYTES];
    sim_u64 minor;
    sim_u64 memory_bytes;
    sim_u64 reserved_bytes; /* what the driver keeps for itself */
    sim_u64 context_bytes;  /* what one context costs */
    sim_u64 sm_count;
    sim_u64 compute_major, compute_minor;
    sim_u64 clock_mhz, memory_clock_mhz, bus_bits;
    sim_u64 power_milliwatts, temperature_celsius;
    sim_u64 lost;       /* 1: fell off the bus */
    sim_u64 last_xid;   /* 0: healthy, as far as tests say */
    sim_u64 xid_count;  /* critical errors raised so far; the newest SIM_MAX_XIDS are kept */
    sim_u64 xids[SIM_MAX_XIDS];
};

struct sim_state {
    char magic[8];
    sim_u64 layout;
    sim_u64 card_count;
    sim_u64 bytes;         /* sizeof(struct sim_state) of the program that created it */
    sim_u64 cuda_version;  /* 1000 * major + 10 * minor */
    char driver_version[32];
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

/* One holder among all processes and threads; a dead holder lets go. */
void sim_lock_card(struct sim *sim, unsigned card);
void sim_unlock_card(struct sim *sim, unsigned card);

/* A card can be used by this process iff its device node is there. */
bool sim_card_visible(const struct sim *sim, unsigned card);
bool sim_card_lost(const struct sim *sim, unsigned card);

struct sim_usage {
    uint64_t total, free, used, reserved;
};
/* What is on the card now, dead processes left out. */
struct sim_usage sim_card_usage(struct sim *sim, unsigned card);
/* Take memory for this process, or say no: false is out of memory. */
bool sim_take(struct sim *sim, unsigned card, uint64_t bytes);
void sim_give(struct sim *sim, unsigned card, uint64_t bytes);

#endif
