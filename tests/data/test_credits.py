"""Whose pictures are shown: what is read of some rows, and the line beside a picture."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus_jax.data.credits import credit_line, license_name, read_credits
from linnaeus_jax.data.labels import read_label_tables
from tests.data.helpers import write_labels


def test_only_what_is_known_of_the_rows(tmp_path):
    path = write_labels(
        tmp_path / "l.h5",
        {"taxa_L10": [1] * 5},
        license=[b"CC0", b"", b"CC-BY 4.0", b"", b"\xff"],
        rights_holder=["A", "", "B\n\u202eC", "D", ""],
    )
    assert read_credits(str(path), np.array([1, 2, 4])) == [
        {"file": "l_1.jpg"},
        {"file": "l_2.jpg", "license": "CC-BY 4.0", "rights_holder": "B \ufffdC"},
        {"file": "l_4.jpg", "license": "\ufffd"},
    ]
    assert read_credits(str(path), np.array([], np.int64)) == []


@pytest.mark.parametrize("name", ["license", "rights_holder", "source_doi", "occurrence_id"])
@pytest.mark.parametrize(("values", "message"), [([1, 2], "dtype int64"), (["a"], "1 rows, expected 2")])
def test_what_is_wrong_is_said_when_the_labels_are_read(tmp_path, name, values, message):
    path = write_labels(tmp_path / "l.h5", {"taxa_L10": [1, 2]}, **{name: values})
    with pytest.raises(ValueError, match=rf"l\.h5: dataset '{name}' has {message}"):
        read_label_tables([str(path)], ("taxa_L10",), (), null_possible=True)


@pytest.mark.parametrize(
    ("license", "holder", "doi", "line"),
    [
        ("CC-BY-NC 4.0", "Jane Doe", "10.15468/dl.abc", "© Jane Doe, CC-BY-NC 4.0, doi:10.15468/dl.abc"),
        ("", "(c) Jane Doe, some rights reserved", "", "(c) Jane Doe, some rights reserved"),
        ("", "© J", "https://doi.org/10.15468/dl.abc", "© J, doi:10.15468/dl.abc"),
        ("all rights reserved", "", "doi: 10.1/x", "all rights reserved, doi:10.1/x"),
        ("", "", "download of May", "download of May"),
        ("", "", "", ""),
    ],
)
def test_credit_lines(license, holder, doi, line):
    assert credit_line({"license": license, "rights_holder": holder, "source_doi": doi, "row": "3"}) == line


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("http://creativecommons.org/licenses/by-nc/4.0/legalcode", "CC BY-NC 4.0"),
        ("https://creativecommons.org/licenses/by/3.0/", "CC BY 3.0"),
        ("http://creativecommons.org/publicdomain/zero/1.0/legalcode", "CC0 1.0"),
        ("https://creativecommons.org/publicdomain/mark/1.0/", "public domain"),
        ("CC_BY_NC_4_0", "CC BY-NC 4.0"),
        ("CC_BY_4_0", "CC BY 4.0"),
        ("CC0_1_0", "CC0 1.0"),
        ("CC-BY-NC 4.0", "CC-BY-NC 4.0"),
        ("UNSPECIFIED", "UNSPECIFIED"),
    ],
)
def test_license_names(text, name):
    assert license_name(text) == name
