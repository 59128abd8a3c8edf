"""Makes a bundle of a run: one directory with everything that using its model needs. It can be moved and copied.

    linnaeus bundle runs/quickstart bundle --licence "CC BY 4.0"
    linnaeus bundle runs/quickstart bundle --checkpoint newest --without-data
    linnaeus bundle runs/seed0 runs/seed1 runs/seed2 bundle
    linnaeus bundle --from-weights birds.tflite --labels birds.txt bundle

It takes the best checkpoint by the run's own ranking (`--checkpoint best`), and the moving average of the parameters
where one was kept. These weights are evaluated on the validation rows of the run, at most 20,000 of them: temperatures
are fitted on them, so that probabilities are what they say, and README.md tells people how good the model is. The data
must be where the run's configuration says; --without-data does without them, and without calibration. Features of
training rows, of each class at most 100 and about 5,000 in all, say what a known taxon looks like, and are kept, with
those of validation rows, so that linnaeus extend can add taxa (--no-novelty: without them): one forward pass of each,
or what follows of it where the run has stored the rest.

Of several runs, such as seeds of one configuration, the mean of the log-probabilities is answered. Their models,
classes, pictures and training rows must be the same. What they share, such as blocks that none of them has trained, is
kept and computed once; the card says what an answer costs.

--from-weights makes a bundle of a published classifier as it is, without any training: a file of weights, or a name as
model.pretrained takes it. --labels is a text file with the scientific name of each class, one a line; it is not needed
where the description beside the weights names them. Genera follow from the names, coarser ranks from a table of species
or genera (--taxonomy genera.csv, with columns such as genus, family, order); "background" becomes "unknown". Nothing is
measured.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from linnaeus_jax import tools
from linnaeus_jax.config.errors import UserError


@tools.command()
def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    parser = tools.parser("bundle", __doc__)
    parser.add_argument("runs", type=Path, nargs="*", metavar="run", help="the run directory, or several")
    parser.add_argument("out", type=Path, help="the directory to write")
    parser.add_argument("--checkpoint", default="best", help="best (default), newest or a step")
    parser.add_argument("--weights", choices=("ema", "last"), default="", help="default: ema where the run kept one")
    parser.add_argument("--licence", default="", help="of the weights, for the card, e.g. 'CC BY 4.0'")
    parser.add_argument("--without-data", action="store_true", help="measure and calibrate nothing")
    parser.add_argument(
        "--no-novelty", action="store_true", help="without statistics of features, by which answers say what is new"
    )
    parser.add_argument("--from-weights", metavar="FILE", default="", help="instead of a run: a published classifier")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="scientific names of its classes, one a line")
    parser.add_argument("--taxonomy", type=Path, metavar="TABLE", help="coarser ranks of its species or genera")
    parser.add_argument(
        "--onnx", action="store_true", help="with a program for onnxruntime, which is faster on CPUs (needs jax2onnx)"
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    options = parser.parse_args(argv)
    from linnaeus_jax.step.process import set_up_inference

    set_up_inference()
    from linnaeus_jax.inference.bundle.bundle import Bundle, bundle_of_run
    from linnaeus_jax.inference.bundle.files import check_out, write_bundle
    from linnaeus_jax.inference.bundle.members import bundle_of_members
    from linnaeus_jax.inference.forward import every_layer
    from linnaeus_jax.inference.onnx_program import onnx_program, translator
    from linnaeus_jax.inference.paths import NOT_FINITE
    from linnaeus_jax.inference.quality.card import summary, write_card
    from linnaeus_jax.inference.quality.measuring import calibrated, measure, read_rows, with_novelty
    from linnaeus_jax.reporting.logs import console, setup_logging
    from linnaeus_jax.weights.hub_settings import hub_settings
    from linnaeus_jax.weights.locating import FETCHED, scheme_of

    setup_logging(None, process=1, level="WARNING", data_level="WARNING")
    published = bool(options.from_weights)
    named = (
        published
        and options.labels is None
        and (scheme_of(options.from_weights) in FETCHED or hub_settings(options.from_weights).labels)
    )
    if published == bool(options.runs) or published != (options.labels is not None or bool(named)):
        raise UserError(
            "give either a run directory, or --from-weights FILE with --labels FILE, unless its description names them"
        )
    if options.taxonomy and not published:
        raise UserError(f"--taxonomy {options.taxonomy} is for --from-weights: a run has its ranks already")
    runs: list[Bundle] = []
    check_out(options.out, force=options.force)
    if options.onnx:
        translator()
    if published:
        from linnaeus_jax.inference.bundle.from_weights import bundle_from_weights

        bundle = bundle_from_weights(options.from_weights, options.labels, options.taxonomy)
    else:
        runs = [bundle_of_run(run, options.checkpoint, options.weights or "ema") for run in options.runs]
        bundle = bundle_of_members(runs)
    if options.weights == "ema" and bundle.facts["weights"] != "ema":
        raise UserError(f"{bundle.source} kept no moving average (train.ema.enabled); use --weights last")
    facts = {**bundle.facts, **({"licence": options.licence.strip()} if options.licence.strip() else {})}
    bundle, measured = dataclasses.replace(bundle, facts=facts), None
    if not options.without_data and not published:
        with tools.progress_bar("batches") as progress:
            rows = read_rows(bundle, progress, runs=runs, novelty=not options.no_novelty)
        with console.status("fitting temperatures"):
            measured = measure(rows, bundle)
            bundle, measured = with_novelty(calibrated(bundle, measured), measured)
        if not options.no_novelty and not bundle.calibration.novelty:
            console.print("too few validation rows or taxa to say what is new: answers do without", soft_wrap=True)
        bundle = dataclasses.replace(bundle, facts={**facts, "measured": summary(measured)})
    if options.onnx:
        with console.status("translating to ONNX"):
            bundle = dataclasses.replace(bundle, onnx=onnx_program(bundle, "", every_layer(bundle)))
    write_bundle(bundle, options.out, functools.partial(write_card, bundle, measured), force=options.force)
    which = "as published"
    if not published:
        which = "moving average" if bundle.facts["weights"] == "ema" else "last parameters"
        which += f" after {' and '.join(str(run.facts['step']) for run in runs)} updates"
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file()) / 1e6
    how = "not calibrated" if measured is None else f"calibrated on {len(measured.rows.labels):,} {measured.rows.kind}"
    text = f"{options.out}: {size:.1f} MB; {which}, {how}; read its README.md"
    console.print(text, soft_wrap=True)
    bad = 0 if measured is None else measured.rows.not_finite
    if bad:
        console.print(f"{bad:,} validation rows were left out: {NOT_FINITE}", soft_wrap=True)
    return 2 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
