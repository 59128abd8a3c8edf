"""docs/clusters.md: its Slurm script and its Kubernetes manifest start two processes that make one run."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from linnaeus_jax.run.trainer import run
from tests.run.cluster_config import get_config
from tests.run.test_kill import final_parameters
from tests.run.test_trainer import rows_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clusters.md").read_text()
#: what stands for Slurm's own: two tasks on this machine with the variables of a step, and its worst exit status
SRUN = """#!/bin/bash
export SLURM_JOB_ID=77 SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & first=$!
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" & second=$!
wait $first; a=$?; wait $second; b=$?
exit $((a > b ? a : b))
"""


def block(language: str, start: str) -> str:
    """The fenced block of a language that begins with some text."""
    found = re.findall(rf"^```{language}\n({re.escape(start)}.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    """The service and the job."""
    service, job = yaml.safe_load_all(block("yaml", "apiVersion"))
    return service, job


def environment(folder: Path, settings: dict[str, str], **more: str) -> dict[str, str]:
    """That of the manual's commands, with programs of `folder` first in the path, and one device for each process."""
    own = {"PATH": f"{folder}{os.pathsep}{settings['PATH']}", "JAX_NUM_CPU_DEVICES": "1"}
    flags = {"XLA_FLAGS": os.environ["XLA_FLAGS"]}
    return settings | flags | own | more


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def by_slurm(folder: Path, settings: dict[str, str], config: str, workdir: Path) -> None:
    """Runs the page's batch script with `SRUN` in place of Slurm."""
    srun = folder / "srun"
    srun.write_text(SRUN)
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    given = {"CONFIG": config, "RUN": str(workdir), "JAX_COORDINATOR_PORT": free_port()}
    script = ["bash", "-c", block("bash", "#!/bin/bash")]
    done = subprocess.run(
        script, cwd=ROOT, env=environment(folder, settings, **given), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def by_kubernetes(folder: Path, settings: dict[str, str], config: str, workdir: Path) -> None:
    """Runs the command of the page's job once for each pod, with what Kubernetes sets."""
    _, job = manifest()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given: Mapping[str, str] = {row["name"]: row["value"] for row in container["env"]}
    given = {**given, "CONFIG": config, "RUN": str(workdir), "JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}"}
    command = [re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], word) for word in container["command"]]
    pods = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(
                folder, settings, **given, JOB_COMPLETION_INDEX=str(index), KUBERNETES_SERVICE_HOST="10.0.0.1"
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(job["spec"]["completions"])
    ]
    texts = [pod.communicate(timeout=600)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], "".join(text[-2000:] for text in texts)


@pytest.mark.slow
def test_processes_come_and_go(tmp_path, settings):
    """One epoch in two tasks of Slurm, one in two pods with split state, one in a single process: as in one process."""
    data, workdir = tmp_path / "data", tmp_path / "run"
    whole = get_config(str(data))
    run(whole, tmp_path / "whole")
    by_slurm(tmp_path, settings, f"tests/run/cluster_config.py:{data},stop=6", workdir)
    by_kubernetes(tmp_path, settings, f"tests/run/cluster_config.py:{data},stop=12,split", workdir)
    run(whole, workdir)
    ranks = sorted(path.name for path in (workdir / "logs").glob("debug_log_rank?.txt"))
    assert "(split)" in (workdir / "logs" / "debug_log_rank0.txt").read_text()
    assert ranks == ["debug_log_rank0.txt", "debug_log_rank1.txt"]
    expected, found = final_parameters(tmp_path / "whole"), final_parameters(workdir)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)
    losses = [
        [row["train/epoch_avg_loss_unweighted"] for row in rows_of(folder) if row["event"] == "epoch"]
        for folder in (tmp_path / "whole", workdir)
    ]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.slow
def test_two_processes_on_one_machine(tmp_path, settings):
    """The page's loop, with the smallest model there is and a free port."""
    script = block("bash", "for i in 0 1; do")
    for shown, typed in (
        ("configs/quickstart.py", f"tests/run/cluster_config.py:{tmp_path / 'data'},stop=2"),
        ("runs/two", str(tmp_path / "two")),
        ("localhost:8476", f"localhost:{free_port()}"),
    ):
        assert shown in script
        script = script.replace(shown, typed)
    get_config(str(tmp_path / "data"))  # both would write the data
    subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=environment(tmp_path, settings), check=True, timeout=300)
    logs = sorted(path.name for path in (tmp_path / "two" / "logs").glob("debug_log_rank?.txt"))
    assert logs == ["debug_log_rank0.txt", "debug_log_rank1.txt"]
    assert "stopped after 2 updates" in (tmp_path / "two" / "logs" / logs[0]).read_text()


def test_the_manifest_names_what_it_uses():
    service, job = manifest()
    pod, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    (container,) = pod["containers"]
    given = {row["name"]: row["value"] for row in container["env"]}
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert given["JAX_COORDINATOR_ADDRESS"].startswith(f"{name}-0.{pod['subdomain']}:")
    assert int(given["JAX_NUM_PROCESSES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert {row["name"] for row in container["volumeMounts"]} == {row["name"] for row in pod["volumes"]}


def test_the_script_asks_for_a_task_per_node():
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", block("bash", "#!/bin/bash"), re.MULTILINE))
    assert asked["ntasks-per-node"] == "1"
    assert asked["signal"].startswith("TERM@")
