"""What `benchmarks.wrong_labels` changes and counts."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks import wrong_labels
from linnaeus_jax.inference.wrong_labels.labelled_features import of_data_set
from tests.building.samples import TASKS, identifiers, write_clean
from tests.inference.test_label_issues import features

SPECIES = np.arange(200) % 5
#: the third genus has one species alone
LABEL = np.stack([SPECIES, SPECIES // 2], axis=1)


@pytest.mark.parametrize("kind", wrong_labels.KINDS)
def test_labels_are_changed_to_a_sister_or_to_what_is_confused_most(kind):
    p = np.full((200, 5), 0.1)
    p[np.arange(200), (SPECIES + 3) % 5] = 0.3
    label, wrong = wrong_labels.changed(LABEL, p, 0.1, kind, 0)
    assert wrong.sum() == 20
    np.testing.assert_array_equal(wrong, (label != LABEL).any(axis=1))
    np.testing.assert_array_equal(label[:, 1], label[:, 0] // 2)
    confused = (SPECIES + 3) % 5
    expected = np.where(SPECIES < 4, SPECIES ^ 1, confused) if kind == "sister" else confused
    np.testing.assert_array_equal(label[wrong, 0], expected[wrong])
    again, _ = wrong_labels.changed(LABEL, p, 0.1, kind, 0)
    np.testing.assert_array_equal(again, label)
    assert (wrong_labels.changed(LABEL, p, 0.1, kind, 1)[0] != label).any()


def test_precision_is_among_as_many_as_were_changed():
    score, wrong = np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False])
    assert wrong_labels.precision(score, wrong) == 0.5
    assert wrong_labels.precision(-score, wrong) == 0.5
    assert wrong_labels.precision(np.array([0.0, 1, 2, 3]), wrong) == 1


def test_a_line_for_each_kind_share_and_seed(tmp_path, monkeypatch):
    """With a program in place of cleanlab that doubts the rows in their order."""
    program = (
        "import sys, numpy as np\ngiven = np.load(sys.argv[1])\nrows = np.arange(len(given['label']))\n"
        "assert given['p'].shape == (60, 6) and np.allclose(given['p'].sum(axis=1), 1)\n"
        f"np.savez(sys.argv[2], **{{'version': '2', {wrong_labels.DEFAULT!r}: rows, 'self_confidence': -rows}})\n"
    )
    monkeypatch.setattr(wrong_labels, "CLEANLAB", program)
    monkeypatch.setattr(wrong_labels, "SHARES", (0.1,))
    rows = of_data_set(write_clean(tmp_path / "labels.h5"), TASKS, (identifiers(), features()))
    lines, arrays = wrong_labels.measure(rows, [4], sys.executable)
    assert [(line["kind"], line["share"], line["seed"], line["changed"]) for line in lines] == [
        ("sister", 0.1, 4, 6),
        ("confused", 0.1, 4, 6),
    ]
    for line in lines:
        assert line["here"] > line["cleanlab"]
        assert line["its best score"] >= line["cleanlab"]
    assert arrays["sister-0.1-4/score"].shape == arrays["sister-0.1-4/label"].shape == (60,)
