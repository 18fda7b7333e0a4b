/* Allocates at ten thousand call sites, each in a function of its own. A line on stdin:
 *
 *   keep   allocates four blocks at each, and from then on replaces one of them at each, once a second
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SITES = 10000, FIRST = 10000, BLOCKS = 4, SIZE = 48, TICKS = 100 };

static void *volatile held[SITES][BLOCKS];

/* Numbers begin with 1, or they would be octal. */
#define SITE(n)                                                                                                        \
    __attribute__((noinline)) static void site_##n(long block)                                                         \
    {                                                                                                                  \
        free(held[n - FIRST][block]);                                                                                  \
        held[n - FIRST][block] = malloc(SIZE + n % 64);                                                                \
        __asm__ volatile("");                                                                                          \
    }
#define NAME(n) site_##n,
#define TEN(M, n) M(n##0) M(n##1) M(n##2) M(n##3) M(n##4) M(n##5) M(n##6) M(n##7) M(n##8) M(n##9)
#define HUNDRED(M, n)                                                                                                  \
    TEN(M, n##0) TEN(M, n##1) TEN(M, n##2) TEN(M, n##3) TEN(M, n##4)                                                   \
    TEN(M, n##5) TEN(M, n##6) TEN(M, n##7) TEN(M, n##8) TEN(M, n##9)
#define THOUSAND(M, n)                                                                                                 \
    HUNDRED(M, n##0) HUNDRED(M, n##1) HUNDRED(M, n##2) HUNDRED(M, n##3) HUNDRED(M, n##4)                               \
    HUNDRED(M, n##5) HUNDRED(M, n##6) HUNDRED(M, n##7) HUNDRED(M, n##8) HUNDRED(M, n##9)
#define ALL(M)                                                                                                         \
    THOUSAND(M, 10) THOUSAND(M, 11) THOUSAND(M, 12) THOUSAND(M, 13) THOUSAND(M, 14)                                    \
    THOUSAND(M, 15) THOUSAND(M, 16) THOUSAND(M, 17) THOUSAND(M, 18) THOUSAND(M, 19)

ALL(SITE)

static void (*const sites[SITES])(long) = {ALL(NAME)};

__attribute__((noinline)) static void descend(long site, long block, int frames)
{
    if (frames > 0)
        descend(site, block, frames - 1);
    else
        sites[site](block);
    __asm__ volatile("");
}

__attribute__((noreturn)) static void change(void)
{
    const struct timespec tick = {.tv_nsec = 1000000000 / TICKS};
    for (long number = 0;; number++) {
        long part = number % TICKS;
        for (long site = part * (SITES / TICKS); site < (part + 1) * (SITES / TICKS); site++)
            descend(site, number / TICKS % BLOCKS, 6);
        nanosleep(&tick, NULL);
    }
}

int main(void)
{
    char word[16];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    if (scanf("%15s", word) != 1)
        return 0;
    for (long site = 0; site < SITES; site++)
        for (long block = 0; block < BLOCKS; block++)
            descend(site, block, 6);
    puts("0");
    change();
}
