#include "base/message.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/sys.h"

void message_once(int *said, const char *format, ...) {
    char line[512] = "mizar: ";
    size_t prefix = sizeof "mizar: " - 1;
    if (__atomic_exchange_n(said, 1, __ATOMIC_RELAXED)) return;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + prefix, sizeof line - prefix - 1, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    size_t used = prefix + (size_t)length;
    if (used > sizeof line - 2) used = sizeof line - 2;
    line[used] = '\n';
    SYS(SYS_write, 2, line, used + 1);
}
