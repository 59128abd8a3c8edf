"""Single-place faults, drawn from the syntax trees of the package by a seed, and whether the fast tests see them.

    python -m tests.mutations [--seed N] [--count 400] [ROOM ...]        (make mutations SEED=N)

The fast tests run once, to see which of their files reach which lines (`tests.reached`, which needs Python 3.12). Then
each fault is put into a copy of the checkout, where the files that reach its line run until the first test fails, those
of its room first. What passes is listed at the end, by kind: a property that no test states, or the same program, which
then stands with its reason in `tests/equivalent.py`. The exit status is 1 if less than `LEAST` of the others are seen.
`--list` draws without running.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.equivalent import EQUIVALENT
from tests.reached import FOLDER, read

Reached = Mapping[str, tuple[float, Mapping[str, set[int]]]]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "linnaeus_jax"
#: what is looked at: subpackages, and some files of others
ROOMS = {
    "step": "step/*.py",
    "learning": "learning/*.py",
    "schedules": "schedules/*.py",
    "metrics": "metrics/*.py",
    "data": "data/*.py",
    "taxonomy": "taxonomy/*.py",
    "inference": "inference/paths.py inference/answers.py inference/quality/*.py",
    "building": "building/steps/*.py",
    "checks": "checks/*.py",
}
#: share of faults to be seen, seconds until tests are taken for seeing one, seconds of tests that one is worth
LEAST, TIMEOUT, BUDGET = 0.9, 400, 150

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
DTYPES = {"float32": "float16", "float64": "float32", "int64": "int32", "int32": "int16", "bool": "float32"}
#: calls that give the same for arguments in another order
SYMMETRIC = re.compile(
    r"(^|\.)(max|min|maximum|minimum|fmax|fmin|vdot|logaddexp|logical_(and|or)|bitwise_(and|or)|array_equal)$"
)
#: calls whose arguments are words or plots for people, which are judged by eye
WORDS = re.compile(
    r"(^|\.)(log|console|warnings?|print|key|Option|add_argument|debug|info|warning|error|Figure)$|Error$"
    r"|\.(bar|bar_label|colorbar|grid|plot|scatter|stackplot|subplots|set_(array|aspect|title|[xy](label|lim|ticks|ticklabels)))$"
)


@dataclass(frozen=True)
class Fault:
    """`new` in place of `old`, the text from `start` to `end`, byte offsets of a file below the package.

    `within` is the text of its line.
    """

    path: str
    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str
    within: str

    @property
    def shown(self) -> str:
        """What becomes what, where the two differ."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new.removeprefix("(").removesuffix(")")))
        pairs = enumerate(zip(old, new, strict=False))
        same = next((place for place, (one, other) in pairs if one != other), min(len(old), len(new)))
        first = max(0, same - 40)
        return f"{old[first : same + 40]!r} -> {new[first : same + 40]!r}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in `EQUIVALENT`: file, line, what is changed."""
        return self.path, self.within, self.shown


