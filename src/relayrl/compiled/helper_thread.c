/* One helper for the process. It takes work from two places: what was left to it, and the second piece of what somebody does by
 * `do_both`. After a piece it looks for the next for a while, and then sleeps until it is woken. Whoever waits for left work
 * takes pieces as well, so that two threads are at it.
 *
 * On a busy machine the helper may not get a core. Nobody waits for that: work that it has not begun is taken back.
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

/* Where work lies until somebody takes it. */
typedef struct {
    atomic_int state;
    void (*work)(void *);
    void *argument;
} Place;

static Place left, piece;
static atomic_flag is_left_taken = ATOMIC_FLAG_INIT;             /* by whoever left work and has not waited for it */
static pthread_mutex_t piece_lock = PTHREAD_MUTEX_INITIALIZER; /* held by whoever shares a piece */
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static atomic_int is_asleep = 0;
static int is_running = 0;

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

static int is_in(Place *place, int state) { return atomic_load_explicit(&place->state, memory_order_acquire) == state; }

static int is_anything_posted(void) { return is_in(&left, POSTED) || is_in(&piece, POSTED); }

static int look_for_work(void) {
    const long long end = nanoseconds() + LOOK_NS;
    do {
        for (int i = 0; i < LOOKS_PER_CHECK; i++) {
            if (is_anything_posted()) return 1;
            breathe();
        }
        sched_yield();
    } while (nanoseconds() < end);
    return 0;
}

static void sleep_until_posted(void) {
    pthread_mutex_lock(&sleep_lock);
    atomic_store(&is_asleep, 1);
    while (!is_anything_posted()) pthread_cond_wait(&wake, &sleep_lock);
    atomic_store(&is_asleep, 0);
    pthread_mutex_unlock(&sleep_lock);
}

static void post(Place *place, void (*work)(void *), void *argument) {
    place->work = work;
    place->argument = argument;
    atomic_store(&place->state, POSTED);
    if (!atomic_load(&is_asleep)) return;
    pthread_mutex_lock(&sleep_lock);
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&sleep_lock);
}

/* Do what lies there, if anything does and nobody else has taken it. */
static int take(Place *place) {
    int expected = POSTED;
    if (!atomic_compare_exchange_strong(&place->state, &expected, BEGUN)) return 0;
    place->work(place->argument);
    atomic_store_explicit(&place->state, DONE, memory_order_release);
    return 1;
}

static void *help(void *unused) {
    for (;;) {
        if (!look_for_work()) sleep_until_posted();
        if (!take(&left)) take(&piece);
    }
    return NULL;
}

/* A forked child has no helper, locks that nobody will release, and no use for what its parent left. */
static void forget(void) {
    pthread_mutex_init(&piece_lock, NULL);
    pthread_mutex_init(&start_lock, NULL);
    pthread_mutex_init(&sleep_lock, NULL);
    pthread_cond_init(&wake, NULL);
    atomic_store(&piece.state, IDLE);
    if (!is_in(&left, IDLE)) atomic_store(&left.state, DONE);
    atomic_store(&is_asleep, 0);
    is_running = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget); }

static int has_helper(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_t thread;
    pthread_mutex_lock(&start_lock);
    pthread_once(&once, watch_forks);
    if (!is_running && !pthread_create(&thread, NULL, help, NULL)) {
        pthread_detach(thread);
        is_running = 1;
    }
    pthread_mutex_unlock(&start_lock);
    return is_running;
}

/* Do what lies there, or wait until whoever has begun it is done. */
static void finish(Place *place, int takes_pieces) {
    take(place);
    for (int i = 1; !is_in(place, DONE); i++) {
        if (takes_pieces && take(&piece)) continue;
        if (i % LOOKS_PER_CHECK) breathe();
        else sched_yield();
    }
    atomic_store(&place->state, IDLE);
}

void do_both(void (*work)(void *), void *first, void *second, int is_shared) {
    if (!is_shared || pthread_mutex_trylock(&piece_lock)) {
        work(first);
        work(second);
        return;
    }
    if (has_helper()) {
        post(&piece, work, second);
        work(first);
        finish(&piece, 0);
    } else {
        work(first);
        work(second);
    }
    pthread_mutex_unlock(&piece_lock);
}

int leave(void (*work)(void *), void *argument) {
    if (!has_helper() || atomic_flag_test_and_set(&is_left_taken)) {
        work(argument);
        return 0;
    }
    post(&left, work, argument);
    return 1;
}

void wait_for_left(void) {
    finish(&left, 1);
    atomic_flag_clear(&is_left_taken);
}
