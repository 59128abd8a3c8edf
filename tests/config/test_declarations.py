"""One declaration says all there is to know of a key; everything else follows from it."""

from __future__ import annotations

import math

import pytest

from docs.making import config_page
from linnaeus_jax import __main__ as overview
from linnaeus_jax.config import ConfigError, defaults, get_config, load_config
from linnaeus_jax.config.defaults import declared
from linnaeus_jax.config.keys import duration, key, unset
from linnaeus_jax.config.sections.training import TRAIN
from linnaeus_jax.config.tree import FILTER_KEYS, known_keys
from linnaeus_jax.config.values import wrong_values

NEW = {
    "warmth": key(0.5, "how warm the optimizer is", within="[0, 1)"),
    "mood": key("calm", "how it feels", choices=("calm", "wild"), any_case=True),
    "name_of_it": key("x", "what it is called", not_empty=True),
    "pair": key((1, 2), "two of them", items=int, lengths=(2,), within="[0, inf)"),
    "limit": unset(int, "at most so many; None: any", within="[1, inf)"),
    **duration("rest", "how long it rests", default=("steps", 7)),
}


@pytest.fixture
def with_new(monkeypatch):
    """Keys that are declared and mentioned nowhere else."""
    for name, found in NEW.items():
        monkeypatch.setitem(TRAIN, name, found)
    defaults._declared.cache_clear()
    yield
    monkeypatch.undo()
    defaults._declared.cache_clear()


def errors_of(**values):
    config = get_config()
    for name, value in values.items():
        config.train[name] = value
    return sorted(error for _, error in wrong_values(config))


@pytest.mark.usefixtures("with_new")
def test_a_new_key_is_in_the_tree_and_is_checked():
    config = get_config()
    assert (config.train.warmth, config.train.mood, config.train.pair) == (0.5, "calm", (1, 2))
    assert config.train.limit is config.train.rest_steps is None
    assert config.train.get_type("limit") is config.train.get_type("rest_steps") is int
    assert errors_of() == errors_of(mood="WILD", limit=1) == []
    assert errors_of(warmth=1.0, mood="odd", pair=(1,), name_of_it="", limit=0) == [
        "train.limit = 0 is out of range; it must be 1 or more",
        "train.mood = 'odd' is unknown; choose one of calm, wild",
        "train.name_of_it is empty; give it a value",
        "train.pair = (1,) has 1 items; give 2",
        "train.warmth = 1.0 is out of range; it must be within [0, 1)",
    ]
    assert errors_of(pair=(-1, 2)) == ["train.pair = (-1, 2) holds -1; each item must be 0 or more"]


@pytest.mark.usefixtures("with_new")
def test_a_new_key_is_explained_and_completed(capsys):
    page = config_page.make()
    row = "| `train.warmth` | `0.5` | float: in [0, 1) | How warm the optimizer is. | [schedules](../schedules.md) |"
    assert row in page
    assert '| `train.mood` | `"calm"` | text: `calm`, `wild`; also in upper case | How it feels.' in page
    assert (
        "| `train.rest_steps` | `None`, counts as 7 | int or None: updates, 0 or more | How long it rests. Give" in page
    )
    with pytest.raises(SystemExit):
        load_config(["--help", "train.warmth", "mood"])
    printed = capsys.readouterr().out
    assert "train.warmth = 0.5\n    float: in [0, 1)\n    how warm the optimizer is\n" in printed
    assert "train.mood = 'calm'\n    text: calm, wild; also in upper case\n" in printed
    assert "train.mood" in known_keys(get_config())
    assert NEW["mood"].completions() == ("calm", "wild")
    assert key(True, "on").completions() == ("True", "False")


def test_a_section_is_explained(capsys):
    with pytest.raises(SystemExit) as ended:
        load_config(["--help", "--config.schedule.mixup.prob"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert printed.count("\nschedule.mixup.prob.") == 4
    assert "give this or end_fraction" in printed
    with pytest.raises(ConfigError, match=r"--help train.epoks: there is no such key; did you mean train.epochs\?"):
        load_config(["--help", "train.epoks"])


def test_the_defaults_may_be_what_they_are():
    config = get_config()
    assert list(wrong_values(config)) == []


def test_the_tree_is_what_is_declared():
    entries = ("data.meta.components.", "model.classification.heads")
    tree = {path for path in known_keys(get_config()) if not path.startswith(entries)}
    assert tree == {
        next((f"{start}{name}" for name in FILTER_KEYS if (start := path.partition(name)[0]) != path), path)
        for path in declared()
        if "*" not in path
    }


@pytest.mark.parametrize("path", [path for path, found in declared().items() if found.choices])
def test_choices_that_another_subpackage_offers_are_found(path):
    found = declared()[path]
    names = list(found.names())
    assert names
    if isinstance(found.default, str) and found.default:
        assert found.default in names or (found.any_case and found.default.lower() in names)


def test_rules_belong_to_their_kind():
    """A rule that nothing would look at is a mistake, and so are numbers without bounds."""
    for path, found in declared().items():
        numbers = {int, float} & {found.kind, found.items}
        assert bool(found.within or found.unit) == bool(numbers), path
        odd = (math.nan, math.inf, -math.inf, *((10**30, -(10**30)) if int in numbers else (1e300, -1e300)))
        assert not numbers or not any(map(found.holds, odd)), path
        assert not found.choices or str in (found.kind, found.items), path
        assert not (found.lengths or found.per_task or found.optional) or found.items, path
        assert found.items is None or found.kind is tuple, path
        assert not found.not_empty or found.kind is str, path
        assert bool(found.unit) == bool(found.rivals), path


def test_completion_offers_values(monkeypatch, tmp_path):
    offered = {}

    def autocomplete(parser):
        for action in parser._actions:
            offered[action.option_strings[0]] = action

    monkeypatch.setattr("argcomplete.autocomplete", autocomplete)
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    overview._complete(overview.TRAIN, "train", ["train"])
    assert set(offered["--config.train.clip_mode"].completer()) == {"norm", "adaptive"}
    assert set(offered["--config.train.ema.enabled"].completer()) == {"True", "False"}
    assert offered["--config.train.epochs"].help == declared()["train.epochs"].meaning
