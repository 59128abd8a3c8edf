"""Pictures of the demo animals: butterflies, beetles and fishes, drawn from polygons.

A look is inherited along the tree: the body plan belongs to the family, the colour to the genus, the pattern to the
species. Everything else (pose, light, background, noise) is a nuisance drawn anew for every picture. Shapes live in a
body frame with the head at y = -1 and the flanks at x = -1 and 1; they are drawn at twice the size and averaged down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]  # [P, 2], x to the right, y down
Image = NDArray[np.uint8]  # [H, W, 3], RGB
Color = tuple[int, int, int]

SUPERSAMPLING = 2
SCALE = (0.22, 0.36)  # of a body unit, in picture sides
LIGHT = (0.7, 1.2)  # overall brightness
TURN = 180.0  # degrees to either side
SHIFT = 0.18  # of the centre, in picture sides
TONE = 14.0  # standard deviation of the ground colour between individuals, in grey levels
DARK: Color = (38, 30, 34)
PALE: Color = (250, 240, 212)
COLORS: dict[str, Color] = {
    "red": (214, 62, 44),
    "yellow": (240, 186, 48),
    "green": (52, 164, 112),
    "blue": (72, 104, 204),
}
GROUNDS: tuple[tuple[Color, Color], ...] = (  # two tones of one ground: meadow, sand, stone, bark, water
    ((92, 122, 70), (148, 168, 104)),
    ((196, 176, 138), (222, 206, 172)),
    ((128, 128, 126), (172, 174, 172)),
    ((110, 88, 70), (152, 126, 100)),
    ((112, 146, 158), (160, 190, 196)),
)


@dataclass(frozen=True)
class Look:
    """What can be seen of a species: `body` from BODIES, `color` from COLORS, `pattern` from PATTERNS."""

    body: str
    color: str
    pattern: str


@dataclass(frozen=True)
class Body:
    """A body plan: coloured areas (they carry the pattern), dark areas, limbs as lines, eyes, eyespot places."""

    areas: tuple[Points, ...]
    eyespots: tuple[tuple[float, float], ...]
    dark: tuple[Points, ...] = ()
    limbs: tuple[Points, ...] = ()
    eyes: tuple[Points, ...] = ()
    heading: float = 0.0  # degrees; turns the head from "up" to the usual pose


# ---- shapes ------------------------------------------------------------------------------------------------------


def _rgb(values: NDArray[np.floating]) -> Color:
    red, green, blue = (int(value) for value in np.clip(values, 0, 255))
    return red, green, blue


def _smooth(*points: tuple[float, float]) -> Points:
    """Rounds a closed polygon by cutting its corners (Chaikin, 1974), three times."""
    polygon = np.array(points, float)
    for _ in range(3):
        following = np.roll(polygon, -1, axis=0)
        polygon = np.stack([0.75 * polygon + 0.25 * following, 0.25 * polygon + 0.75 * following], axis=1)
        polygon = polygon.reshape(-1, 2)
    return polygon


def _oval(x: float, y: float, width: float, height: float) -> Points:
    angle = np.linspace(0.0, 2 * np.pi, 24, endpoint=False)
    return np.stack([x + width * np.cos(angle), y + height * np.sin(angle)], axis=1)


def _mirrored(*shapes: Points) -> tuple[Points, ...]:
    """The shapes and their mirror images at x = 0."""
    flip = np.array([[-1.0, 1.0]])
    return tuple(side for shape in shapes for side in (shape, shape * flip))


def _line(*points: tuple[float, float]) -> Points:
    return np.array(points, float)


def _butterfly(forewing: Points, hindwing: Points, eyespot: tuple[float, float]) -> Body:
    feeler = _line((0.02, -0.42), (0.12, -0.72), (0.26, -0.9))
    return Body(
        areas=_mirrored(hindwing, forewing),
        dark=(_oval(0, 0.06, 0.085, 0.5), _oval(0, -0.46, 0.09, 0.1)),
        limbs=_mirrored(feeler),
        eyespots=(eyespot, (-eyespot[0], eyespot[1])),
    )


def _beetle(wings: Points, collar: Points, head: Points, half_width: float, feeler: Points) -> Body:
    legs = [
        _line((0.6 * half_width, y), (half_width + 0.2, y + lift), (half_width + 0.3, y + 2.2 * lift))
        for y, lift in ((-0.2, -0.1), (0.15, 0.03), (0.42, 0.14))
    ]
    return Body(
        areas=(wings,),
        dark=(collar, head),
        limbs=_mirrored(feeler, *legs),
        eyespots=((0.5 * half_width, 0.2), (-0.5 * half_width, 0.2)),
    )


def _fish(flank: Points, tail: Points, fins: tuple[Points, ...], eye: tuple[float, float], eyespot: float) -> Body:
    return Body(
        areas=(tail, *fins, flank),
        eyes=(_oval(*eye, 0.12, 0.12), _oval(*eye, 0.06, 0.06)),
        eyespots=((0.0, eyespot),),
        heading=-90.0,
    )


@cache
def bodies() -> dict[str, Body]:
    """The six body plans by name, one per family."""
    return {
        "round-winged butterfly": _butterfly(
            _smooth((0.02, -0.3), (0.3, -0.85), (0.85, -0.95), (1.08, -0.55), (0.8, 0.0), (0.02, 0.1)),
            _smooth((0.02, -0.05), (0.75, 0.0), (0.98, 0.4), (0.7, 0.9), (0.25, 0.85), (0.02, 0.35)),
            (0.62, -0.42),
        ),
        "tailed butterfly": _butterfly(
            _smooth((0.02, -0.25), (0.5, -0.7), (1.3, -1.0), (1.15, -0.6), (0.65, -0.02), (0.02, 0.05)),
            _smooth(
                *((0.02, -0.05), (0.6, -0.1), (0.72, 0.3), (0.5, 0.6), (0.66, 1.25)),
                *((0.42, 1.25), (0.28, 0.7), (0.02, 0.4)),
            ),
            (0.62, -0.48),
        ),
        "dome beetle": _beetle(
            _smooth(
                (0, -0.5), (0.6, -0.5), (0.88, 0.1), (0.7, 0.85), (0, 1.0), (-0.7, 0.85), (-0.88, 0.1), (-0.6, -0.5)
            ),
            _oval(0, -0.46, 0.42, 0.24),
            _oval(0, -0.68, 0.2, 0.15),
            0.76,
            _line((0.1, -0.75), (0.26, -0.92), (0.4, -0.9)),
        ),
        "longhorn beetle": _beetle(
            _smooth(
                (0, -0.4), (0.42, -0.42), (0.4, 0.3), (0.26, 1.0), (0, 1.1), (-0.26, 1.0), (-0.4, 0.3), (-0.42, -0.42)
            ),
            _oval(0, -0.46, 0.28, 0.2),
            _oval(0, -0.7, 0.19, 0.17),
            0.38,
            _line((0.1, -0.8), (0.45, -1.05), (0.8, -0.75), (0.98, -0.2), (1.0, 0.3)),
        ),
        "disc fish": _fish(
            _smooth((0, -0.95), (0.55, -0.5), (0.68, 0.05), (0.3, 0.55), (-0.3, 0.55), (-0.68, 0.05), (-0.55, -0.5)),
            _smooth((0.1, 0.4), (0.42, 1.0), (0.0, 0.9), (-0.42, 1.0), (-0.1, 0.4)),
            _mirrored(_smooth((0.4, -0.4), (1.0, 0.35), (0.85, 0.75), (0.2, 0.4))),
            (0.16, -0.52),
            0.12,
        ),
        "arrow fish": _fish(
            _smooth(
                (0, -1.25), (0.26, -0.85), (0.34, -0.2), (0.12, 0.75), (-0.12, 0.75), (-0.34, -0.2), (-0.26, -0.85)
            ),
            _smooth((0.08, 0.55), (0.55, 1.25), (0.3, 1.15), (0.0, 0.85), (-0.3, 1.15), (-0.55, 1.25), (-0.08, 0.55)),
            _mirrored(_smooth((0.2, -0.15), (0.55, 0.15), (0.45, 0.32), (0.12, 0.3))),
            (0.1, -0.86),
            0.1,
        ),
    }


# ---- drawing -----------------------------------------------------------------------------------------------------


class Canvas:
    """A picture under construction; every shape passes through the pose `matrix` [2, 3] into pixels."""

    def __init__(self, pixels: Image, matrix: NDArray[np.float64]) -> None:
        self.pixels = pixels
        self.matrix = matrix

    def place(self, points: Points) -> NDArray[np.int32]:
        """Body frame to pixels, in cv2's fixed point with 4 fractional bits."""
        placed = points @ self.matrix[:, :2].T + self.matrix[:, 2][None, :]
        return np.round(placed * 16).astype(np.int32)

    def fill(self, points: Points, color: Color) -> None:
        cv2.fillPoly(self.pixels, [self.place(points)], color, cv2.LINE_AA, shift=4)

    def stroke(self, points: Points, color: Color, width: float, closed: bool = False) -> None:
        """`width` in body units."""
        scale = float(np.sqrt(abs(np.linalg.det(self.matrix[:, :2]))))
        thickness = max(1, round(width * scale))
        cv2.polylines(self.pixels, [self.place(points)], closed, color, thickness, cv2.LINE_AA, shift=4)


