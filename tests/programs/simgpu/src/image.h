/* Images of modules and libraries. A PTX image has the kernels that it names; any other image has
 * every kernel that is asked for. */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include "kernel.h"

struct image {
    CUmodule module; /* its module, or NULL ... */
    CUlibrary library;
    char *ptx; /* a copy of the text; NULL if the image is not PTX */
    CUfunction functions;
};

struct image image_of(const void *data, CUmodule module, CUlibrary library);
/* The data that the image was made of, or an equivalent. */
const void *image_data(const struct image *image);
void image_end(struct image *image);
/* Sets *function to the kernel of that name, always the same handle for the same name. */
CUresult image_find(struct image *image, const char *name, CUfunction *function);
/* Sets *count to the number of kernels that the image names, and returns handles of the first
 * `room`. */
CUresult image_count(struct image *image, unsigned *count);
CUresult image_list(struct image *image, CUfunction *functions, unsigned room);
/* Returns the file's content with a zero after it, or NULL. */
char *image_read(const char *path);

#endif
