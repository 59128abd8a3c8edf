"""Pickles read without making anything that they name.

A pickle is a program for a stack machine. Here its dicts, lists, texts and numbers are made, and the few things that
arrays consist of; every other name of Python in it, and whatever is made of that name, becomes a `Record`, which does
nothing. No name is looked up, imported or called. What a file may cost is bounded: `MOST_BYTES`, `MOST_OPCODES`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import IO, Any

#: bytes that the pickles of a file may have; those of a model with its optimizer have a few millions
MOST_BYTES = 1 << 27
#: instructions that the pickles of a file may have; each makes at most one object. A tensor takes about 30
MOST_OPCODES = 3_000_000
#: largest whole number that is a key of a dict: beyond it numbers can be chosen that all fall into one place
LARGEST_KEY = 1 << 60


class PickleError(Exception):
    """A pickle is damaged, or asks for more than it may cost; the message says which."""


class Name:
    """A name of Python that stands in a pickle, e.g. `collections.OrderedDict`; it is never looked up."""

    __slots__ = ("full",)

    def __init__(self, full: str) -> None:
        self.full = full


class Record:
    """Stands for an object that was not made.

    Attributes:
      name: of what would have made it.
      arguments: what that would have been called with.
      state: what the object would have been given then; None: nothing.
      entries: what would have been put into it by key, where it is a kind of dict.
    """

    __slots__ = ("arguments", "entries", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] = (), entries: dict[Any, Any] | None = None) -> None:
        self.name, self.arguments, self.state, self.entries = name, arguments, None, entries


class Unpickler(pickle._Unpickler):
    """The standard library's reader that is written in Python, with every instruction that makes objects replaced.

    Args:
      file: where the pickles lie, one after the other; at most `MOST_BYTES` of it are read.
      builders: name -> what makes an object of its arguments, which may be anything.
      stored: what a reference to something outside of the pickle stands for.
    """

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]

    def __init__(
        self, file: IO[bytes], builders: Mapping[str, Callable[..., Any]], stored: Callable[[Any], Any]
    ) -> None:
        super().__init__(_Bounded(file), encoding="latin1")  # texts of Python 2 are bytes
        self.dispatch = _Counted(_DISPATCH)  # type: ignore[misc]  # of each reader its own, which counts
        self.builders, self.stored = builders, stored
        self.named: dict[str, Name] = {}
        #: names of what was not made, in the order of the file
        self.not_made: dict[str, None] = {}

    def load(self) -> Any:
        """The next object.

        Raises:
          PickleError: it is damaged or too large.
        """
        try:
            return super().load()
        except PickleError:
            raise
        except KeyError as error:
            raise PickleError(f"byte {error} is no instruction of a pickle") from error
        except Exception as error:  # a damaged pickle may raise anything
            raise PickleError(str(error)[:200] or type(error).__name__) from error

    def find_class(self, module: str, name: str) -> Any:
        """The name itself."""
        full = f"{module}.{name}"
        return self.named.setdefault(full, Name(full))

    def persistent_load(self, pid: Any) -> Any:
        """What lies outside of the pickle."""
        return self.stored(pid)

    def _make(self, what: Any, arguments: Any) -> None:
        """Puts what a call of `what` stands for onto the stack."""
        if not isinstance(what, Name | Record) or not isinstance(arguments, tuple):
            raise PickleError(f"it calls a {type(what).__name__}")
        name = what.full if isinstance(what, Name) else what.name
        if isinstance(what, Name) and name in self.builders:
            self.append(self.builders[name](*arguments))
            return
        self.not_made[name] = None
        self.append(Record(name, arguments))

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self._make(self.stack.pop(), arguments)

    def _newobj_ex(self) -> None:
        self.stack.pop()  # the arguments by name
        self._reduce()

    def _inst(self) -> None:
        module, name = (self.readline()[:-1].decode("utf-8") for _ in range(2))
        self._make(self.find_class(module, name), tuple(self.pop_mark()))

    def _obj(self) -> None:
        what, *arguments = self.pop_mark()
        self._make(what, tuple(arguments))

    def _extension(self, size: int) -> None:
        self.append(Name(f"the copyreg extension {int.from_bytes(self.read(size), 'little')}"))

    def _build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Record):
            self.stack[-1].state = state

    def _set(self) -> None:
        self.append(Record("set"))

    def _add(self) -> None:
        self.pop_mark()

    def _frozenset(self) -> None:
        self.pop_mark()
        self.append(Record("frozenset"))

    def _append(self) -> None:
        self._extend([self.stack.pop()])

    def _appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)

    def _dict(self) -> None:
        made: dict[Any, Any] = {}
        put(made, self.pop_mark())
        self.append(made)

    def _setitem(self) -> None:
        value = self.stack.pop()
        self._put([self.stack.pop(), value])

    def _setitems(self) -> None:
        self._put(self.pop_mark())

    def _put(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Record):
            target.entries = entries = {} if target.entries is None else target.entries
            put(entries, values)
        elif isinstance(target, dict):
            put(target, values)
        else:
            raise PickleError(f"it puts a key into a {type(target).__name__}")


def put(target: dict[Any, Any], values: list[Any]) -> None:
    """Adds keys and values, which alternate; a key whose hash could cost much is kept as a `Record` of it.

    The hash of a tuple goes through all that it holds, which references to itself can make endless.
    """
    for key, value in zip(values[::2], values[1::2], strict=True):
        kind = type(key)
        cheap = kind in (str, float, bool, bytes, type(None)) or (kind is int and abs(key) <= LARGEST_KEY)
        target[key if cheap else Record("key", (key,))] = value


class _Bounded:
    """Hands out `MOST_BYTES` bytes of a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, MOST_BYTES

    def read(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self._left:
            raise PickleError(f"it has more than {MOST_BYTES >> 20} MB beside the arrays, or is damaged")
        self._left -= size
        data = self._file.read(size)
        if len(data) < size:
            raise PickleError("it ends too early")
        return data

    def readline(self) -> bytes:
        """The next line, with its end."""
        line = self._file.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise PickleError(f"it has more than {MOST_BYTES >> 20} MB beside the arrays")
        return line


class _Counted(dict[int, Any]):
    """Opcode -> method, for `MOST_OPCODES` instructions."""

    def __init__(self, methods: Mapping[int, Any]) -> None:
        super().__init__(methods)
        self.left = MOST_OPCODES

    def __getitem__(self, opcode: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise PickleError(f"its pickle has more than {MOST_OPCODES:,} instructions, which no file of weights needs")
        return super().__getitem__(opcode)


_DISPATCH: dict[int, Any] = {
    **pickle._Unpickler.dispatch,
    **{
        opcode[0]: method
        for opcode, method in {
            pickle.REDUCE: Unpickler._reduce,
            pickle.NEWOBJ: Unpickler._reduce,
            pickle.NEWOBJ_EX: Unpickler._newobj_ex,
            pickle.INST: Unpickler._inst,
            pickle.OBJ: Unpickler._obj,
            pickle.EXT1: lambda reader: reader._extension(1),
            pickle.EXT2: lambda reader: reader._extension(2),
            pickle.EXT4: lambda reader: reader._extension(4),
            pickle.BUILD: Unpickler._build,
            pickle.EMPTY_SET: Unpickler._set,
            pickle.ADDITEMS: Unpickler._add,
            pickle.FROZENSET: Unpickler._frozenset,
            pickle.APPEND: Unpickler._append,
            pickle.APPENDS: Unpickler._appends,
            pickle.DICT: Unpickler._dict,
            pickle.SETITEM: Unpickler._setitem,
            pickle.SETITEMS: Unpickler._setitems,
            pickle.BYTEARRAY8: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
        }.items()
    },
}
