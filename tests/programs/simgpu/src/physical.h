/* Physical memory (cuMemCreate). A handle is an in-memory file, so that it can be mapped at several
 * addresses and be passed to other processes. */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include "memory.h"

struct holding;

struct physical {
    uint32_t magic;
    uint64_t bytes;
    CUmemAllocationProp props;
    bool on_card; /* counted on `card`, unlike host memory and imported memory */
    unsigned card;
    int fd;
    unsigned handles, users; /* numbers of handles, and of other users: mappings, arrays,
                                multicast objects */
    unsigned team, joined;   /* of a multicast object: the numbers of cards it is for, and that
                                were added */
    struct holding *bound;
};

/* Memory that an object keeps without an address. `place` is the position in the object. */
struct holding {
    uint64_t place;
    struct physical *physical;
    struct holding *next;
};

/* The caller holds memory_lock for the functions up to holding_end(). */
struct physical *physical_of(CUmemGenericAllocationHandle handle);
void physical_use(struct physical *physical);
void physical_drop(struct physical *physical);
/* Returns false if there is already memory at that place. */
bool holding_add(struct holding **all, uint64_t place, struct physical *physical);
bool holding_remove(struct holding **all, uint64_t place);
void holding_end(struct holding **all);

/* To be called without memory_lock. Makes memory with one handle, not yet counted on a card. */
CUresult physical_create(CUmemGenericAllocationHandle *handle, uint64_t bytes,
                         const CUmemAllocationProp *props, struct physical **made);
/* The memory mapped at the address, or NULL (vmm.c). The caller holds memory_lock. */
struct physical *vmm_physical_at(uint64_t address);

#endif
