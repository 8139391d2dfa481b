/* What modules and libraries are made of. An image in PTX has the kernels that it names; any other
 * image has every kernel that it is asked for. */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include "function.h"

struct image {
    CUmodule module; /* whose it is, or NULL ... */
    CUlibrary library;
    char *ptx; /* a copy, or NULL for what is no text */
    CUfunction functions;
};

struct image image_of(const void *data, CUmodule module, CUlibrary library);
/* What it was made of, or as good as that. */
const void *image_data(const struct image *image);
void image_end(struct image *image);
/* The same handle for the same name. */
CUresult image_find(struct image *image, const char *name, CUfunction *function);
/* How many kernels it names, and handles of the first `room` of them. */
CUresult image_count(struct image *image, unsigned *count);
CUresult image_list(struct image *image, CUfunction *functions, unsigned room);
/* The whole file with a zero after it, or NULL. */
char *image_read(const char *path);

#endif
