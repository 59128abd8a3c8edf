"""Where and when pictures were taken, from their EXIF data."""

from __future__ import annotations

import contextlib
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
from PIL import ExifTags, Image

from linnaeus_jax.data.decoding import open_header
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.dates import UNKNOWN_ZONE
from linnaeus_jax.reading.metadata import Observation, is_unset_place

COLUMNS: tuple[str, ...] = ("latitude", "longitude", "date", "time", "elevation")
_NONE: tuple[str | None, ...] = (None,) * len(COLUMNS)
#: formats whose EXIF data Pillow finds without decoding pixels
_WITH_HEAD = ("JPEG", "MPO", "TIFF", "WEBP", "HEIF")
_MOMENT = re.compile(r"(\d{4})[:-](\d\d)[:-](\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?))?")
_OFFSET = re.compile(r"[+-]\d\d:\d\d")
_AT_ONCE = 1024
#: bytes of a JPEG that its header nearly always fits into
_HEAD = 2**20
#: what begins the EXIF segment of a JPEG
_EXIF = b"Exif\0\0"


def read_exif(root: Path, pictures: Sequence[str], progress: schema.Progress | None = None) -> pl.DataFrame:
    """EXIF data of pictures below a folder, in threads; pixels are not decoded.

    Returns:
      String columns `latitude`, `longitude` (degrees), `date`, `time` (as the camera's clock was set, with its offset
      from UTC where the camera knows it), `elevation` (metres), null where a picture has none or cannot be read; and
      `zone`, `UNKNOWN_ZONE` where a time has no offset.
    """
    found: list[tuple[str | None, ...]] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
        warnings.simplefilter("ignore")  # Pillow's, of corrupt data: it counts as none
        for start in range(0, len(pictures), _AT_ONCE):
            found += pool.map(lambda path: exif_of(root / path), pictures[start : start + _AT_ONCE])
            if progress:
                progress("reading EXIF", len(found), len(pictures))
    frame = pl.DataFrame(found, dict.fromkeys(COLUMNS, pl.String), orient="row")
    local = pl.col("time").str.contains(r"[+-]").not_()
    return frame.with_columns(pl.when(local).then(pl.lit(UNKNOWN_ZONE)).alias("zone"))


def exif_of(path: Path) -> tuple[str | None, ...]:
    """The columns of one picture."""
    try:
        return _values_of(_header_of(path))
    except Exception:  # whatever Pillow makes of a damaged file: decoding it will tell
        return _NONE


def observation_of(data: bytes) -> tuple[Observation, tuple[str, ...]]:
    """Place, moment and elevation in the EXIF data of a picture's file; pixels are not decoded.

    The moment is `DateTimeOriginal` with `OffsetTimeOriginal`. Without the offset the camera's clock is of an unknown
    zone: then only the day is used. A place at exactly 0, 0 is what cameras write that have not found theirs.

    Args:
      data: the bytes of the file.

    Returns:
      The observation, and what was not used and why.
    """
    if data[:2] == b"\xff\xd8" and _EXIF not in data:  # most pictures from the web: nothing to look for
        return Observation(), ()
    try:
        latitude, longitude, date, time, elevation = _values_of(open_header(data))
    except Exception:  # as in `exif_of`
        return Observation(), ()
    notes: tuple[str, ...] = ()
    if latitude is not None and longitude is not None and is_unset_place(float(latitude), float(longitude)):
        latitude = longitude = elevation = None
        notes = ("EXIF says latitude 0, longitude 0, as cameras do that have not found their place: it is not used",)
    if date and time and ("+" in time or "-" in time):
        date = f"{date}T{time}"
    return Observation(latitude, longitude, date, elevation), notes


def _header_of(path: Path) -> Image.Image:
    """A picture whose pixels are not read; of a JPEG, its end is not read either."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if head[:2] == b"\xff\xd8":
            with contextlib.suppress(ValueError):
                return open_header(head)
        return open_header(head + file.read())


def _values_of(image: Image.Image) -> tuple[str | None, ...]:
    """The columns of one picture; none for formats whose EXIF data would need decoding."""
    if image.format not in _WITH_HEAD:
        return _NONE
    exif = image.getexif()
    place, camera = exif.get_ifd(ExifTags.IFD.GPSInfo), exif.get_ifd(ExifTags.IFD.Exif)
    latitude = _degrees(place, ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "S")
    longitude = _degrees(place, ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "W")
    if latitude is None or longitude is None:
        latitude = longitude = None
    date, time = _date_and_time(camera.get(ExifTags.Base.DateTimeOriginal))
    offset = camera.get(ExifTags.Base.OffsetTimeOriginal)
    if time and isinstance(offset, str) and (match := _OFFSET.match(offset.strip("\0 "))):
        time += match[0]
    return latitude, longitude, date, time, _elevation(place)


def _degrees(place: Mapping[int, Any], tag: int, reference: int, negative: str) -> str | None:
    """Degrees, minutes and seconds as decimal degrees; six decimals are 0.1 m."""
    try:
        parts = [float(part) for part in place[tag]]
        value = sum(part / 60**power for power, part in enumerate(parts[:3]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    sign = -1 if str(place.get(reference, "")).strip("\0 ").upper() == negative else 1
    return f"{sign * value:.6f}" if math.isfinite(value) else None


def _elevation(place: Mapping[int, Any]) -> str | None:
    try:
        value = float(place[ExifTags.GPS.GPSAltitude])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    below = place.get(ExifTags.GPS.GPSAltitudeRef) in (1, b"\x01")
    return f"{-value if below else value:.1f}" if math.isfinite(value) else None


def _date_and_time(text: Any) -> tuple[str | None, str | None]:
    """ "2020:05:01 12:30:00" -> ("2020-05-01", "12:30:00"); a clock that was never set is none."""
    match = _MOMENT.match(text) if isinstance(text, str) else None
    if match is None or match[1] == "0000":
        return None, None
    return f"{match[1]}-{match[2]}-{match[3]}", match[4]
