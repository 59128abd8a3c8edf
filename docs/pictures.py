"""Draws the pictures of the manual from a real run: `make pictures` (5 minutes on 2 cores; needs Chromium).

    python -m docs.pictures [--workspace build/pictures] [NAME ...]

The workspace gets the demo data, the run of `make demo`, its bundle, photos and pages, as a user would make them; what
it holds already is used. Each picture is one function of `PICTURES`, and becomes docs/pictures/NAME.jpg or .png.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from PIL import Image, ImageDraw

from tests.inference.chromium import browser

FOLDER = Path(__file__).parent / "pictures"
#: most bytes of a picture
SIZE = 150_000
#: what makes the workspace: a file that is there afterwards, and the command
STEPS = {
    "data/demo/images.h5": "tools.make_demo --out data/demo",
    "runs/demo/report.html": "main --config=configs/quickstart.py --workdir=runs/demo",
    "bundle/bundle.json": "tools.bundle runs/demo bundle --licence=CC-BY-4.0",
    "walk/records.csv": "tools.make_demo --as table --out walk --rows 600 --image-size 96",
    "data/walk/labels.h5": (
        "tools.build_dataset --table walk/records.csv --pictures walk/photos --out data/walk --size 96 --split observer"
    ),
    "data/walk/description/dataset.html": (
        "tools.describe_dataset data/walk/labels.h5 --images data/walk/images.h5 --out data/walk/description"
    ),
    "look.html": "tools.predict bundle walk/photos --meta walk/records.csv --out predictions.csv --gallery look.html",
}


def make_workspace(workspace: Path) -> None:
    """Types the commands of `STEPS` whose file is not there."""
    root = Path(__file__).parents[1]
    workspace.mkdir(parents=True, exist_ok=True)
    if not (workspace / "configs").exists():
        (workspace / "configs").symlink_to(root / "configs")
    environment = os.environ | {"PYTHONPATH": str(root)}
    for made, command in STEPS.items():
        if not (workspace / made).exists():
            print(command, flush=True)
            words = [sys.executable, "-m", *f"linnaeus_jax.{command}".split()]
            subprocess.run(words, cwd=workspace, env=environment, check=True, stdout=subprocess.DEVNULL)


def save(picture: Image.Image, name: str) -> None:
    """Writes a picture, JPEG of the best quality that is small enough."""
    path = FOLDER / name
    if path.suffix == ".png":
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)
        content = path.read_bytes()
    else:
        for quality in range(90, 30, -5):
            buffer = io.BytesIO()
            picture.convert("RGB").save(buffer, "JPEG", quality=quality, optimize=True)
            content = buffer.getvalue()
            if len(content) <= SIZE:
                break
        path.write_bytes(content)
    assert len(content) <= SIZE, f"{path}: {len(content)} bytes"
    print(f"{path}: {len(content) / 1000:.0f} kB", flush=True)


def of_page(path: Path, width: int, height: int) -> Image.Image:
    """The upper part of a page in the browser."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        page.call("Emulation.setScrollbarsHidden", hidden=True)
        page.open(path.resolve().as_uri(), width, height)
        out = Path(profile) / "page.png"
        page.screenshot(out)
        whole = Image.open(out).convert("RGB")
    return whole.crop((0, 0, width, min(whole.height, height)))


# ---- pictures --------------------------------------------------------------------------------------------------------


