"""Settings of the whole process: XLA's persistent compilation cache, its options, freed memory, scheduling."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

import jax

from linnaeus_jax import backend, system
from linnaeus_jax.config.typed import Config

log = logging.getLogger("linnaeus_jax")

#: bytes of a cache; what was used longest ago goes first
CACHE_BYTES = 2 * 2**30
#: seconds of compilation from which a program is kept: even the smallest takes longer to compile than to read
_WORTH_KEEPING = 0.0
#: of glibc's mallopt: freed memory above which the heap shrinks, requests that get pages of their own, heaps
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
#: no block gets pages of its own, and the heap never shrinks
_WITHOUT_LIMIT = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1))
#: bytes of a temporary of a forward pass that is kept, and of free memory at the end of the heap
LARGEST_KEPT = 2**28
#: bytes of the fragments that `retire_heap_fragments` allocates: the smallest, and a power of two above the largest
_LEAST_FRAGMENT, _LARGEST_FRAGMENT = 2**13, 2**26
#: bytes that a fragment left by the compiler hardly exceeds, while temporaries of updates do
LARGEST_COMPILER_FRAGMENT = 2**20


def cache_directory() -> Path:
    """The default cache: of this user, this jaxlib and this kind of CPU, since it holds native code.

    Below `$XDG_CACHE_HOME`, or `~/.cache`.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    facts = hashlib.sha256(f"{platform.machine()} {_cpu_features()}".encode()).hexdigest()[:12]
    return base / "linnaeus_jax" / "xla" / f"jaxlib-{version('jaxlib')}-{facts}"


