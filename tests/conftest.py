"""Strict settings for every test: 2 virtual devices, rank promotion an error, a shared compilation cache."""

from __future__ import annotations

import gc
import logging
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from tests.compiling import FLAGS

# Hundreds of processes start here: without bytecode on disk each would compile the package again, half a second of CPU.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
for flag in FLAGS:
    if flag.split("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

from tests import annotated

annotated.install()

import hypothesis
import jax
import pytest

from linnaeus_jax.backend import PLAIN
from linnaeus_jax.main import GARBAGE_THRESHOLDS
from linnaeus_jax.run import experiment
from linnaeus_jax.step.placement import Placement
from tests.needs import ORDER, UNTIL, check_needs
from tests.plugins import plugins_kept
from tests.undrawn import undrawn

gc.set_threshold(*GARBAGE_THRESHOLDS)
jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile("tests", deadline=None)  # other load decides how long an example takes
hypothesis.settings.load_profile("tests")
jax.config.update("jax_default_matmul_precision", "highest")

FIXTURES = Path(__file__).parent / "fixtures"
#: files of the slow tests that take minutes, the longest first: begun last, one of them would leave a core idle
LONGEST = ("docs/test_typed_pages.py", "test_ways.py", "models/test_contract.py", "run/test_corners.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a slow test are not imported for the slow ones alone: most files, and seconds of each process."""
    if config.option.markexpr != "slow" or not collection_path.name.startswith("test_"):
        return None
    return "mark.slow" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr == "slow":
        place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
        if UNTIL in os.environ:  # which are left out where time runs out differs from commit to commit
            items.sort(key=lambda item: zlib.crc32(f"{os.environ.get(ORDER)}{item.path.name}".encode()))
        items.sort(key=lambda item: place.get(item.path, len(LONGEST)))
    if os.environ.get(PLAIN):
        for item in items:
            if item.get_closest_marker("tricks"):
                item.add_marker(pytest.mark.skip(reason=f"{PLAIN} switches off what is tested"))


@pytest.hookimpl(tryfirst=True)  # before fixtures that need it, too
def pytest_runtest_setup(item: pytest.Item) -> None:
    check_needs(item)


@pytest.fixture(scope="session", autouse=True)
def without_pages() -> Iterator[None]:
    """Runs in this process end without pictures and report, see `tests.undrawn`."""
    with undrawn():
        yield


def use_one_device(patch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone, see `one_device`."""
    patch.setattr(experiment, "Placement", lambda **_: Placement(jax.devices()[:1]))


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs use one device, whose programs compile in half of the time."""
    use_one_device(monkeypatch)


@pytest.fixture(autouse=True)
def own_precision() -> None:
    """Takes back what a run in an earlier test set, or later tests would compile what is compiled."""
    jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(autouse=True)
def own_loggers() -> None:
    """Takes away the handlers that a run in an earlier test installed, so that `caplog` sees every record."""
    for name in ("linnaeus_jax", "linnaeus_jax.data"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def own_plugins() -> Iterator[None]:
    """Takes back what plugins of the test registered."""
    with plugins_kept():
        yield


@pytest.fixture(autouse=True)
def own_service() -> Iterator[None]:
    """Lets programs that later tests start not use the process that does the work of W&B for this one."""
    yield
    os.environ.pop("WANDB_SERVICE", None)


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Directory of the golden numbers."""
    return FIXTURES
