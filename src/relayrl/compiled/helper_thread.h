/* A second thread that waits to help. Starting one for every call would cost as much as a small network's pass. */
#ifndef RELAYRL_HELPER_THREAD_H
#define RELAYRL_HELPER_THREAD_H

/* Do both pieces of work: the second beside the first where it is shared and somebody is free, else after it. */
void do_both(void (*work)(void *), void *first, void *second, int is_shared);

/* Leave work to the helper and come back at once: 1, and `wait_for_left` must follow. Where it cannot be left it is done: 0. */
int leave(void (*work)(void *), void *argument);

/* Wait until the work that was left is done, and help where it shares pieces. */
void wait_for_left(void);

#endif
