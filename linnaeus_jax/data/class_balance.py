"""How often each class and each row come in an epoch whose sampler balances classes.

With n_c rows of class c, its share of the labelled draws is proportional to n_c ("none"), sqrt(n_c) ("sqrt") or 1
("equal"). Rows without a label keep the share that they have without balancing. Whole numbers are drawn by systematic
sampling (Madow, On the theory of systematic sampling II, 1949), so that a class is at most one draw away from its
share, and a row at most one draw away from the other rows of its class.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: what the weight of a class is made from its number of rows
CLASS_BALANCE = ("none", "sqrt", "equal")
_POWER = dict(zip(CLASS_BALANCE, (1.0, 0.5, 0.0)))


def class_shares(label: NDArray[np.integer], balance: str, total: int, *, has_null: bool) -> NDArray[np.float64]:
    """float64 [C]: draws of each class in an epoch on average; they add up to `total`.

    Args:
      label: int [n], class index of each row.
      balance: one of `CLASS_BALANCE`.
      total: draws of an epoch.
      has_null: class 0 stands for "no label".
    """
    count = np.bincount(label).astype(np.float64)
    weight = np.where(count > 0, count ** _POWER[balance], 0.0)
    if has_null and weight[0] < weight.sum():
        labelled = len(label) - count[0]
        weight[1:] *= labelled / weight[1:].sum()
        weight[0] = count[0]
    return weight * (total / max(weight.sum(), 1.0))


def draw_rows(
    label: NDArray[np.integer], shares: NDArray[np.float64], total: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Positions of the rows of one epoch, int64 [total], ascending; a row may come several times or not at all.

    Args:
      label: int [n], class index of each row.
      shares: see `class_shares`.
      keys: uint64 [n + 1] of random bits; which rows of a class come once more than the others follows from them.
    """
    offset = float(keys[-1] >> np.uint64(11)) * 2.0**-53
    ends = np.floor(np.cumsum(shares) + offset)
    ends[-1] = total  # rounding must not lose a draw
    draws = np.diff(np.minimum(ends, total), prepend=0.0).astype(np.int64)

    count = np.bincount(label)
    order = np.lexsort((keys[:-1], label))
    first = np.cumsum(count) - count
    rank = np.arange(len(label)) - first[label[order]]
    often, more = np.divmod(draws, np.maximum(count, 1))
    times = np.empty(len(label), np.int64)
    times[order] = often[label[order]] + (rank < more[label[order]])
    return np.repeat(np.arange(len(label)), times)


def spread_chunks(
    group: NDArray[np.integer], row: NDArray[np.int64], size: int, block: int, keys: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cuts each group of drawn rows into whole chunks, with the draws of one row in different blocks of a chunk.

    The draws of a group are sorted by row, rows in random order, and dealt out to its blocks in turn: one row is in one
    block twice only where it has more draws than its group has blocks. What fills no chunk is taken from the row with
    the most draws first.

    Args:
      group: int [m], group of each draw; -1: none.
      row: int64 [m], row of each draw.
      size: draws of a chunk.
      block: draws within which partners are chosen; divides `size`.
      keys: uint64 of random bits for each row.

    Returns:
      int64 [c, size] indices of draws, of one group each; int64 [r] all others.
    """
    drawn = np.flatnonzero(group >= 0)
    of_group, at, key = group[drawn], row[drawn], keys[row[drawn]]
    by_times = np.lexsort((key, np.bincount(at)[at], of_group))
    most = at[by_times[np.flatnonzero(np.diff(of_group[by_times], append=-1))]]  # row of each group
    order = drawn[np.lexsort((at, key, np.isin(at, most), of_group))]
    sorted_group = group[order]
    first = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    sizes = np.diff(first, append=len(order))
    chunks = sizes // size
    of_draw = np.repeat(np.arange(len(first)), sizes)
    rank = np.arange(len(order)) - first[of_draw]
    whole = rank < (chunks * size)[of_draw]
    rank, of_draw, rest = rank[whole], of_draw[whole], order[~whole]
    blocks = (chunks * (size // block))[of_draw]
    number, slot = rank % np.maximum(blocks, 1), rank // np.maximum(blocks, 1)
    chunk, within = number % chunks[of_draw], number // chunks[of_draw]
    place = ((np.cumsum(chunks) - chunks)[of_draw] + chunk) * size + within * block + slot
    dealt = np.empty(len(place), np.int64)
    dealt[place] = order[whole]
    return dealt.reshape(-1, size), np.concatenate([rest, np.flatnonzero(group < 0)])
