"""Reads the pickle inside a PyTorch file without running any of it.

A pickle is a program. This interpreter knows the instructions that build plain values, and of the functions that such a
program may call only those in `_GLOBALS`: they make tensors (as a description: where in which storage) and containers.
Any other function or class is refused by its name. Values that are no tensors and hold none come out as None.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_DEEPEST = 100
_KEYS = (str, int, float, bool, bytes, type(None))
_MARK = object()


class Storage(NamedTuple):
    """`dtype` is empty where only the tensors say it."""

    key: str
    dtype: str
    size: int


class Strided(NamedTuple):
    """A tensor: places in a storage. `offset` and `strides` are counted in numbers, not bytes."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Function(NamedTuple):
    call: Callable[..., Any]


class _Type(NamedTuple):
    """Of numbers, or of a storage of such."""

    dtype: str


def _tensor(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Strided:
    return _strided(storage, storage.dtype, offset, shape, strides)


def _tensor_with_type(
    storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], _grad: Any, _hooks: Any, of: _Type,
    *_: Any,
) -> Strided:  # fmt: skip
    return _strided(storage, of.dtype, offset, shape, strides)


def _strided(storage: Storage, dtype: str, offset: int, shape: Any, strides: Any) -> Strided:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or len(shape) != len(strides) or not all(type(each) is int for each in numbers):
        raise ValueError("a tensor is described in a way that makes no sense")
    return Strided(storage, dtype, offset, tuple(shape), tuple(strides))


def _mapping(*arguments: Any) -> dict[Any, Any]:
    """An OrderedDict has no arguments; a defaultdict has a factory, a Counter what it counts."""
    if arguments and arguments[-1] is not None:
        if not isinstance(arguments[-1], dict):
            raise ValueError("a dictionary is described in a way that makes no sense")
        return arguments[-1]
    return {}


def _first(data: Any, *_: Any) -> Any:
    return data


def _called(function: _Function, _type: Any, arguments: tuple[Any, ...], *_: Any) -> Any:
    return function.call(*arguments)


