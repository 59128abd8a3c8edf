"""Taxa found by what people call them, and the classes that a restriction allows."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_names import TaxonNames
from linnaeus_jax.inference.bundle.taxonomy import Taxonomy
from linnaeus_jax.taxonomy.tree import TaxonomyTree
from tests.inference.conftest import small_taxonomy


def names(allowed) -> set[str]:
    taxonomy = small_taxonomy()
    return {
        str(taxonomy.names.name[task][index])
        for task, mask in allowed.items()
        for index in np.flatnonzero(mask)
        if index
    }


def test_taxa_are_found_by_id_and_name():
    taxonomy = small_taxonomy()
    assert taxonomy.find([11, "12", " parus MAJOR ", "Paridae"]) == [
        ("taxa_L10", 1),
        ("taxa_L10", 2),
        ("taxa_L10", 1),
        ("taxa_L30", 1),
    ]
    assert taxonomy.find("Parus major") == taxonomy.find(11) == [("taxa_L10", 1)]
    assert taxonomy.ranks == {"taxa_L10": "species", "taxa_L20": "genus", "taxa_L30": "family"}
    with pytest.raises(UserError, match="does not know 2 of 3 taxa: Pica pica, 0; give taxon ids or scientific names"):
        taxonomy.find(["Pica pica", "Parus", 0])
    with pytest.raises(UserError, match=r"does not know 15 of 15 taxa: .*, 109 and 5 more;"):
        taxonomy.find(range(100, 115))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (["Parus"], {"Parus", "Parus major", "Parus minor", "Paridae"}),
        (["Passeridae"], {"Passeridae", "Passer", "Passer domesticus"}),
        (["Parus minor"], {"Parus minor", "Parus", "Paridae"}),
        (["Incertae sedis"], {"Incertae sedis"}),
        (["Parus", "Parus minor", "Passer domesticus"], None),
    ],
)
def test_a_restriction_allows_what_lies_below_and_above(listed, expected):
    allowed = small_taxonomy().allowed(listed)
    everything = {"Parus", "Parus major", "Parus minor", "Paridae", "Passer", "Passer domesticus", "Passeridae"}
    assert names(allowed) == (expected or everything)
    assert all(mask[0] for mask in allowed.values())


def test_an_empty_restriction():
    with pytest.raises(UserError, match="list of taxa to restrict to is empty"):
        small_taxonomy().allowed([])


def test_a_text_is_a_name_first_and_a_number_an_id():
    names = ["11", "12", "001", "01"]
    classes = {"taxa_L10": np.array([0, 12, 11, 13, 1], np.int64)}
    saved = {"taxa_L10": {str(taxon): {"name": n} for taxon, n in zip(classes["taxa_L10"][1:], names, strict=True)}}
    tree = TaxonomyTree(("taxa_L10",), {"taxa_L10": 5}, {})
    taxonomy = Taxonomy(tree, TaxonNames.from_json(classes, saved))
    assert [index for _, index in taxonomy.find(["11", "12", "001", "01", "1", "13"])] == [1, 2, 3, 4, 4, 3]
    assert [index for _, index in taxonomy.find([11, 12, 13, 1])] == [2, 1, 3, 4]
