"""Lists of changed names: our own, of one change a line, and checklists as Catalogue of Life and GBIF give them.

A checklist says of names whether they are accepted, and if not, which ones are: Darwin Core (taxonID, scientificName,
acceptedNameUsage or its ID, parentNameUsageID, taxonomicStatus), ColDP (col:ID, col:parentID, col:status, ...; the
parentID of a synonym is its accepted name), species lists and name matches of GBIF (taxonKey, acceptedTaxonKey, ...),
or a table of name and accepted. It is read for the taxa that are there; what it says of others is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_changes import KINDS, MERGE, MOVE, NEW, RENAME, SPLIT, Change
from linnaeus_jax.data.taxon_names import TaxonNames, describe_taxon
from linnaeus_jax.reading.columns import Links, plain
from linnaeus_jax.reading.schema import LINE, REASON
from linnaeus_jax.reading.table import TextOptions, read_linked
from linnaeus_jax.reading.text import printable
from linnaeus_jax.taxonomy.ranks import RANK_LEVELS, task_name
from linnaeus_jax.taxonomy.scientific_names import read_name
from linnaeus_jax.taxonomy.tree import TaxonomyTree

#: column -> names that it has, as `columns.plain` compares them, the best first
_OURS = {name: (name,) for name in ("change", "taxon", "rank", "to", "parent", "id")}
_CHECKLIST = {
    "id": ("taxonid", "id", "taxonkey", "usagekey", "key"),
    "name": ("canonicalname", "scientificname", "name"),
    "accepted_id": ("acceptednameusageid", "acceptedtaxonkey", "acceptedusagekey", "acceptedkey", "acceptedtaxonid"),
    "accepted": ("acceptednameusage", "acceptedscientificname", "acceptedname", "accepted"),
    "status": ("taxonomicstatus", "status"),
    "rank": ("taxonrank", "rank"),
    "parent_id": ("parentnameusageid", "parentid", "parentkey", "parentusagekey"),
} | {f"of_{rank}": (rank,) for rank in RANK_LEVELS}
_SYNONYM = re.compile("synonym|misapplied", re.IGNORECASE)
#: statuses of names of which pictures alone say what they are
_UNSURE = re.compile("ambiguous|pro.?parte|misapplied", re.IGNORECASE)
#: steps to an accepted name, or up the ranks
_DEEPEST = 60
_Row = dict[str, Any]
_Class = tuple[str, int]


def read_changes(path: Path, tree: TaxonomyTree, names: TaxonNames) -> tuple[list[Change], list[str]]:
    """The changes of a list, as `change_taxa` takes them, and notes.

    Args:
      path: CSV, TSV, either of them gzipped, or Parquet.
      tree, names: the taxa that may change, of which a checklist is read.

    Raises:
      UserError: no list of either kind, or lines that cannot be; all in one message.
    """
    frame, ours, notes = _read(path)
    if ours:
        return _own(frame, path), notes
    changes, more = _Checklist(frame, tree, names, path.name).changes()
    return changes, notes + more


def _read(path: Path) -> tuple[pl.DataFrame, bool, list[str]]:
    """The columns that mean something, as text, whether the list is our own, and notes."""
    kinds: list[bool] = []

    def link(header: Sequence[str]) -> Links:
        known = {plain(name): place for place, name in reversed([*enumerate(header)])}
        kinds.append({"change", "taxon"} <= known.keys())
        table = _OURS if kinds[0] else _CHECKLIST
        found = {name: next((known[one] for one in usual if one in known), -1) for name, usual in table.items()}
        found = {name: place for name, place in found.items() if place >= 0}
        if "accepted" not in found and {"status", "of_species"} <= found.keys():  # of a name match of GBIF
            found["accepted"] = found["of_species"]
        if not kinds[0] and not ("name" in found and found.keys() & {"accepted_id", "accepted", "parent_id"}):
            raise UserError(
                f"{path.name} is no list of changes: it needs the columns change and taxon, or scientificName with "
                f"acceptedNameUsage, acceptedNameUsageID or parentID; its columns: {printable(', '.join(header))}"
            )
        return Links({name: header[place] for name, place in found.items()}, found)

    with path.open("rb") if path.is_file() else _missing(path) as file:
        tabs = b"\t" in file.readline(1 << 16)  # in which quotes are text
    frame, _, notes = read_linked(path, TextOptions(quotes="none" if tabs else "csv"), link)
    bad = frame.filter(pl.col(REASON).is_not_null())
    if bad.height:
        notes.append(f"{path.name}: {bad.height:,} lines cannot be read, such as line {bad[LINE][0]}: {bad[REASON][0]}")
    texts = [name for name in frame.columns if name in _OURS | _CHECKLIST]
    frame = frame.filter(pl.col(REASON).is_null()).select(LINE, pl.col(texts).cast(pl.String).fill_null(""))
    return frame, kinds[0], notes


def _missing(path: Path) -> Any:
    raise UserError(f"{path} {'is no file' if path.exists() else 'does not exist'}; name a list of changes")


def _own(frame: pl.DataFrame, path: Path) -> list[Change]:
    changes, wrong = [], []
    for row in frame.iter_rows(named=True):
        kind, where = row["change"].casefold(), f"{path.name}:{row[LINE]}"
        said = {name: row.get(name, "") for name in ("taxon", "rank", "to", "parent", "id")}
        number = int(said["id"]) if said["id"].isascii() and said["id"].isdecimal() and len(said["id"]) < 20 else 0
        if kind not in KINDS:
            wrong.append(f"{where}: change is {printable(row['change'])!r}; choose one of {', '.join(KINDS)}")
        elif not said["taxon"] or (kind in (RENAME, MERGE) and not said["to"]):
            wrong.append(f"{where}: a {kind} needs {'a taxon' if not said['taxon'] else 'what it becomes, in to'}")
        elif said["id"] and (not number or kind not in (RENAME, NEW)):
            wrong.append(f"{where}: id is {printable(said['id'])!r}; only what is renamed or new has one, a number")
        else:
            changes.append(Change(where, kind, said["taxon"], said["rank"], said["to"], said["parent"], number))
    if wrong:
        raise UserError("\n".join(wrong[:50]))
    return changes


def bare(text: str) -> str:
    """A scientific name of any rank without authors."""
    name = read_name(text)
    return (name and (name.below or name.species or name.genus)) or text


class _Checklist:
    """What a checklist says of the taxa of a tree."""

    def __init__(self, frame: pl.DataFrame, tree: TaxonomyTree, names: TaxonNames, file: str) -> None:
        self.frame, self.tree, self.names, self.file = frame, tree, names, file
        self.by_id: dict[str, _Row] = {}
        self.now: dict[_Class, str] = {}
        self.there: dict[str, set[str]] = {}
        self.found: list[Change] = []

    def _rows(self, wanted: pl.Expr) -> list[_Row]:
        rows = self.frame.filter(wanted).to_dicts()
        for row in rows:
            row["name"] = bare(row["name"])
        return rows

    def _fetch(self, ids: set[str]) -> None:
        """Rows with some ids, and what these name, up to the accepted names and the coarsest ranks."""
        for _ in range(_DEEPEST if "id" in self.frame.columns else 0):
            ids = ids - self.by_id.keys() - {""}
            if not ids:
                return
            rows = self._rows(pl.col("id").is_in(sorted(ids)))
            self.by_id |= {key: {} for key in ids} | {row["id"]: row for row in rows}
            ids = {row.get(key, "") for row in rows for key in ("accepted_id", "parent_id")}

    def changes(self) -> tuple[list[Change], list[str]]:
        first = int(self.tree.null_possible)
        classes = {
            (task, at): str(name)
            for task in reversed(self.tree.task_keys)
            for at, name in enumerate(self.names.name[task].tolist())
            if at >= first and name
        }
        words = sorted({name.split()[0] for name in classes.values()})
        rows = self._rows(pl.col("name").str.extract(r"^(\S+)").is_in(words))
        self._fetch({row.get(key, "") for row in rows for key in ("id", "accepted_id", "parent_id")})
        by_name: dict[str, list[_Row]] = {}
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
        said = {}
        for one, name in classes.items():
            said[one] = [row for row in by_name.get(bare(name), ()) if self._is_rank(row, one[0])]
            self.there.setdefault(one[0], set()).add(name)
        for (task, at), name in classes.items():  # the coarsest rank first
            self.now[task, at] = name
            if said[task, at]:
                self._change(task, at, name, said[task, at])
        left = sum(not each for each in said.values())
        return self.found, [f"{self.file} does not name {left:,} of {len(said):,} taxa, which stay"] * bool(left)

    def _is_rank(self, row: _Row, task: str) -> bool:
        rank = row.get("rank", "").casefold()
        return rank not in RANK_LEVELS or rank == task_name(task)

    def _accepted(self, row: _Row) -> _Row:
        """The row of the accepted name; of a list without ids one that is made of the name."""
        for _ in range(_DEEPEST):
            status, name = row.get("status", ""), bare(row.get("accepted", "") or row["name"])
            over = row.get("accepted_id") or (row.get("parent_id", "") if _SYNONYM.search(status) else "")
            if not (_SYNONYM.search(status) or (not status and (name != row["name"] or over not in ("", row["id"])))):
                return row
            if not (other := self.by_id.get(over, {})):
                lost = "" if row.get("accepted") else "not in the list"
                return row | {"name": name, "status": "", "accepted": "", "accepted_id": "", "rank": lost}
            row = other
        raise UserError(f"{self.file}:{row[LINE]}: {printable(row['name'])!r} leads to itself by its accepted names")

    def _change(self, task: str, at: int, name: str, rows: Sequence[_Row]) -> None:
        ends = [(row, self._accepted(row)) for row in rows]
        own = [(row, end) for row, end in ends if row is end]
        row, end = (own or ends)[0]
        where, taxon, rank = f"{self.file}:{row[LINE]}", describe_taxon(int(self.names.classes[task][at]), name), task
        become = sorted({each["name"] for _, each in ends})
        other = end.get("rank", "") if end.get("rank") == "not in the list" or not self._is_rank(end, task) else ""
        if not own and (len(become) > 1 or other or _UNSURE.search(row.get("status", ""))):
            told = f" ({other})" if other and len(become) == 1 else ""
            self.found.append(Change(where, SPLIT, taxon, rank, " | ".join(become) + told))
            return
        to = name if own or end["name"] == bare(name) else end["name"]
        if to != name and to in self.there[task]:
            self.found.append(Change(where, MERGE, taxon, rank, to))
            return
        parent = self._parent(task, at, end, where)
        if to != name:
            self.there[task].add(to)
            self.now[task, at] = to
            self.found.append(Change(where, RENAME, taxon, rank, to, parent))
        elif parent:
            self.found.append(Change(where, MOVE, taxon, rank, "", parent))

    def _above(self, row: _Row) -> dict[str, str]:
        """Rank -> name of what lies above an accepted name."""
        found = {rank: bare(name) for rank in RANK_LEVELS if (name := row.get(f"of_{rank}", ""))}
        if row.get("rank", "species").casefold() in ("species", "") and " " in row["name"]:
            found.setdefault("genus", row["name"].removeprefix("× ").split()[0])
        for _ in range(_DEEPEST):
            row = self.by_id.get(row.get("parent_id", ""), {})
            if not row:
                break
            found[row.get("rank", "").casefold()] = row["name"]
        return found

    def _parent(self, task: str, at: int, end: _Row, where: str) -> str:
        """The parent that a taxon moves to, "" where it stays; what is new there becomes a change, too."""
        place, was = self.tree.task_keys.index(task), int(self.tree.parent[task][at])
        if place + 1 == len(self.tree.task_keys) or was < int(self.tree.null_possible):
            return ""
        above, chain = self.tree.task_keys[place + 1 :], self._above(end)
        if chain.get(task_name(above[0]), "") in ("", self.now.get((above[0], was), "")):
            return ""
        old = self.tree.anc[above[0]][was]
        for number, coarser in enumerate(above):
            name = chain.get(task_name(coarser), "")
            if name in self.there.get(coarser, ()):
                break
            higher = above[number + 1] if number + 1 < len(above) else ""
            # what the list does not say of a new taxon is as it was above the old one
            kept = self.now.get((higher, int(old[number + 1])), "") if higher else ""
            over = (chain.get(task_name(higher), "") or kept) if higher else ""
            if higher and not over:
                return ""
            self.there.setdefault(coarser, set()).add(name)
            self.found.append(Change(where, NEW, name, coarser, "", over))
            if over == kept:
                break
        return chain[task_name(above[0])]
