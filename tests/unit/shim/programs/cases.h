/* A test program's cases: without arguments it lists them, else it runs the one that is named. */
#ifndef CASES_H
#define CASES_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

struct test_case {
    const char *name;
    void (*run)(void);
};

static inline void cases_list(const struct test_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) puts(cases[i].name);
}

static inline void cases_run(const struct test_case *cases, size_t count, const char *name) {
    bool found = false;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(cases[i].name, name)) cases[i].run(), found = true;
    CHECK(found);
}

#endif
