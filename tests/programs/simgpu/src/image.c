#include "image.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_ptx(const char *data) {
    while (isspace((unsigned char)*data)) data++;
    return strncmp(data, "//", 2) == 0 || strncmp(data, ".version", 8) == 0;
}

struct image image_of(const void *data, CUmodule module, CUlibrary library) {
    return (struct image){module, library, is_ptx(data) ? strdup(data) : NULL, NULL};
}

const void *image_data(const struct image *image) {
    return image->ptx ? image->ptx : "\177ELF";
}

void image_end(struct image *image) {
    for (CUfunction next, each = image->functions; each; each = next) {
        next = each->next;
        if (image->module) function_unload(each);
        free(each);
    }
    free(image->ptx);
}

/* Returns the next name of a kernel in the text from `at` on, or NULL. */
static const char *next_entry(const char *at, size_t *length) {
    at = strstr(at, ".entry");
    if (!at) return NULL;
    at += strlen(".entry");
    while (isspace((unsigned char)*at)) at++;
    for (*length = 0; isalnum((unsigned char)at[*length]) || at[*length] == '_';) ++*length;
    return at;
}

static bool has_entry(const struct image *image, const char *name) {
    size_t length;
    if (!image->ptx) return true;
    for (const char *at = image->ptx; (at = next_entry(at, &length));)
        if (length == strlen(name) && strncmp(at, name, length) == 0) return true;
    return false;
}

static CUfunction add(struct image *image, const char *name) {
    CUfunction function = function_new(name);
    if (!function) return NULL;
    function->module = image->module;
    function->library = image->library;
    function->next = image->functions;
    return image->functions = function;
}

CUresult image_find(struct image *image, const char *name, CUfunction *function) {
    if (!name || !*name || !has_entry(image, name)) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&lock);
    CUfunction found = image->functions;
    while (found && strcmp(found->name, name) != 0) found = found->next;
    if (!found) found = add(image, name);
    pthread_mutex_unlock(&lock);
    *function = found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static unsigned list(struct image *image, CUfunction *functions, unsigned room) {
    unsigned count = 0;
    size_t length;
    char name[FUNCTION_NAME];
    const char *at = image->ptx ? image->ptx : "";
    for (; (at = next_entry(at, &length)); count++) {
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (count < room) image_find(image, name, &functions[count]);
    }
    return count;
}

CUresult image_count(struct image *image, unsigned *count) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = list(image, NULL, 0);
    return CUDA_SUCCESS;
}

CUresult image_list(struct image *image, CUfunction *functions, unsigned room) {
    if (!functions) return CUDA_ERROR_INVALID_VALUE;
    list(image, functions, room);
    return CUDA_SUCCESS;
}

char *image_read(const char *path) {
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    long bytes;
    if (!file) return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (bytes = ftell(file)) >= 0 &&
        (data = calloc(1, (size_t)bytes + 1))) {
        rewind(file);
        if (fread(data, 1, (size_t)bytes, file) != (size_t)bytes) data[0] = 0;
    }
    fclose(file);
    return data;
}
