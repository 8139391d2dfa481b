/* Messages on stderr, one line for each cause and process. */
#ifndef MIZAR_MESSAGE_H
#define MIZAR_MESSAGE_H

/*
 * Writes the line unless *said, which it sets: one variable for each cause. Adds "mizar: " and a
 * newline.
 */
void message_once(int *said, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
