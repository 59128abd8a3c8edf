"""Names of taxa as people write them -> one spelling: the one grammar for every source and rank.

A scientific name is read as the codes of nomenclature write it: a genus with a capital letter, an epithet in small
letters, maybe a subgenus in brackets, a mark of a hybrid, what is below the species, authors and year. Whether names
are scientific at all is decided for all names of a column together (`NameClassifier`): a data set of "Granny Smith" and
"Great spotted woodpecker" is left as it is written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MODES = ("auto", "scientific", "plain")
HYBRID = "×"
#: what stands for "not known", whatever the rank; compared without case and without a point at the end
_UNKNOWN = frozenset(
    (
        *"na n/a #n/a #n-a #name? #null! #num! #ref! #value! #wert! #nv".split(),
        *"unidentified undetermined undet unknown unsure uncertain indeterminate indet unidentifiable".split(),
        *"sp spp species ssp gen genus fam tbd tba".split(),
        *("not identified", "#n a", "not determined", "not known", "no identification", "no id", "to be determined"),
        *(
            "incertae sedis",
            "gen sp",
            "gen. sp",
            "genus species",
            "sp. indet",
            "indet. sp",
            "species indet",
            "fam. gen",
        ),
        *("unknown species", "unidentified species", "unknown sp", "unidentified sp", "undetermined species"),
        *("unknown taxon", "unknown genus", "unknown family", "no name", "no data"),
    )
)
_NO_LETTERS = re.compile(r"[-–—−?.*_/\\#!]+")  # "-", "???", "..."
#: words behind a genus that say that the species is not known or not sure
_UNSURE = frozenset("sp spp spec species indet ssp subsp cf cfr conf aff nr near gr agg group complex".split())
#: those of them that stand in no other kind of name
_SURELY_UNSURE = frozenset("sp spp indet cf cfr aff".split())
#: words between two names of which one is meant
_OR = frozenset(("or", "/", "&", "and", "vs", "vs."))
#: words of authors' names that look like epithets
_AUTHOR_WORDS = frozenset("de van von ex et da del der den di du le la and in non nec auct sensu emend".split())
#: marks of ranks below the species, and how they are written here; zoologists write none for a subspecies
_BELOW = {
    **dict.fromkeys(("subsp", "ssp", "subspecies"), ""),
    **dict.fromkeys(("var", "variety", "varietas", "v"), "var."),
    **dict.fromkeys(("f", "fo", "forma", "form", "fma"), "f."),
    **dict.fromkeys(("subvar", "subvariety"), "subvar."),
    **dict.fromkeys(("subf", "subforma"), "subf."),
}
_GENUS = re.compile(r"[^\W\d_a-z][^\W_]+(-[^\W_]+)?")  # digits occur in provisional names
_EPITHET = re.compile(r"[^\W\d_A-Z][^\W_A-Z]+(-[^\W_]+)*|\d+-[^\W\d_]+")
_NUMBERED = re.compile(r"sp+\.?\d+")  # one of several unknown species
_TWO_WORDS = re.compile(r"[^\W\d_]{2,}(-[^\W\d_]+)?[ _][^\W\d_]{2,}(-[^\W\d_]+)?")
#: authors that cannot be anything else: with a year, in brackets, or abbreviated
_YEAR = re.compile(r"[^\W\d_].*\b(1[5-9]|20)\d\d\)?\]?$")
_AUTHOR = re.compile(r"\(?[^\W\d_a-z][^\W\d_]*\.|\([^\W\d_a-z]|\(?(Linnaeus|Linné|Fabricius)\b")
# Endings of Latin words, but those that English, Italian or Spanish words have as often.
_LATIN_GENUS = re.compile(r"(us|a|um|is|es|ops|ys|x|as|os|ae|odon|dron|eron)$")
_LATIN_EPITHET = re.compile(r"(us|a|um|is|e|i|ae|ns|x|or|os|es|as|ops|ys)$")
_LATIN_ALONE = re.compile(r"(us|um|is|ns|ae|ii|x|ops|ys|oides)$")
#: these as well where most names are scientific: Falco, Passer, Erigeron, Aloe; leo, niger, baileyi
_MAYBE_LATIN = re.compile(
    rf"({_LATIN_GENUS.pattern[:-1]}|{_LATIN_EPITHET.pattern[:-1]}|o|er|on|e|i|ar|ur|el|il|al|ex|en)$"
)
_VIRUS = re.compile(r".*(virus|viroid|phage)(es|s)?", re.IGNORECASE)
_FAMILY = re.compile(r"[^\W\d_]+(idae|aceae)$")
#: endings of names of coarser ranks, which hardly any genus has
_COARSER = re.compile(r"(idae|aceae|inae|oideae|ales|formes|oidea|ptera|phyta|mycota|opsida|mycetes|viridae)$")
_NOT_LATIN = re.compile(r"[áéíóúàèìòùâêîôûãõçñßœåøæ]")
_QUOTES = frozenset((('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»")))
#: share of the names of several words that must look Latin, and of those that cannot be Italian or Spanish either
_LEAST_LATIN, _LEAST_ALONE = 0.5, 0.2


def tidy(text: str) -> str:
    """One form of Unicode, single spaces of one kind, nothing invisible."""
    text = unicodedata.normalize("NFC", text)
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())


def is_unknown(text: str) -> bool:
    """Whether a text says that no name is known: "-", "?", "#N/A", "unidentified", "indet.", "sp." ..."""
    word = tidy(text).replace("_", " ").strip("()[]\"' ")
    if word == "NaN":  # "nan" may be a name
        return True
    word = word.casefold()
    said = word.rstrip(". ")
    return not word or said in _UNKNOWN or said.endswith(" incertae sedis") or bool(_NO_LETTERS.fullmatch(word))


@dataclass(frozen=True)
class Name:
    """A text read as a scientific name.

    Attributes:
      genus: or the name of a coarser taxon, with its mark of a hybrid; None where it is not sure.
      species: genus and epithet; None where it is not known.
      below: the same with what is below the species; None where it names nothing below it.
      certain: whether it holds what only scientific names have, such as authors with a year.
    """

    genus: str | None
    species: str | None = None
    below: str | None = None
    certain: bool = False


def read_name(text: str) -> Name | None:
    """Reads a text as a scientific name, whatever its case, authors and marks; None where it has not that form.

    "PARUS MAJOR", "Parus major L.", "Bombus (Pyrobombus) impatiens Cresson, 1863" and "Quercus x hispanica Lam." name a
    species; "Parus", "Parus sp.", "Parus cf. major", "Larus argentatus/fuscus" and a formula of two parents, such as
    "Salix alba x fragilis", a genus alone.
    """
    words = _words(text)
    if any(_VIRUS.fullmatch(word) for word in words):
        return None
    mark = words[:1] == [HYBRID]
    words = words[mark:]
    if words and words[0].rstrip(".").casefold() in ("cf", "aff", "?"):  # of the genus
        return Name(None, certain=True) if len(words) > 1 and _GENUS.fullmatch(words[1]) else None
    if not words or not _GENUS.fullmatch(words[0].rstrip(",;?")):
        return None
    genus = f"{HYBRID} " * mark + words[0].rstrip(",;?")
    rest = words[1:]
    if words[0].endswith("?"):
        return Name(None)
    if len(rest) > 1 and rest[0][0] == "(" and rest[0][-1] == ")":  # the subgenus
        rest = rest[1:]
    if not rest or rest[0] == "?" or (len(rest) == 1 and rest[0][0] == "("):
        return Name(genus)
    between = rest[0] == HYBRID
    word, rest = (rest[1] if len(rest) > 1 else "") if between else rest[0], rest[1 + between :]
    doubted = word[0:1] == "?" or word[-1:] == "?" or any("?" in other for other in rest)
    authors = " ".join([word, *rest])
    word = word.strip("?,;:")
    plain = word.rstrip(".").casefold()
    if not between and (plain in _UNSURE or _NUMBERED.fullmatch(plain)):
        return Name(genus, certain=plain in _SURELY_UNSURE or (plain[:2] == "sp" and plain[-1].isdigit()))
    if "/" in word and all(map(_EPITHET.fullmatch, word.split("/"))):
        return Name(genus)
    if plain in _AUTHOR_WORDS or not _EPITHET.fullmatch(word):
        if between:
            return None
        return Name(genus, certain=("," in authors and bool(_YEAR.match(authors))) or bool(_AUTHOR.match(authors)))
    if HYBRID in rest:
        other = rest[rest.index(HYBRID) + 1 :]
        same = other and (other[0] == words[0] or not _GENUS.fullmatch(other[0]) or other[0].endswith("."))
        return Name(genus if same else None, certain=text.find(HYBRID) >= 0)
    if doubted or (rest and (rest[0] in _OR or rest[-1].rstrip(".") in ("cf", "cfr"))):
        return Name(genus)
    species = genus + (f" {HYBRID} " if between else " ") + word
    marked = any(_below_mark(one) is not None for one in rest[:-1])
    certain = mark or between or marked or _is_authorship(rest)
    return Name(genus, species, _with_below(species, rest), certain)


def _words(text: str) -> list[str]:
    """The words of a name as its grammar wants them: spaces for "_", one mark of hybrids, usual capital letters."""
    text = tidy(text).strip("† ")
    if len(text) > 2 and (text[0], text[-1]) in _QUOTES:
        text = text[1:-1].strip()
    if " " not in text:
        text = text.replace("_", " ").strip()
    if text.isupper() or (text.islower() and (_TWO_WORDS.fullmatch(text) or len(text.split()) > 1)):
        start = next((k for k, c in enumerate(text) if c.isalpha() and text[k : k + 2].casefold() != "x "), 0)
        text = text[:start].lower() + text[start : start + 1].upper() + text[start + 1 :].lower()
    for sign in ("✕", "✖", "⨯", "╳"):
        text = text.replace(sign, HYBRID)
    words = text.replace(HYBRID, f" {HYBRID} ").split()
    return [HYBRID if word in ("x", "X") else word for word in words]


def _is_authorship(words: Sequence[str]) -> bool:
    """Whether words can be nothing but the authors of a name."""
    text = " ".join(words)
    return bool(_YEAR.match(text) and not text[0].islower()) or _AUTHOR.match(text) is not None


def _below_mark(word: str) -> str | None:
    """How the mark of a rank below the species is written, "" for a subspecies; None for another word."""
    return _BELOW.get(word.rstrip(".")) if word.endswith(".") or len(word) > 2 else None


def _with_below(species: str, rest: list[str]) -> str | None:
    """A name with what is below the species, from the words behind its epithet."""
    for place, word in enumerate(rest[:-1]):
        mark = _below_mark(word)
        if mark is not None and _EPITHET.fullmatch(rest[place + 1]):
            return " ".join(filter(None, (species, mark, rest[place + 1])))
    word = rest[0].rstrip(",;") if rest else ""
    if not _EPITHET.fullmatch(word) or word.rstrip(".") in _AUTHOR_WORDS | _UNSURE:
        return None
    return f"{species} {word}"


def is_epithet(text: str) -> bool:
    """Whether a word has the form of an epithet."""
    return _EPITHET.fullmatch(text) is not None


def binomial(text: str) -> str | None:
    """Genus and epithet of a scientific name, see `read_name`; None where it names no species for sure."""
    name = read_name(text)
    return name.species if name else None


def without_authors(text: str) -> str:
    """A scientific name of any rank without authors: the binomial, or the first word."""
    name = read_name(text)
    return (name and (name.species or name.genus)) or (text.split() or [text])[0]


def is_family(name: str) -> bool:
    """Whether a name ends as those of families do, and of no other rank."""
    return _FAMILY.fullmatch(name) is not None


def may_be_genus(name: str) -> bool:
    """Whether a name of one word does not end as those of families, orders and coarser taxa do."""
    return _COARSER.search(name) is None


def _parts(name: Name) -> tuple[str, str]:
    """Genus and epithet in small letters without marks of hybrids, "" where one is not known."""
    genus, _, epithet = (name.species or name.genus or "").removeprefix(f"{HYBRID} ").partition(" ")
    return genus.lower(), epithet.removeprefix(f"{HYBRID} ")


def _looks_latin(name: Name) -> bool:
    genus, epithet = _parts(name)
    latin = _LATIN_GENUS.search(genus) and (not epithet or _LATIN_EPITHET.search(epithet))
    return bool(latin) and not _NOT_LATIN.search(f"{genus}{epithet}")


def _may_be_latin(name: Name) -> bool:
    return all(not part or _MAYBE_LATIN.search(part) for part in _parts(name))


class NameClassifier:
    """Whether the names of one column are scientific, and what they are then called.

    Where `mode` is "auto", they are if most names of several words look like Latin binomials; else only those names are
    read as scientific that hold what no other names have. "scientific" and "plain" decide it beforehand.
    """

    def __init__(self, texts: Iterable[str], mode: str = "auto", genera: Iterable[str] = ()) -> None:
        """Args: texts: the distinct names; genera: those that another column gives."""
        self.sure, self._plain = mode == "scientific", mode == "plain"
        known = [tidy(text) for text in texts if not is_unknown(text)]
        several = {text: read_name(text) for text in known if len(_split(text)) > 1}
        titled = {text: name for text in several if _is_titled(text) and (name := read_name(_lowered(text)))}
        titled = {text: name for text, name in titled.items() if name.species and _may_be_latin(name)}
        latin = [name for name in several.values() if name and name.species and _looks_latin(name)]
        latin_titled = [name for name in titled.values() if _looks_latin(name)]
        self._titled = not self.sure and len(latin_titled) > len(latin)
        if self._titled:
            several |= titled
            latin += latin_titled
        against = [name for text, name in several.items() if text not in titled and not _may_count(name)]
        alone = [name for name in latin if any(map(_LATIN_ALONE.search, _parts(name)))]
        votes = len(latin) + len(against)
        enough = len(latin) >= _LEAST_LATIN * votes and len(alone) >= _LEAST_ALONE * votes
        self.scientific = self.sure or (not self._plain and enough and bool(latin))
        found = [name for name in several.values() if name and name.species]
        self._species = {name.species.casefold() for name in found if name.species}
        self._genera = {name.genus.casefold() for name in found if name.genus} | {g.casefold() for g in genera}

    def read(self, text: str) -> Name | None:
        """A text as a scientific name; None where it is not taken for one."""
        if self._plain or is_unknown(text):
            return None
        name = read_name(text)
        if self.scientific and _is_titled(text) and not (name and name.species):
            lower = read_name(_lowered(text))
            if lower and lower.species and (self._titled or lower.species.casefold() in self._species):
                return lower
        if self.sure or name is None:
            return name
        if not self.scientific or not _may_be_latin(name):
            return name if name.certain and _looks_latin(name) else None
        if name.species or name.certain or (name.genus or "").casefold() in self._genera:
            return name
        return name if len(_split(text)) > 1 and not _is_titled(text) else None

    def coarser(self, text: str) -> str | None:
        """A name of a genus or a coarser taxon: without authors, with a capital letter; None where none is known."""
        if is_unknown(text):
            return None
        text = tidy(text)
        if self._plain:
            return text
        if text.isalpha() and (text.isupper() or text.islower()):
            return text.capitalize() if self.scientific or is_family(text.capitalize()) else text
        name = read_name(text)
        if name is None or name.genus is None or len(_split(text)) == 1:
            return text
        known = self.scientific and name.genus.casefold() in self._genera
        certain = self.sure or known or (name.certain and _looks_latin(Name(name.genus)))
        return self.coarser(name.genus) if certain else text


def _may_count(name: Name | None) -> bool:
    """Whether a name of several words is no argument against names that are scientific."""
    return name is not None and (_may_be_latin(name) if name.species else name.certain)


def _split(text: str) -> list[str]:
    return text.replace("_", " ").split()


def _is_titled(text: str) -> bool:
    """Whether each of two or three words begins with a capital letter, and none can be an author alone."""
    words = _split(tidy(text))
    titled = all(word.isalpha() and word.istitle() for word in words)
    return 2 <= len(words) <= 3 and titled and not _is_authorship(words[1:])


def _lowered(text: str) -> str:
    """ "Parus Major" -> "Parus major"."""
    return " ".join(_split(tidy(text))).capitalize()


def alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups of names that differ only in case, punctuation, author or the mark of a hybrid."""
    words = {name: _split(tidy(name)) for name in names}
    bare = {name: [w for w in parts if w not in (HYBRID, "x", "X")] for name, parts in words.items()}
    short = {" ".join(parts).replace(HYBRID, "").casefold() for parts in bare.values() if len(parts) == 2}
    groups: dict[str, list[str]] = {}
    for name, parts in bare.items():
        key = " ".join(parts).replace(HYBRID, "").casefold()
        first = " ".join(parts[:2]).replace(HYBRID, "").casefold()
        if len(parts) > 2 and first in short and _is_authorship(parts[2:]) | parts[2][:1].isupper():
            key = first
        groups.setdefault(key, []).append(name)
    return [tuple(sorted(group)) for group in groups.values() if len(group) > 1]
