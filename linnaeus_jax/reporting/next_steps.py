"""What can be done next with a run, and what to try for a better one, as commands with its paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.paths import program
from linnaeus_jax.config.saved import MISSING, config_difference, plain
from linnaeus_jax.data.preprocessing import BEST_SIDE
from linnaeus_jax.files import free_directory
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.reporting.class_tables import worst_class_rows
from linnaeus_jax.reporting.run_record import RunRecord
from linnaeus_jax.reporting.verdicts import OVERFITTING, accuracy, baselines, growth, known_rows, rising_losses
from linnaeus_jax.taxonomy.ranks import task_name

#: most suggestions at once
MOST = 5
#: side of pictures in pixels from which on published weights are of use; blocks that are tuned on stored inputs
SMALLEST, LAST = 96, 5
#: training rows below which a class is small, share of its validation rows below which it is badly known, names at once
FEW_ROWS, BADLY_KNOWN, NAMED = 30, 0.5, 5
#: points by which accuracy must have grown over the last third of the epochs to go on, and mean gap between confidence
#: and accuracy from which on probabilities mislead
GROWING, MISLEADING = 1.0, 0.1
#: settings of other families, which a change of `model.type` must leave at their defaults
OF_FAMILIES = ("convnext_stages", "rope_stages")


@dataclass(frozen=True)
class Suggestion:
    """One thing to try: why, and the command; "" where there is none."""

    why: str
    command: str = ""


def suggestions(run: RunRecord) -> list[Suggestion]:
    """What the numbers of a run speak for, at most `MOST` things, the most promising first."""
    if not run.config:
        return []
    return [found for rule in RULES for found in rule(run)][:MOST]


def suggestion_lines(run: RunRecord) -> str:
    """`suggestions` for a terminal; "" for none."""
    lines = [line for one in suggestions(run) for line in (f"  - {one.why}", f"    {one.command}") if line.strip()]
    return "\n".join(["what to try next:", *lines]) if lines else ""


def _again(run: RunRecord, name: str, **settings: Any) -> str:
    """The command that trains once more, in a directory of its own, with some keys (`__` for dots) set otherwise."""
    folder = run.root.with_name(f"{run.root.name}_{name}") if run.root.name not in ("", "..") else Path(name)
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    given = [f"--config={run.root / 'config.json'}", f"--workdir={free_directory(folder)}"]
    return program("train", *given, *(f"--config.{key}={value}" for key, value in keys.items()))


def _pretrained(run: RunRecord) -> Iterator[Suggestion]:
    model, size = run.config["model"], run.config["data"]["img_size"]
    if any(model.get(key) for key in ("pretrained", "features", "trunks")) or size < SMALLEST:
        return
    default = plain(get_config())["model"]
    given = {section: model.get(section, {}) for section in OF_FAMILIES}
    changed = config_difference({section: default[section] for section in OF_FAMILIES}, given)
    settings: dict[str, Any] = {"model__type": "EfficientNet", "model__variant": "lite0"}
    settings |= {"model__pretrained": "package:efficientnet-lite0", "train__tune": f"auto:{LAST}"}
    settings |= {f"model__{key}": _value(old) for key, old, _ in changed if old != MISSING}
    if run.config["schedule"]["mixup"]["prob"]["enabled"]:
        settings["schedule__mixup__prob__enabled"] = False
    yield Suggestion(
        "this model began from nothing: a published trunk knows pictures already (pip install 'linnaeus-jax[weights]')",
        _again(run, "pretrained", **settings),
    )


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tune_more(run: RunRecord) -> Iterator[Suggestion]:
    known = known_rows(run)
    overfits = known is not None and known.gap > OVERFITTING
    if run.config["train"].get("tune") == "head" and not (overfits or _below_features(run)):
        yield Suggestion(
            f"only the heads were trained: train the last {LAST} blocks of the trunk, too",
            _again(run, f"auto_{LAST}", train__tune=f"auto:{LAST}"),
        )


def _larger_trunk(run: RunRecord) -> Iterator[Suggestion]:
    weights, side = str(run.config["model"].get("pretrained")), run.config["data"]["img_size"]
    settings: dict[str, Any] = {"data__img_size": BEST_SIDE}
    again = f"build the data set again with --size {BEST_SIDE} --force, then"
    if weights == "package:efficientnet-lite0":
        settings |= {"model__variant": "lite2", "model__pretrained": "package:efficientnet-lite2"}
        yield Suggestion(
            f"a larger trunk and pictures, three to four times the time: {again}", _again(run, "lite2", **settings)
        )
    elif weights == "package:efficientnet-lite2" and side < BEST_SIDE:
        times = (BEST_SIDE / side) ** 2
        yield Suggestion(f"larger pictures, {times:.1f} times the time: {again}", _again(run, "larger", **settings))


def _training(run: RunRecord) -> Iterator[Suggestion]:
    """The one change of how it is trained that the numbers speak for most."""
    train, optimizer, rate = run.config["train"], run.config["optimizer"], run.config["lr_scheduler"]["base_lr"]
    known, grown, tuned = known_rows(run), growth(run), train.get("tune", "full") != "full"
    if rate and list(rising_losses(run)):
        why = "the loss rose during the run: a third of the learning rate"
        yield Suggestion(why, _again(run, "lower_rate", lr_scheduler__base_lr=f"{rate / 3:.3g}"))
    elif _below_features(run):
        yield _as_good_as_features(run)
    elif known is not None and known.gap > OVERFITTING:
        settings: dict[str, Any] = {"optimizer__weight_decay": f"{3 * (optimizer['weight_decay'] or 0.01):.3g}"}
        if tuned:
            settings = {"train__tune_views": 2 * (train["tune_views"] or 2)}
        yield Suggestion(
            f"it knows the training pictures {known.gap:.0f} points better than others: more pictures, or more "
            "variation of them",
            _again(run, "regularised", **settings),
        )
    elif grown > GROWING:
        why = f"still growing, {grown:.1f} points in the last third of the epochs: twice as many"
        yield Suggestion(why, _again(run, "longer", train__epochs=2 * train["epochs"]))


def _as_good_as_features(run: RunRecord) -> Suggestion:
    """What brings a run to what a simple classifier knows from the same features."""
    train, why = run.config["train"], "a simple classifier knows more from the same features"
    if train["tune"].startswith("last:"):
        tune = train["tune"].replace("last:", "auto:")
        why = f"{why} before any training: fit heads to them first, and keep the better"
        return Suggestion(why, _again(run, tune.replace(":", "_"), train__tune=tune))
    if train["tune"] != "head":
        settings: dict[str, Any] = {"train__tune": "head", "train__fit_heads": True}
        return Suggestion(f"{why} before any training: train the heads alone", _again(run, "head", **settings))
    if not train.get("fit_heads"):
        return Suggestion(f"{why}: let the heads begin as one", _again(run, "fitted", train__fit_heads=True))
    rate = f"{run.config['lr_scheduler']['base_lr'] / 10:.3g}"
    why = f"{why}, and the heads began as one: a tenth of the rate"
    return Suggestion(why, _again(run, "gentle", lr_scheduler__base_lr=rate))


def _below_features(run: RunRecord) -> bool:
    """Whether frozen features tell more at some rank, and heads that are fitted to them were no candidate."""
    if str(run.config["train"].get("tune")).startswith("auto:"):
        return False
    reached = ((accuracy(run, "val/", task), share) for task, share in baselines(run).get("features", {}).items())
    return any(found is not None and found < share for found, share in reached)


def _more_labels(run: RunRecord) -> Iterator[Suggestion]:
    task, rows = worst_class_rows(run)
    few = [
        f"{name} ({trained} for training, {100 * share:.0f} % right)"
        for name, _, share, trained in rows
        if trained is not None and trained < FEW_ROWS and share < BADLY_KNOWN
    ]
    if few:
        yield Suggestion(f"more pictures of what there are few of ({task_name(task)}): {shortened(few, NAMED)}")


def _calibrate(run: RunRecord) -> Iterator[Suggestion]:
    tasks = run.config["data"].get("task_keys_h5") or ()
    gap = run.last(f"val/ece_{tasks[0]}") if tasks else None
    if gap is not None and gap > MISLEADING:
        yield Suggestion(
            f"probabilities are {100 * gap:.0f} points from the share that is right: a bundle measures temperatures "
            "that mend that",
            program("bundle", run.root, _bundle(run.root)),
        )


#: in the order of what they promise
RULES = (_pretrained, _training, _tune_more, _larger_trunk, _more_labels, _calibrate)


def _bundle(run: Path) -> Path:
    return run.with_name(f"{run.name}_bundle") if run.name not in ("", "..") else Path("bundle")


def next_steps(run: Path, pictures: Path | None = None, made_by: str = "") -> str:
    """Lines for a terminal: the report, a bundle, predictions, the server.

    Args:
      run: the run directory.
      pictures: a folder of pictures; None: a placeholder stands for it, which is said.
      made_by: the command that makes these pictures.
    """
    made, folder = _bundle(run), Path("PICTURES") if pictures is None else pictures
    commands = {
        program("bundle", run, made): "the model, with what it needs to be used",
        program("predict", made, folder): "" if pictures else "PICTURES: a folder of pictures",
        program("serve", made): "a page, to drop pictures on",
    }
    if made_by:
        commands = {made_by: "pictures to try it with"} | commands
    width = max(map(len, commands))
    notes = [f"  # {note}" if note else "" for note in commands.values()]
    return "\n".join(
        ["next:", *(f"  {line:<{width}}{note}".rstrip() for line, note in zip(commands, notes, strict=True))]
    )
