/* A program's own function that happens to have a driver's name. */
int cuMemAlloc_v2(void *pointer, unsigned long bytes);

int cuMemAlloc_v2(void *pointer, unsigned long bytes) {
    (void)pointer, (void)bytes;
    return 4711;
}