def _cpu_features() -> str:
    """Model and instruction sets, as Linux tells them; elsewhere the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted))


def use_compilation_cache(directory: str = "auto") -> str:
    """Keeps compiled programs on disk, so that the next start reads them; returns a line that says where.

    A directory that cannot be written is no failure; the line says so.

    Args:
      directory: "" turns the cache off; "auto" is `cache_directory()`, unless the environment variable
        JAX_COMPILATION_CACHE_DIR names another one.
    """
    if not directory:
        jax.config.update("jax_enable_compilation_cache", False)
        return "compiled programs are not kept: env.compilation_cache_dir is empty"
    if directory == "auto" and (given := os.environ.get("JAX_COMPILATION_CACHE_DIR")):
        return f"compiled programs are kept in {given}"
    try:
        path = cache_directory() if directory == "auto" else Path(directory).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, RuntimeError) as error:
        return f"compiled programs are not kept: {error}; set env.compilation_cache_dir to a directory, or to ''"
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
    return f"compiled programs are kept in {path}"


#: of LLVM: half the time of the higher levels, whose code is no faster where libraries multiply the matrices
_LLVM_LEVEL = {"xla_backend_optimization_level": "1"}
#: operations are ordered for little memory instead of for many threads, which CPU programs have not enough of
_LITTLE_MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
#: no fusions by the YNNPACK library, which pay in training alone, and sums over rows that are not cut in pieces for it
_NO_LIBRARY_FUSIONS = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_disable_hlo_passes": "tree_reduction_rewriter",
}


def compiler_options(*, training: bool) -> dict[str, str | bool]:
    """Options of XLA for a train step, or for a forward pass: none but on CPU, none that this version refuses, and none
    that XLA_FLAGS sets."""
    if not backend.COMPILER_OPTIONS.here():
        return {}
    wanted = _LLVM_LEVEL | (_LITTLE_MEMORY if training else _NO_LIBRARY_FUSIONS)
    given = {flag.split("=")[0] for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in wanted.items() if f"--{name}" not in given and _accepted(name, value)}


@functools.cache
def _accepted(name: str, value: str) -> bool:
    try:
        jax.jit(lambda x: x + 1.0).lower(0.0).compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError:
        log.info("this version of XLA refuses %s=%s, which is left out", name, value)
        return False
    return True


def keep_freed_memory(largest: int = 0) -> bool:
    """Lets glibc keep freed memory for the next update or forward pass instead of returning it to the system; once for
    a process, before it starts threads.

    Only where CPUs compute: elsewhere the host frees no temporaries of updates, and its decoding threads want heaps of
    their own, which shrink.

    An update of a CPU frees gigabytes of temporaries, and each page of them would be cleared by the system and mapped
    again at the next one. The process stays as large as it ever was, which is two updates' temporaries where XLA has
    begun the next update before it freed those of the last. glibc's aligned_alloc, by which XLA gets its temporaries,
    does not always find a freed one of the same size again, so that several are kept. Returns False where the C library
    is another one.

    Args:
      largest: bytes of a block that is kept; 0: of any size. What was kept without a limit stays without.
    """
    libc = _libc()
    if libc is None or not (backend.KEPT_MEMORY.allowed() and backend.only_cpus()):
        return False
    if _kept["heap"] and _kept["largest"] in (0, largest):
        return True
    limits = ((_M_MMAP_THRESHOLD, largest), (_M_TRIM_THRESHOLD, largest)) if largest else _WITHOUT_LIMIT
    accepted = [libc.mallopt(name, value) for name, value in ((_M_ARENA_MAX, 1), *limits)]
    _kept.update(heap=min(accepted) == 1, largest=largest)
    return min(accepted) == 1


#: whether `keep_freed_memory` was called and glibc accepted it, and for blocks of which size
_kept = {"heap": False, "largest": 0}


def retire_heap_fragments(largest: int = _LARGEST_FRAGMENT) -> None:
    """After a compilation: returns its memory to the system, and takes the fragments that it left in the heap out of
    use.

    A compiler leaves tens of thousands of free fragments of all sizes. glibc keeps those of similar size in sorted
    lists, which each larger request walks: a quarter of the time of a small model's updates. So they are allocated and
    never freed; they are addresses without memory, but for the page that each begins in. Does nothing unless
    `keep_freed_memory` did, since there is more than one heap otherwise.

    Args:
      largest: bytes, a power of two; larger ones stay, since after the first update they are freed temporaries.
    """
    libc = _libc()
    if libc is None or not _kept["heap"] or not backend.RETIRED_FRAGMENTS.allowed():
        return
    libc.malloc_trim(0)
    end, size = libc.sbrk(0), largest
    while size >= _LEAST_FRAGMENT:
        address = libc.malloc(size)
        if address is None or address > end - _LEAST_FRAGMENT:  # no fragment, but the end of the heap
            libc.free(address)
            size //= 2


def use_batch_scheduling() -> bool:
    """Puts this process under Linux's policy SCHED_BATCH: no thread that wakes up interrupts another.

    Gloo, which moves what processes exchange on CPU, has a thread that polls as long as the one that waits for the
    exchange holds a lock. On the same core it interrupts that one and keeps it from letting go, milliseconds for each
    array. Threads to come inherit the policy. Returns False where it is not set: on other systems, where it is
    forbidden, and where another policy was chosen.
    """
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        return False
    return True


@functools.cache
def _libc() -> ctypes.CDLL | None:
    """The GNU C library."""
    try:
        libc = system.c_library()
        if libc is None:
            return None
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
        libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
        libc.malloc_trim, libc.mallopt  # noqa: B018  # looked up
    except AttributeError:
        return None
    return libc


def set_up_inference() -> str:
    """Process-wide settings of a program that runs a trained model over rows; returns a line that says where compiled
    programs are kept. `linnaeus_jax.load` leaves the process of others as it is unless asked.

    Called before libraries that start threads are imported (polars, orbax): each thread has a heap of its own by then,
    and what is computed in one of those is given back, whatever the settings.
    """
    keep_freed_memory(LARGEST_KEPT)
    return use_compilation_cache()


def set_up_jax(config: Config) -> str:
    """Process-wide settings, before the first use of a device; returns a line for the log."""
    if config.env.keep_freed_memory:
        keep_freed_memory()
    if config.train.matmul_precision != "auto":
        jax.config.update("jax_default_matmul_precision", config.train.matmul_precision)
    flag = "--xla_gpu_deterministic_ops=true"
    if config.train.deterministic and flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    notice = use_compilation_cache(config.env.compilation_cache_dir)
    if jax.distributed.is_initialized() and backend.BATCH_SCHEDULING.here():
        use_batch_scheduling()
    return notice
