/* Shifts the wall clock of one process by the microseconds found in the file that PENSTOCK_CLOCK_FILE names.
 *
 * The file holds one int64 and is mapped, so that a step takes effect with the next reading of the clock. Only the wall
 * clock is shifted: monotonic clocks run on, as they do when an administrator or NTP steps a real one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("PENSTOCK_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) shift = page;
    close(file);
}

/* The instant `seconds` and `fraction` (of which `unit` make a second), shifted. */
static void move(time_t *seconds, long *fraction, long unit) {
    if (!shift) return;
    int64_t micros = *shift;
    *seconds += micros / 1000000;
    *fraction += (micros % 1000000) * (unit / 1000000);
    if (*fraction < 0) {
        *fraction += unit;
        *seconds -= 1;
    } else if (*fraction >= unit) {
        *fraction -= unit;
        *seconds += 1;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        move(&now->tv_sec, &now->tv_nsec, 1000000000);
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone; /* obsolete, and nobody asks for it */
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
