"""Repeats the update of a crash bundle under the overflow detector, or operation by operation.

    linnaeus debug replay RUN/crash/update_1234 [--gradients] [--frames 21]
    linnaeus debug replay RUN/crash/update_1234 --debug-nans

The data files that the run was trained on must still be where its config says.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import tools


@tools.command()
def main(argv: Sequence[str]) -> int:
    parser = tools.parser("replay", __doc__)
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    parser.add_argument("--debug-nans", action="store_true", help="name the operation that makes the first NaN")
    parser.add_argument("--gradients", action="store_true", help="record the backward pass, too")
    parser.add_argument("--frames", type=int, default=21, help="frames that the report shows")
    options = parser.parse_args(argv)

    return replay(options.bundle, frames=options.frames, debug_nans=options.debug_nans, gradients=options.gradients)


def replay(bundle: Path, *, frames: int = 21, debug_nans: bool = False, gradients: bool = False) -> int:
    """Makes the update again and reports; returns 1 if it is not finite again, 0 if it is finite this time.

    Raises:
      BundleError: no complete bundle.
      UserError: the data of the run cannot be read.
    """
    from linnaeus_jax.config.saved import config_from_json
    from linnaeus_jax.debugging import crash_bundle, nonfinite
    from linnaeus_jax.debugging.overflow import OverflowDetected
    from linnaeus_jax.debugging.update_frames import compile_update_frames
    from linnaeus_jax.files import RunDirectory
    from linnaeus_jax.run.experiment import preview_experiment
    from linnaeus_jax.schedules import OpsSchedule
    from linnaeus_jax.step.compilation import compile_step
    from linnaeus_jax.step.placement import fetch

    saved, step = crash_bundle.read_config(bundle)
    try:
        config = config_from_json(saved)
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise crash_bundle.BundleError(f"{bundle} holds no complete crash bundle: {reason}") from reason
    detector = config.debug.underflow_overflow
    detector.max_frames_to_save = frames
    detector.gradients |= gradients
    detector.trace_batch_nums, detector.abort_after_batch_num = (), None
    experiment = preview_experiment(config, RunDirectory(bundle))
    state = crash_bundle.read_state(bundle, experiment.abstract_state)
    read = crash_bundle.read_batch(bundle, experiment.inputs.abstract_update())
    batch = experiment.placement.to_device(read, experiment.placement.update)
    name = "gradnorm" if OpsSchedule(experiment.resolved).should_update_gradnorm(step) else "plain"
    if debug_nans:
        for kind in ("nan", "inf"):
            with nonfinite.switched_on(nans=kind == "nan", infs=kind == "inf"):
                error = nonfinite.locate(experiment.program.train_step(name), state, batch)
                given = nonfinite.invalid({"state": state, "batch": batch}, (kind,))
            if error is not None:
                print(nonfinite.explained(error, f"update {step}", before=given))
                return 1
        print(f"update {step}: every operation is finite")
        return 0
    program, placement = experiment.program, experiment.placement
    observe = compile_update_frames(program, state, batch, placement, gradients=detector.gradients)
    frames_of_update = fetch(observe(state, batch))
    compiled = compile_step(program.train_step(name), state, batch, placement, name)
    _, outputs = compiled(state, batch)
    outputs = fetch(outputs)
    print(f"update {step}: loss {float(outputs.loss):g}, gradient norm {float(outputs.grad_norm):g}")
    try:
        experiment.debug.monitor.consume(step, frames_of_update)
    except OverflowDetected as error:
        print(f"first frame that is not finite: {error.where}")
        return 1
    if not outputs.finite:
        where, more = ("loss", "") if detector.gradients else ("loss or its gradient", "--gradients or ")
        print(f"every module call is finite, so the fault is in the {where}; try {more}--debug-nans")
        return 1
    print("finite this time: the other device, precision or version matters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
