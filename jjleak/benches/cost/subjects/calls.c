/* Calls the allocator as it is told, and says what a call took. Lines on stdin:
 *
 *   pairs FRAMES COUNT SIZE THREADS    malloc(SIZE) and free
 *   calloc FRAMES COUNT SIZE THREADS   the same with calloc
 *   realloc FRAMES COUNT SIZE THREADS  malloc(SIZE), realloc to twice that, and free
 *   paths FRAMES COUNT SIZE THREADS    the same as pairs, from another of 64 call paths each time; at least 27 frames
 *   hold COUNT STACKS                  allocates, from so many stacks, and keeps it
 *   pace MILLISECONDS                  60 pairs a millisecond, for so long: the answer is the process's own CPU time, in
 *                                      nanoseconds, and what of it these calls have taken
 *
 * The answer is nanoseconds a round, of one thread. FRAMES are below the one that calls the allocator. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_THREADS = 16, HELD_SIZE = 32, BRANCHES = 14, PATHS = 64, PATH_FRAMES = 20, PACE = 60, PACED_SIZE = 64 };

struct work {
    char kind[16];
    long frames, count, size, threads;
    double took_ns;
    pthread_barrier_t *start;
};

static void *volatile held;

static double time_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static double now_ns(void)
{
    return time_ns(CLOCK_MONOTONIC);
}

__attribute__((noinline)) static void make_pairs(long count, long size)
{
    for (long i = 0; i < count; i++) {
        void *volatile block = malloc(size);
        free(block);
    }
}

__attribute__((noinline)) static void make_zeroed(long count, long size)
{
    for (long i = 0; i < count; i++) {
        void *volatile block = calloc(1, size);
        free(block);
    }
}

__attribute__((noinline)) static void make_larger(long count, long size)
{
    for (long i = 0; i < count; i++) {
        void *volatile block = malloc(size);
        block = realloc(block, 2 * size);
        free(block);
    }
}

/* Each way through these calls is a stack of its own. */
__attribute__((noinline)) static void wander(long way, int branches, long size)
{
    if (branches == 0) {
        void *volatile block = malloc(size);
        free(block);
    } else if (way & 1) {
        wander(way >> 1, branches - 1, size);
        __asm__ volatile("nop"); /* Or the compiler makes one call of the two. */
    } else
        wander(way >> 1, branches - 1, size);
    __asm__ volatile("");
}

__attribute__((noinline)) static void make_paths(long count, long size)
{
    for (long i = 0; i < count; i++)
        wander(i % PATHS, PATH_FRAMES - 1, size);
}

__attribute__((noinline)) static void begin(const struct work *work)
{
    if (strcmp(work->kind, "calloc") == 0)
        make_zeroed(work->count, work->size);
    else if (strcmp(work->kind, "realloc") == 0)
        make_larger(work->count, work->size);
    else if (strcmp(work->kind, "paths") == 0)
        make_paths(work->count, work->size);
    else
        make_pairs(work->count, work->size);
    __asm__ volatile("");
}

__attribute__((noinline)) static void descend(const struct work *work, long frames)
{
    if (frames > 0)
        descend(work, frames - 1);
    else
        begin(work);
    /* Keeps the call above from becoming a jump, and this frame on the stack. */
    __asm__ volatile("");
}

static void *run(void *argument)
{
    struct work *work = argument;
    pthread_barrier_wait(work->start);
    double begun = now_ns();
    descend(work, work->frames);
    work->took_ns = now_ns() - begun;
    return NULL;
}

__attribute__((noinline)) static void hold(long way, int branches)
{
    if (branches == 0)
        held = malloc(HELD_SIZE);
    else if (way & 1) {
        hold(way >> 1, branches - 1);
        __asm__ volatile("nop"); /* As above. */
    } else
        hold(way >> 1, branches - 1);
    __asm__ volatile("");
}

static double run_all(const struct work *wanted)
{
    /* Not on the stack: frames are small, as those of most programs. */
    static pthread_t threads[MOST_THREADS];
    static struct work works[MOST_THREADS];
    static pthread_barrier_t start;
    double took_ns = 0;
    long count = wanted->threads;
    if (count == 1) {
        /* The thread that the stacks of the tables are measured on. */
        double begun = now_ns();
        descend(wanted, wanted->frames);
        return (now_ns() - begun) / wanted->count;
    }
    pthread_barrier_init(&start, NULL, count);
    for (long i = 0; i < count; i++) {
        works[i] = *wanted;
        works[i].start = &start;
        pthread_create(&threads[i], NULL, run, &works[i]);
    }
    for (long i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        took_ns += works[i].took_ns;
    }
    pthread_barrier_destroy(&start);
    return took_ns / count / wanted->count;
}

/* What comes too late is made up for, so that it is as much whatever else goes on. */
static double pace(long milliseconds, double *in_calls_ns)
{
    double begin_ns = now_ns(), used_ns = time_ns(CLOCK_PROCESS_CPUTIME_ID);
    *in_calls_ns = 0;
    for (long tick = 1; tick <= milliseconds; tick++) {
        double before_ns = time_ns(CLOCK_PROCESS_CPUTIME_ID);
        make_pairs(PACE, PACED_SIZE);
        *in_calls_ns += time_ns(CLOCK_PROCESS_CPUTIME_ID) - before_ns;
        double left_ns = begin_ns + tick * 1e6 - now_ns();
        if (left_ns > 0) {
            struct timespec pause = {.tv_nsec = (long)left_ns};
            nanosleep(&pause, NULL);
        }
    }
    return time_ns(CLOCK_PROCESS_CPUTIME_ID) - used_ns;
}

int main(void)
{
    struct work work;
    char line[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        long count, stacks;
        if (sscanf(line, "hold %ld %ld", &count, &stacks) == 2) {
            for (long i = 0; i < count; i++)
                hold(i % stacks, BRANCHES);
            printf("%ld\n", count);
        } else if (sscanf(line, "pace %ld", &count) == 1) {
            double in_calls_ns, used_ns = pace(count, &in_calls_ns);
            printf("%.0f %.0f\n", used_ns, in_calls_ns);
        } else if (sscanf(line, "%15s %ld %ld %ld %ld", work.kind, &work.frames, &work.count, &work.size,
                          &work.threads) == 5 &&
                   work.threads > 0 && work.threads <= MOST_THREADS) {
            printf("%.1f\n", run_all(&work));
        } else {
            puts("what?");
        }
    }
}
