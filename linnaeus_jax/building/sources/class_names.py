"""Names of classes that a list of files gives as numbers."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import schema
from linnaeus_jax.reading.columns import level_of, plain, rank_name
from linnaeus_jax.reading.delimited import Utf8Blocks, find_dialect
from linnaeus_jax.reading.paths import SUFFIXES, is_picture
from linnaeus_jax.reading.table import opened
from linnaeus_jax.reading.text import printable

# ---- Small text files of a few fields on each line, with commas, tabs, semicolons, bars or spaces between them


_PICTURE_FIRST = re.compile(rf"(?i)^(.*?\.(?:{'|'.join(SUFFIXES)}))\s+(.*)$")


@dataclass(frozen=True)
class FieldLines:
    """The lines of a file.

    Attributes:
      numbers: of each line in its file, from 1.
      fields: of each line; all of the same number.
      header: the fields of a first line that names the others; empty where there is none.
    """

    numbers: list[int]
    fields: list[list[str]]
    header: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Fields on each line."""
        return len(self.fields[0])


def read_text(path: Path) -> str:
    """The text of a file, gzipped or not; lines that are not UTF-8 are read as Latin-1.

    Raises:
      UserError: no such file, or damaged.
    """
    if not path.is_file():
        raise UserError(f"{printable(str(path))} {'is not a file' if path.exists() else 'does not exist'}")
    with opened(path) as source:
        blocks = Utf8Blocks(source, None)
        return blocks.decode_with_fallback(b"".join(iter(blocks.read, b""))).replace("\0", "")


def read_lines(path: Path, separator: str | None = None, *, label_count: int = 0) -> FieldLines:
    """The fields of every line; empty lines and comments that begin with "# " are left out.

    Args:
      path: the file.
      separator: between fields, "\\t" for a tab; None: the commonest of comma, tab, semicolon and bar in the first
        line, else spaces.
      label_count: fields beside a path, which may hold spaces itself; 0: not known.

    Raises:
      UserError: no such file, no lines, or lines of different numbers of fields.
    """
    texts = [(number, text) for number, text in enumerate(read_text(path).splitlines(), 1)]
    texts = [(number, text.strip()) for number, text in texts if text.strip() and not text.startswith("# ")]
    if not texts:
        raise UserError(f"{path.name} is empty")
    char = (separator or find_dialect(texts[0][1].encode()).separator).replace("\\t", "\t")
    if separator is None and char not in texts[0][1]:
        char = " "
    try:
        lines = [_by_spaces(text, label_count) if char == " " else _by(char, text) for _, text in texts]
    except (csv.Error, TypeError) as error:
        raise UserError(f"{path.name} cannot be split at {char!r}: {error}") from None
    if all(len(fields) > 1 and not fields[-1] for fields in lines):  # a separator at the end of every line
        lines = [fields[:-1] for fields in lines]
    width = len(lines[0])
    odd = [place for place, fields in enumerate(lines) if len(fields) != width]
    if odd:
        shown = ", ".join(f"line {texts[place][0]} has {len(lines[place])}" for place in odd[:3])
        raise UserError(
            f"{path.name}: {len(odd)} lines have another number of fields than line {texts[0][0]}, which has {width}: "
            f"{shown} ({printable(texts[odd[0]][1])})"
        )
    return FieldLines([number for number, _ in texts], lines)


def _by(char: str, text: str) -> list[str]:
    return [part.strip() for part in next(csv.reader([text], delimiter=char, skipinitialspace=True))]


def _by_spaces(text: str, label_count: int) -> list[str]:
    """A path, which may hold spaces, and labels."""
    if is_picture(text):
        return [text] if " " not in text or not text.split()[0].isdecimal() else text.split(maxsplit=1)
    match = _PICTURE_FIRST.fullmatch(text)
    if match and label_count == 1:
        return [match[1], match[2]]
    if label_count:
        return text.rsplit(maxsplit=label_count)
    return [match[1], *match[2].split()] if match else text.split()


