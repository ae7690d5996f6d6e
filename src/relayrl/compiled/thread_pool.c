/* Work lies in a fixed number of places. A place's ticket says how many of its blocks are taken and how many threads may still
 * come, so that one compare-and-exchange brings a thread in with its first block. Whoever put the work there waits until all
 * blocks are taken and all who came have gone.
 *
 * A thread that has nothing to do looks at all places for a while, and then sleeps until it is woken.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "thread_pool.h"

#define NUM_PLACES 16      /* work that is shared out at the same time; more is done by its callers alone */
#define LOOK_NS 500000     /* gradient steps come one after the other: the next block is nearer than this */
#define LOOKS_PER_CHECK 64 /* between two looks at the clock, or two offers of the core to somebody else */

/* A ticket: generation (24 bits), vacancies (8), number of blocks (16), next block (16). The generation tells work from other
 * work that lay in the same place before. */
#define VACANCY (1ull << 32)
#define GENERATION (1ull << 40)

static int next_of(uint64_t ticket) { return (int)(ticket & 0xffff); }
static int blocks_of(uint64_t ticket) { return (int)(ticket >> 16 & 0xffff); }
static int vacancies_of(uint64_t ticket) { return (int)(ticket >> 32 & 0xff); }
static int has_blocks(uint64_t ticket) { return next_of(ticket) < blocks_of(ticket); }
static int is_open(uint64_t ticket) { return has_blocks(ticket) && vacancies_of(ticket) > 0; }

typedef struct {
    _Alignas(128) _Atomic uint64_t ticket;
    atomic_int num_gone; /* of those who took a vacancy */
    atomic_flag is_taken;
    atomic_int is_left; /* whether its owner went on */
    int num_vacancies;  /* as many as there were */
    Work work;
    void *argument;
} Place;

struct Blocks {
    Place *place;        /* NULL: of work that one thread does alone */
    int first;           /* that came with entering, or -1 */
    int next, num_blocks; /* where there is no place */
};

static Place places[NUM_PLACES];
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static atomic_int num_workers = 0, num_looking = 0, num_asleep = 0;

static void breathe(int i) {
    if (i % LOOKS_PER_CHECK == 0) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static long long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* ---- taking blocks ---------------------------------------------------------------------------------------------- */

int next_block(Blocks *blocks) {
    if (!blocks->place) return blocks->next < blocks->num_blocks ? blocks->next++ : -1;
    const int first = blocks->first;
    blocks->first = -1;
    if (first >= 0) return first;
    uint64_t ticket = atomic_load(&blocks->place->ticket);
    while (has_blocks(ticket)) {
        if (atomic_compare_exchange_weak(&blocks->place->ticket, &ticket, ticket + 1)) return next_of(ticket);
    }
    return -1;
}

static void work_alone(Work work, void *argument, int num_blocks) {
    Blocks all = {.num_blocks = num_blocks};
    work(argument, &all);
}

/* Take part in what lies there, if blocks are left and somebody may come. */
static int enter(Place *place) {
    uint64_t ticket = atomic_load(&place->ticket);
    do {
        if (!is_open(ticket)) return 0;
    } while (!atomic_compare_exchange_weak(&place->ticket, &ticket, ticket + 1 - VACANCY));
    Blocks blocks = {.place = place, .first = next_of(ticket)};
    place->work(place->argument, &blocks);
    atomic_fetch_add(&place->num_gone, 1);
    return 1;
}

static int is_done(Place *place) {
    const uint64_t ticket = atomic_load(&place->ticket);
    return !has_blocks(ticket) && atomic_load(&place->num_gone) == place->num_vacancies - vacancies_of(ticket);
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

static Place *find_open(void) {
    for (int i = 0; i < NUM_PLACES; i++) {
        if (is_open(atomic_load(&places[i].ticket))) return &places[i];
    }
    return NULL;
}

static Place *look_for_work(void) {
    const long long end = nanoseconds() + LOOK_NS;
    Place *place;
    atomic_fetch_add(&num_looking, 1);
    for (int i = 1; !(place = find_open()); i++) {
        breathe(i);
        if (i % LOOKS_PER_CHECK == 0 && nanoseconds() >= end) break;
    }
    atomic_fetch_sub(&num_looking, 1);
    return place;
}

static void sleep_until_posted(void) {
    pthread_mutex_lock(&sleep_lock);
    atomic_fetch_add(&num_asleep, 1);
    while (!find_open()) pthread_cond_wait(&wake, &sleep_lock);
    atomic_fetch_sub(&num_asleep, 1);
    pthread_mutex_unlock(&sleep_lock);
}

static void *take_work(void *unused) {
    for (;;) {
        Place *place = look_for_work();
        /* Work that was left comes once in a while: whoever did it would look for the next in vain. */
        const int is_left = place && atomic_load(&place->is_left);
        if (!place || (enter(place) && is_left)) sleep_until_posted();
    }
    return NULL;
}

/* Have so many workers look, those included who already do. */
static void wake_workers(int count) {
    count -= atomic_load(&num_looking);
    if (count <= 0 || !atomic_load(&num_asleep)) return;
    pthread_mutex_lock(&sleep_lock);
    for (int i = 0; i < count && i < atomic_load(&num_asleep); i++) pthread_cond_signal(&wake);
    pthread_mutex_unlock(&sleep_lock);
}

/* A forked child has no workers, locks that nobody will release, and no use for what its parent left. */
static void forget(void) {
    pthread_mutex_init(&start_lock, NULL);
    pthread_mutex_init(&sleep_lock, NULL);
    pthread_cond_init(&wake, NULL);
    atomic_store(&num_workers, 0);
    atomic_store(&num_looking, 0);
    atomic_store(&num_asleep, 0);
    for (int i = 0; i < NUM_PLACES; i++) {
        places[i].num_vacancies = 0;
        atomic_store(&places[i].num_gone, 0);
        atomic_store(&places[i].ticket, 0);
        if (!atomic_load(&places[i].is_left)) atomic_flag_clear(&places[i].is_taken);
    }
}

static void register_handler(void) { pthread_atfork(NULL, NULL, forget); }

void watch_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_handler);
}

