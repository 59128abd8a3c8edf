"""What a camera wrote into a picture: when and where it was taken."""

from __future__ import annotations

from linnaeus_jax.building.exif import directories, values_of
from linnaeus_jax.data.decoding import open_header
from linnaeus_jax.inference.metadata import Observation

#: what begins the EXIF segment of a JPEG
_EXIF = b"Exif\0\0"


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
        place, camera = directories(open_header(data))
        latitude, longitude, date, time, elevation = values_of(place, camera)
    except Exception:  # whatever Pillow makes of a damaged file: decoding it tells what is wrong
        return Observation(), ()
    notes: tuple[str, ...] = ()
    if latitude is not None and longitude is not None and float(latitude) == float(longitude) == 0:
        latitude = longitude = elevation = None
        notes = ("EXIF says latitude 0, longitude 0, as cameras do that have not found their place: it is not used",)
    if date and time and ("+" in time or "-" in time):
        date = f"{date}T{time}"
    return Observation(latitude, longitude, date, elevation), notes