def _spots(canvas: Canvas, body: Body) -> None:
    for row, y in enumerate(np.arange(-1.05, 1.2, 0.4)):
        for x in np.arange(-1.2, 1.3, 0.48) + 0.24 * (row % 2):
            canvas.fill(_oval(x, y, 0.12, 0.12), DARK)


def _bands(canvas: Canvas, body: Body) -> None:
    for y in (-0.62, 0.0, 0.62):
        canvas.fill(_line((-1.5, y - 0.12), (1.5, y - 0.12), (1.5, y + 0.12), (-1.5, y + 0.12)), PALE)


def _stripes(canvas: Canvas, body: Body) -> None:
    for x in (-0.78, -0.46, -0.15, 0.15, 0.46, 0.78):
        canvas.stroke(_line((x, -1.5), (x, 1.5)), DARK, 0.13)


def _rim(canvas: Canvas, body: Body) -> None:
    for area in body.areas:
        canvas.stroke(area, DARK, 0.36, closed=True)


def _eyespots(canvas: Canvas, body: Body) -> None:
    radius = 0.32 if body.heading or len(body.areas) > 1 else 0.25
    for x, y in body.eyespots:
        for share, color in ((1.0, PALE), (0.66, DARK), (0.22, PALE)):
            canvas.fill(_oval(x, y, radius * share, radius * share), color)


