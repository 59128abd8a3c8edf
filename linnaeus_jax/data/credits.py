"""Licence, rights holder and source of the pictures of some rows, and the line that is shown beside a picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from linnaeus_jax.data.labels_file import IDENTIFIERS, open_labels, sanitize_line, text_dataset, text_of, values_of

#: datasets of the labels file, all of them optional: one text per row, "" where nothing is known
CREDITS = ("license", "rights_holder", "source_doi")
#: key of the name of the image file, which is the identifier of a row
FILE = "file"
_URL = re.compile(r"creativecommons\.org/(licenses|publicdomain)/([a-z-]+)/(\d\.\d)", re.IGNORECASE)
_CODE = re.compile(r"(CC0|CC_BY[A-Z_]*?)_(\d)_(\d)")


def read_credits(path: str, rows: NDArray[np.int64]) -> list[dict[str, str]]:
    """{dataset: text} of each row, and its `FILE`, without what is not known. Only these rows are read.

    Args:
      path: a labels file.
      rows: int64 [n], distinct, ascending.

    Raises:
      FileNotFoundError, ValueError: a file or dataset that cannot be read.
    """
    credits: list[dict[str, str]] = [{} for _ in rows]
    with open_labels(path) as file:
        for key, name in ((FILE, IDENTIFIERS), *((name, name) for name in CREDITS)):
            if name in file and len(rows):
                texts = values_of(text_dataset(file, path, name), path, rows)
                for credit, text in zip(credits, map(text_of, texts), strict=True):
                    if line := sanitize_line(text):
                        credit[key] = line
    return credits


def license_counts(path: str, rows: NDArray[np.int64]) -> dict[str, int]:
    """How many of some rows have each licence, most frequent first; {} where the file has no licences.

    Args:
      path, rows: as of `read_credits`.

    Raises:
      FileNotFoundError, ValueError: a file or dataset that cannot be read.
    """
    with open_labels(path) as file:
        if CREDITS[0] not in file or not len(rows):
            return {}
        texts = Counter(map(text_of, values_of(text_dataset(file, path, CREDITS[0]), path, rows)))
    named: Counter[str] = Counter()
    for text, count in texts.items():
        named[license_name(sanitize_line(text))] += count
    return dict(named.most_common())


def credit_line(credit: Mapping[str, str]) -> str:
    """One line such as "© Jane Doe, CC BY-NC 4.0, doi:10.15468/dl.abc"; "" where nothing is known."""
    holder, doi = credit.get("rights_holder", ""), credit.get("source_doi", "")
    if holder and not holder.lower().startswith(("©", "(c)", "copyright")):
        holder = f"© {holder}"
    doi = re.sub(r"^(https?://)?(dx\.)?(doi\.org/|doi:\s*)?(?=10\.)", "doi:", doi, flags=re.IGNORECASE)
    return ", ".join(filter(None, (holder, license_name(credit.get("license", "")), doi)))


def license_name(text: str) -> str:
    """A Creative Commons address or code as people write it ("CC BY-NC 4.0"); any other text as it is."""
    if address := _URL.search(text):
        kind, name, version = address.groups()
        if kind.lower() == "publicdomain":
            return f"CC0 {version}" if name.lower() == "zero" else "public domain"
        return f"CC {name.upper()} {version}"
    if code := _CODE.fullmatch(text):
        return f"{code[1].replace('CC_', 'CC ').replace('_', '-')} {code[2]}.{code[3]}"
    return text