/* Start workers until there are so many; gives how many there are. */
static int start_workers(int count) {
    pthread_t thread;
    if (atomic_load(&num_workers) >= count) return count;
    pthread_mutex_lock(&start_lock);
    while (atomic_load(&num_workers) < count && !pthread_create(&thread, NULL, take_work, NULL)) {
        pthread_detach(thread);
        atomic_fetch_add(&num_workers, 1);
    }
    pthread_mutex_unlock(&start_lock);
    return atomic_load(&num_workers);
}

/* ---- contention -------------------------------------------------------------------------------------------------- */

#define SLICE_NS 1000000        /* a shorter wait costs little, whatever its cause */
#define FIRST_PAUSE_NS 10000000 /* during which threads do not wait for each other after that */
#define LAST_PAUSE_NS 1000000000

static _Atomic long long pause_end = 0, pause_ns = FIRST_PAUSE_NS;

/* Note how long the caller worked, and then waited for others. Blocks are alike: whoever is waited for longer than one took has lost
 * its core. Pauses get longer while this goes on soon after each. */
static void note_wait(long long work_start, long long wait_start) {
    const long long now = nanoseconds(), before = atomic_load(&pause_ns);
    if (now - wait_start < SLICE_NS || now - wait_start < 2 * (wait_start - work_start)) return;
    const int is_soon = now - atomic_load(&pause_end) < 4 * before;
    const long long next = !is_soon ? FIRST_PAUSE_NS : 2 * before < LAST_PAUSE_NS ? 2 * before : LAST_PAUSE_NS;
    atomic_store(&pause_ns, next);
    atomic_store(&pause_end, now + next);
}

int threads_that_wait(int num_threads) {
    return num_threads > 1 && nanoseconds() < atomic_load(&pause_end) ? 1 : num_threads;
}

int threads_awake(int num_threads) {
    static _Atomic long long last_asked = 0;
    const long long now = nanoseconds();
    if (now - atomic_exchange(&last_asked, now) < LOOK_NS) return num_threads;
    const int count = 1 + atomic_load(&num_looking);
    return count < num_threads ? count : num_threads;
}

/* ---- work ------------------------------------------------------------------------------------------------------- */

static Place *take_place(void) {
    for (int i = 0; i < NUM_PLACES; i++) {
        if (!atomic_flag_test_and_set(&places[i].is_taken)) return &places[i];
    }
    return NULL;
}

static void give_back(Place *place) {
    atomic_store(&place->is_left, 0);
    atomic_flag_clear(&place->is_taken);
}

/* Let workers come, of which `num_vacancies` may; the first `num_begun` blocks are the owner's. */
static void post(Place *place, Work work, void *argument, int num_blocks, int num_begun, int num_vacancies) {
    const uint64_t generation = atomic_load(&place->ticket) / GENERATION + 1;
    place->work = work;
    place->argument = argument;
    place->num_vacancies = num_vacancies;
    atomic_store(&place->num_gone, 0);
    const uint64_t ticket = (uint64_t)num_vacancies * VACANCY + ((uint64_t)num_blocks << 16) + (uint64_t)num_begun;
    atomic_store(&place->ticket, generation * GENERATION + ticket);
    wake_workers(num_vacancies);
}

void parallel_for(int num_blocks, Work work, void *argument, int num_threads) {
    const int limit = num_threads < MAX_THREADS ? num_threads : MAX_THREADS;
    const int wanted = (num_blocks < limit ? num_blocks : limit) - 1;
    Place *place = wanted > 0 && start_workers(wanted) > 0 ? take_place() : NULL;
    if (!place) {
        work_alone(work, argument, num_blocks);
        return;
    }
    const long long work_start = nanoseconds();
    post(place, work, argument, num_blocks, 1, wanted);
    Blocks own = {.place = place, .first = 0};
    work(argument, &own);
    while (next_block(&own) >= 0) continue; /* that it has no memory for */
    if (!is_done(place)) {
        const long long wait_start = nanoseconds();
        for (int i = 1; !is_done(place); i++) breathe(i);
        note_wait(work_start, wait_start);
    }
    give_back(place);
}

int leave(Work work, void *argument) {
    Place *place = start_workers(1) > 0 ? take_place() : NULL;
    if (!place) {
        work_alone(work, argument, 1);
        return -1;
    }
    atomic_store(&place->is_left, 1);
    post(place, work, argument, 1, 0, 1);
    return (int)(place - places);
}

/* Take blocks that somebody shares out; work that was left is not for those who wait. */
static int help(void) {
    for (int i = 0; i < NUM_PLACES; i++) {
        if (!atomic_load(&places[i].is_left) && enter(&places[i])) return 1;
    }
    return 0;
}

void wait_for(int left) {
    Place *place = &places[left];
    enter(place);
    for (int i = 1; !is_done(place); i++) {
        if (!help()) breathe(i);
    }
    give_back(place);
}
