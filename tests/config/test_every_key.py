"""Every key of the configuration has an effect that can be seen, and every row of the table is a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.tree import FILTER_KEYS
from tests.config.effects import Home, Site
from tests.config.key_table import ALSO, DIFFERENT, GROUPS, PENDING, TABLE, Row
from tests.step import toy


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Settings -> site; equal settings share one."""
    home, known = Home(tmp_path_factory.mktemp("home")), dict[str, Site]()

    def site(settings: dict[str, Any]) -> Site:
        name = repr(sorted(settings.items()))
        if name not in known:
            known[name] = home.site(settings)
        return known[name]

    with pytest.MonkeyPatch.context() as patch:
        toy.register(patch)
        yield site


def comparable(value: Any) -> Any:
    """Arrays and tuples as lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [comparable(item) for item in value] if isinstance(value, list | tuple) else value


def settings_of(key: str, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings without and with the value; those with it hold the values of the whole group."""
    if row.group:
        base = dict(GROUPS[row.group])
        values = {other: found.value for other, found in TABLE.items() if found.group == row.group}
        return base, {**base, **ALSO.get(row.group, {}), **values}
    return dict(row.given), {**row.given, key: row.value}


#: keys whose effect takes seconds, of a run of its own or a program that no other key needs
DEAR = (
    "experiment.log_level_main",
    "experiment.wandb.run_id",
    "model.conv_stages.embed_dims",
    "train.auto_resume",
    "train.gradient_checkpointing.enabled_gradnorm_steps",
    "train.gradient_checkpointing.enabled_normal_steps",
)


def test_the_table_covers_every_key():
    """What is declared; a filter, whose keys depend on its type, is one key."""
    filters = tuple(f".{name}." for name in FILTER_KEYS)
    keys = {
        next((path.partition(name)[0] + name[:-1] for name in filters if name in path), path) for path in declared()
    }
    assert sorted([*TABLE, *PENDING]) == sorted(keys)


def test_values_differ_from_the_defaults():
    keys = declared()
    assert [
        key for key, row in TABLE.items() if key in keys and comparable(keys[key].default) == comparable(row.value)
    ] == []


@pytest.mark.parametrize("key", [pytest.param(key, marks=pytest.mark.slow) if key in DEAR else key for key in TABLE])
def test_key_has_an_effect(sites, key):
    row = TABLE[key]
    without, changed = settings_of(key, row)
    before, after = comparable(row.see(sites(without))), comparable(row.see(sites(changed)))
    assert after != before
    if row.want is not DIFFERENT:
        assert after == comparable(row.want)
