/* One line on stderr, once per process and cause, for the person who looks for the cause. */
#ifndef MIZAR_MESSAGE_H
#define MIZAR_MESSAGE_H

/* `said` remembers that this cause was told already. */
void message_once(int *said, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