# ----------------------------------------------------------------------------------------------------------------------


_NUMBER = re.compile(r"[+-]?\d+")
_NUMBER_FIRST = re.compile(r"(\d+)(?:[:)]\s*|\.(?:\s+|(?=[^\s\d]))|\s+)(\S.*)")  # "1.5" is a name
_NUMBER_LAST = re.compile(r"(.*\S)[\s:]+(\d+)")


@dataclass
class ClassNames:
    """What files of class names say.

    Attributes:
      names: level -> number of a class -> its name.
      lines: level -> names by line, of files without numbers.
      above: name of a class of the finest rank -> level -> name of its class there.
    """

    names: dict[str, dict[int, str]] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    above: dict[str, dict[str, str]] = field(default_factory=dict)


def files_of(texts: Sequence[str]) -> list[Path]:
    """The files that "classes.csv" or "fine=fine.txt" name."""
    return [Path(text.partition("=")[2] or text) for text in texts]


def read(texts: Sequence[str], wanted: Sequence[str]) -> ClassNames:
    """Reads files with the names of classes.

    A file has one name on each line, for the numbers from 0 or 1; or a number and a name; or, in CSV, such a pair for
    several ranks, whose columns are named like the ranks or stand in their order; or is JSON: a list, or an object of
    numbers and names.

    Args:
      texts: "classes.csv" for all ranks, or "fine=fine.txt" for one.
      wanted: levels, finest first.

    Raises:
      UserError: no such file or rank, nothing in it that names classes, or two names for one number.
    """
    found = ClassNames()
    own = {rank_name(level): level for level in wanted}
    for text, path in zip(texts, files_of(texts)):
        rank = text.partition("=")[0] if "=" in text else ""
        level = own.get(rank) or (level_of(rank) if rank else "")
        if level and level not in wanted:
            raise UserError(f"--class-names {text}: {rank} is none of the ranks {', '.join(own)}")
        _read_file(path, [level] if level else wanted, found)
    return found


def _read_file(path: Path, levels: Sequence[str], found: ClassNames) -> None:
    if path.suffix.lower() == ".json":
        pairs = _from_json(path)
    else:
        lines = [text.strip() for text in read_text(path).splitlines() if text.strip()]
        for pattern, first, second in ((_NUMBER_FIRST, 1, 2), (_NUMBER_LAST, 2, 1)):
            matches = [pattern.fullmatch(text) for text in lines]
            if lines and all(matches) and not any("," in text or "\t" in text for text in lines):
                pairs = [(match[first], match[second]) for match in matches if match]
                break
        else:
            if lines and all(not set(text) & set(",;\t|") for text in lines):
                found.lines[levels[0]] = lines
                return
            _read_table(path, levels, found)
            return
    for number, text in pairs:
        _add(found, path, levels[0], number, text)


