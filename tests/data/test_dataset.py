"""Both splits, their classes and their counts, against every golden file, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from linnaeus_jax.config.typed import typed
from linnaeus_jax.data import repeats
from linnaeus_jax.data.dataset import build_dataset, resolve_sources, write_assets
from linnaeus_jax.data.other_labels import held_out_split, read_other_labels
from linnaeus_jax.mistakes import InputError
from tests.conftest import FIXTURES
from tests.data.helpers import COMPONENTS, golden_config, golden_settings, small_config, write_labels
from tests.npz import load_npz
from tests.taxonomy.helpers import distances, leaves, roots

SETTINGS = ("S0", "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "twofile")


@pytest.fixture(scope="module")
def built():
    """{setting: (dataset, golden arrays)}, each built once."""
    return {
        name: (build_dataset(typed(golden_config(FIXTURES, name))), load_npz(FIXTURES / f"data_{name}.npz"))
        for name in SETTINGS
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_rows_classes_and_groups(built, name):
    dataset, want = built[name]
    if name != "twofile":
        np.testing.assert_array_equal(np.sort(np.concatenate([dataset.train.rows, dataset.val.rows])), want["kept"])
    for task in dataset.tasks:
        np.testing.assert_array_equal(dataset.classes[task], want[f"classes_{task}"])
    assert dataset.num_classes == {task: len(want[f"classes_{task}"]) for task in dataset.tasks}
    for split in (dataset.train, dataset.val):
        np.testing.assert_array_equal(split.rows, want[f"rows_{split.name}"])
        np.testing.assert_array_equal(split.labels, want[f"class_{split.name}"])
        for task in dataset.tasks:
            key = f"{split.name}_{task}"
            np.testing.assert_array_equal(dataset.class_counts[split.name][task], want[f"count_{key}"])
            np.testing.assert_array_equal(split.group(task), want[f"group_{key}"])


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_densities_and_subsets(built, name):
    dataset, want = built[name]
    if name == "S0":  # rows that were set aside are rare as those of validation are: by what was trained
        held_out = held_out_split(typed(golden_config(FIXTURES, name)), replace(dataset, test_rows=dataset.val.rows))
        np.testing.assert_array_equal(held_out.rarity, want["rarity_val"])
    assert set(dataset.rarity_thresholds) == {
        key.removeprefix("rarity_thr_") for key in want if key.startswith("rarity_thr_")
    }
    for task, thresholds in dataset.rarity_thresholds.items():
        np.testing.assert_array_equal(thresholds, want[f"rarity_thr_{task}"])
    for split in (dataset.train, dataset.val):
        part = split.name
        np.testing.assert_array_equal(split.rarity, want[f"rarity_{part}"])
        np.testing.assert_array_equal(split.taxa_subset_id, want[f"taxa_subset_{part}"])
        for ours, key in ((dataset.task_label_density, "label"), (dataset.task_nulls_density, "nulls")):
            assert list(ours[part]) == list(dataset.tasks)
            np.testing.assert_allclose(list(ours[part].values()), want[f"{key}_density_{part}"], rtol=0, atol=1e-9)
        density = [dataset.meta_label_density[part].get(component, np.nan) for component in COMPONENTS]
        np.testing.assert_allclose(density, want[f"meta_density_{part}"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_metadata(built, name):
    dataset, want = built[name]
    table, names = dataset.train.table, [component.name for component in dataset.components]
    if "meta_valid" in want:
        used = [COMPONENTS.index(component) for component in names]
        np.testing.assert_array_equal(table.meta_valid, want["meta_valid"][:, used])
        assert not np.delete(want["meta_valid"], used, axis=1).any()
    if "chunk_bounds" in want:
        np.testing.assert_array_equal([[c.start, c.stop] for c in dataset.components], want["chunk_bounds"])
    if "aux" in want:
        assert table.meta.dtype == np.float32
        assert dataset.meta_dim == want["aux"].shape[1]
        np.testing.assert_allclose(table.meta, want["aux"], rtol=0, atol=1e-6)
        widths = [component.stop - component.start for component in dataset.components]
        np.testing.assert_array_equal(np.repeat(table.meta_valid, widths, axis=1), want["mask"])
    for split in (dataset.train, dataset.val):
        np.testing.assert_array_equal(split.meta, split.table.meta[split.rows])
        np.testing.assert_array_equal(split.meta_valid, split.table.meta_valid[split.rows])


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_parents(built, name):
    dataset, want = built[name]
    assert not dataset.conflicts
    for task in dataset.tasks[:-1]:
        parent = dataset.tree.parent[task]
        child = np.flatnonzero(parent >= 0)
        np.testing.assert_array_equal(np.stack([child, parent[child]], axis=1), want[f"parent_{task}"])


@pytest.mark.parametrize("name", ["S0", "S1", "S7", "twofile"])
def test_golden_trees_from_labels(built, fixtures, name):
    """The tree of a run, from its labels; the rest of the tree's golden numbers stand in tests/taxonomy."""
    tree, want = built[name][0].tree, load_npz(fixtures / f"data_tree_{name}.npz")
    np.testing.assert_array_equal(roots(tree), want["roots"])
    np.testing.assert_array_equal(leaves(tree), want["leaves"])
    for task in tree.task_keys:
        np.testing.assert_array_equal(distances(tree, task), want[f"dist_{task}"])


