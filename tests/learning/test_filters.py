from __future__ import annotations

import dataclasses
import json

import pytest

from linnaeus_jax.learning.filters import parse_filter


@dataclasses.dataclass(frozen=True)
class Info:
    name: str
    path: tuple[str, ...] = ()
    shape: tuple[int, ...] = (2, 3)
    layer_type: str = "Linear"


def lower(value):
    if isinstance(value, dict):
        return {key.lower(): lower(child) for key, child in value.items()}
    return [lower(child) for child in value] if isinstance(value, list) else value


def load(fixtures):
    golden = json.loads((fixtures / "learning_filters.json").read_text())
    return golden, [
        Info(p["name"], tuple(p["name"].split(".")), tuple(p["shape"]), p["layer_type"]) for p in golden["params"]
    ]


def test_golden_cases(fixtures):
    golden, parameters = load(fixtures)
    shapes = {name: tuple(shape) for name, shape in golden["checkpoint_shapes"].items()}
    assert len(golden["cases"]) == 14
    for case in golden["cases"]:
        selects = parse_filter(lower(case["filter"]), "f", checkpoint_shapes=shapes)
        assert [p.name for p in parameters if selects(p)] == case["matches"], case["filter"]


def test_stage_empty_members_scalars_and_case():
    stage_of = {"a": "stages.rope_stages", "b": "embeddings"}.__getitem__
    for stages in ("rope_stages", ["stages.rope_stages", "nothing"]):
        selects = parse_filter({"type": "Stage_Based", "stages": stages}, "f", stage_of=stage_of)
        assert [selects(Info(n)) for n in "ab"] == [True, False]
    assert parse_filter({"type": "AND", "filters": []}, "f")(Info("a"))
    assert not parse_filter({"type": "or", "filters": []}, "f")(Info("a"))
    assert parse_filter({"type": "dimension", "dimensions": 2}, "f")(Info("a"))
    assert parse_filter({"type": "name", "patterns": "x", "match_type": "EndsWith"}, "f")(Info("ax"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "g.filter has no 'type'"),
        ({"type": "nmae", "patterns": ["a"]}, "did you mean 'name'"),
        ({"type": "name"}, r"g\.filter\.patterns is missing"),
        ({"type": "name", "pattern": ["a"], "patterns": []}, r"g\.filter\.pattern has no meaning"),
        ({"type": "name", "patterns": ["("], "match_type": "regex"}, "not a regular expression"),
        ({"type": "name", "patterns": ["a"], "match_type": "glob"}, r"g\.filter\.match_type = 'glob' is unknown"),
        ({"type": "and", "filters": [{"type": "not"}]}, r"g\.filter\.filters\[0\]\.filter is missing"),
        ({"type": "and", "filters": 3}, r"g\.filter\.filters = 3 must be a list of filters"),
        ({"type": "or", "filters": {"type": "name"}}, r"g\.filter\.filters = .* must be a list of filters"),
        ({"type": "dimension", "dimensions": ["a"]}, r"g\.filter\.dimensions = \['a'\] must be a list of integers"),
        ({"type": "name", "patterns": {"a": 1}}, r"g\.filter\.patterns = .* must be a list of strings"),
        ({"type": "stage_based", "stages": [1]}, r"g\.filter\.stages = \[1\] must be a list of strings"),
        ({"type": "not", "filter": "head"}, r"g\.filter\.filter = 'head' must be a mapping"),
        ({"type": "initialization"}, "needs pretrained weights"),
        ({"type": "stage_based", "stages": ["a"]}, "needs a model that names its stages"),
    ],
)
def test_errors_name_the_key(config, message):
    with pytest.raises(ValueError, match=message):
        parse_filter(config, "g.filter")
