/* Names and descriptions of errors. A description is derived from the name. */
#include <ctype.h>
#include <string.h>

#include "driver.h"

static const struct {
    CUresult code;
    const char *name;
} errors[] = {
#include "driver_errors.inc"
};
enum { COUNT = sizeof errors / sizeof *errors, WORDS = 80 };

static int find(CUresult error) {
    for (int i = 0; i < COUNT; i++)
        if (errors[i].code == error) return i;
    return -1;
}

API CUresult cuGetErrorName(CUresult error, const char **name) {
    int at = find(error);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = at < 0 ? NULL : errors[at].name;
    return at < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* CUDA_ERROR_OUT_OF_MEMORY -> "out of memory". Threads that race may write it more than once, but
 * always write the same bytes. */
static const char *in_words(int at) {
    static char words[COUNT][WORDS];
    const char *name = errors[at].name;
    const char *prefix = "CUDA_ERROR_";
    if (strncmp(name, prefix, strlen(prefix)) == 0) name += strlen(prefix);
    for (int i = 0; name[i] && i < WORDS - 1; i++)
        words[at][i] = name[i] == '_' ? ' ' : (char)tolower((unsigned char)name[i]);
    return words[at];
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    int at = find(error);
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    *text = at < 0 ? NULL : error == CUDA_SUCCESS ? "no error" : in_words(at);
    return at < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
