"""Pictures that lie at another level than the records say."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from linnaeus_jax.building.steps.plan import looked_for
from linnaeus_jax.reading.schema import DETAIL, NO_SUCH_PICTURE, PICTURE, REASON, UNCLAIMED


@pytest.mark.parametrize(
    ("named", "there", "words"),
    [
        (
            "p0.jpg",
            ["deep/p0.jpg"],
            "looked for 'a/photos/p0.jpg'; 'a/photos/deep/p0.jpg' is there: give --pictures a/photos/deep",
        ),
        (
            "x/p0.jpg",
            ["b/x/p0.jpg"],
            "looked for 'a/photos/x/p0.jpg'; 'a/photos/b/x/p0.jpg' is there: give --pictures a/photos/b",
        ),
        (
            "photos/p0.jpg",
            ["p0.jpg"],
            "looked for 'a/photos/photos/p0.jpg'; 'a/photos/p0.jpg' is there: give --pictures a",
        ),
        ("photos/p0.jpg", ["x/p0.jpg"], "'a/photos/x/p0.jpg' is there: give a folder in which it is 'photos/p0.jpg'"),
        ("y/p0.jpg", ["z/p0.jpg"], "'a/photos/z/p0.jpg' is there: give a folder in which it is 'y/p0.jpg', or correct"),
        ("p0.jpg", ["q.jpg"], "looked for 'a/photos/p0.jpg'; there are other names, such as 'a/photos/q.jpg'"),
        ("p0.jpg", [], "looked for 'a/photos/p0.jpg', and a/photos holds no other pictures: give their folder"),
        (None, ["q.jpg"], ""),
    ],
)
def test_one_path_that_was_looked_for_and_where_it_is(named, there, words):
    missing = [] if named is None else [(named, NO_SUCH_PICTURE, None)]
    rows = [*missing, *((path, UNCLAIMED, None) for path in there)]
    schema = dict.fromkeys((PICTURE, REASON, DETAIL), pl.String)
    text = looked_for(pl.DataFrame(rows, schema=schema, orient="row"), Path("a/photos"))
    assert words in text
    assert bool(words) == bool(text)
