// Preloaded into Redis: notes how much of a file is safe from a power cut. Each flush appends "SIZE PATH" to the file
// POWER_CUT_LOG: what was written before the flush began.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int noted(int fd, const char *name) {
    int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct stat before;
    int known = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    int result = flush(fd);
    const char *path = getenv("POWER_CUT_LOG");
    if (result == 0 && known && path) {
        char link[64], target[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        FILE *file = length > 0 ? fopen(path, "a") : NULL;
        if (file) {
            target[length] = 0;
            fprintf(file, "%lld %s\n", (long long)before.st_size, target);
            fclose(file);
        }
    }
    return result;
}

int fdatasync(int fd) { return noted(fd, "fdatasync"); }
int fsync(int fd) { return noted(fd, "fsync"); }
