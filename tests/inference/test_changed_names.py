"""Answers of a model of which taxa were merged, moved and renamed later, against sums over the old ones."""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_changes import Change, change_taxa
from linnaeus_jax.files import read_json, sealed, write_json
from linnaeus_jax.inference import portable_answers
from linnaeus_jax.inference.answers import Answers
from linnaeus_jax.inference.bundle.bundle import Calibration
from linnaeus_jax.inference.bundle.files import read_bundle, write_bundle
from linnaeus_jax.inference.bundle.renamed import renamed_bundle
from linnaeus_jax.inference.bundle.taxonomy import CHANGED
from linnaeus_jax.inference.files.exporting import answer_settings
from linnaeus_jax.tools import change_names
from tests.inference.conftest import small_bundle
from tests.inference.trees import Case, cases

one_bundle = functools.cache(small_bundle)  # no fixture, which hypothesis would print whole


def renamed(bundle, *lines: tuple[str, ...], **options):
    changes = [Change(f"line {i}", *line) for i, line in enumerate(lines, 2)]  # type: ignore[arg-type]
    return renamed_bundle(bundle, lambda tree, names: change_taxa(tree, names, changes, **options))[0]


def counted(case: Case, counts: bool) -> Calibration:
    rng = np.random.default_rng(3)
    rows = {task: rng.integers(0, 9, len(ids)).tolist() for task, ids in case.taxonomy.classes.items()}
    return Calibration(case.temperature, case.temperature, path_counts=rows if counts else {})


@given(cases(), st.booleans(), st.booleans(), st.data())
def test_what_is_merged_has_the_sum_and_what_moved_lies_below_its_new_parent(case, counts, last, data):
    taxonomy, tree = case.taxonomy, case.taxonomy.tree
    task, first = tree.task_keys[0], case.taxonomy.first
    taxa = [f"[{i}]" for i in taxonomy.classes[task][first:]]
    lines: list[tuple[str, ...]] = []
    if len(taxa) > 1:
        lines = [("merge", taxa[0], task, taxa[1])]
    if last and len(tree.task_keys) > 1 and len(taxa) > 2:
        lines += [("new", "New", tree.task_keys[1], "", "")] * (len(tree.task_keys) == 2)
        new = ["New"] * (len(tree.task_keys) == 2)
        parent = data.draw(st.sampled_from([*new, *(f"[{i}]" for i in taxonomy.classes[tree.task_keys[1]][first:])]))
        lines += [("move", taxa[2], task, "", parent)]
    old = dataclasses.replace(one_bundle(), taxonomy=taxonomy, calibration=counted(case, counts))
    new = renamed(old, *lines)
    logits = case.logits
    before, after = (Answers(each.taxonomy, each.calibration) for each in (old, new))
    (_, p), (best, q) = (each.probabilities(logits, each.options()) for each in (before, after))
    heads = new.taxonomy.heads
    class_of = heads.class_of if heads else {t: np.arange(len(ids)) for t, ids in taxonomy.classes.items()}
    for now, index in enumerate(new.taxonomy.classes[task]):
        if now >= first:
            columns = np.flatnonzero(class_of[task] == now)
            np.testing.assert_allclose(q[task][:, now], p[task][:, columns].sum(axis=1), atol=1e-9, err_msg=str(index))
    for finer, coarser in zip(tree.task_keys, tree.task_keys[1:]):  # no taxon is less probable than those below it
        parent = new.taxonomy.tree.parent[finer]
        for above in range(first, len(new.taxonomy.classes[coarser])):
            below = q[finer][:, parent == above].sum(axis=1)
            assert (q[coarser][:, above] >= below - 1e-9).all()
            if above >= len(taxonomy.classes[coarser]):  # no head knows it
                np.testing.assert_allclose(q[coarser][:, above], below, atol=1e-9)
    for row in best:  # a path names a taxon and those above it
        known = np.flatnonzero(row >= first)
        if len(known):
            chain = new.taxonomy.tree.anc[tree.task_keys[known[0]]][row[known[0]]]
            np.testing.assert_array_equal(np.where(chain < first, row[known[0] :], chain), row[known[0] :])
    check_others(new, after, logits)
    settings = {"ranks": [], **answer_settings(new.taxonomy, new.calibration)}
    for rank in settings["ranks"]:
        rank["classes"] = new.taxonomy.classes[rank["task"]].tolist()
    exported = portable_answers.best_classes(settings, logits)
    for place, (t, rank) in enumerate(new.taxonomy.ranks.items()) if counts else ():
        index, share = exported[rank]
        of = np.take_along_axis(q[t], np.maximum(best[:, [place]], 0), axis=1)[:, 0]
        np.testing.assert_array_equal(np.maximum(index, -1), best[:, place])
        np.testing.assert_allclose(share[index >= first], of[index >= first], atol=1e-6)