def demo_species(workspace: Path) -> Image.Image:
    """The first eleven pictures of eight species, with their names, twice as large as in images.h5."""
    with h5py.File(workspace / "data/demo/labels.h5") as labels, h5py.File(workspace / "data/demo/images.h5") as images:
        taxa, group = labels["taxa_L10"][:], labels["taxon_names/taxa_L10"]
        names = dict(zip(group["taxon_id"][:].tolist(), group["name"].asstr()[:].tolist()))
        side, columns = 96, 11
        chosen = sorted(names, key=lambda taxon: names[taxon])[::3]
        sheet = Image.new("RGB", (210 + side * columns, side * len(chosen[:8])), "white")
        pen = ImageDraw.Draw(sheet)
        for row, taxon in enumerate(chosen[:8]):
            pen.text((8, row * side + side // 2 - 7), names[taxon], "black", font_size=15)
            for column, index in enumerate(np.flatnonzero(taxa == taxon)[:columns]):
                tile = Image.fromarray(images["images"][index]).resize((side, side), Image.Resampling.LANCZOS)
                sheet.paste(tile, (210 + column * side, row * side))
    return sheet


def report(workspace: Path) -> Image.Image:
    """The report of the run, from its top."""
    return of_page(workspace / "runs/demo/report.html", 1000, 1150)


def schedule(workspace: Path) -> Image.Image:
    """The plan of the run, with what was applied."""
    picture = Image.open(workspace / "runs/demo/assets/schedule.png").convert("RGB")
    return picture.resize((1000, round(picture.height * 1000 / picture.width)), Image.Resampling.LANCZOS)


def dataset(workspace: Path) -> Image.Image:
    """The description of a data set, from its top."""
    return of_page(workspace / "data/walk/description/dataset.html", 1000, 1000)


def gallery(workspace: Path) -> Image.Image:
    """The gallery of predicted pictures, from its top."""
    return of_page(workspace / "look.html", 1000, 700)


def server(workspace: Path) -> Image.Image:
    """The page of the server with the answer to a picture, alone and with its place, date and elevation."""
    import linnaeus_jax
    from tests.inference.serving_helpers import serving

    with (workspace / "walk/records.csv").open(newline="") as file:
        record = next(row for row in csv.DictReader(file) if all(row.values()))  # everything is known of it
    photo = workspace / "walk/photos" / record["picture"]
    model = linnaeus_jax.load(workspace / "bundle")
    answered = "document.querySelector('#status').textContent.startsWith('Answer:')"
    with serving(model) as url, tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        page.open(f"{url}/", 1000, 900)
        page.wait("!document.querySelector('#place').hidden")
        page.drop("#drop", photo)
        page.wait(answered)
        for key in ("latitude", "longitude", "date", "elevation"):
            page.fill(f"#{key}", record[key])
        title = "document.querySelector('.columns h3').textContent"
        page.wait(f"{title} === 'With date, place and elevation' && {answered}")
        out = Path(profile) / "page.png"
        page.screenshot(out)
        return Image.open(out).convert("RGB")


def risk_coverage(_: Path) -> Image.Image:
    """The curves of the page on results; `python -m docs.make_results` draws them, too."""
    from benchmarks.real.summary import results
    from docs.results_pictures import draw

    buffer = io.BytesIO()
    draw(results()).savefig(buffer)
    return Image.open(buffer)


def minutes(_: Path) -> Image.Image:
    """The curves of the page on training from nothing."""
    from benchmarks.real.summary import results
    from docs.results_pictures import draw_minutes

    buffer = io.BytesIO()
    draw_minutes(results()).savefig(buffer)
    return Image.open(buffer)


PICTURES: dict[str, Callable[[Path], Image.Image]] = {
    "demo_species.jpg": demo_species,
    "report.jpg": report,
    "schedule.png": schedule,
    "dataset.jpg": dataset,
    "gallery.jpg": gallery,
    "server.jpg": server,
    "risk_coverage.png": risk_coverage,
    "minutes.png": minutes,
}


def main() -> None:
    """Makes the workspace and draws the pictures that are named, or all."""
    parser = argparse.ArgumentParser("python -m docs.pictures", description=__doc__)
    parser.add_argument("--workspace", type=Path, default=Path("build/pictures"), help="where the run lies, or is made")
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="pictures to draw; default: all")
    options = parser.parse_args()
    make_workspace(options.workspace)
    for name in options.names or PICTURES:
        save(PICTURES[name](options.workspace), name)


if __name__ == "__main__":
    main()
