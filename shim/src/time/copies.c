#include "time/copies.h"

#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/array_size.h"
#include "memory/lent_card.h"
#include "region/enter.h"
#include "time/captures.h"

/* The card of the stream. With a single card, the driver is not called. */
static int card_of(struct regions *regions, uintptr_t stream) {
    CUdevice device;
    if (__atomic_load_n(&regions->process->card_count, __ATOMIC_RELAXED) == 1) return 0;
    return cards_stream_device((CUstream)stream, &device) == CUDA_SUCCESS
               ? cards_of_device(regions, device)
               : CARD_NONE;
}

/* The slot's own counters, if they belong to that card or to none yet; else NULL. */
static struct mizar_copies *claim(struct regions *regions, int card) {
    struct process *process = regions->process;
    struct mizar_copies *own = &regions->usage->slots[process->slot].copies;
    uint64_t of = 0, wanted = (uint64_t)card + 1;
    if (!__atomic_load_n(&process->attached, __ATOMIC_ACQUIRE)) return NULL;
    bool ours = __atomic_compare_exchange_n(&own->card, &of, wanted, false, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED);
    return ours || of == wanted ? own : NULL;
}

static struct mizar_copies *find(struct regions *regions, int card) {
    struct mizar_copies **known = &regions->process->cards[card].copies;
    struct mizar_copies *copies = __atomic_load_n(known, __ATOMIC_RELAXED);
    if (__builtin_expect(copies != NULL, 1)) return copies;
    copies = claim(regions, card);
    if (!copies) copies = &regions->usage->copies[card];
    __atomic_store_n(known, copies, __ATOMIC_RELAXED);
    return copies;
}

void copies_count(uintptr_t stream, enum mizar_copy kind, uint64_t count, uint64_t bytes) {
    struct regions *regions = shim_known();
    if (!regions || !bytes || captures_record(regions, stream)) return;
    int card = card_of(regions, stream);
    if (card == CARD_NONE) return;
    lent_card_tell(regions, card);
    struct mizar_copied *copied = &find(regions, card)->kinds[kind];
    __atomic_fetch_add(&copied->count, count, __ATOMIC_RELAXED);
    __atomic_fetch_add(&copied->bytes, bytes, __ATOMIC_RELAXED);
}

enum mizar_copy copies_kind(int to, int from) {
    bool told = to != CU_MEMORYTYPE_UNIFIED && from != CU_MEMORYTYPE_UNIFIED;
    bool to_host = to == CU_MEMORYTYPE_HOST, from_host = from == CU_MEMORYTYPE_HOST;
    if (!told || (to_host && from_host)) return MIZAR_COPY_OTHER;
    if (to_host) return MIZAR_COPY_TO_HOST;
    return from_host ? MIZAR_COPY_TO_DEVICE : MIZAR_COPY_DEVICES;
}

uint64_t copies_sum(const size_t *sizes, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; sizes && i < count; i++) sum += sizes[i];
    return sum;
}

/* Bytes of one unit of the operand's extents: elements for an array, else bytes. */
static uint64_t element_bytes(const CUmemcpy3DOperand *operand) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return 1;
    return RELAXED(cuArray3DGetDescriptor_v2, &descriptor, operand->array) == CUDA_SUCCESS
               ? array_element_bytes(&descriptor)
               : 1;
}

static uint64_t box_bytes(const CUDA_MEMCPY3D_BATCH_OP *box) {
    uint64_t from = element_bytes(&box->from), to = element_bytes(&box->to);
    return (from > to ? from : to) * box->width * box->height * box->depth;
}

uint64_t copies_sum_boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; list && i < count; i++) sum += box_bytes(&list[i]);
    return sum;
}
