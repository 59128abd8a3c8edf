"""Labels of rows: ids, synonyms, parents, rare classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.building.steps.taxa import Taxa, chosen_levels, label_rows
from linnaeus_jax.reading.schema import NO_LABEL, TWO_PARENTS, UNRESOLVED_SYNONYM
from tests.building.helpers import LEVELS, rows_of


def label(synonyms=None, least=1, levels=LEVELS, **columns) -> Taxa:
    return label_rows(rows_of(levels=levels, **columns).frame, levels, synonyms or {}, least)


def names(taxa: Taxa, row: int) -> list[str]:
    return [taxa.names[task].get(int(i), ("", ""))[0] for task, i in zip(taxa.tasks, taxa.taxon[row])]


def test_ids_of_names_follow_from_the_name_alone():
    first = label(name_L10=["A a", "B b"], name_L20=["A", "B"], name_L30=["F", "F"])
    other = label(name_L10=["C c", "B b"], name_L20=["C", "B"], name_L30=["F", "F"])
    assert first.taxon[1].tolist() == other.taxon[1].tolist()
    assert len(set(first.taxon[:, 0].tolist())) == 2
    assert first.taxon.min() > 0


def test_ids_are_kept_and_a_name_without_id_takes_that_of_the_same_name():
    taxa = label(
        levels=("L10",),
        id_L10=["4294967295", None, "13858", "0"],
        name_L10=["A a", "A a", "Passer domesticus", None],
        common_L10=[None, None, "house sparrow", None],
    )
    assert taxa.taxon[:, 0].tolist() == [4294967295, 4294967295, 13858, 0]
    assert taxa.names["taxa_L10"][13858] == ("Passer domesticus", "house sparrow")
    assert taxa.reason.tolist() == [None, None, None, NO_LABEL]


def test_an_id_that_is_no_number_is_a_name():
    taxa = label(levels=("L10",), id_L10=["urn:lsid:1", "urn:lsid:1", "-4"], name_L10=[None, None, "A a"])
    assert taxa.taxon[0, 0] == taxa.taxon[1, 0] != 0
    assert names(taxa, 2) == ["A a"]


def test_spaces_and_unicode_forms_of_a_name_are_one():
    taxa = label(levels=("L10",), name_L10=["Ame\u0301lia  una", "Amélia una "])
    assert taxa.taxon[0, 0] == taxa.taxon[1, 0]


def test_a_coarser_identification_keeps_the_ranks_it_has():
    taxa = label(name_L10=["A a", None, None], name_L20=["A", "A", None], name_L30=["F", "F", "F"])
    assert (taxa.taxon != 0).tolist() == [[True] * 3, [False, True, True], [False, False, True]]
    assert taxa.reason.tolist() == [None] * 3


def test_the_parent_of_most_rows_wins_and_the_other_rows_are_rejected():
    taxa = label(name_L10=["A a"] * 3, name_L20=["A", "A", "Z"], name_L30=["F"] * 3)
    assert taxa.reason.tolist() == [None, None, TWO_PARENTS]
    assert "1 rows in genus Z" in taxa.detail[2]
    assert "2 in genus A" in taxa.detail[2]


def test_of_equally_frequent_parents_the_smaller_id_wins():
    taxa = label(levels=("L10", "L20"), id_L10=["5", "5"], id_L20=["9", "7"])
    assert taxa.reason.tolist() == [TWO_PARENTS, None]


def test_rows_that_are_rejected_already_do_not_vote():
    rows = rows_of(levels=("L10", "L20"), id_L10=["5"] * 3, id_L20=["7", "9", "9"], reason=[None, "unsafe path", "x"])
    assert label_rows(rows.frame, ("L10", "L20"), {}, 1).reason.tolist() == [None, TWO_PARENTS, TWO_PARENTS]


def test_a_synonym_gets_the_accepted_taxon_and_its_coarser_ranks():
    taxa = label(
        name_L10=["Bus bus", "Old x"],
        name_L20=["Bus", "Old"],
        name_L30=["G", "F"],
        status=["ACCEPTED", "HETEROTYPIC_SYNONYM"],
        accepted_name=[None, "Bus bus (L., 1758)"],
    )
    assert taxa.taxon[0].tolist() == taxa.taxon[1].tolist()
    (synonym,) = taxa.synonyms
    assert (synonym.name, synonym.accepted, synonym.rows) == ("Old x", "Bus bus", 1)


def test_an_accepted_species_without_rows_takes_the_genus_of_its_name():
    taxa = label({"Old x": "Bus cus"}, name_L10=["Bus bus", "Old x"], name_L20=["Bus", "Old"], name_L30=["G", "F"])
    assert names(taxa, 1) == ["Bus cus", "Bus", "G"]


def test_chains_are_followed_and_circles_are_rejected():
    three = dict(name_L10=["A a", "B b", "C c"], name_L20=["A"] * 3, name_L30=["F"] * 3)
    taxa = label({"A a": "B b", "B b": "C c"}, **three)
    assert [names(taxa, row)[0] for row in range(3)] == ["C c"] * 3
    four = label({"A a": "B b", "B b": "C c", "C c": "D d"}, levels=("L10",), name_L10=["A a", "B b", "C c", "D d"])
    assert [names(four, row)[0] for row in range(4)] == ["D d"] * 4
    taxa = label({"A a": "B b", "B b": "A a"}, **three)
    assert taxa.reason.tolist() == [UNRESOLVED_SYNONYM, UNRESOLVED_SYNONYM, None]


def test_an_accepted_id_that_no_row_has_cannot_be_resolved():
    ids = dict(levels=("L10",), id_L10=["1", "2", "3"], name_L10=["A a", "B b", "C c"])
    taxa = label(**ids, status=[None, "synonym", "synonym"], accepted_id=[None, "1", "77"])
    assert taxa.taxon[1, 0] == 1
    assert taxa.reason.tolist() == [None, None, UNRESOLVED_SYNONYM]
    taxa = label(**ids, status=[None, "synonym", "accepted"])
    assert taxa.reason.tolist() == [None, UNRESOLVED_SYNONYM, None]


def test_a_source_that_replaced_the_synonym_itself_is_believed_and_listed():
    taxa = label(levels=("L10",), name_L10=["B b"], status=["SYNONYM"], scientific_name=["Old x Smith, 1900"])
    assert taxa.reason.tolist() == [None]
    assert [(s.name, s.accepted) for s in taxa.synonyms] == [("Old x Smith, 1900", "B b")]


def test_small_classes_become_null_at_their_rank():
    taxa = label(least=2, name_L10=["A a", "A a", "A b"], name_L20=["A"] * 3, name_L30=["F", "F", "F"])
    assert (taxa.taxon[:, 0] != 0).tolist() == [True, True, False]
    assert (taxa.taxon[:, 1] != 0).all()
    assert [(small.task, small.name, small.rows) for small in taxa.small_classes] == [("taxa_L10", "A b", 1)]
    taxa = label(least=2, levels=("L10",), name_L10=["A a", "A a", "A b"])
    assert taxa.reason.tolist() == [None, None, NO_LABEL]


def test_levels_are_the_usual_ones_or_those_asked_for():
    assert chosen_levels(("L10", "L20", "L50"), ()) == ("L10", "L20")
    assert chosen_levels(("L33_5", "L50"), ()) == ("L33_5", "L50")
    assert chosen_levels(("L10", "L20", "L50"), ("L50", "L10")) == ("L10", "L50")
    with pytest.raises(ValueError, match="has no family; it has species"):
        chosen_levels(("L10",), ("L30",))
    own = ("L10", "L20", ":sort")
    assert chosen_levels(own, (":sort", "L10", "L20")) == (":sort", "L10", "L20")
    for twice_or_upward in ((":sort", ":sort"), ("L20", ":sort", "L10")):
        with pytest.raises(ValueError, match=r"--ranks [a-z,]+: name each rank once, finest first"):
            chosen_levels(own, twice_or_upward)


_texts = st.sampled_from([None, "A", "B", "C", "D"])


@given(st.lists(st.tuples(_texts, _texts, _texts), min_size=1, max_size=30), st.integers(1, 4))
def test_what_is_kept_is_a_tree_of_large_enough_classes(rows, least):
    columns = {f"name_{level}": [row[i] for row in rows] for i, level in enumerate(LEVELS)}
    taxa = label(least=least, **columns)
    kept = taxa.taxon[[reason is None for reason in taxa.reason]]
    assert (kept != 0).any(axis=1).all()
    for level in range(3):
        ids, _count = np.unique(kept[kept[:, level] != 0, level], return_counts=True)
        if level < 2:
            for one in ids:
                parents = kept[kept[:, level] == one, level + 1]
                assert len(set(parents.tolist()) - {0}) <= 1


def test_homonyms_are_two_taxa():
    columns: dict[str, list] = dict(
        name_L10=["Morus alba", "Morus bassanus", "Morus nigra", None, "Morus bassanus"],
        name_L20=["Morus"] * 5,
        name_L30=["Moraceae", "Sulidae", "Moraceae", "Moraceae", "Sulidae"],
    )
    taxa = label(**columns)
    assert taxa.reason.tolist() == [None] * 5
    genera = taxa.taxon[:, 1]
    assert genera[0] == genera[2] == genera[3] != genera[1] == genera[4]
    assert set(taxa.names["taxa_L20"].values()) == {("Morus", "")}
    assert taxa.warnings == (
        "genus Morus is a name of 2 taxa, by family: in Moraceae (3 rows) and in Sulidae (2 rows)",
    )
    shuffled = label(**{name: values[::-1] for name, values in columns.items()})
    assert sorted(shuffled.taxon[:, 1].tolist()) == sorted(genera.tolist()), "whatever the order of the rows"
    ids = {"Moraceae": "7", "Sulidae": "9"}
    by_id = label(id_L30=[ids[name] for name in columns.pop("name_L30")], **columns)
    assert by_id.taxon[:, 1].tolist() != genera.tolist()
    assert by_id.warnings == ("genus Morus is a name of 2 taxa, by family: in 7 (3 rows) and in 9 (2 rows)",)


def test_what_may_be_a_mistake_is_no_homonym():
    below_both = label(name_L10=["A a", "A a", "A b"], name_L20=["A"] * 3, name_L30=["F", "G", "F"])
    assert below_both.reason.tolist() == [None, TWO_PARENTS, None]
    without_parent = label(name_L10=["A a", "A b", "A c"], name_L20=["A"] * 3, name_L30=["F", "G", None])
    assert TWO_PARENTS in without_parent.reason.tolist()
    with_ids = label(name_L10=["A a", "A b"], name_L20=["A"] * 2, id_L20=["1", "1"], name_L30=["F", "G"])
    assert TWO_PARENTS in with_ids.reason.tolist()
    nothing_finer = label(name_L10=["A a", None], name_L20=["A"] * 2, name_L30=["F", "G"])
    assert TWO_PARENTS in nothing_finer.reason.tolist()


def test_classes_that_differ_in_spelling_are_said():
    taxa = label(levels=("L10",), name_L10=["great Tit", "Great tit", "Blue tit", "Quercus x ilex", "Quercus ilex"])
    assert len(taxa.warnings) == 1
    assert taxa.warnings[0].startswith("4 classes of species differ only in case, author or ×, e.g. ")


def test_a_name_of_several_ids_is_said_where_rows_without_one_had_to_choose():
    given = {"levels": ("L10",), "name_L10": ["A a", "A a", "A a", "A a"]}
    assert not label(id_L10=["7", "9", "9", "9"], **given).warnings
    (said,) = label(id_L10=["7", "9", "9", None], **given).warnings
    assert said == "species A a has several ids; rows without an id got 9"


def test_a_rejected_name_is_shown():
    taxa = label(levels=("L10",), name_L10=[None, "A a"], written_L10=["unidentified", None])
    assert taxa.reason.tolist() == [NO_LABEL, None]
    assert taxa.detail[0] == "no name and no id at any rank in use: 'unidentified' names none"


def test_given_synonyms_are_found_whatever_their_authors():
    synonyms = {"Fringilla major L., 1758": "Parus major Linnaeus, 1758"}
    taxa = label(synonyms, levels=("L10",), name_L10=["Fringilla major", "Parus major"])
    assert taxa.taxon[0, 0] == taxa.taxon[1, 0]