def test_no_gaps_mode(fixtures):
    config = golden_config(fixtures, "S6")
    config.data.upward_major_mode = "no-gaps"
    dataset = build_dataset(typed(config))
    kept = np.sort(np.concatenate([dataset.train.rows, dataset.val.rows]))
    np.testing.assert_array_equal(kept, load_npz(fixtures / "data_S6.npz")["alt_kept_nogap"])


def test_golden_class_map_and_tree_file(built, fixtures, tmp_path):
    dataset, _ = built["S0"]
    write_assets(dataset, tmp_path / "assets", tmp_path / "metadata")
    assert json.loads((tmp_path / "assets" / "class_to_idx.json").read_text()) == json.loads(
        (fixtures / "data_class_to_idx.json").read_text()
    )
    got, want = (
        json.loads(path.read_text()) | {"metadata": None}
        for path in (tmp_path / "assets" / "taxonomy_tree.json", fixtures / "data_taxonomy_tree.json")
    )
    assert got == want


def test_assets_say_what_the_dataset_says(built, tmp_path):
    dataset, _ = built["S7"]
    write_assets(dataset, tmp_path / "assets", tmp_path / "metadata")

    def read(name):
        return json.loads((tmp_path / name).read_text())

    assert read("assets/num_classes.json") == dataset.num_classes
    assert read("assets/subset_maps.json") == dataset.subset_maps()
    assert read("metadata/task_label_density.json") == dataset.task_label_density
    assert read("metadata/task_nulls_density.json") == dataset.task_nulls_density
    assert read("metadata/meta_label_density.json") == dataset.meta_label_density
    statistics = read("metadata/additional_statistics.json")
    for part, counts in read("metadata/class_label_counts.json").items():
        for task, count in counts.items():
            assert count == dataset.class_counts[part][task].tolist()
            row = statistics[part][task]
            assert row["total_samples"] == sum(count)
            np.testing.assert_allclose(row["mean_frequency"], np.mean(count), rtol=1e-12)
            np.testing.assert_allclose(row["std_dev_frequency"], np.std(count), rtol=1e-12)
            np.testing.assert_allclose(row["coefficient_of_variation"], np.std(count) / np.mean(count), rtol=1e-12)
    ids = load_npz(tmp_path / "assets" / "subset_ids.npz")
    for split in (dataset.train, dataset.val):
        np.testing.assert_array_equal(ids[f"rows_{split.name}"], split.rows)
        np.testing.assert_array_equal(ids[f"taxa_{split.name}"], split.taxa_subset_id)
        np.testing.assert_array_equal(ids[f"rarity_{split.name}"], split.rarity)
    assert tuple(read("assets/taxonomy_tree.json")["task_keys"]) == dataset.tasks