_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
}
_DTYPES = (
    *_STORAGES.values(),
    *("uint16", "uint32", "uint64", "complex32"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_NOTHING = _Function(lambda *_: None)
_DICT = _Function(_mapping)
_GLOBALS: dict[str, Any] = {
    "torch._utils._rebuild_tensor": _Function(_tensor),
    "torch._utils._rebuild_tensor_v2": _Function(_tensor),
    "torch._utils._rebuild_tensor_v3": _Function(_tensor_with_type),
    "torch._utils._rebuild_parameter": _Function(_first),
    "torch._utils._rebuild_parameter_with_state": _Function(_first),
    "torch._tensor._rebuild_from_type_v2": _Function(_called),
    "torch.Tensor": None,
    "torch.nn.parameter.Parameter": None,
    "torch.Size": _Function(_first),
    "torch.device": _NOTHING,
    "torch.storage.UntypedStorage": _Type(""),
    **{f"torch.{name}Storage": _Type(dtype) for name, dtype in _STORAGES.items()},
    **{f"torch.{dtype}": _Type(dtype) for dtype in _DTYPES},
    "collections.OrderedDict": _DICT,
    "collections.defaultdict": _DICT,
    "collections.Counter": _DICT,
    "_codecs.encode": _NOTHING,
    **{f"{module}.{name}": _NOTHING for module in ("builtins", "__builtin__")
       for name in ("set", "frozenset", "complex", "bytearray")},
    **{f"{module}.{name}": None for module in ("builtins", "__builtin__") for name in ("dict", "list", "int", "float")},
}  # fmt: skip


def tensors_in(pickle: bytes) -> Iterator[tuple[str, Strided]]:
    """Each tensor with its name: the keys that lead to it, joined by slashes. What two names hold in common is told
    once."""
    seen: set[int] = set()
    root = _Machine().run(pickle)
    waiting: list[tuple[tuple[str, ...], Any]] = [((), root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Strided):
            yield "/".join(path), value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            if len(path) == _DEEPEST:
                raise ValueError("its containers are nested too deeply")
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += reversed([((*path, str(key)), each) for key, each in items])


class _Machine:
    """A pickle's stack and memory."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def run(self, pickle: bytes) -> Any:
        for instruction, argument, _ in pickletools.genops(pickle):
            name = instruction.name
            if name in _VALUES:
                self._stack.append(argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name]())
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in ("PROTO", "FRAME", "STOP"):
                raise ValueError(f"its pickle has the instruction {name}, which weights do not need")
        return self._stack.pop()

    def _marked(self) -> list[Any]:
        """All values since the last mark."""
        for start in range(len(self._stack) - 1, -1, -1):
            if self._stack[start] is _MARK:
                values = self._stack[start + 1 :]
                del self._stack[start:]
                return values
        raise ValueError("its pickle has no mark where there must be one")

    def _last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise ValueError("its pickle takes more than it has")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        return values

    def tuple_of(self, count: int) -> None:
        self._stack.append(self._last(count))

    def close_tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._marked()))

    def close_list(self, _: Any) -> None:
        self._stack.append(self._marked())

    def close_dict(self, _: Any) -> None:
        values = self._marked()
        self._stack.append({})
        self._put(values)

    def append(self, _: Any) -> None:
        self._extend(list(self._last(1)))

    def extend(self, _: Any) -> None:
        self._extend(self._marked())

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self._stack[-1], list):
            self._stack[-1].extend(values)
        elif self._stack[-1] is not None:
            raise TypeError("its pickle appends to what is no list")

    def set_item(self, _: Any) -> None:
        self._put(list(self._last(2)))

    def set_items(self, _: Any) -> None:
        self._put(self._marked())

    def _put(self, values: list[Any]) -> None:
        for key, value in zip(values[::2], values[1::2], strict=True):
            # To hash a tuple of tuples of … can take for ever.
            self._stack[-1][key if isinstance(key, _KEYS) else repr(type(key))] = value

    def store(self, number: int) -> None:
        self._memory[number] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memory[len(self._memory)] = self._stack[-1]

    def recall(self, number: int) -> None:
        self._stack.append(self._memory[number])

    def name(self, text: str) -> None:
        """GLOBAL gives both names, with a space between them."""
        self._named(".".join(text.split(" ", 1)))

    def name_from_stack(self, _: Any) -> None:
        self._named(".".join(map(str, self._last(2))))

    def _named(self, name: str) -> None:
        if name not in _GLOBALS:
            raise ValueError(
                f"it holds {name[:200]!r}, which is more than weights; save what it has of tensors alone: "
                "torch.save(model.state_dict(), …)"
            )
        self._stack.append(_GLOBALS[name])

    def call(self, _: Any) -> None:
        function, arguments = self._last(2)
        if not isinstance(function, _Function) or not isinstance(arguments, tuple):
            raise TypeError("its pickle calls what is no function")
        self._stack.append(function.call(*arguments))

    def set_state(self, _: Any) -> None:
        """Attributes: of a state_dict, its versions. They stay as they are in the file."""
        self._last(1)

    def load_storage(self, _: Any) -> None:
        kind, storage, key, _where, size = self._last(1)[0]
        if kind != "storage" or not isinstance(storage, _Type) or type(size) is not int:
            raise ValueError("its pickle refers to something that is no storage")
        self._stack.append(Storage(str(key), storage.dtype, size))

    def pop(self, _: Any) -> None:
        self._last(1)

    def pop_mark(self, _: Any) -> None:
        self._marked()

    def duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])


_VALUES = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: None,
    "MARK": lambda: _MARK,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": _Machine.close_tuple,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "LIST": _Machine.close_list,
    "DICT": _Machine.close_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.extend,
    "ADDITEMS": _Machine.extend,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "PUT": _Machine.store,
    "BINPUT": _Machine.store,
    "LONG_BINPUT": _Machine.store,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.recall,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_from_stack,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.set_state,
    "BINPERSID": _Machine.load_storage,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.duplicate,
}
