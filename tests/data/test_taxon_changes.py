"""Taxa renamed, merged, moved and split by a list: the tree afterwards, the rows of a data set, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_changes import Change, change_taxa, described_split
from linnaeus_jax.data.taxon_names import id_of_name
from tests.inference.conftest import small_taxonomy

SMALL = small_taxonomy()


def change(*lines: tuple[str, ...], **options):
    changes = [Change(f"line {i}", *line) for i, line in enumerate(lines, 2)]  # type: ignore[arg-type]
    return change_taxa(SMALL.tree, SMALL.names, changes, **options)


def names(found, task: str = "taxa_L10") -> list[str]:
    return found.names.name[task].tolist()


def test_names_alone_change_and_ids_of_people_stay():
    found = change(("rename", "parus MAJOR", "", "Parus cinereus"), ("rename", "21", "genus", "Cyanistes"))
    assert found.same_classes
    assert found.done == {"rename": 2}
    assert names(found) == ["", "Parus cinereus", "Parus minor", "Passer domesticus", "Incertae sedis"]
    assert found.names.classes["taxa_L20"].tolist() == [0, 21, 22]
    assert names(found, "taxa_L20")[1] == "Cyanistes"


def test_an_id_made_of_a_name_follows_the_name():
    large = 3 * 10**9  # beyond 32 bits
    ids = dict(SMALL.names.classes) | {"taxa_L20": np.array([0, id_of_name("taxa_L20", "Parus", ()), large])}
    of = type(SMALL.names)(ids, SMALL.names.name, SMALL.names.common_name)
    found = change_taxa(SMALL.tree, of, [Change("line 2", "rename", "Parus", "genus", "Poecile")])
    assert found.names.classes["taxa_L20"].tolist() == [0, id_of_name("taxa_L20", "Poecile", ()), large]


def test_merged_moved_and_new_taxa():
    found = change(
        ("new", "Cyanistes", "genus", "", "Paridae"),
        ("merge", "Parus minor [12]", "species", "Parus major"),
        ("rename", "Passer domesticus", "", "Cyanistes domesticus", "Cyanistes"),
        ("move", "Passer", "genus", "", "Paridae"),
    )
    assert names(found) == ["", "Parus major", "Cyanistes domesticus", "Incertae sedis"]
    assert {task: of.tolist() for task, of in found.class_of.items()} == {
        "taxa_L10": [0, 1, 1, 2, 3],
        "taxa_L20": [0, 1, 2],
        "taxa_L30": [0, 1, 2],
    }
    assert found.tree.parent["taxa_L10"].tolist() == [-1, 1, 3, -1]
    assert found.tree.parent["taxa_L20"].tolist() == [-1, 1, 1, 1]
    assert not found.same_classes
    assert not found.notes
    assert not change(("move", "Passer", "genus", "", "Paridae")).same_classes


def test_rows_change_only_where_the_list_says_so():
    """Row by row against what a person would write, with ranks that are unknown or contradict the tree."""
    found = change(
        ("new", "Cyanistes", "genus", "", "Passeridae"),
        ("move", "Parus minor", "", "", "Cyanistes"),
        ("merge", "Passeridae", "family", "Paridae"),
    )
    cyanistes = int(found.names.classes["taxa_L20"][-1])
    rows = {
        (1, 1, 1): (11, 21, 31),
        (1, 0, 0): (11, 0, 0),  # what was unknown stays so
        (2, 1, 1): (12, cyanistes, 31),
        (2, 0, 0): (12, cyanistes, 31),
        (3, 2, 2): (13, 22, 31),
        (3, 1, 2): (13, 21, 31),  # a genus that the tree does not have there
        (0, 2, 2): (0, 22, 31),
        (4, 0, 0): (14, 0, 0),
        (0, 0, 0): (0, 0, 0),
    }
    np.testing.assert_array_equal(found.rows(np.array(list(rows))), list(rows.values()))


def test_what_is_split_is_listed_and_keeps_its_name_or_becomes_unknown():
    lines = ("split", "Parus major", "", "Parus major | Parus cinereus"), ("split", "Parus", "genus")
    kept = change(*lines)
    assert kept.same_classes
    assert described_split(kept, SMALL.names) == [
        "species Parus major [11]: Parus major | Parus cinereus",
        "genus Parus [21]",
    ]
    gone = change(*lines, split_to_parent=True)  # the genus has species, and stays
    assert names(gone) == ["", "Parus minor", "Passer domesticus", "Incertae sedis"]
    assert gone.rows(np.array([[1, 1, 1], [2, 1, 1]])).tolist() == [[0, 21, 31], [12, 21, 31]]


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(UserError) as error:
        change(
            ("rename", "Parus mayor", "", "X y"),
            ("rename", "Parus minor", "", "Parus major"),
            ("move", "Parus minor", "", "", "Passer"),
            ("merge", "Passer domesticus", "", "Passer domesticus"),
            ("merge", "Incertae sedis", "", "Parus maior"),
            ("move", "Parus", "genus", "", "Parus"),
            ("move", "Paridae", "family", "", "Passeriformes"),
            ("rename", "Passeridae", "tribe", "X"),
            ("new", "Passer", "genus", "", "Paridae"),
            ("new", "Larus", "genus"),
            ("split", "Passer", "genus", "", "Paridae"),
        )
    assert str(error.value).splitlines() == [
        "11 changes cannot be made:",
        "line 2: 'Parus mayor' is no taxon here; did you mean 'Parus major'?",
        "line 4: 'Parus minor' changes in line 3 already; keep one",
        "line 9: there is no rank 'tribe'; there are species, genus, family",
        "line 3: there is a species 'Parus major' already; merge into it",
        "line 10: there is a genus 'Passer' already; merge into it",
        "line 5: 'Passer domesticus' would be merged into itself",
        "line 6: 'Parus maior' is no taxon of rank species here; did you mean 'Parus major'?",
        "line 7: 'Parus' is no taxon of rank family here; it is one of rank genus",
        "line 12: a split has no parent of its own; leave 'Paridae' out",
        "line 11: 'Larus': give its parent, a family",
        "line 8: family is the coarsest rank here: nothing lies above 'Paridae'",
    ]


def test_circles_are_refused():
    with pytest.raises(UserError) as error:
        change(("merge", "Parus major", "", "Parus minor"), ("merge", "Parus minor", "", "Parus major"))
    assert "line 2: 'Parus minor' is itself merge in line 3; name what stays" in str(error.value)
    with pytest.raises(UserError, match="'Parus major' is no taxon of rank species here"):
        change(("rename", "Parus major", "", "Parus x"), ("merge", "Parus minor", "", "Parus major"))


def test_a_list_for_more_data_than_these():
    found = change(
        ("rename", "Larus canus", "", "Larus brachyrhynchus"),
        ("merge", "Parus major", "", "Parus novus"),
        ("merge", "Parus minor", "", "Parus novus"),
        ("new", "Parus", "genus", "", "Paridae"),
        skip_unknown=True,
    )
    assert names(found) == ["", "Parus novus", "Passer domesticus", "Incertae sedis"]
    assert found.done == {"rename": 1, "merge": 1}
    assert found.notes == ("1 changes are of taxa that are not here, such as 'Larus canus'",)


def test_a_renamed_species_in_a_genus_of_another_name_is_noted():
    (note,) = change(("rename", "Parus minor", "", "Poecile minor")).notes
    assert note == (
        "1 renamed species stay in a genus of another name, such as Poecile minor in Parus; give their parent"
    )


def test_an_id_that_is_taken_is_followed_by_the_next():
    first = id_of_name("taxa_L10", "Parus", ())
    assert id_of_name("taxa_L10", "Parus", {first, first + 1}) == first + 2
    assert 32_767 < first < 2**31 - 2
