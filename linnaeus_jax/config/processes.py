"""Which processes make a run together: from the command line, or from the launcher that started them.

Read before jax is: what is wrong ends the program at once. `run/processes.py` joins them.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linnaeus_jax.config.errors import ConfigError

OPTIONS = ("coordinator", "processes", "process")
#: of each variable of JAX, which stands for an option that is not given
VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process": "JAX_PROCESS_ID",
}
#: launchers: name, number of processes, number of this one; the first that is there counts
LAUNCHERS = (
    ("Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MPI", "PMI_SIZE", "PMI_RANK"),
    ("Kubernetes", "", "JOB_COMPLETION_INDEX"),  # an indexed job does not say how many pods it has
)
ALONE = "none"


@dataclass(frozen=True)
class Processes:
    """The processes of a run.

    Attributes:
      found: where they are known from, for people.
      arguments: of `jax.distributed.initialize`.
    """

    found: str
    arguments: Mapping[str, Any]


def split_processes(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(the other arguments, options of `OPTIONS` by name) of a command line.

    Raises:
      ConfigError: an option without value, or given twice.
    """
    rest, given, tokens = list[str](), dict[str, str](), list(argv)
    while tokens:
        token = tokens.pop(0)
        name, equals, value = token.removeprefix("--").partition("=")
        if not token.startswith("--") or name not in OPTIONS:
            rest.append(token)
            continue
        if not equals:
            value = tokens.pop(0) if tokens and not tokens[0].startswith("--") else ""
        if not value:
            raise ConfigError(f"--{name} needs a value: --{name}=VALUE")
        if name in given:
            raise ConfigError(f"--{name} is given twice; keep one")
        given[name] = value
    return rest, given


def find_processes(given: Mapping[str, str], environ: Mapping[str, str]) -> Processes | None:
    """The processes that options and environment describe; None: this one is alone.

    An address counts before a launcher. Where it is given, the launcher's variables say what the options leave out.
    Slurm and Open MPI 4 say the address themselves, which JAX knows to read.

    Args:
      given: of `split_processes`.
      environ: of this process.

    Raises:
      ConfigError: something is missing or wrong.
    """
    said = {name: given.get(name) or environ.get(variable, "") for name, variable in VARIABLES.items()}
    address, launcher = said.pop("coordinator"), _launcher(environ)
    if address.lower() == ALONE:
        return None
    if address:
        if not re.fullmatch(r"[^\s/]+:\d{1,5}", address):
            raise ConfigError(f"--coordinator={address}: expected HOST:PORT of process 0, or none to train alone")
        name, by_launcher = launcher or ("", {})
        count, index = (_number(option, said[option] or by_launcher.get(option, "")) for option in said)
        if not 0 <= index < count:
            raise ConfigError(f"--process={index} is none of --processes={count}: they are counted from 0")
        arguments = {"coordinator_address": address, "num_processes": count, "process_id": index}
        # without a launcher a process has all devices that it sees
        devices = _devices(environ) if name == "Slurm" else {}
        found = f"coordinator {address}" + (f", {name}" if name and not all(said.values()) else "")
        return Processes(found, {**arguments, **devices, "cluster_detection_method": "deactivate"})
    if alone := [VARIABLES[option] if option not in given else f"--{option}" for option, text in said.items() if text]:
        raise ConfigError(f"{alone[0]} needs --coordinator=HOST:PORT (or {VARIABLES['coordinator']}) of process 0")
    if launcher is None or launcher[1].get("processes", "1") == "1":
        return None  # an indexed job without an address is one of several runs
    name = launcher[0]
    if name == "Slurm":
        return Processes(name, {"cluster_detection_method": "slurm", **_devices(environ)})
    if name == "Open MPI" and "OMPI_MCA_orte_hnp_uri" in environ:
        return Processes(name, {"cluster_detection_method": "ompi"})
    if importlib.util.find_spec("mpi4py") is not None:
        return Processes(f"{name} (mpi4py)", {"cluster_detection_method": "mpi4py"})
    raise ConfigError(
        f"{name} started {launcher[1]['processes']} processes, but does not say where process 0 is: give each "
        "--coordinator=HOST:PORT, or --coordinator=none where each makes a run of its own"
    )


def _launcher(environ: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """The launcher of this process, and what it says: `processes` (where it does) and `process`."""
    for name, count, index in LAUNCHERS:
        if index in environ and (not count or count in environ):
            return name, {"process": environ[index], **({"processes": environ[count]} if count else {})}
    return None


def _number(option: str, text: str) -> int:
    if not text:
        raise ConfigError(f"--coordinator needs --{option} too (or {VARIABLES[option]}); no launcher says it")
    if not re.fullmatch(r"\d+", text):
        raise ConfigError(f"--{option}={text}: expected a number")
    return int(text)


def _devices(environ: Mapping[str, str]) -> dict[str, list[int]]:
    """The GPUs of a task of Slurm, where they are not the one of its number on the node, which JAX takes by itself.

    A task that is alone on its node has all of them; one that sees a single one (`--gpus-per-task`) has that.
    """
    visible = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    alone = re.fullmatch(r"1(\(x\d+\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if len(visible) == 1 or (visible and alone):
        return {"local_device_ids": list(range(len(visible)))}
    return {}