def test_a_sample_is_a_part_of_the_rows_in_their_order(built):
    split = built["S0"][0].train
    few = split.sample(len(split) // 2, seed=3)
    assert len(few) == len(split) // 2
    place = {row: at for at, row in enumerate(split.rows.tolist())}
    chosen = [place[row] for row in few.rows.tolist()]
    assert chosen == sorted(set(chosen))
    np.testing.assert_array_equal(few.taxa, split.taxa[chosen])
    np.testing.assert_array_equal(few.rarity, split.rarity[chosen])
    assert (few.rows != split.sample(len(few), seed=4).rows).any()
    assert split.sample(len(split), seed=3) is split


def test_report_counts_what_was_rejected(built):
    dataset, want = built["S2"]
    text = dataset.report()
    outside = int((~dataset.train.table.in_region).sum())
    assert f"{len(want['kept'])} of 400 rows kept" in text
    assert f"{outside:>10}  out of region" in text
    assert f"{5:>10}  null at every rank" in text
    assert f"{len(want['rows_train'])} training and {len(want['rows_val'])} validation rows" in text
    assert "3 root(s) at taxa_L40 (metaclade)" in text
    first, second, *odd = dataset.headline().splitlines()
    rows = f"{len(want['rows_train'])} training and {len(want['rows_val'])} validation rows"
    assert f"{rows} of {dataset.sources.train_labels}" in first
    assert second.startswith(
        f"      classes: species {dataset.num_classes['taxa_L10'] - dataset.null_possible}, genus "
    )
    assert set(odd) <= set(text.splitlines()), "what is odd is on the console, too"


def test_missing_images_leave_both_splits(fixtures):
    missing = np.asarray(golden_settings(fixtures)["missing"])
    dataset = build_dataset(typed(golden_config(fixtures, "S0")), {"train": missing})
    used = np.concatenate([dataset.train.rows, dataset.val.rows])
    assert not np.isin(used, missing).any()
    assert dataset.filters[0].removed["image missing"] == len(missing)


def test_missing_images_of_two_files_are_told_apart(fixtures):
    config, missing = golden_config(fixtures, "twofile"), {"train": np.array([0, 1]), "val": np.array([2])}
    whole, cut = build_dataset(typed(config)), build_dataset(typed(config), missing)
    np.testing.assert_array_equal(cut.train.rows, np.setdiff1d(whole.train.rows, [0, 1]))
    np.testing.assert_array_equal(cut.val.rows, np.setdiff1d(whole.val.rows, [2]))


def test_null_rows_are_kept_out_of_groups(fixtures):
    config = golden_config(fixtures, "S0")
    config.schedule.mixup.exclude_null_samples = True
    split = build_dataset(typed(config)).train
    genus_group, taxon = split.group("taxa_L20"), split.table.taxon[split.rows]
    assert (genus_group[(taxon == 0).any(axis=1)] == -1).all()
    config.schedule.mixup.null_task_keys = ("taxa_L20",)
    genus_group = build_dataset(typed(config)).train.group("taxa_L20")
    assert (genus_group[taxon[:, 1] == 0] == -1).all()
    assert (genus_group[(taxon[:, 0] == 0) & (taxon[:, 1] != 0)] >= 0).any()
    split = build_dataset(typed(config)).train  # rows that are null at their rank are never mixed
    for column, task in enumerate(split.table.tasks):
        assert (split.group(task)[taxon[:, column] == 0] == -1).all()
    assert (split.group("taxa_L10") >= 0).any()
    with pytest.raises(ValueError, match="taxa_L99"):
        split.group("taxa_L99")


# ---- scenarios -------------------------------------------------------------------------------------------------------


def test_scenarios(fixtures):
    single = resolve_sources(typed(golden_config(fixtures, "S0")).data)
    assert (single.scenario, single.split, single.hybrid) == ("single file, split", True, False)
    config = golden_config(fixtures, "twofile")
    assert resolve_sources(typed(config).data).scenario == "two files"
    config.data.h5.val_labels_path = config.data.h5.val_images_path = ""
    assert resolve_sources(typed(config).data).scenario == "train only"
    dataset = build_dataset(typed(config))
    assert (len(dataset.train), len(dataset.val)) == (215, 0)


def test_hybrid_scenarios(fixtures):
    config = golden_config(fixtures, "twofile")
    hybrid = config.data.hybrid
    hybrid.use_hybrid, hybrid.images_dir, hybrid.val_images_dir = True, "photos", "other"
    sources = resolve_sources(typed(config).data)
    assert (sources.scenario, sources.train_images, sources.val_images) == ("two files, hybrid", "photos", "other")
    hybrid.images_dir = ""
    with pytest.raises(ValueError, match=r"data\.hybrid\.train_images_dir is empty"):
        resolve_sources(typed(config).data)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"labels_path": ""}, "no labels file: set data.h5.labels_path"),
        ({"images_path": ""}, "data.h5.images_path is empty but needed"),
        ({"train_labels_path": "x.h5"}, "data.h5.train_labels_path exclude each other"),
        ({"labels_path": "", "train_labels_path": "x.h5"}, "data.h5.train_images_path is empty but needed"),
        ({"labels_path": "", "val_labels_path": "x.h5"}, "data.h5.train_labels_path is empty but needed"),
    ],
)
def test_unusable_paths(fixtures, paths, message):
    config = golden_config(fixtures, "S0")
    for key, value in paths.items():
        config.data.h5[key] = value
    with pytest.raises(ValueError, match=message):
        resolve_sources(typed(config).data)


