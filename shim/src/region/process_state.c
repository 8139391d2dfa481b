#include "region/process_state.h"

#include "base/sys.h"

struct process *process_state_new(void) {
    return sys_map_wiped(sizeof(struct process));
}

void process_state_drop(struct process *process) {
    sys_unmap(process, sizeof *process);
}