def _plain(canvas: Canvas, body: Body) -> None:
    """Nothing but the ground colour."""


PATTERNS: dict[str, Callable[[Canvas, Body], None]] = {
    "spotted": _spots,
    "banded": _bands,
    "striped": _stripes,
    "rimmed": _rim,
    "eyed": _eyespots,
    "plain": _plain,
}


def _pose(rng: np.random.Generator, body: Body, side: int) -> NDArray[np.float64]:
    """Random scale, slimness, turn, mirroring (fishes look to either side) and shift, as a matrix [2, 3]."""
    scale = side * rng.uniform(*SCALE)
    slim = np.diag([scale * rng.uniform(0.88, 1.08), scale])
    angle = np.deg2rad(body.heading + rng.uniform(-TURN, TURN))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    mirror = np.diag([-1.0 if body.heading and rng.random() < 0.5 else 1.0, 1.0])
    shift = side * (0.5 + rng.uniform(-SHIFT, SHIFT, 2))
    return np.concatenate([mirror @ turn @ slim, shift[:, None]], axis=1)


def _background(rng: np.random.Generator, side: int) -> Image:
    """Two tones of one ground in soft patches, with blades and pebbles."""
    low, high = (np.array(tone, np.float32) for tone in GROUNDS[rng.integers(len(GROUNDS))])
    patches = cv2.resize(rng.random((4, 4), np.float32), (side, side), interpolation=cv2.INTER_CUBIC)
    pixels = np.clip(low + patches[:, :, None] * (high - low), 0, 255).astype(np.uint8)
    identity = Canvas(pixels, np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    for _ in range(rng.integers(3, 8)):
        tone = low + rng.uniform(-0.5, 1.5) * (high - low)
        color = _rgb(tone)
        x, y = rng.uniform(0, side, 2)
        if rng.random() < 0.5:
            identity.fill(_oval(x, y, *rng.uniform(0.03 * side, 0.09 * side, 2)), color)
        else:
            dx, dy = rng.uniform(-0.4, 0.4, 2) * side
            identity.stroke(_line((x, y), (x + dx, y + dy)), color, rng.uniform(0.02, 0.05) * side)
    return pixels


def _animal(canvas: Canvas, body: Body, look: Look, tone: Color) -> NDArray[np.uint8]:
    """Draws the animal; returns its silhouette, uint8 [H, W]."""
    silhouette = Canvas(np.zeros(canvas.pixels.shape[:2], np.uint8), canvas.matrix)
    for limb in body.limbs:
        canvas.stroke(limb, DARK, 0.07)
    for area in body.areas:
        canvas.fill(area, tone)
        silhouette.fill(area, (255, 255, 255))
    decorated = Canvas(canvas.pixels.copy(), canvas.matrix)
    PATTERNS[look.pattern](decorated, body)
    cv2.copyTo(decorated.pixels, (silhouette.pixels > 127).astype(np.uint8), canvas.pixels)
    for limb in body.limbs:
        silhouette.stroke(limb, (255, 255, 255), 0.07)
    edge = _rgb(0.62 * np.array(tone))
    for area in body.areas:
        canvas.stroke(area, edge, 0.04, closed=True)
    if len(body.areas) == 1:  # the seam between the wing cases of a beetle
        canvas.stroke(_line((0, -0.3), (0, 0.9)), DARK, 0.05)
    for area in body.dark:
        canvas.fill(area, DARK)
        silhouette.fill(area, (255, 255, 255))
    for area, color in zip(body.eyes, (PALE, DARK)):
        canvas.fill(area, color)
    return silhouette.pixels


def draw(rng: np.random.Generator, look: Look, size: int) -> Image:
    """Draws one picture of an animal with this look.

    Args:
      rng: source of every nuisance: pose, colour of the individual, light, background, noise.
      look: body plan, colour and pattern.
      size: side of the picture in pixels.

    Returns:
      uint8 [size, size, 3], RGB.
    """
    side = SUPERSAMPLING * size
    body = bodies()[look.body]
    matrix = _pose(rng, body, side)
    ground = _background(rng, side)
    tone = _rgb(np.array(COLORS[look.color]) + rng.normal(0, TONE, 3))
    canvas = Canvas(ground.copy(), matrix)
    silhouette = _animal(canvas, body, look, tone)

    blur = cv2.GaussianBlur(silhouette, (0, 0), 0.03 * side).astype(np.float32) / 255
    drop = np.roll(blur, (round(0.03 * side), round(0.02 * side)), axis=(0, 1))
    outside = (silhouette < 128).astype(np.float32)
    shade = outside * (1 - 0.45 * drop) + (1 - outside) * (0.72 + 0.32 * blur)  # shadow on the ground, rounded body

    angle = rng.uniform(0, 2 * np.pi)
    ramp = np.linspace(-1, 1, side, dtype=np.float32)
    light = 1 + 0.14 * (np.cos(angle) * ramp[None, :] + np.sin(angle) * ramp[:, None])
    tint = rng.uniform(*LIGHT) * (1 + rng.normal(0, 0.04, 3))
    pixels = canvas.pixels * (shade * light)[:, :, None] * tint.astype(np.float32)[None, None, :]
    small = cv2.resize(pixels, (size, size), interpolation=cv2.INTER_AREA)
    return np.clip(small + rng.normal(0, 5, small.shape), 0, 255).astype(np.uint8)
