/* The simulated NVML: types from NVIDIA's documentation, and declarations that its parts share. */
#ifndef SIM_NVML_H
#define SIM_NVML_H

#include "state.h"

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

typedef struct nvmlDevice_st *nvmlDevice_t; /* the card's number in the state file, as a handle */

#define TRY(expression)                      \
    do {                                     \
        nvmlReturn_t result_ = (expression); \
        if (result_) return result_;         \
    } while (0)

/* Sets *sim to the machine. Fails if no session is open. */
nvmlReturn_t nvml_sim(struct sim **sim);
/* Sets *card to the card behind a handle. NVML_ERROR_GPU_IS_LOST if it fell off the bus. */
nvmlReturn_t nvml_card(nvmlDevice_t device, struct sim_card **card);
/* Sets *number to the card's number, even if the card is lost. */
nvmlReturn_t nvml_card_number(nvmlDevice_t device, unsigned *number);
nvmlDevice_t nvml_handle(unsigned card);
/* The PID by which NVML tells this process of the slot's owner. 0: it does not, or the owner is
 * dead. */
pid_t nvml_pid(const struct sim *sim, unsigned card, int slot);
/* The same, but NVML_ERROR_NOT_SUPPORTED for a MIG instance, of which NVML reports less. */
nvmlReturn_t nvml_whole_card(nvmlDevice_t device, struct sim_card **card);
/* The same, and NVML_ERROR_NOT_SUPPORTED also for a card that is divided by MIG. */
nvmlReturn_t nvml_undivided_card(nvmlDevice_t device, struct sim_card **card);

#endif
