"""Good and bad signs in the statistics of a debug event log, with advice: what the documents say to look for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from linnaeus_jax.debugging.log_statistics import (
    FIRST_UPDATES,
    HEALTHY,
    JUMP,
    SPIKE,
    WINDOW,
    Gradients,
    LogStatistics,
    Steps,
    Training,
    changes,
    count_text,
    mean,
)

LEVELS = ("error", "warning", "note", "good")
#: smallest changes of the mean over ten logged steps that count: share of the first loss, accuracy
FLAT_LOSS, FLAT_ACCURACY = 0.01, 0.01
RISING_LOSS = 0.05
#: level, sign and message, then the advice; {count} is the number of steps
_TABLE = """\
error labels_out_of_range: labels{of_task} are out of range: {low} to {high}, expected 0 to {expected}
    Data preprocessing issue: the labels were numbered for another list of classes
    Compare assets/num_classes.json with the classes in the labels file
    Rebuild the labels file if its codes belong to other classes
good labels_valid: all labels are in range
error nonfinite_gradients: {count} steps with non-finite gradients; such updates are skipped
    Find the first layer with non-finite values: --debug underflow_overflow
    Reduce the learning rate, lengthen the warm-up or clip gradients (train.clip_grad)
    Look for non-finite metadata or images in these batches
warning zero_gradients: {count} steps with near-zero gradients
    No gradient flow: is every parameter frozen, or every label masked?
    Check that the loss is connected to the parameters and no task weight is 0
    Check for stop_gradient (detached values) between the loss and the parameters
warning exploding_gradients: {count} steps with exploding gradients (norm > 1000)
    Gradient explosion: stronger gradient clipping (a smaller train.clip_grad)
    Reduce the learning rate or lengthen the warm-up
warning gradient_jumps: {count} sudden rises of the gradient norm to more than ten times the median of the steps before
    Look at the batches, the loss and the learning rate of these steps
    Clip gradients (train.clip_grad) or reduce the learning rate
note gradient_drops: {count} sudden drops of the gradient norm below a tenth of the median of the steps before
    Look at the loss of these steps
good gradients_flow: 0 steps with near-zero gradients
good healthy_gradients: all gradient norms lie between 0.1 and 100
good parameters_update: all parameters are updating
note some_parameters_update: at times only {updated} of {total} parameters are updating; {others}
warning no_updates: {count} measurements with NO parameter updates!
    Learning rate might be too small
    Gradients might be zero
    Optimizer might not be stepping: are updates skipped as non-finite?
error nonfinite_loss: {count} steps with a non-finite loss
    Find the first layer with non-finite values: --debug underflow_overflow
    Reduce the learning rate
warning zero_learning_rate: the learning rate is 0 at every logged step
    Check lr_scheduler.base_lr, the multipliers of the groups and the schedule's summary
good warmup: the learning rate starts small ({first:.2e}) and rises to {peak:.2e}
note loss_spikes: {count} sudden rises of the loss to more than twice the median of the ten steps before
    Look at the batches and the gradients of these steps
    A spike at each epoch's start hints at data
note flat_start: nothing improves in the first {updates} updates: loss {loss:.4f} -> {later:.4f}
    The warm-up is slow: the learning rate is {rate:.2e} there and rises to {peak:.2e} later
warning flat_start: nothing improves in the first {updates} updates: loss {loss:.4f} -> {later:.4f}
    Check the learning rate, the gradient norms and the parameter updates of these steps
note too_short: only {logged} steps are logged: too few to judge loss and accuracy, which takes 20
warning rising_loss: the loss is rising: loss {first:.4f} -> {last:.4f}, accuracy {gain:+.4f}
    Reduce the learning rate or lengthen the warm-up
    Compare with the gradient norms of the same steps
warning flat: loss and accuracy are flat: loss {first:.4f} -> {last:.4f}, accuracy {gain:+.4f}
    Optimizer not updating weights: see the parameter updates
    Check the learning rate schedule
    Check if gradients are flowing: see the gradient norms
good loss_falls: the loss is decreasing
good accuracy_rises: the accuracy is increasing
warning empty: the log holds no events
    Check that the run got as far as fit_start
