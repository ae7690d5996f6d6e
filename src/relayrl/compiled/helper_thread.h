/* A second thread that waits to help. Starting one for every call would cost as much as a small network's pass. */
#ifndef RELAYRL_HELPER_THREAD_H
#define RELAYRL_HELPER_THREAD_H

/* Do both pieces of work: the second beside the first where it is shared and the helper is free, else after it. */
void do_both(void (*work)(void *), void *first, void *second, int is_shared);

#endif