def changed(node: ast.AST) -> Iterator[tuple[str, ast.expr | str]]:
    """Kind and new expression of every single-place fault of a node, its children apart."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            kind = "boundary" if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) else "comparison"
            yield kind, ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in OPERATORS and not isinstance(node.left, ast.JoinedStr | ast.List):
            yield "operator", ast.BinOp(node.left, OPERATORS[type(op)](), node.right)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield "sign", node.operand
        case ast.BoolOp(values=[first, *_]):
            yield "condition", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            yield "condition", first
        case ast.IfExp():
            yield "condition", ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", ast.Constant(2 * value or 1.0)
        case ast.Attribute(attr=name) if name in DTYPES and isinstance(node.value, ast.Name):
            yield "dtype", ast.Attribute(node.value, DTYPES[name])
        case ast.Call():
            yield from _changed_call(node)


def _computes(keyword: ast.keyword) -> bool:
    """Not the `strict=True` of a `zip`, an assertion, nor what threads are called."""
    return keyword.arg != "thread_name_prefix" and (keyword.arg != "strict" or ast.unparse(keyword.value) != "True")


def _is_empty(call: ast.Call) -> bool:
    """Makes an array without elements, whose type is that of what it is joined with."""
    makes = ast.unparse(call.func) in ("np.empty", "np.zeros", "jnp.zeros")
    return makes and ast.unparse(call.args[0]).startswith(("0", "(0,"))


def _changed_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    converts = ast.unparse(node.func) == "np.asarray"  # mostly what is an array already
    if len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred) and not converts:
        yield "dropped call", node.args[0]
    match node.args:
        case [first, second, *others] if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            if ast.dump(first) != ast.dump(second) and not SYMMETRIC.search(ast.unparse(node.func)):
                yield "swapped arguments", ast.Call(node.func, [second, first, *others], node.keywords)
    for place, keyword in enumerate(node.keywords):
        if keyword.arg is not None and _computes(keyword):
            rest = [*node.keywords[:place], *node.keywords[place + 1 :]]
            yield "dropped keyword", ast.Call(node.func, node.args, rest)
            if keyword.arg == "axis" and isinstance(keyword.value, ast.Constant) and keyword.value.value in (0, 1):
                other = ast.keyword("axis", ast.Constant(1 - int(str(keyword.value.value))))
                yield "axis", ast.Call(node.func, node.args, [*rest, other])


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute something: no types, decorators, docstrings, messages or assertions."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Call(func=func) | ast.Expr(value=ast.Call(func=func)) if WORDS.search(ast.unparse(func)):
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.keyword() if not _computes(node):
            return
        case ast.Subscript(value=ast.Name(id="NDArray")):
            return
        case ast.Call() if _is_empty(node):
            return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def faults_of(path: Path) -> Iterator[Fault]:
    """All faults of one file."""
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    name = path.relative_to(PACKAGE).as_posix()
    for node in _code(ast.parse(text)):
        found: Iterator[tuple[str, ast.expr | str]] = changed(node)
        where: ast.AST = node
        if isinstance(node, ast.If | ast.While):
            where, found = node.test, iter([("condition", ast.UnaryOp(ast.Not(), node.test))])
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found = iter([("dropped call", "pass")])
        for kind, new in found:
            if not isinstance(where, ast.expr | ast.stmt) or where.end_lineno is None or where.end_col_offset is None:
                continue
            start, end = (
                starts[where.lineno - 1] + where.col_offset,
                starts[where.end_lineno - 1] + where.end_col_offset,
            )
            written = new if isinstance(new, str) else f"({ast.unparse(ast.fix_missing_locations(new))})"
            within = lines[where.lineno - 1].decode().strip()
            yield Fault(name, kind, where.lineno, start, end, text[start:end].decode(), written, within)


def drawn(rooms: Sequence[str], count: int, seed: int) -> list[Fault]:
    """Faults of these rooms: a kind, then one of it, each at most once."""
    files = sorted({path for room in rooms for glob in ROOMS[room].split() for path in PACKAGE.glob(glob)})
    by_kind: dict[str, list[Fault]] = {}
    for fault in (fault for path in files for fault in faults_of(path) if fault.key not in EQUIVALENT):
        by_kind.setdefault(fault.kind, []).append(fault)
    rng, found = random.Random(seed), list[Fault]()
    for faults in by_kind.values():
        rng.shuffle(faults)
    while by_kind and len(found) < count:
        kind = rng.choice(sorted(by_kind))
        found.append(by_kind[kind].pop())
        if not by_kind[kind]:
            del by_kind[kind]
    return found


def tests_of(fault: Fault, reached: Reached) -> list[str]:
    """Files of tests that reach its line, those that name the module first, then those of the room, then the quickest;
    of lines that run at import all that import the module, and the reference pages, which are made of such tables."""
    room, stem = fault.path.split("/")[0], Path(fault.path).stem
    found = [file for file, (_, lines) in reached.items() if fault.line in lines.get(fault.path, ())]
    if not found:
        module = "linnaeus_jax." + fault.path.removesuffix(".py").replace("/", ".")
        imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(module.rpartition('.')[0])} import .*\b{stem}\b")
        found = [file for file in reached if imports.search((ROOT / file).read_text(encoding="utf-8"))]
        found += [file for file in reached if file.startswith((f"tests/{room}/", "tests/docs/test_reference"))]
    found.sort(key=lambda file: (stem not in Path(file).stem, not file.startswith(f"tests/{room}/"), reached[file][0]))
    taken, left = list[str](), float(BUDGET)
    for file in dict.fromkeys(found):
        left -= reached[file][0]
        if left < 0 and taken:
            break
        taken.append(file)
    return taken


def run_tests(tree: Path, tests: Sequence[str]) -> bool:
    """Whether the tests fail in that copy of the checkout, or do not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2, 4, 5):  # 4: a plugin or conftest that cannot be imported; 5: no fast test
        raise SystemExit(f"pytest ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode not in (0, 5)


def environment(tree: Path) -> dict[str, str]:
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
    return {**os.environ, "PYTHONPATH": str(tree), "JAX_COMPILATION_CACHE_DIR": cache}


def reached_by(tree: Path, folder: Path) -> Reached:
    """Runs all fast tests once."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.reached", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=tree, env=environment(tree) | {FOLDER: str(folder.absolute())}, check=True)
    return read(folder)


def copied(tree: Path) -> None:
    """Puts what git knows of the checkout into a folder."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def main(argv: Sequence[str]) -> int:
    """Command line; 1 where too few faults are seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], metavar="ROOM", help=f"of {', '.join(ROOMS)}")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()) % 10**6, help="of what is drawn; default: the clock"
    )
    parser.add_argument("--count", type=int, default=400, help="of faults (400)")
    parser.add_argument("--list", action="store_true", help="draw, and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (2)")
    parser.add_argument("--reached", type=Path, help="folder for what the tests reach; read if it holds it")
    options = parser.parse_args(argv)
    wanted = drawn(options.rooms or [*ROOMS], options.count, options.seed)
    console, passed = Console(width=200), list[Fault]()
    console.print(f"seed {options.seed}: {len(wanted)} faults", markup=False)
    if options.list:
        for fault in wanted:
            console.print(f"{fault.path}:{fault.line} {fault.kind}: {fault.shown}", markup=False)
        return 0
    if sys.version_info < (3, 12):
        parser.error("what the tests reach is told by Python 3.12 or newer; --list draws with any")
    with tempfile.TemporaryDirectory() as directory:
        trees = queue.SimpleQueue[Path]()
        for job in range(options.jobs):
            copied(Path(directory, str(job)))
            trees.put(Path(directory, str(job)))
        folder = options.reached or Path(directory, "reached")
        reached = read(folder) if any(folder.glob("*.json")) else reached_by(Path(directory, "0"), folder)

        def judge(numbered: tuple[int, Fault]) -> None:
            number, fault = numbered
            tree = trees.get()
            path, started = tree / "linnaeus_jax" / fault.path, time.monotonic()
            text = path.read_bytes()
            path.write_bytes(text[: fault.start] + fault.new.encode() + text[fault.end :])
            seen = run_tests(tree, tests_of(fault, reached))
            path.write_bytes(text)
            trees.put(tree)
            passed.extend([] if seen else [fault])
            what = f"{number}/{len(wanted)} {fault.path}:{fault.line} {fault.kind}: {fault.shown}"
            verdict = "seen" if seen else "PASSED"
            console.print(f"{what}: {verdict}, {time.monotonic() - started:.0f} s", markup=False)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(judge, enumerate(wanted, 1)))
    table = Table("file", "kind", "fault", title="faults that the tests do not see")
    for fault in sorted(passed, key=lambda fault: (fault.kind, fault.path, fault.line)):
        table.add_row(f"{fault.path}:{fault.line}", fault.kind, fault.shown)
    console.print(table, markup=False)
    kinds = Counter(fault.kind for fault in passed)
    console.print(f"{len(wanted) - len(passed)} of {len(wanted)} faults seen; not seen: {dict(kinds)}", markup=False)
    return int(len(passed) > (1 - LEAST) * len(wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
