"""The invented species of the demo set: their names, ids, looks and niches."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus_jax.demo.drawing import Look

RANKS = ("taxa_L10", "taxa_L20", "taxa_L30", "taxa_L40")
AXES = ("season", "range", "elevation")  # in the order of the metadata components
EPITHETS = {
    "season": ("vernalis", "aestivalis", "hibernalis"),
    "range": ("orientalis", "australis", "occidentalis"),
    "elevation": ("campestris", "collina", "alpina"),
}
SINGLE_EPITHETS = {
    "spotted": "maculata",
    "banded": "fasciata",
    "striped": "striata",
    "rimmed": "marginata",
    "eyed": "ocellata",
    "plain": "concolor",
}
ENGLISH = {  # of the second part of a species' name
    "vernalis": "spring",
    "aestivalis": "summer",
    "hibernalis": "winter",
    "orientalis": "eastern",
    "australis": "southern",
    "occidentalis": "western",
    "campestris": "lowland",
    "collina": "hill",
    "alpina": "alpine",
    "maculata": "spotted",
    "fasciata": "banded",
    "striata": "striped",
    "marginata": "rimmed",
    "ocellata": "eyed",
    "concolor": "plain",
}
PLURALS = {"butterfly": "butterflies", "beetle": "beetles", "fish": "fishes"}
ORDERS = ("Papilioformes", "Scarabiformes", "Pisciformes")
FAMILIES = (  # name, body plan; two per order
    ("Rotundalidae", "round-winged butterfly"),
    ("Caudalidae", "tailed butterfly"),
    ("Globocaridae", "dome beetle"),
    ("Longicornidae", "longhorn beetle"),
    ("Discopiscidae", "disc fish"),
    ("Sagittidae", "arrow fish"),
)


@dataclass(frozen=True)
class Genus:
    """`axis` splits the look-alikes, which live at `places` of it; `single` is the pattern of the third species, if
    the look-alikes are a pair; `home` is the genus's place on each axis; `rare`: positions of rare species."""

    name: str
    color: str
    axis: str
    places: tuple[int, ...]
    alike: str
    single: str = ""
    home: tuple[int, int, int] = (0, 0, 0)
    rare: tuple[int, ...] = ()


GENERA = (  # two per family
    Genus("Rutilala", "red", "range", (0, 1), "spotted", "rimmed", (1, 0, 0)),
    Genus("Smaragdala", "green", "season", (0, 1, 2), "banded", "", (0, 2, 1), (2,)),
    Genus("Flavicauda", "yellow", "elevation", (0, 2), "striped", "eyed", (1, 1, 0)),
    Genus("Cyanicauda", "blue", "range", (1, 2), "banded", "plain", (0, 0, 2), (2,)),
    Genus("Coccinoides", "red", "elevation", (0, 1, 2), "spotted", "", (1, 2, 0)),
    Genus("Saphirodes", "blue", "season", (0, 1), "rimmed", "banded", (0, 0, 1)),
    Genus("Auricornis", "yellow", "range", (0, 2), "plain", "striped", (2, 0, 2)),
    Genus("Viridicornis", "green", "season", (1, 2), "eyed", "rimmed", (0, 1, 0), (1,)),
    Genus("Aureopiscis", "yellow", "range", (0, 1, 2), "banded", "", (1, 0, 1)),
    Genus("Viridipiscis", "green", "elevation", (1, 2), "plain", "spotted", (2, 1, 0)),
    Genus("Rubrisagitta", "red", "season", (0, 2), "striped", "plain", (0, 2, 2)),
    Genus("Caerulisagitta", "blue", "elevation", (0, 1), "spotted", "banded", (1, 2, 0), (1,)),
)


@dataclass(frozen=True)
class Species:
    """One species: `taxa` are its ids from species to order; `niche` holds (place, narrow) per axis of AXES."""

    name: str
    taxa: tuple[int, int, int, int]
    look: Look
    niche: tuple[tuple[int, bool], ...]
    weight: float  # share of rows relative to the other common species; 0: rare


def _species() -> tuple[Species, ...]:
    result = []
    for g, genus in enumerate(GENERA):
        family = g // 2
        for k in range(3):
            pair_or_triple = k < len(genus.places)
            niche = [(home, False) for home in genus.home]
            pattern, epithet = genus.single, SINGLE_EPITHETS.get(genus.single, "")
            if pair_or_triple:
                axis = AXES.index(genus.axis)
                niche[axis] = (genus.places[k], True)
                pattern, epithet = genus.alike, EPITHETS[genus.axis][genus.places[k]]
            result.append(
                Species(
                    name=f"{genus.name} {epithet}",
                    taxa=(481_203 + 1_009 * g + 37 * k, 118_340 + 211 * g, 52_711 + 97 * family, 47_150 + 8 * (g // 4)),
                    look=Look(FAMILIES[family][1], genus.color, pattern),
                    niche=tuple(niche),
                    weight=0.0 if k in genus.rare else (1.2, 0.9, 1.0)[(g + k) % 3],
                )
            )
    return tuple(result)


SPECIES = _species()


def taxon_names() -> dict[str, dict[int, tuple[str, str]]]:
    """{rank: {taxon id: (name, common name)}} of every taxon."""
    names: dict[str, dict[int, tuple[str, str]]] = {rank: {} for rank in RANKS}
    for i, species in enumerate(SPECIES):
        genus, (family, plan) = GENERA[i // 3], FAMILIES[i // 6]
        shape, kind = plan.split()
        lineage = (
            (species.name, f"{ENGLISH[species.name.split()[1]]} {genus.color} {plan}"),
            (genus.name, f"{genus.color} {shape} {PLURALS[kind]}"),
            (family, f"{shape} {PLURALS[kind]}"),
            (ORDERS[i // 12], PLURALS[kind]),
        )
        for rank, taxon, name in zip(RANKS, species.taxa, lineage, strict=True):
            names[rank][taxon] = name
    return names
