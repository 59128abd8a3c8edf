"""What the console says of the end of an epoch."""

from __future__ import annotations

import math

from linnaeus_jax.metrics.console_lines import clock, epoch_line


def test_an_epoch_has_means_of_loss_and_the_accuracies_of_the_finest_and_of_all_ranks():
    row = {
        "train/epoch_avg_loss_unweighted": 1.534,
        "train/epoch_avg_chain_accuracy": 0.122,
        "train/epoch_avg_non_null/acc1_taxa_L10": 29.7,
        "train/epoch_avg_acc1_taxa_L10": 33.0,
        "val/loss_unweighted": 1.5876,
        "val/chain_accuracy": 0.078,
        "val/acc1_taxa_L10": 19.5,
        "val_mask_meta/loss_unweighted": 1.7561,
        "val_mask_meta/chain_accuracy": 0.061,
        "val_mask/loss_unweighted": 1.7561,  # the same under its other name, which is not said twice
        "val_mask/chain_accuracy": 0.061,
    }
    assert epoch_line(5, row, "taxa_L10") == (
        "epoch 5: training mean loss 1.5340, species 29.7 %, all ranks 12.2 %; validation mean loss 1.5876, "
        "species 19.5 %, all ranks 7.8 %; without metadata mean loss 1.7561, all ranks 6.1 %"
    )


def test_a_time_that_is_not_known_is_a_question_mark():
    assert [clock(seconds) for seconds in (3661.9, 0.0, -1.0, math.inf, math.nan)] == ["1:01:01", "0:00:00", *"???"]
