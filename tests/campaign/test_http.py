"""Some untrusted requests of every group, as the campaign sends them, to a server in this process."""

from __future__ import annotations

import os
from collections import Counter

from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.server.access import access_of
from linnaeus_jax.inference.server.requests import Limits
from tests.campaign.http import TOKEN, Server, cases, made
from tests.inference.conftest import small_bundle
from tests.inference.serving_helpers import serving

EACH = {"JSON": 4, "form": 2, "headers": 3, "host": 2, "token": 2, "origin": 1}


def test_names_are_unique_and_the_same_for_a_seed(tmp_path):
    names = [[case.name for case in cases(seed, tmp_path / "made")] for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
    assert len(set(names[0])) == len(names[0]) >= 200
    assert not (tmp_path / "made").exists()


def test_each_is_refused_and_others_are_served(tmp_path):
    taken: Counter[str] = Counter()
    with serving(Model(small_bundle(), buckets=(2,)), Limits(seconds=5), access_of("127.0.0.1", token=TOKEN)) as url:
        server = Server(int(url.rpartition(":")[2]), os.getpid())
        for case in made(7, lambda: server):
            if taken[case.group] < EACH.get(case.group, 0):
                taken[case.group] += 1
                outcome = case.run(tmp_path)
                assert outcome.good, f"{case.name}: {outcome.what}\n{outcome.detail}"
    assert taken == EACH
