"""Patch third-party libraries without putting the programs that use them at risk.

A patch is applied when its module is imported; nothing is imported because of us. Exceptions inside a patch are logged
once and never reach the caller. A library with an unexpected shape is left alone, with one warning.
"""

from __future__ import annotations

import functools
import importlib.abc
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from rl_insight.recorder.context import current_span
from rl_insight.recorder.decorators import surrounded

logger = logging.getLogger("rl_insight")

Patch = Callable[[ModuleType], None]
"""Changes a module that has just been imported."""

Arguments = Mapping[str, Any]
"""The arguments of a call, by the parameter names of the function, defaults included."""

Manager = Callable[[Arguments], AbstractContextManager[Any]]
"""Makes the context manager around one call."""

ClassT = TypeVar("ClassT", bound=type)

_reported: set[str] = set()


def report_once(what: str, error: BaseException, where: str = "") -> None:
    """Log the first failure of part of an integration; `where` narrows down the place."""
    if what not in _reported:
        _reported.add(what)
        place = f" ({where})" if where else ""
        message = "RL-Insight: %s failed%s; the program continues without it. %s: %s"
        logger.warning(message, what, place, type(error).__name__, error)


def on_import(name: str, patch: Patch) -> None:
    """Apply a patch to a module: now if it has been imported, otherwise right after its import.

    Each patch is applied once, no matter how often this is called.
    """
    with _finder.lock:
        waiting = _finder.patches.setdefault(name, [])
        if patch in waiting:
            return
        waiting.append(patch)
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _apply(module, patch)


