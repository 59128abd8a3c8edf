"""Which processes make a run: options, variables, launchers; nothing here starts one."""

from __future__ import annotations

import importlib.util

import pytest

from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.processes import find_processes, split_processes

SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
POD = {"JOB_COMPLETION_INDEX": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def explicit(address: str, count: int, index: int) -> dict[str, object]:
    return {
        "coordinator_address": address,
        "num_processes": count,
        "process_id": index,
        "cluster_detection_method": "deactivate",
    }


def test_options_are_taken_out_of_the_command_line():
    rest, given = split_processes(["--config=a.py", "--coordinator", "here:1", "--process=0", "--workdir", "w"])
    assert rest == ["--config=a.py", "--workdir", "w"]
    assert given == {"coordinator": "here:1", "process": "0"}


@pytest.mark.parametrize(
    ("given", "environ", "arguments"),
    [
        ({}, {}, None),
        ({"coordinator": "a:1", "processes": "2", "process": "1"}, {}, explicit("a:1", 2, 1)),
        ({"coordinator": "a:1"}, {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, explicit("a:1", 2, 0)),
        (
            {"coordinator": "a:1", "processes": "2", "process": "1"},  # options count before variables
            {"JAX_COORDINATOR_ADDRESS": "b:1", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "0"},
            explicit("a:1", 2, 1),
        ),
        ({"coordinator": "a:1"}, SLURM, explicit("a:1", 2, 1)),
        ({"coordinator": "a:1", "process": "0"}, MPI, explicit("a:1", 4, 0)),
        ({}, POD | {"JAX_COORDINATOR_ADDRESS": "job-0.job:1", "JAX_NUM_PROCESSES": "4"}, explicit("job-0.job:1", 4, 2)),
        ({}, POD, None),  # one of several runs
        ({"coordinator": "none"}, SLURM, None),
        ({}, SLURM, {"cluster_detection_method": "slurm"}),
        ({}, SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        ({}, {name: text for name, text in SLURM.items() if "STEP" not in name}, None),  # a batch script without srun
        ({}, MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:3"}, {"cluster_detection_method": "ompi"}),
        ({}, {"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
    ],
)
def test_processes_of_options_and_launchers(given, environ, arguments):
    found = find_processes(given, environ)
    assert (None if found is None else found.arguments) == arguments


@pytest.mark.parametrize(
    ("visible", "per_node", "devices"),
    [("0,1,2,3", "1(x2)", [0, 1, 2, 3]), ("0,1,2,3", "4(x2)", None), ("2", "4(x2)", [0]), ("", "1", None)],
)
def test_gpus_of_a_task_of_slurm(visible, per_node, devices):
    environ = SLURM | {"CUDA_VISIBLE_DEVICES": visible, "SLURM_STEP_TASKS_PER_NODE": per_node}
    for given in ({}, {"coordinator": "a:1"}):
        found = find_processes(given, environ)
        assert found is not None
        assert found.arguments.get("local_device_ids") == devices


def test_other_mpi_needs_mpi4py_or_an_address(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    found = find_processes({}, MPI)
    assert found is not None
    assert found.arguments == {"cluster_detection_method": "mpi4py"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Open MPI started 4 processes"):
        find_processes({}, MPI)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coordinator": "a"}, "expected HOST:PORT"),
        ({"coordinator": "a:1"}, r"--processes too \(or JAX_NUM_PROCESSES\)"),
        ({"coordinator": "a:1", "processes": "2"}, "--process too"),
        ({"coordinator": "a:1", "processes": "2", "process": "2"}, "counted from 0"),
        ({"coordinator": "a:1", "processes": "two", "process": "0"}, "--processes=two: expected a number"),
        ({"processes": "2", "process": "0"}, "--processes needs --coordinator"),
    ],
)
def test_what_is_missing_or_wrong(given, message):
    with pytest.raises(ConfigError, match=message):
        find_processes(given, {})


def test_a_count_without_an_address_is_no_run_of_its_own():
    with pytest.raises(ConfigError, match=r"JAX_NUM_PROCESSES needs --coordinator=HOST:PORT \(or JAX_COORDINATOR"):
        find_processes({}, POD | {"JAX_NUM_PROCESSES": "4"})


def test_wrong_options():
    with pytest.raises(ConfigError, match="--process needs a value"):
        split_processes(["--process", "--config=a"])
    with pytest.raises(ConfigError, match="given twice"):
        split_processes(["--process=0", "--process=1"])
