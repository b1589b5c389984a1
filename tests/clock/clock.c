/* Sets the wall clock of the process that preloads this: it is ahead by the nanoseconds in the file that WALL_CLOCK names,
 * a signed number of 64 bits. Whoever writes there sets the clock at that moment, as a time service would. The
 * monotonic clocks go on, and so do waits: deadlines by the wall clock reach the kernel by the machine's own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define NEXT(name) ((__typeof__(&name))next(#name, &next_##name))

static const int64_t nobody;
static const volatile int64_t *ahead = &nobody;

static void *next(const char *name, void **known) {
  if (!*known) *known = dlsym(RTLD_NEXT, name);
  return *known;
}

static void *next_clock_gettime, *next_sem_timedwait, *next_syscall;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("WALL_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *place = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (place != MAP_FAILED) ahead = place;
}

static struct timespec moved(const struct timespec *at, int64_t by) {
  int64_t ns = at->tv_sec * SECOND + at->tv_nsec + by;
  struct timespec there = {ns / SECOND, ns % SECOND};
  if (there.tv_nsec < 0) there.tv_sec--, there.tv_nsec += SECOND;
  return there;
}

static int is_wall(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

/* What reads it */

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = NEXT(clock_gettime)(clock, now);
  if (!failed && is_wall(clock)) *now = moved(now, *ahead);
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *kept) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  if (kept) *kept = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
  return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

/* What waits until an instant of it */

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
  struct timespec there = moved(until, -*ahead);
  return NEXT(sem_timedwait)(semaphore, &there);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  static int (*next_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  /* dlsym may find the one of the C library's first version, whose conditions were others. */
  if (!next_wait) next_wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!next_wait) next_wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec there = *until;
  /* The second bit says that the condition goes by the monotonic clock. */
  if (!(condition->__data.__wrefs & 2)) there = moved(until, -*ahead);
  return next_wait(condition, mutex, &there);
}

long syscall(long number, ...) {
  long words[6];
  struct timespec there;
  va_list given;
  va_start(given, number);
  for (int at = 0; at < 6; at++) words[at] = va_arg(given, long);
  va_end(given);
  if (number == SYS_futex && words[3] && (words[1] & FUTEX_CLOCK_REALTIME)) {
    there = moved((const struct timespec *)words[3], -*ahead);
    words[3] = (long)&there;
  }
  return NEXT(syscall)(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
