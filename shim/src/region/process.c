#include "region/process.h"

#include "base/sys.h"

struct process *process_new(void) {
    return sys_map_wiped(sizeof(struct process));
}

void process_drop(struct process *process) {
    sys_unmap(process, sizeof *process);
}
