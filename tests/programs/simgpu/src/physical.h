/* Physical memory: what cuMemCreate makes. A handle is a file in memory, so that it can be mapped at
 * several addresses and given to other processes. */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include "memory.h"

struct holding;

struct physical {
    uint32_t magic;
    uint64_t bytes;
    CUmemAllocationProp props;
    bool on_card; /* counted on `card`; host memory and imports are not */
    unsigned card;
    int fd;
    unsigned handles, users; /* who else keeps it: mappings, arrays, multicast objects */
    unsigned team, joined;   /* of a multicast object: how many cards it is for, and which there are */
    struct holding *bound;
};

/* What an object keeps that has no address for it; `place` says where in the object. */
struct holding {
    uint64_t place;
    struct physical *physical;
    struct holding *next;
};

/* The caller holds memory_lock for all of these. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);
void physical_use(struct physical *physical);
void physical_drop(struct physical *physical);
/* False: something is there already. */
bool holding_add(struct holding **all, uint64_t place, struct physical *physical);
bool holding_remove(struct holding **all, uint64_t place);
void holding_end(struct holding **all);

/* Without it. One with a handle, not on a card yet. */
CUresult physical_create(CUmemGenericAllocationHandle *handle, uint64_t bytes,
                         const CUmemAllocationProp *props, struct physical **made);
/* vmm.c: what is mapped at the address, or NULL; with the lock. */
struct physical *vmm_physical_at(uint64_t address);

#endif