# ---- contradictions --------------------------------------------------------------------------------------------------


def test_contradicting_parents(tmp_path, caplog):
    taxa = {"taxa_L10": [7] * 10 + [8], "taxa_L20": [1] * 9 + [2] + [2]}
    config = small_config(write_labels(tmp_path / "labels.h5", taxa), tuple(taxa))
    config.data.h5.train_val_split_ratio = 1.0
    dataset = build_dataset(typed(config))
    assert len(dataset.conflicts) == 1
    assert dataset.tree.parent["taxa_L10"].tolist() == [-1, 1, 2]
    assert "1 classes have several parents" in caplog.text
    assert "conflict: " in dataset.report()
    config.data.parent_conflict_limit = 0.05
    with pytest.raises(ValueError, match=r"taxa_L10 7: parents 1 \(9 rows\), 2 \(1 rows\)"):
        build_dataset(typed(config))


def test_other_labels_are_under_the_classes_of_the_run(tmp_path, caplog):
    """Rows of a taxon that the run does not know are left out; of null rows the known ranks count."""
    tasks = ("taxa_L10", "taxa_L20")
    config = typed(
        small_config(write_labels(tmp_path / "a.h5", {"taxa_L10": [5, 7, 9] * 9, "taxa_L20": [1, 1, 2] * 9}), tasks)
    )
    dataset = build_dataset(config)
    other = write_labels(tmp_path / "b.h5", {"taxa_L10": [9, 6, 0, 5, 10], "taxa_L20": [2, 1, 1, 1, 2]})
    split = read_other_labels(config, dataset, str(other), "pictures.h5")
    assert split.rows.tolist() == [0, 2, 3]
    assert split.labels.tolist() == [[3, 2], [0, 1], [1, 1]]
    assert split.labels.dtype == np.int32
    assert split.images == "pictures.h5"
    assert "2 rows have a taxon that the run does not know" in caplog.text
    with pytest.raises(InputError, match="every row has a taxon that the run does not know"):
        read_other_labels(config, dataset, str(write_labels(tmp_path / "c.h5", {"taxa_L10": [8], "taxa_L20": [2]})), "")


def test_half_ranks_are_tasks(tmp_path):
    taxa = {"taxa_L33_5": [1, 2], "taxa_L40": [3, 3]}
    path = write_labels(tmp_path / "labels.h5", taxa)
    assert build_dataset(typed(small_config(path, tuple(taxa)))).tasks == tuple(taxa)


def test_one_class_at_the_coarsest_rank_and_one_rank(tmp_path):
    path = write_labels(tmp_path / "labels.h5", {"taxa_L10": [5, 6, 5, 6], "taxa_L20": [9] * 4})
    config = small_config(path, ("taxa_L10", "taxa_L20"), data__partial__levels=False)
    dataset = build_dataset(typed(config))
    assert dataset.num_classes == {"taxa_L10": 2, "taxa_L20": 1}
    assert "taxa_L20" not in dataset.rarity_thresholds
    assert dataset.meta_dim == 0
    assert dataset.train.meta.shape == (len(dataset.train), 0)
    alone = build_dataset(typed(small_config(path, ("taxa_L20",), data__partial__levels=False)))
    assert alone.rarity_names == ()
    assert alone.subset_maps() == {"taxa": {}, "rarity": {}}


# ---- images named by several rows ------------------------------------------------------------------------------------


