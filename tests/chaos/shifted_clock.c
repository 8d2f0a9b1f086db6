// Preloaded into Redis: its clock is ahead by the number of seconds in the file CHAOS_CLOCK, read every 20 ms.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static double ahead(void) {
    static double seconds, looked = -1;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double at = now.tv_sec + now.tv_nsec / 1e9;
    if (looked < 0 || at - looked > 0.02) {
        const char *path = getenv("CHAOS_CLOCK");
        FILE *file = path ? fopen(path, "r") : NULL;
        double said;
        if (file && fscanf(file, "%lf", &said) == 1) seconds = said;
        if (file) fclose(file);
        looked = at;
    }
    return seconds;
}

int gettimeofday(struct timeval *restrict when, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    when->tv_sec = now.tv_sec + (time_t)ahead();
    when->tv_usec = now.tv_nsec / 1000;
    return 0;
}
