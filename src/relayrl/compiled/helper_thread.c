/* One helper for the process. After a piece of work it looks for the next for a while, and then sleeps until it is woken. When
 * it is done before its caller is, pieces of the caller's own part may be shared with it.
 *
 * On a busy machine it may not get a core. Nobody waits for that: work that it has not begun is taken back.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "helper_thread.h"

#define LOOK_NS 500000     /* gradient steps come one after the other: the next piece is nearer than this */
#define LOOKS_PER_CHECK 64 /* between two looks at the clock, or two offers of the core to somebody else */

enum { IDLE, POSTED, BEGUN, DONE };

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; /* held by the caller that the helper works for */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static atomic_int state = IDLE;
static atomic_int is_asleep = 0;
static void (*posted_work)(void *);
static void *posted_argument;
static int is_running = 0;
static _Thread_local int has_given_work = 0; /* whether this thread holds `owner`, and is at the first half of its work */
static int is_outer_done; /* whether the second half of that work is done, and the helper free for pieces of the first */

static void breathe(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static long long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int look_for_work(void) {
    const long long end = nanoseconds() + LOOK_NS;
    do {
        for (int i = 0; i < LOOKS_PER_CHECK; i++) {
            if (atomic_load_explicit(&state, memory_order_acquire) == POSTED) return 1;
            breathe();
        }
        sched_yield();
    } while (nanoseconds() < end);
    return 0;
}

static void sleep_until_posted(void) {
    pthread_mutex_lock(&sleep_lock);
    atomic_store(&is_asleep, 1);
    while (atomic_load(&state) != POSTED) pthread_cond_wait(&wake, &sleep_lock);
    atomic_store(&is_asleep, 0);
    pthread_mutex_unlock(&sleep_lock);
}

static void *help(void *unused) {
    for (;;) {
        if (!look_for_work()) sleep_until_posted();
        int expected = POSTED;
        if (!atomic_compare_exchange_strong(&state, &expected, BEGUN)) continue; /* taken back */
        posted_work(posted_argument);
        atomic_store_explicit(&state, DONE, memory_order_release);
    }
    return NULL;
}

/* A forked child has no helper, and locks that nobody will release. */
static void forget(void) {
    pthread_mutex_init(&owner, NULL);
    pthread_mutex_init(&sleep_lock, NULL);
    pthread_cond_init(&wake, NULL);
    atomic_store(&state, IDLE);
    atomic_store(&is_asleep, 0);
    is_running = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget); }

/* With `owner` held. */
static int has_helper(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_t thread;
    if (is_running) return 1;
    pthread_once(&once, watch_forks);
    if (pthread_create(&thread, NULL, help, NULL)) return 0;
    pthread_detach(thread);
    is_running = 1;
    return 1;
}

static void post(void (*work)(void *), void *argument) {
    posted_work = work;
    posted_argument = argument;
    atomic_store(&state, POSTED);
    if (!atomic_load(&is_asleep)) return;
    pthread_mutex_lock(&sleep_lock);
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&sleep_lock);
}

/* Whether the posted work had not been begun, and is the caller's again. */
static int take_back(void) {
    int expected = POSTED;
    return atomic_compare_exchange_strong(&state, &expected, IDLE);
}

static void wait_until_done(void) {
    for (int i = 1; atomic_load_explicit(&state, memory_order_acquire) != DONE; i++) {
        if (i % LOOKS_PER_CHECK) breathe();
        else sched_yield();
    }
    atomic_store(&state, IDLE);
}

static void share(void (*work)(void *), void *first, void *second) {
    post(work, second);
    work(first);
    if (take_back()) work(second);
    else wait_until_done();
}

/* Whether the helper is free again, for a caller that has given it work which it goes on beside. */
static int is_free_again(void) {
    if (!is_outer_done && atomic_load_explicit(&state, memory_order_acquire) == DONE) {
        atomic_store(&state, IDLE);
        is_outer_done = 1;
    }
    return is_outer_done;
}

void do_both(void (*work)(void *), void *first, void *second, int is_shared) {
    if (is_shared && has_given_work && is_free_again()) {
        share(work, first, second);
        return;
    }
    if (!is_shared || has_given_work || pthread_mutex_trylock(&owner)) {
        work(first);
        work(second);
        return;
    }
    const int is_helped = has_helper();
    is_outer_done = 0;
    if (is_helped) post(work, second);
    has_given_work = 1;
    work(first);
    has_given_work = 0;
    if (!is_outer_done) {
        if (!is_helped || take_back()) work(second);
        else wait_until_done();
    }
    pthread_mutex_unlock(&owner);
}