def repeated(tmp_path, identifiers, name="labels.h5", **keys):
    taxa = {"taxa_L10": [1, 2] * (len(identifiers) // 2)}
    path = write_labels(tmp_path / name, taxa, identifiers=identifiers)
    return small_config(path, tuple(taxa), data__h5__train_val_split_ratio=1.0, **keys)


def test_rows_of_one_image_are_reported(tmp_path, caplog):
    config = repeated(tmp_path, ["a", "b", "a", "c", "b", "a", "", "", *(f"x{i // 2}" for i in range(8))])
    dataset = build_dataset(typed(config))
    assert len(dataset.repeats) == 1
    wanted = r"13 training rows share 6 img_identifiers.*'a' \(3 rows\), 'b' \(2 rows\), 'x0'.* and 1 more$"
    assert re.search(wanted, dataset.repeats[0])
    assert dataset.repeats[0] in caplog.text
    assert f"repeats: {dataset.repeats[0]}" in dataset.report().splitlines()


def test_images_whose_identifiers_agree_in_their_hash_alone_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(repeats, "text_hashes", lambda path, dataset: np.array([7, 7, 7, 9, 9, 3]))
    dataset = build_dataset(typed(repeated(tmp_path, ["a", "a", "b", "c", "d", "e"])))
    (said,) = dataset.repeats
    assert "2 training rows share 1 img_identifiers" in said
    assert said.endswith("'a' (2 rows)")


def test_repeated_rows_that_are_not_used_do_not_count(tmp_path):
    config = repeated(tmp_path, ["a", "b", "a", "c"])
    assert build_dataset(typed(config), {"train": np.array([2])}).repeats == ()


def test_one_image_on_both_sides_is_an_error(tmp_path):
    config = repeated(tmp_path, ["same", "b", "same", "same", "same", "c"])
    config.data.h5.train_val_split_ratio = 0.5
    with pytest.raises(ValueError, match=r"images on both sides of the split.*1 img_identifiers in .*h5: 'same'$"):
        build_dataset(typed(config))


def test_one_image_in_a_given_split_and_in_its_test_rows(tmp_path):
    taxa = {"taxa_L10": [1, 2, 1]}
    names, column = ["a", "b", "a"], np.array([0, 1, 2], np.uint8)
    path = write_labels(tmp_path / "labels.h5", taxa, identifiers=names, split=column)
    with pytest.raises(ValueError, match=r"in training and test rows, .*: 'a'$"):
        build_dataset(typed(small_config(path, tuple(taxa))))


def test_occurrences_on_both_sides_of_a_given_split(tmp_path, caplog):
    taxa = {"taxa_L10": [1, 2] * 5}
    occurrence = ["o9", "o1", "o2", "", "o9", "o2", "", "o3", "o1", "o4"]
    column = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2], np.uint8)
    path = write_labels(tmp_path / "labels.h5", taxa, split=column, occurrence_id=occurrence)
    config = small_config(path, tuple(taxa))
    dataset = build_dataset(typed(config))
    assert [re.sub(r"\(.*\)", "", sentence) for sentence in dataset.repeats] == [
        "2 occurrences have pictures in training and in validation rows , so that an evaluation measures in part what "
        "was learned by heart: 'o9', 'o2'",
        "1 occurrences have pictures in training and in test rows , so that an evaluation measures in part what was "
        "learned by heart: 'o1'",
    ]
    assert all(sentence in caplog.text for sentence in dataset.repeats)
    config.data.h5.use_split_column = False
    assert build_dataset(typed(config)).repeats == ()


def test_identifiers_of_two_files(fixtures, tmp_path, caplog):
    """One folder: the same picture. Two image files: perhaps; the golden files number their rows alike."""
    config = golden_config(fixtures, "twofile")
    dataset = build_dataset(typed(config))
    assert len(dataset.repeats) == 1
    assert "validation leaks unless" in caplog.text
    config.data.hybrid.use_hybrid = True
    config.data.hybrid.images_dir = str(tmp_path)
    with pytest.raises(ValueError, match=r"images on both sides of the split.*83 img_identifiers in .* and 78 more"):
        build_dataset(typed(config))
    config.data.hybrid.val_images_dir = str(tmp_path / "val")
    assert build_dataset(typed(config)).repeats
