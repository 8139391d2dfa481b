/* Processes on a card, with PIDs of the asking process's PID namespace or, on harsh cards, as drivers
 * tell of them. */

#include "nvml.h"

typedef struct {
    unsigned pid;
    uint64_t usedGpuMemory;
} nvmlProcessInfo_v1_t;
typedef struct {
    unsigned pid;
    uint64_t usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

enum { NO_INSTANCE = -1 };
enum { FIRST_HOST_PID = 1 << 22 }; /* Linux has no PID as large as this */

struct worker {
    unsigned pid;
    uint64_t bytes;
    unsigned gpu_instance, compute_instance;
};

pid_t nvml_pid(const struct sim *sim, unsigned card, int slot) {
    uint64_t foreign = sim->state->cards[card].nvml_foreign;
    if (foreign == SIM_FOREIGN_OWN || sim_pid_namespace() == sim->state->node_pids)
        return sim_owner(sim, slot);
    bool told = foreign == SIM_FOREIGN_HOST && sim_slot_alive(sim, slot);
    return told ? FIRST_HOST_PID + slot : 0;
}

static struct worker worker_of(const struct sim_card *card, pid_t pid, uint64_t bytes) {
    unsigned none = (unsigned)NO_INSTANCE;
    return (struct worker){
        .pid = (unsigned)pid,
        .bytes = bytes,
        .gpu_instance = card->parent ? (unsigned)card->gpu_instance : none,
        .compute_instance = card->parent ? (unsigned)card->compute_instance : none,
    };
}

/* Lists the living processes that have a context on the card and that this process may see. Returns
 * their number. */
static unsigned list_own_workers(struct sim *sim, unsigned card, struct worker *workers) {
    unsigned count = 0;
    for (int slot = 0; slot < (int)sim->state->slots_touched; slot++) {
        const struct sim_process *process = &sim->state->processes[slot];
        if (process->state != SIM_SLOT_LIVE || !process->contexts[card]) continue;
        pid_t pid = nvml_pid(sim, card, slot);
        if (!pid) continue;
        workers[count++] = worker_of(&sim->state->cards[card], pid,
                                     process->memory[card] + process->managed[card]);
    }
    return count;
}

/* The same, with the processes of the card's MIG instances. */
static unsigned list_workers(struct sim *sim, unsigned card, struct worker *workers) {
    sim_reap(sim);
    unsigned count = list_own_workers(sim, card, workers);
    for (int at = -1; (at = sim_next_instance(sim, card, at)) >= 0;)
        count += list_own_workers(sim, (unsigned)at, workers + count);
    return count;
}

/* Drops one process from every nvml_missing-th list, as happens while a process starts or ends. */
static unsigned lose_one(const struct sim *sim, unsigned card, struct worker *workers,
                         unsigned count) {
    static _Atomic uint64_t lists;
    uint64_t every = sim->state->cards[card].nvml_missing;
    if (!every || !count || ++lists % every) return count;
    workers[lists / every % count] = workers[count - 1];
    return count - 1;
}

/* As in NVML, a call without enough room returns the number of entries needed. */
static nvmlReturn_t find_workers(nvmlDevice_t device, unsigned *count, const void *room,
                                 struct worker *workers) {
    struct sim *sim;
    struct sim_card *card;
    TRY(nvml_sim(&sim));
    TRY(nvml_card(device, &card));
    if (!count || (*count && !room)) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned offered = *count;
    unsigned number = (unsigned)(card - sim->state->cards);
    *count = lose_one(sim, number, workers, list_workers(sim, number, workers));
    return *count > offered ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                      nvmlProcessInfo_v1_t *infos) {
    struct worker workers[SIM_MAX_PROCESSES];
    TRY(find_workers(device, count, infos, workers));
    for (unsigned i = 0; i < *count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){workers[i].pid, workers[i].bytes};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                         nvmlProcessInfo_v2_t *infos) {
    struct worker workers[SIM_MAX_PROCESSES];
    TRY(find_workers(device, count, infos, workers));
    for (unsigned i = 0; i < *count; i++)
        infos[i] = (nvmlProcessInfo_v2_t){workers[i].pid, workers[i].bytes,
                                          workers[i].gpu_instance, workers[i].compute_instance};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                         nvmlProcessInfo_v2_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, infos);
}

/* There are never graphics processes on a simulated card. */
static nvmlReturn_t nobody(nvmlDevice_t device, unsigned *count) {
    struct sim_card *card;
    TRY(nvml_card(device, &card));
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

#define NOBODY(name)                                                           \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *infos) { \
        (void)infos;                                                           \
        return nobody(device, count);                                          \
    }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)
