"""Rows of stacks → one tree, in which what stacks have in common is one branch. Pure, in columns.

In: :class:`~otelgpu.render.stacks.StackRows`. Out: :class:`StackTree`. How: all stacks take one step from the
root at a time; those that are at the same node and go to the same frame share the next node.

Example: stacks ``a;b`` (3) and ``a;c`` (4) are the nodes all 7 → a 7 → b 3, c 4. Invariants: nodes are in
preorder, children in the order of their labels; a node's total is its own value and the totals of its children.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.model.profiles import ProfileColumns, ValueType
from otelgpu.render.frames import FOLDED, Frame, FrameTable
from otelgpu.render.stacks import (
    COMBINED,
    CPU,
    Codes,
    StackRows,
    Values,
    by_type,
    combined,
    sort_key,
    stack_rows,
)

MOST_NODES: Final = 60_000
"""What a page holds of a tree: more are folded, the narrowest first, and counted."""


class StackTree(Struct, frozen=True, kw_only=True):
    """m nodes in preorder, the first being the root, which is no frame.

    ``own``: (m, k) what was observed at the node itself. ``total``: (m, k) with all below it. ``folded``: (m,) how
    many nodes one of the kind "folded" stands for, 0 of others. ``leaf``: the node of each row of the stacks.
    """

    type: ValueType
    frames: tuple[Frame, ...]
    frame: Codes  # (m,) position in ``frames``; of the root -1
    parent: Codes  # (m,) of the root -1
    depth: Codes  # (m,) of the root 0
    own: Values
    total: Values
    folded: Codes
    leaf: Codes
    observations: int
    negative: int

    def __len__(self) -> int:
        return len(self.frame)


def trees(batches: Sequence[ProfileColumns]) -> list[StackTree]:
    """A tree for each sample type: CPU and device together where there are both, CPU, others as they appear."""
    return [made for made, _ in trees_of(batches)]


def trees_of(batches: Sequence[ProfileColumns]) -> list[tuple[StackTree, list[ProfileColumns]]]:
    """The trees, each with the batches that it was made of."""
    groups = by_type(batches)
    both = combined(groups)
    some = ({COMBINED: both} if both else {}) | groups
    order = sorted(some, key=lambda type_: type_ not in (COMBINED, CPU))
    return [(tree([some[type_]], type_), some[type_]) for type_ in order]


def differences(before: Sequence[ProfileColumns], after: Sequence[ProfileColumns]) -> list[StackTree]:
    """A tree with two values a node for each sample type that is on both sides, then those on one side only.

    Python frames are reported by function: an edit between the two moves lines that are otherwise the same.
    """
    old, new = by_type(before), by_type(after)
    types = sorted({**old, **new}, key=lambda type_: not (type_ in old and type_ in new))
    return [tree([old.get(type_, []), new.get(type_, [])], type_) for type_ in types]


def tree(sides: Sequence[Sequence[ProfileColumns]], type_: ValueType) -> StackTree:
    """The tree of k sides, with all its nodes."""
    table = FrameTable(lines=len(sides) == 1)
    rows = stack_rows(sides, table)
    order = sorted(range(len(table)), key=lambda code: sort_key(table.entries[code]))
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    frames = tuple(table.entries[code] for code in order)
    parent, frame, level, leaf = _by_level(rows, rank[rows.frames], len(frames))
    own = np.zeros((len(frame), rows.values.shape[1]))
    for column in range(own.shape[1]):
        own[:, column] = np.bincount(leaf, weights=rows.values[:, column], minlength=len(frame))
    order_of = _preorder(parent, level)
    at = np.empty(len(order_of), dtype=np.intp)
    at[order_of] = np.arange(len(order_of))
    parent = np.where(parent[order_of] < 0, -1, at[parent[order_of]])
    return StackTree(
        type=type_,
        frames=frames,
        frame=frame[order_of],
        parent=parent,
        depth=level[order_of],
        own=own[order_of],
        total=_totals(own[order_of], parent, level[order_of]),
        folded=np.zeros(len(frame), dtype=np.intp),
        leaf=at[leaf],
        observations=rows.observations,
        negative=rows.negative,
    )


def _by_level(rows: StackRows, frames: Codes, radix: int) -> tuple[Codes, Codes, Codes, Codes]:
    """Nodes level by level, in one level by parent, then frame: parents, frames, levels; and the node of each row."""
    first = np.cumsum(rows.counts) - rows.counts
    node = np.zeros(len(rows), dtype=np.intp)
    parents, of_frames, levels = [np.array([-1])], [np.array([-1])], [np.array([0])]
    made, step = 1, 0
    active = np.flatnonzero(rows.counts > 0)
    while len(active):
        key = node[active] * radix + frames[first[active] + step]
        found, inverse = np.unique(key, return_inverse=True)
        parents.append(found // radix)
        of_frames.append(found % radix)
        step += 1
        levels.append(np.full(len(found), step))
        node[active] = made + inverse.reshape(-1)
        made += len(found)
        active = active[rows.counts[active] > step]
    return np.concatenate(parents), np.concatenate(of_frames), np.concatenate(levels), node


def _spans(level: Codes) -> list[slice]:
    """Where each level is, of nodes that are ordered by level."""
    bounds = np.searchsorted(level, np.arange(int(level[-1]) + 2))
    return [slice(low, high) for low, high in pairwise(bounds.tolist())]


def _preorder(parent: Codes, level: Codes) -> Codes:
    """Nodes that are ordered by level and then by parent, in preorder."""
    spans = _spans(level)
    size = np.ones(len(parent), dtype=np.intp)
    for span in reversed(spans[1:]):
        np.add.at(size, parent[span], size[span])
    place = np.zeros(len(parent), dtype=np.intp)
    for span in spans[1:]:
        mine, sizes = parent[span], size[span]
        before = np.cumsum(sizes) - sizes
        first = np.searchsorted(mine, mine)  # of its siblings
        place[span] = place[mine] + 1 + before - before[first]
    order = np.empty(len(parent), dtype=np.intp)
    order[place] = np.arange(len(parent))
    return order


def _totals(own: Values, parent: Codes, depth: Codes) -> Values:
    total = own.copy()
    order = np.argsort(depth, kind="stable")
    for span in reversed(_spans(depth[order])[1:]):
        nodes = order[span]
        np.add.at(total, parent[nodes], total[nodes])
    return total


def fold(tree: StackTree, *, most: int = MOST_NODES, least_share: float = 0.0) -> StackTree:
    """The tree without its narrowest nodes: at most ``most`` frames, each at least ``least_share`` of one side's total.

    What a node loses is one child of it, of the kind "folded", that has their sum and how many they are.
    """
    share = np.where(tree.total[0] > 0, tree.total / np.maximum(tree.total[0], 1e-300), 0).max(axis=1)
    keep = share >= least_share
    keep[0] = True
    if int(keep.sum()) > most:
        bound = np.partition(share, len(share) - most)[len(share) - most]
        keep &= share > bound
        keep[0] = True
    if keep.all():
        return tree
    parent = np.maximum(tree.parent, 0)
    top = ~keep & keep[parent]  # the highest that goes, of each branch
    ends = _subtree_ends(tree.depth)
    gone = np.flatnonzero(top)
    heirs, inverse = np.unique(parent[gone], return_inverse=True)
    inverse = inverse.reshape(-1)
    count = np.bincount(inverse, weights=ends[gone] - gone, minlength=len(heirs)).astype(np.intp)
    sums = np.stack(
        [
            np.bincount(inverse, weights=tree.total[gone, k], minlength=len(heirs))
            for k in range(tree.own.shape[1])
        ],
        axis=1,
    )

    kept = np.flatnonzero(keep)
    frames = (*tree.frames, FOLDED) if FOLDED not in tree.frames else tree.frames
    folded_frame = frames.index(FOLDED)
    # A folded child stands behind all kept ones of its parent: at the end of the parent's subtree, the deepest first.
    place = np.concatenate([kept.astype(np.float64), ends[heirs] - 0.5])
    depth = np.concatenate([tree.depth[kept], tree.depth[heirs] + 1])
    order = np.lexsort((-depth, place))
    source = np.concatenate([kept, heirs])
    is_fold = np.concatenate([np.zeros(len(kept), dtype=np.bool_), np.ones(len(heirs), dtype=np.bool_)])[
        order
    ]
    at = np.full(len(tree), -1, dtype=np.intp)
    at[source[order][~is_fold]] = np.flatnonzero(~is_fold)
    old_parent = np.concatenate([tree.parent[kept], heirs])[order]
    fold_at = np.full(len(tree), -1, dtype=np.intp)
    fold_at[source[order][is_fold]] = np.flatnonzero(is_fold)
    leaf = _heir(tree, keep, at, fold_at)
    sides = tree.own.shape[1]
    return StackTree(
        type=tree.type,
        frames=frames,
        frame=np.concatenate([tree.frame[kept], np.full(len(heirs), folded_frame)])[order],
        parent=np.where(old_parent < 0, -1, at[old_parent]),
        depth=depth[order],
        own=np.concatenate([tree.own[kept], sums.reshape(-1, sides)])[order],
        total=np.concatenate([tree.total[kept], sums.reshape(-1, sides)])[order],
        folded=np.concatenate([tree.folded[kept], count])[order],
        leaf=leaf[tree.leaf],
        observations=tree.observations,
        negative=tree.negative,
    )


def _subtree_ends(depth: Codes) -> Codes:
    """Behind the last node of each node's subtree, of a preorder."""
    ends = np.full(len(depth), len(depth), dtype=np.intp)
    open_: list[int] = []
    for node, level in enumerate(depth.tolist()):
        while len(open_) > level:
            ends[open_.pop()] = node
        open_.append(node)
    return ends


def _heir(tree: StackTree, keep: Codes, at: Codes, fold_at: Codes) -> Codes:
    """Which node of the folded tree has what was each node's."""
    heir = np.where(keep, at, -1)
    order = np.argsort(tree.depth, kind="stable")
    for span in _spans(tree.depth[order])[1:]:
        nodes = order[span]
        lost = nodes[~keep[nodes]]
        above = tree.parent[lost]
        heir[lost] = np.where(keep[above], fold_at[above], heir[above])
    return heir
