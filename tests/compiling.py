"""How programs are compiled in tests: they are compiled longer than they run."""

from __future__ import annotations

from importlib import metadata

FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",  # small programs are not worth the threads: 7 % of all CPU time
    "--xla_cpu_collective_call_terminate_timeout_seconds=300",
    "--xla_cpu_collective_timeout_seconds=300",
]
#: options of a compilation whose results are compared bit by bit with those of another program
LIKE_USERS: dict[str, str | bool] = {}
if metadata.version("jaxlib").startswith("0.10."):  # later ones end at a flag that they have no more
    # XLA's older code of fusions: half the time of compiling, or less; rounding depends more on what is fused
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
    LIKE_USERS["xla_cpu_use_fusion_emitters"] = True
#: of programs that run for longer than they are compiled: an epoch of the demo takes 18 CPU-s in place of 28
LONGER = [flag.replace("level=0", "level=1") for flag in FLAGS]
