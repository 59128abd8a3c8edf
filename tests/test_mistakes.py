"""What messages share."""

from __future__ import annotations

import pytest

from linnaeus_jax.mistakes import shortened


@pytest.mark.parametrize(
    ("count", "most", "text"),
    [(0, 3, ""), (1, 3, "0"), (3, 3, "0, 1, 2"), (4, 3, "0, 1, 2 and 1 more"), (2000, 1, "0 and 1,999 more")],
)
def test_the_first_of_some_texts_and_how_many_more_there_are(count, most, text):
    assert shortened(map(str, range(count)), most) == text


def test_three_texts_are_shown_and_parted_as_is_asked():
    assert shortened("abcd", separator="; ") == "a; b; c and 1 more"
