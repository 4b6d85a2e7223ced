/* The clock of a process, moved by as many seconds as the file SOAK_CLOCK says, whenever that changes; for LD_PRELOAD.
   Only the time of day moves. Who waits until a time of day (librdkafka does) said it by the moved clock, and the kernel, which
   waits, has the right one: so that time is moved back. Who waits by the monotonic clock, which counts from the start of the machine,
   is left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("SOAK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    ahead = mapped == MAP_FAILED ? NULL : mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int code = (int)syscall(SYS_clock_gettime, clock, now);
    if (code == 0 && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (into)
        *into = found.tv_sec;
    return found.tv_sec;
}

static struct timespec of_the_kernel(const struct timespec *until)
{
    struct timespec moved = *until;
    if (ahead && until->tv_sec > 1000000000)
        moved.tv_sec -= *ahead;
    return moved;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next) /* by the version that all of today's programs use: without one, that of twenty years ago is found */
        *(void **)&next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moved = of_the_kernel(until);
    return next(condition, mutex, &moved);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    static int (*next)(sem_t *, const struct timespec *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moved = of_the_kernel(until);
    return next(semaphore, &moved);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until)
{
    static int (*next)(cnd_t *, mtx_t *, const struct timespec *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec moved = of_the_kernel(until);
    return next(condition, mutex, &moved);
}