def replace_once(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function or method of `owner` with `make(original)`, unless it has been replaced before.

    Class methods and static methods keep their kind.

    Raises:
        AttributeError: there is no such function; the same applies to all hooks below.
    """
    found = inspect.getattr_static(owner, name)
    binding = type(found) if isinstance(found, (classmethod, staticmethod)) else None
    original = found if binding is None else found.__func__
    if not hasattr(original, "_rl_insight"):
        replacement: Any = functools.wraps(original)(make(original))
        replacement._rl_insight = True
        setattr(owner, name, replacement if binding is None else binding(replacement))


class _Hooked:
    """A function that is about to be replaced: its name for reports, and its arguments by name."""

    def __init__(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        self.what = f"the hook on {owner.__name__}.{name}"
        self._signature = inspect.signature(function)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def block(self, manager: Manager, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QuietContext:
        return QuietContext(self.what, lambda: manager(self.arguments(args, kwargs)))


def around(owner: Any, name: str, manager: Manager) -> None:
    """Run every call of a function or method of `owner` inside a context manager made from the call's arguments.

    Failures while the manager is created, entered or left are reported once; the function's own result and exceptions
    pass through unchanged. A coroutine function is surrounded while it is awaited.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return surrounded(original, functools.partial(_Hooked(owner, name, original).block, manager))

    replace_once(owner, name, make)


def around_blocks(owner: Any, name: str, manager: Manager) -> None:
    """Like `around`, for a function that returns a context manager: surround its block, not the call."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        hooked = _Hooked(owner, name, original)

        @contextmanager
        def block(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with hooked.block(manager, args, kwargs), original(*args, **kwargs) as value:
                yield value

        return block

    replace_once(owner, name, make)


def before(owner: Any, name: str, observe: Callable[[Arguments], None]) -> None:
    """Call `observe` with the arguments of every call of a function or method of `owner`, before the call."""

    def observed(call: Arguments) -> AbstractContextManager[Any]:
        observe(call)
        return nullcontext()

    around(owner, name, observed)


def after(owner: Any, name: str, observe: Callable[[Arguments, Any], None]) -> None:
    """Call `observe` with the arguments and the result of every call of a function or method of `owner`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        hooked = _Hooked(owner, name, original)
        note = quiet(hooked.what)(lambda call, result: observe(hooked.arguments(*call), result))

        def ended(call: tuple[Any, Any], result: Any) -> Any:
            note(call, result)
            return result

        return surrounded(original, lambda *call: nullcontext(call), ended)

    replace_once(owner, name, make)


def between(
    owner: Any,
    names: tuple[str, str],
    manager: Manager,
    key: Callable[[Arguments], Any] = lambda call: id(call["self"]),
    *,
    in_any_thread: bool = False,
) -> None:
    """Keep a context manager open from the call of one method to the call of another, such as a timer's start and stop.

    Two calls form a pair if they have the same `key` and, unless `in_any_thread`, the same thread. Timers may overlap:
    after one of them stops, new spans belong to those that still run.
    """
    opened: dict[Any, _Opened] = {}

    def place(call: Arguments) -> Any:
        return (0 if in_any_thread else threading.get_ident(), key(call))

    def begin(call: Arguments) -> None:
        end(call)
        made, outer = manager(call), current_span.get()
        made.__enter__()
        opened[place(call)] = _Opened(made, current_span.get(), outer, sys.exc_info()[1])

    def end(call: Arguments) -> None:
        one = opened.pop(place(call), None)
        if one is None:
            return
        innermost, error = current_span.get(), sys.exc_info()[1]
        if error is None or error is one.handled:
            one.manager.__exit__(None, None, None)
        else:  # an exception that ends the block of a timer
            one.manager.__exit__(type(error), error, None)
        if innermost is one.current:
            current_span.set(one.outer)
            return
        current_span.set(innermost)
        for other in opened.values():
            if other.outer is one.current:
                other.outer = one.outer

    before(owner, names[0], begin)
    before(owner, names[1], end)


@dataclass(slots=True)
class _Opened:
    """A context manager without a `with` block."""

    manager: AbstractContextManager[Any]
    current: Any
    """The span that is current inside."""
    outer: Any
    """The span that is current outside."""
    handled: BaseException | None
    """The exception that was being handled when it was opened."""


class OpenBlock:
    """A block that a framework begins in one callback and ends in another."""

    def __init__(self) -> None:
        self._manager: Any = None

    def enter(self, manager: AbstractContextManager[Any]) -> None:
        """Begin a block, and end the open one."""
        self.leave()
        self._manager = manager
        manager.__enter__()

    def leave(self, error: BaseException | None = None) -> None:
        """End the open block, if any."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.__exit__(None if error is None else type(error), error, None)


class QuietContext:
    """A context manager that never raises while it is created, entered or left: failures are reported once.

    Exceptions of the block itself pass through unchanged.
    """

    __slots__ = ("_make", "_opened", "_what")

    def __init__(self, what: str, make: Callable[[], Any]) -> None:
        self._what = what
        self._make = make
        self._opened: Any = None

    def __enter__(self) -> Any:
        """Return the target of the inner context manager; None if it failed."""
        try:
            opened = self._make()
            value = opened.__enter__()
        except Exception as error:  # noqa: BLE001  # the library's own call must happen as if we were not here
            report_once(self._what, error)
            return None
        self._opened = opened
        return value

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        try:
            opened.__exit__(kind, error, traceback)
        except Exception as raised:  # noqa: BLE001
            if raised is not error:
                report_once(self._what, raised)


def never_raises(what: str) -> Callable[[ClassT], ClassT]:
    """Decorate a class that a framework calls: if a public method fails, report it once and return None."""

    def decorate(owner: ClassT) -> ClassT:
        for name, method in list(vars(owner).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(owner, name, quiet(what)(method))
        return owner

    return decorate


def quiet(what: str, otherwise: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that a framework calls: if it fails, report it once and return `otherwise`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  # training must continue as if we were not here
                report_once(what, error)
                return otherwise

        return call

    return decorate


def _apply(module: ModuleType, patch: Patch) -> None:
    try:
        patch(module)
    except Exception as error:  # noqa: BLE001  # an unknown version of the library
        # One warning per library, no matter how many of its modules have changed.
        report_once(f"the integration with {module.__name__.partition('.')[0]}", error, module.__name__)


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds modules with pending patches as the other finders do, and patches them after they are executed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.patches: dict[str, list[Patch]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module with pending patches, None for all others."""
        if fullname not in self.patches:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._prepare(spec)
                return spec
        return None

    def _prepare(self, spec: ModuleSpec) -> None:
        # Keep the loader: programs inspect a module's loader and must find the one they expect.
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def execute_and_patch(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            for patch in self.patches.get(module.__name__, ()):  # one of them may add another
                _apply(module, patch)

        try:
            loader.exec_module = execute_and_patch
        except AttributeError:  # a loader that is a class, as for built-in modules
            return


_finder = _PatchingFinder()