def _from_json(path: Path) -> list[tuple[str, str]]:
    """Numbers and names: of a list of names, {number: name}, {number: [id, name]} or {name: number}."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is no JSON: {error}") from None
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return [(str(number), name) for number, name in enumerate(content)]
    if isinstance(content, dict):
        pairs = [(key, value[-1] if isinstance(value, list) and value else value) for key, value in content.items()]
        if all(_NUMBER.fullmatch(key) and isinstance(name, str) for key, name in pairs):
            return pairs
        if all(isinstance(number, int) for _, number in pairs):
            return [(str(number), name) for name, number in pairs]
    raise UserError(f"{path.name} names no classes: give a list of names or an object of numbers and names")


def _read_table(path: Path, levels: Sequence[str], found: ClassNames) -> None:
    """Pairs of columns, a number beside a name."""
    lines = read_lines(path)
    header = [] if any(map(_NUMBER.fullmatch, lines.fields[0])) else lines.fields[0]
    content = lines.fields[1:] if header else lines.fields
    columns = list(zip(*content)) if content else []
    numbers = [place for place, values in enumerate(columns) if all(map(_NUMBER.fullmatch, values))]
    beside = 1 if 0 in numbers else -1
    pairs = [(n, n + beside) for n in numbers if 0 <= n + beside < len(columns) and n + beside not in numbers]
    if not pairs:
        raise UserError(f"{path.name}: no column holds the number of a class beside its name")
    of_level: dict[str, tuple[int, int]] = {}
    free = list(pairs)
    for level in levels if header else ():
        for pair in free:
            if plain(rank_name(level)) in "".join(plain_letters(header[place]) for place in pair):
                of_level[level] = pair
                free.remove(pair)
                break
    for level in levels:
        if level not in of_level and free:
            of_level[level] = free.pop(0)
    for fields in content:
        for level, (number, name) in of_level.items():
            _add(found, path, level, fields[number], fields[name])
        finest = of_level.get(levels[0])
        if finest:
            found.above[fields[finest[1]]] = {level: fields[name] for level, (_, name) in of_level.items()}


def plain_letters(text: str) -> str:
    """Letters and digits of a column's name, in lower case."""
    return re.sub(r"[\W_]+", "", text).casefold()


def _add(found: ClassNames, path: Path, level: str, number: str, name: str) -> None:
    names = found.names.setdefault(level, {})
    if (first := names.setdefault(int(number), name)) != name:
        both = f"{printable(first)} and {printable(name)}"
        raise UserError(f"{path.name}: {rank_name(level)} {number} has two names, {both}")


def name_classes(frame: pl.DataFrame, wanted: Sequence[str], known: ClassNames) -> tuple[pl.DataFrame, list[str]]:
    """Puts names in place of numbers, and coarser ranks where only the finest one is given.

    Raises:
      UserError: a number without a name.
    """
    warnings = []
    for level in wanted:
        column = schema.label_column("name", level)
        values = frame[column].drop_nulls().unique(maintain_order=True)
        numbers = {value: int(value) for value in values if _NUMBER.fullmatch(value)}
        if (known.names or known.lines) and len(set(numbers.values())) < len(numbers):
            number, _ = Counter(numbers.values()).most_common(1)[0]
            spellings = " and ".join(value for value in numbers if numbers[value] == number)
            raise UserError(
                f"--class-names: {rank_name(level)} {number} is written as {spellings}; write it in one way"
            )
        if values.is_empty() and level != wanted[0] and known.above:
            finest = frame[schema.label_column("name", wanted[0])]
            above = {name: of.get(level) for name, of in known.above.items()}
            frame = frame.with_columns(finest.replace_strict(above, default=None, return_dtype=pl.String).alias(column))
            continue
        if not numbers or not (known.names or known.lines):
            continue
        names = known.names.get(level) or _by_line(known.lines.get(level, []), list(numbers.values()))
        if not names:
            warnings.append(f"no names are given for {rank_name(level)}: its classes are called by their numbers")
            continue
        lacking = sorted(number for number in numbers.values() if number not in names)
        if lacking:
            shown = ", ".join(map(str, lacking[:5])) + " ..." * (len(lacking) > 5)
            raise UserError(
                f"--class-names: {len(lacking)} classes of {rank_name(level)} have no name: {shown}; names are there "
                f"for {min(names)} to {max(names)}"
            )
        given = {value: names[number] for value, number in numbers.items()}
        frame = frame.with_columns(frame[column].replace(given))
    return frame, warnings


def _by_line(lines: Sequence[str], numbers: Sequence[int]) -> dict[int, str]:
    """Names by number: the first line is 0, or 1 where no class has the number 0 and one has the number of the last."""
    first = 1 if numbers and min(numbers) >= 1 and max(numbers) == len(lines) else 0
    return dict(enumerate(lines, first))