note malformed: {malformed} lines are no events: cut off by a kill, or foreign
"""
#: level and sign -> message and advice
TEXTS = {
    key: texts.split("\n    ") for key, texts in re.findall(r"^(\w+ \w+): (.*(?:\n    .*)*)", _TABLE, re.MULTILINE)
}
Sign = dict[str, Any]
_NO_STEPS = Steps()
#: why a parameter may not be updated
_OTHERS = "the others are frozen, get no gradient, or move by less than float32 resolves"


def diagnose(log: LogStatistics) -> list[Sign]:
    """The signs, most urgent first.

    Returns:
      A list of {"level": one of `LEVELS`, "sign": a fixed word, "message", "advice": texts, "count": at how many steps,
      "steps": the first of them, both where they are known}.
    """
    signs = [*_label_signs(log), *_gradient_signs(log.gradients), *_update_signs(log), *_progress_signs(log.training)]
    if not log.events:
        signs.append(_sign("warning empty"))
    if log.malformed:
        signs.append(_sign("note malformed", malformed=log.malformed))
    return sorted(signs, key=lambda sign: LEVELS.index(sign["level"]))


def _sign(key: str, steps: Steps = _NO_STEPS, causes: Sequence[str] = (), **values: Any) -> Sign:
    """The sign of `TEXTS` with this level and name; `values` fill its texts, `causes` come before its advice."""
    message, *advice = (text.format(count=steps.count, **values) for text in TEXTS[key])
    level, sign = key.split()
    return {
        "level": level,
        "sign": sign,
        "message": message,
        "advice": [*causes, *advice],
        "count": steps.count,
        "steps": steps.first,
    }


def _where_any(steps: np.ndarray, signs: Mapping[str, np.ndarray]) -> Iterator[Sign]:
    """Those signs that occurred at any of `steps` [n]; they are bool [n]."""
    return (_sign(key, Steps.where(steps, chosen)) for key, chosen in signs.items() if chosen.any())


def _label_signs(log: LogStatistics) -> list[Sign]:
    signs = []
    for step, check in log.checks:
        for task, row in (check.get("tasks") or {"": check}).items():
            if row.get("labels_valid") is False:
                low, high, expected = (row.get(key) for key in ("label_min", "label_max", "expected_max"))
                values = {"of_task": task and f" of {task}", "low": low, "high": high, "expected": expected}
                signs.append(_sign("error labels_out_of_range", Steps(1, [step]), **values))
    return signs or ([_sign("good labels_valid")] if log.checks else [])


def _gradient_signs(stats: Gradients) -> Iterator[Sign]:
    if not len(stats):
        return
    norm, signs = stats["total_norm"], stats.signs()
    rises, drops = changes(norm, JUMP, 3)
    yield from _where_any(
        stats["step"],
        {
            "error nonfinite_gradients": signs["nonfinite"],
            "warning zero_gradients": signs["zero"],
            "warning exploding_gradients": signs["huge"],
            "warning gradient_jumps": rises,
            "note gradient_drops": drops,
        },
    )
    if not signs["zero"].any():
        yield _sign("good gradients_flow")
    if ((norm >= HEALTHY[0]) & (norm <= HEALTHY[1])).all():
        yield _sign("good healthy_gradients")


def _update_signs(log: LogStatistics) -> Iterator[Sign]:
    stats = log.updates
    if stats.none_moved.count:
        causes = ["every parameter is frozen (optimizer.parameter_groups.*.frozen)"] if log.frozen else []
        causes += log.causes()
        yield _sign("warning no_updates", stats.none_moved, [f"CAUSE: {cause}" for cause in causes])
    elif len(stats) and (stats["num_params_updated"] == stats["num_params_total"]).all():
        yield _sign("good parameters_update")
    elif len(stats):
        updated, total = (count_text(value) for value in stats.fewest())
        yield _sign("note some_parameters_update", updated=updated, total=total, others=_OTHERS)


def _progress_signs(training: Training) -> Iterator[Sign]:
    if not len(training):
        return
    step, loss, rate = (training[key] for key in ("step", "loss", "learning_rate"))
    yield from _where_any(step, {"error nonfinite_loss": ~np.isfinite(loss)})
    peak = rate.max(initial=0.0, where=np.isfinite(rate))
    if peak == 0.0:
        yield _sign("warning zero_learning_rate")
    elif rate[0] < 0.5 * peak and step[0] == 0:
        yield _sign("good warmup", first=rate[0], peak=peak)
    yield from _where_any(step, {"note loss_spikes": changes(loss, SPIKE, WINDOW)[0]})
    yield from _start_signs(training, peak)
    if len(training) < 2 * WINDOW:
        yield _sign("note too_short", logged=len(training))
    else:
        yield from _trend_signs(training.improvement())


def _start_signs(training: Training, peak: float) -> Iterator[Sign]:
    """Whether anything improves in the first 100 updates of a run."""
    step = training["step"]
    start = np.flatnonzero(step <= FIRST_UPDATES)[: FIRST_UPDATES + 1]
    if step[0] >= WINDOW or len(start) < 6 or step[start[-1]] < FIRST_UPDATES - WINDOW:
        return
    (loss, later), (accuracy, better) = (
        [mean(training[key][half]) for half in np.split(start, [len(start) // 2])] for key in ("loss", "accuracy")
    )
    if loss is None or later is None:
        return
    rate, gain = training["learning_rate"][start[-1]], (better or 0.0) - (accuracy or 0.0)
    if loss - later <= FLAT_LOSS * abs(loss) and gain <= FLAT_ACCURACY:
        level = "note" if rate < 0.1 * peak else "warning"
        key = f"{level} flat_start"
        yield _sign(key, updates=FIRST_UPDATES, loss=loss, later=later, rate=rate, peak=peak)


def _trend_signs(improvement: Mapping[str, Mapping[str, Any]]) -> Iterator[Sign]:
    loss, accuracy = improvement["loss"], improvement["accuracy"]
    if loss["change"] is None:
        return
    change, gain = loss["change"], accuracy["change"] or 0.0
    scale = abs(loss["first10"]) or 1.0
    values: dict[str, Any] = {"first": loss["first10"], "last": loss["last10"], "gain": gain}
    if change > RISING_LOSS * scale:
        yield _sign("warning rising_loss", **values)
    elif change > -FLAT_LOSS * scale and gain < FLAT_ACCURACY:
        yield _sign("warning flat", **values)
    else:
        yield from (
            _sign(key) for key, so in (("good loss_falls", change < 0), ("good accuracy_rises", gain > 0)) if so
        )
