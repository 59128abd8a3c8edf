/* A library for LD_PRELOAD: records what is done to files below a directory, for `power.py`.

   RECORD_BELOW  the directory
   RECORD_TO     file that gets the records: a line of the call and its arguments, separated by tabs, then the bytes
                 that were written, if any. Calls are recorded in the order in which they took effect.

   open      path            made, or emptied where the second argument is 1
   write     path offset length, then the bytes
   cut       path length
   sync      path            a file's content or the names in a directory
   rename    path path
   exchange  path path
   link      path path
   unlink    path
   mkdir     path
   rmdir     path */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

#define REAL(result, name, ...) \
  static result (*real)(__VA_ARGS__); \
  if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int below(const char *path) {
  const char *root = getenv("RECORD_BELOW");
  return root && *root && !strncmp(path, root, strlen(root)) && !strstr(path, " (deleted)");
}

static int of_link(const char *link, char *path) {
  ssize_t length = readlink(link, path, 4095);
  if (length < 0) return 0;
  path[length] = 0;
  return 1;
}

static int named(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return of_link(link, path) && below(path);
}

/* the absolute name of `path`, which is relative to the directory `at` */
static int absolute(int at, const char *path, char *whole) {
  char directory[4096] = "";
  if (path[0] != '/') {
    if (at == AT_FDCWD) { if (!getcwd(directory, 4095)) return 0; }
    else { char link[64]; snprintf(link, sizeof link, "/proc/self/fd/%d", at); if (!of_link(link, directory)) return 0; }
    strcat(directory, "/");
  }
  snprintf(whole, 8192, "%s%s", directory, path);
  size_t length = strlen(whole);
  while (length > 1 && whole[length - 1] == '/') whole[--length] = 0;
  return below(whole);
}

static void put(const char *text, size_t text_length, const void *data, size_t length) {
  REAL(ssize_t, "write", int, const void *, size_t);
  static int file = -1;
  static int (*open_real)(const char *, int, ...);
  int before = errno;
  if (!open_real) open_real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
  if (file < 0) file = open_real(getenv("RECORD_TO"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (real(file, text, text_length) < 0 || (length && real(file, data, length) < 0)) abort();
  errno = before;
}

static void said(const char *call, const char *path, const char *other) {
  char text[20000];
  int length = snprintf(text, sizeof text, "%s\t%s%s%s\n", call, path, other ? "\t" : "", other ? other : "");
  put(text, (size_t)length, NULL, 0);
}

static void wrote(const char *path, const void *data, ssize_t size, off_t at) {
  char text[9000];
  if (size <= 0) return;
  int length = snprintf(text, sizeof text, "write\t%s\t%lld\t%lld\n", path, (long long)at, (long long)size);
  put(text, (size_t)length, data, (size_t)size);
}

static void cut(const char *path, off_t size) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)size);
  said("cut", path, text);
}

/* where a write to the file without an offset begins, after it was made */
static off_t began(int fd, ssize_t size) { return lseek(fd, 0, SEEK_CUR) - (size > 0 ? size : 0); }

#define LOCKED(expression) \
  pthread_mutex_lock(&lock); \
  expression; \
  int error = errno; \
  pthread_mutex_unlock(&lock); \
  errno = error

ssize_t write(int fd, const void *data, size_t size) {
  REAL(ssize_t, "write", int, const void *, size_t);
  char path[4096];
  ssize_t result;
  LOCKED(result = real(fd, data, size); if (result > 0 && named(fd, path)) wrote(path, data, result, began(fd, result)));
  return result;
}

#define AT_OFFSET(name) \
  ssize_t name(int fd, const void *data, size_t size, off_t at) { \
    REAL(ssize_t, #name, int, const void *, size_t, off_t); \
    char path[4096]; \
    ssize_t result; \
    LOCKED(result = real(fd, data, size, at); if (result > 0 && named(fd, path)) wrote(path, data, result, at)); \
    return result; \
  }
AT_OFFSET(pwrite)
AT_OFFSET(pwrite64)

static void parts_wrote(const char *path, const struct iovec *parts, int count, ssize_t size, off_t at) {
  for (int i = 0; i < count && size > 0; i++) {
    ssize_t part = (ssize_t)parts[i].iov_len < size ? (ssize_t)parts[i].iov_len : size;
    wrote(path, parts[i].iov_base, part, at);
    at += part;
    size -= part;
  }
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec *, int);
  char path[4096];
  ssize_t result;
  LOCKED(result = real(fd, parts, count);
         if (result > 0 && named(fd, path)) parts_wrote(path, parts, count, result, began(fd, result)));
  return result;
}