def check_others(new, answers, logits) -> None:
    """Restricted answers, every rank by itself, and sets are of the taxa that are there now."""
    task, first = new.taxonomy.tasks[0], new.taxonomy.first
    some = int(new.taxonomy.classes[task][-1])
    for options in (answers.options(restrict=some), answers.options(consistency="documented", restrict=some)):
        _, by_task = answers.probabilities(logits, options)
        assert {t: each.shape[1] for t, each in by_task.items()} == new.taxonomy.tree.num_classes
        allowed = new.taxonomy.allowed(some)
        for t, each in by_task.items():
            assert (each[:, first:][:, ~allowed[t][first:]] <= 1e-9).all()
    for said in answers(logits, answers.options()):
        assert said.answer is None or said.answer.taxon_id in new.taxonomy.classes[taskof(new, said.answer.rank)]


def taskof(bundle, rank: str) -> str:
    return next(task for task, name in bundle.taxonomy.ranks.items() if name == rank)


LINES = (
    ("new", "Cyanistes", "genus", "", "Passeridae"),
    ("merge", "Parus minor", "", "Parus major"),
    ("move", "Passer domesticus", "", "", "Cyanistes"),
    ("split", "Incertae sedis", "species"),
)


@pytest.fixture(scope="module")
def logits(bundle):
    rng = np.random.default_rng(5)
    return {task: rng.normal(0, 2, (6, len(ids))).astype(np.float32) for task, ids in bundle.taxonomy.classes.items()}


def test_a_changed_bundle_is_read_back_and_changed_again(bundle, logits, tmp_path):
    new = renamed(bundle, *LINES, split_to_parent=True)
    again = renamed(new, ("rename", "Parus major", "", "Parus novus"), ("merge", "Cyanistes", "genus", "Parus"))
    write_bundle(again, tmp_path / "b")
    read = read_bundle(tmp_path / "b")
    assert read_json(tmp_path / "b" / "bundle.json")["format_version"] == 2
    one, other = (Answers(each.taxonomy, each.calibration) for each in (again, read))
    assert one(logits, one.options()) == other(logits, other.options())
    old = Answers(bundle.taxonomy, bundle.calibration)
    (_, p), (_, q) = (each.probabilities(logits, each.options()) for each in (old, other))
    np.testing.assert_allclose(q["taxa_L10"][:, 1], p["taxa_L10"][:, 1] + p["taxa_L10"][:, 2], atol=1e-12)
    np.testing.assert_allclose(q["taxa_L20"][:, 1], p["taxa_L20"][:, 1] + p["taxa_L10"][:, 3], atol=1e-12)
    assert read.taxonomy.names.name["taxa_L10"].tolist() == ["", "Parus novus", "Passer domesticus"]
    assert read.taxonomy.tree.parent["taxa_L10"].tolist() == [-1, 1, 1]


def test_a_renamed_bundle_answers_bit_for_bit_as_before(bundle, logits, tmp_path):
    new = renamed(bundle, ("rename", "Parus major", "", "Parus cinereus"))
    write_bundle(new, tmp_path / "b")
    assert read_json(tmp_path / "b" / "bundle.json")["format_version"] == 1
    assert not (tmp_path / "b" / CHANGED).exists()
    one, other = (Answers(each.taxonomy, each.calibration) for each in (bundle, read_bundle(tmp_path / "b")))
    (a, p), (b, q) = (each.probabilities(logits, each.options()) for each in (one, other))
    np.testing.assert_array_equal(a, b)
    for task in p:
        np.testing.assert_array_equal(p[task], q[task])


@pytest.mark.parametrize(
    ("key", "value"), [("taxa_L10", [0, 9, 1, 1, 1]), ("taxa_L10", [0, 1]), ("taxa_L20", [1, 1, 1]), ("taxa_L30", "x")]
)
def test_strange_files_are_refused_in_one_line(bundle, tmp_path, key, value):
    path = tmp_path / "b"
    write_bundle(renamed(bundle, *LINES), path)
    said, about = read_json(path / CHANGED), read_json(path / "bundle.json")
    write_json(path / CHANGED, said | {"class_of": said["class_of"] | {key: value}})
    from linnaeus_jax.files import sha256_of

    about["files"][CHANGED] = sha256_of(path / CHANGED)
    write_json(path / "bundle.json", sealed({name: each for name, each in about.items() if name != "sha256"}))
    with pytest.raises(UserError, match="does not fit the classes of the bundle") as error:
        read_bundle(path)
    assert "\n" not in str(error.value)


def test_the_program_changes_a_bundle(trained, tmp_path, capsys):
    changes = tmp_path / "changes.csv"
    changes.write_text(
        "change,taxon,rank,to,parent\nmerge,Parus minor,,Parus major,\nsplit,Passer domesticus,,Passer a | Passer b,\n"
    )
    out = tmp_path / "new"
    assert change_names.main([str(changes), trained, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"{out}: 1 merged, 1 split" in said
    assert "species Passer domesticus [13]: Passer a | Passer b" in said
    assert "thresholds for a coverage are left out" in said
    assert json.loads((out / "bundle.json").read_text())["facts"]["names"] == "changes.csv"
    assert "changed after the training, by changes.csv" in (out / "README.md").read_text()
    assert change_names.main([str(changes), trained, "--out", str(out)]) == 2
    changes.write_text("change,taxon,to\nrename,Pica pica,Pica nova\nmerge,Parus minor,\nturn,Parus major,x\n")
    assert change_names.main([str(changes), trained, "--out", str(out), "--force"]) == 2
    assert capsys.readouterr().err.count("changes.csv:") == 2
