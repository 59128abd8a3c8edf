/* A library for LD_PRELOAD: calls on files below a directory fail, as on a full, broken or slow disk.

   FAULT_BELOW   the directory
   FAULT_CALLS   letters of the calls that count: w(rite) s(ync) r(ename) o(pen for writing) m(kdir) i(nput)
   FAULT_FIRST   number of the first call that fails, from 1; 0: none
   FAULT_LAST    number of the last one
   FAULT_ERROR   errno; 0: the call sleeps for FAULT_SECONDS and then goes on
   FAULT_COUNT   file that gets the number of calls at the end of the process
   FAULT_BACK    seconds that the clock of the day is behind
   FAULT_JUMP    seconds that it is set forward when the first call that fails is made */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;

static const char *setting(const char *name) { const char *text = getenv(name); return text ? text : ""; }

static int below(const char *path) {
  const char *root = setting("FAULT_BELOW");
  char whole[8192];
  if (!*root) return 0;
  if (path[0] != '/' && getcwd(whole, 4096)) { strcat(whole, "/"); strncat(whole, path, 4000); path = whole; }
  return !strncmp(path, root, strlen(root));
}

static int named(int fd, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, size - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return 1;
}

/* whether this call fails; errno is then set */
static int fails(char kind, const char *path, int fd) {
  char found[4096];
  int before = errno;
  if (!strchr(setting("FAULT_CALLS"), kind)) return 0;
  if (!path) { if (!named(fd, found, sizeof found)) { errno = before; return 0; } path = found; }
  errno = before;
  if (!below(path)) return 0;
  long number = ++calls, first = atol(setting("FAULT_FIRST"));
  if (!first || number < first || number > atol(setting("FAULT_LAST"))) return 0;
  int error = atoi(setting("FAULT_ERROR"));
  if (!error) { usleep((useconds_t)(1e6 * atof(setting("FAULT_SECONDS")))); return 0; }
  errno = error;
  return 1;
}

__attribute__((destructor)) static void end(void) {
  const char *path = setting("FAULT_COUNT");
  if (!*path) return;
  FILE *file = fopen(path, "w");
  if (file) { fprintf(file, "%ld\n", (long)calls); fclose(file); }
}

#define REAL(result, name, ...) \
  static result (*real)(__VA_ARGS__); \
  if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t size) {
  REAL(ssize_t, "write", int, const void *, size_t);
  return fails('w', NULL, fd) ? -1 : real(fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
  REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
  return fails('w', NULL, fd) ? -1 : real(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec *, int);
  return fails('w', NULL, fd) ? -1 : real(fd, parts, count);
}
ssize_t read(int fd, void *data, size_t size) {
  REAL(ssize_t, "read", int, void *, size_t);
  return fails('i', NULL, fd) ? -1 : real(fd, data, size);
}
ssize_t pread(int fd, void *data, size_t size, off_t at) {
  REAL(ssize_t, "pread", int, void *, size_t, off_t);
  return fails('i', NULL, fd) ? -1 : real(fd, data, size, at);
}
ssize_t pread64(int fd, void *data, size_t size, off_t at) {
  REAL(ssize_t, "pread64", int, void *, size_t, off_t);
  return fails('i', NULL, fd) ? -1 : real(fd, data, size, at);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
  REAL(ssize_t, "preadv", int, const struct iovec *, int, off_t);
  return fails('i', NULL, fd) ? -1 : real(fd, parts, count, at);
}
ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t at) {
  REAL(ssize_t, "preadv64", int, const struct iovec *, int, off_t);
  return fails('i', NULL, fd) ? -1 : real(fd, parts, count, at);
}
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
  REAL(ssize_t, "preadv2", int, const struct iovec *, int, off_t, int);
  return fails('i', NULL, fd) ? -1 : real(fd, parts, count, at, flags);
}
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
  REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off_t, int);
  return fails('i', NULL, fd) ? -1 : real(fd, parts, count, at, flags);
}
int fsync(int fd) {
  REAL(int, "fsync", int);
  return fails('s', NULL, fd) ? -1 : real(fd);
}
int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  return fails('r', from, -1) ? -1 : real(from, to);
}
int mkdir(const char *path, mode_t mode) {
  REAL(int, "mkdir", const char *, mode_t);
  return fails('m', path, -1) ? -1 : real(path, mode);
}
static mode_t mode_of(int flags, va_list rest) { return flags & O_CREAT ? va_arg(rest, mode_t) : 0; }
int open(const char *path, int flags, ...) {
  REAL(int, "open", const char *, int, ...);
  va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest);
  return flags & (O_WRONLY | O_RDWR) && fails('o', path, -1) ? -1 : real(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  REAL(int, "open64", const char *, int, ...);
  va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest);
  return flags & (O_WRONLY | O_RDWR) && fails('o', path, -1) ? -1 : real(path, flags, mode);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(int, "clock_gettime", clockid_t, struct timespec *);
  int result = real(clock, now);
  if (clock == CLOCK_REALTIME) {
    long first = atol(setting("FAULT_FIRST"));
    now->tv_sec -= atol(setting("FAULT_BACK"));
    if (first && calls >= first) now->tv_sec += atol(setting("FAULT_JUMP"));
  }
  return result;
}