#define PARTS_AT_OFFSET(name) \
  ssize_t name(int fd, const struct iovec *parts, int count, off_t at) { \
    REAL(ssize_t, #name, int, const struct iovec *, int, off_t); \
    char path[4096]; \
    ssize_t result; \
    LOCKED(result = real(fd, parts, count, at); \
           if (result > 0 && named(fd, path)) parts_wrote(path, parts, count, result, at)); \
    return result; \
  }
PARTS_AT_OFFSET(pwritev)
PARTS_AT_OFFSET(pwritev64)

/* copies within the kernel: refused, so that their callers copy by reading and writing */
ssize_t sendfile(int out, int in, off_t *at, size_t size) {
  REAL(ssize_t, "sendfile", int, int, off_t *, size_t);
  char path[4096];
  if (named(out, path)) { errno = ENOTSOCK; return -1; }
  return real(out, in, at, size);
}
ssize_t sendfile64(int out, int in, off_t *at, size_t size) { return sendfile(out, in, at, size); }
ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t size, unsigned flags) {
  REAL(ssize_t, "copy_file_range", int, off_t *, int, off_t *, size_t, unsigned);
  char path[4096];
  if (named(out, path)) { errno = ENOSYS; return -1; }
  return real(in, from, out, to, size, flags);
}

#define ONE_FD(name) \
  int name(int fd) { \
    REAL(int, #name, int); \
    char path[4096]; \
    int result; \
    LOCKED(result = real(fd); if (!result && named(fd, path)) said("sync", path, NULL)); \
    return result; \
  }
ONE_FD(fsync)
ONE_FD(fdatasync)

#define FD_LENGTH(name) \
  int name(int fd, off_t size) { \
    REAL(int, #name, int, off_t); \
    char path[4096]; \
    int result; \
    LOCKED(result = real(fd, size); if (!result && named(fd, path)) cut(path, size)); \
    return result; \
  }
FD_LENGTH(ftruncate)
FD_LENGTH(ftruncate64)

#define PATH_LENGTH(name) \
  int name(const char *given, off_t size) { \
    REAL(int, #name, const char *, off_t); \
    char path[8192]; \
    int result; \
    LOCKED(result = real(given, size); if (!result && absolute(AT_FDCWD, given, path)) cut(path, size)); \
    return result; \
  }
PATH_LENGTH(truncate)
PATH_LENGTH(truncate64)

static int two(const char *call, int result, int at, const char *from, int to_at, const char *to) {
  char path[8192], other[8192];
  if (!result && absolute(at, from, path) && absolute(to_at, to, other)) said(call, path, other);
  return result;
}
int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  LOCKED(int result = two("rename", real(from, to), AT_FDCWD, from, AT_FDCWD, to));
  return result;
}
int renameat(int at, const char *from, int to_at, const char *to) {
  REAL(int, "renameat", int, const char *, int, const char *);
  LOCKED(int result = two("rename", real(at, from, to_at, to), at, from, to_at, to));
  return result;
}
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) {
  REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
  const char *call = flags & RENAME_EXCHANGE ? "exchange" : "rename";
  LOCKED(int result = two(call, real(at, from, to_at, to, flags), at, from, to_at, to));
  return result;
}
int link(const char *from, const char *to) {
  REAL(int, "link", const char *, const char *);
  LOCKED(int result = two("link", real(from, to), AT_FDCWD, from, AT_FDCWD, to));
  return result;
}
int linkat(int at, const char *from, int to_at, const char *to, int flags) {
  REAL(int, "linkat", int, const char *, int, const char *, int);
  LOCKED(int result = two("link", real(at, from, to_at, to, flags), at, from, to_at, to));
  return result;
}

static int one(const char *call, int result, int at, const char *given) {
  char path[8192];
  if (!result && absolute(at, given, path)) said(call, path, NULL);
  return result;
}
int unlink(const char *path) {
  REAL(int, "unlink", const char *);
  LOCKED(int result = one("unlink", real(path), AT_FDCWD, path));
  return result;
}
int unlinkat(int at, const char *path, int flags) {
  REAL(int, "unlinkat", int, const char *, int);
  LOCKED(int result = one(flags & AT_REMOVEDIR ? "rmdir" : "unlink", real(at, path, flags), at, path));
  return result;
}
int rmdir(const char *path) {
  REAL(int, "rmdir", const char *);
  LOCKED(int result = one("rmdir", real(path), AT_FDCWD, path));
  return result;
}
int mkdir(const char *path, mode_t mode) {
  REAL(int, "mkdir", const char *, mode_t);
  LOCKED(int result = one("mkdir", real(path, mode), AT_FDCWD, path));
  return result;
}
int mkdirat(int at, const char *path, mode_t mode) {
  REAL(int, "mkdirat", int, const char *, mode_t);
  LOCKED(int result = one("mkdir", real(at, path, mode), at, path));
  return result;
}

static void opened(int result, int at, const char *given, int flags) {
  char path[8192];
  if (result < 0 || !(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE) return;
  if (absolute(at, given, path)) said("open", path, flags & O_TRUNC ? "1" : "0");
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(int, #name, const char *, int, ...); \
    va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    int result; \
    LOCKED(result = real(path, flags, mode); opened(result, AT_FDCWD, path, flags)); \
    return result; \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int at, const char *path, int flags, ...) { \
    REAL(int, #name, int, const char *, int, ...); \
    va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    int result; \
    LOCKED(result = real(at, path, flags, mode); opened(result, at, path, flags)); \
    return result; \
  }
OPENAT(openat)
OPENAT(openat64)
