"""Pages of two versions of the program, compared as pictures: the same stored inputs, drawn by each.

    python -m benchmarks.pages BEFORE AFTER --out build/pages

BEFORE and AFTER are folders of HTML files with the same names, such as what `tools.report`, `describe_dataset`,
`predict --gallery` and `evaluate --report` of two checkouts write of one run and one data set. Chromium draws each page
whole, 1280 and 390 pixels wide. Sections are compared by their headings, so that a new one moves no other. A row for
each page and width: the percentage of pixels that differ by more than `LEAST` of 255, over the sections that both have,
and which sections differ, or are of one page alone. --out gets a picture of each of these: before, after, and where.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from base64 import b64decode
from pathlib import Path

import numpy as np
from PIL import Image

from tests.inference.chromium import Page, browser

#: width of the window -> its height
WINDOWS = {1280: 900, 390: 844}
#: differences of a colour that are rounding at the edges of letters
LEAST = 8
#: rows that are drawn at once: Chromium draws nothing, or the same again, beyond 16,384
STRIP = 4000
#: everything is drawn, also what nobody has scrolled to; headings of the sections
SHOW = """(async () => {
document.head.insertAdjacentHTML('beforeend', '<style>*{content-visibility:visible!important}</style>');
await Promise.all([...document.images].map(i => { i.loading = 'eager'; return i.decode().catch(() => 0); }));
return ['', ...[...document.querySelectorAll('section h2')].map(e => e.textContent)]; })()"""
#: leaves one section, or what lies above them, so that it is drawn at the same place of both pages; the height
ALONE = """(() => { [...document.body.children].forEach(e => {
e.hidden = e.tagName === 'SECTION' ? e.querySelector('h2').textContent !== %s : %s !== ''; });
return Math.ceil(document.body.getBoundingClientRect().bottom + scrollY); })()"""


def drawn(page: Page, path: Path, width: int) -> dict[str, np.ndarray]:
    """Heading -> uint8 [height, width, 3] of a section; "" is what lies above."""
    page.open(path.resolve().as_uri(), width, WINDOWS[width], mobile=width < 700)
    parts = {}
    for name in page.value(SHOW):
        height, strips = page.value(ALONE % (json.dumps(name), json.dumps(name))), []
        for y in range(0, height, STRIP):
            clip = {"x": 0, "y": y, "width": width, "height": min(STRIP, height - y), "scale": 1}
            data = page.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
            strips.append(np.asarray(Image.open(io.BytesIO(b64decode(data))).convert("RGB")))
        parts[name] = np.concatenate(strips)
    return parts


def compared(before: np.ndarray, after: np.ndarray) -> tuple[int, np.ndarray]:
    """Differing pixels, and uint8 [height, 3 widths, 3]: before, after, where they differ."""
    both = np.full((2, max(len(before), len(after)), *before.shape[1:]), 255, np.int16)
    both[0, : len(before)], both[1, : len(after)] = before, after
    differs = np.abs(both[0] - both[1]).max(-1) > LEAST
    differs[min(len(before), len(after)) :] = True
    marked = np.where(differs[..., None], (220, 0, 0), 128 + both[1] // 2)
    return int(differs.sum()), np.concatenate((*both, marked), 1).astype(np.uint8)


def main() -> None:
    """Prints the table and writes the pictures."""
    parser = argparse.ArgumentParser("python -m benchmarks.pages", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/pages"), help="for pictures of what differs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = sorted(path.relative_to(options.after) for path in options.after.rglob("*.html"))
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        for name, width in ((name, width) for name in names for width in WINDOWS):
            before, after = (drawn(page, folder / name, width) for folder in (options.before, options.after))
            differing, said, pixels = 0, [], 0
            for place, part in enumerate(part for part in after if part in before):
                count, picture = compared(before[part], after[part])
                differing, pixels = differing + count, pixels + picture.size // 9
                if count:
                    said.append(f"{part or 'top'} {100 * 9 * count / picture.size:.2f} %")
                    Image.fromarray(picture).save(options.out / f"{'-'.join(name.parts)[:-5]}-{width}-{place}.png")
            said += [f"{'new' if part in after else 'gone'}: {part}" for part in sorted(after.keys() ^ before.keys())]
            print(f"{name} | {width} | {100 * differing / pixels:.2f} % | {'; '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
