#include "variable.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { VARIABLE_BYTES = 64 << 10 };

struct variable {
    char *name;
    struct allocation *memory;
    struct variable *next;
};

/* The caller holds memory_lock. */
static CUresult add(CUmodule module, const char *name) {
    struct variable *made = calloc(1, sizeof *made);
    if (!made || !(made->name = strdup(name))) abort();
    CUresult result = memory_new(module->context, MEMORY_DEVICE, VARIABLE_BYTES, &made->memory);
    if (result) {
        free(made->name);
        free(made);
        return result;
    }
    made->next = module->variables;
    module->variables = made;
    return CUDA_SUCCESS;
}

/* The caller holds memory_lock. */
static CUresult find_or_add(CUmodule module, const char *name, struct variable **found) {
    *found = module->variables;
    while (*found && strcmp((*found)->name, name) != 0) *found = (*found)->next;
    if (*found) return CUDA_SUCCESS;
    TRY(add(module, name));
    *found = module->variables;
    return CUDA_SUCCESS;
}

CUresult variable_find(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes) {
    struct variable *found;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    if (module->image.ptx || !*name) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&memory_lock);
    CUresult result = find_or_add(module, name, &found);
    if (!result && pointer) *pointer = found->memory->base;
    if (!result && bytes) *bytes = VARIABLE_BYTES;
    pthread_mutex_unlock(&memory_lock);
    return result;
}

void variable_end_module(CUmodule module) {
    bool there = module_is_there(module);
    pthread_mutex_lock(&memory_lock);
    for (struct variable *next, *each = module->variables; each; each = next) {
        next = each->next;
        if (there) memory_free(each->memory);
        free(each->name);
        free(each);
    }
    pthread_mutex_unlock(&memory_lock);
}
