"""Patching libraries that we did not write, without any risk for the program that uses them.

A patch waits for its module: nothing is imported because of us. What fails inside a patch is reported once and never
reaches the caller; a library whose shape is not the expected one is left alone, with one warning.
"""

from __future__ import annotations

import functools
import importlib.abc
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from rl_insight.recorder.context import current_span
from rl_insight.recorder.decorators import surrounded

logger = logging.getLogger("rl_insight")

Patch = Callable[[ModuleType], None]
"""Changes a module that has just been imported."""

Observer = Callable[[Mapping[str, Any]], None]
"""Looks at the arguments of a call, by name."""

ClassT = TypeVar("ClassT", bound=type)

_reported: set[str] = set()


def report_once(what: str, error: BaseException, where: str = "") -> None:
    """Log a failure of an integration the first time it happens; `where` says more about the place."""
    if what not in _reported:
        _reported.add(what)
        place = f" ({where})" if where else ""
        logger.warning(
            "RL-Insight: %s does not work here, and is left out%s: %s: %s", what, place, type(error).__name__, error
        )


def on_import(name: str, patch: Patch) -> None:
    """Apply a patch to a module: now if it has been imported, else right after it is.

    A patch is applied once, however often it is asked for.
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


def before(owner: Any, name: str, observe: Observer) -> None:
    """Have `observe` see the arguments of every call of a function or method of `owner`, before the call happens.

    The arguments come by the names of the function's own signature, however the caller passed them.

    Raises:
        AttributeError: there is no such function.
    """

    @contextmanager
    def observed(call: Mapping[str, Any]) -> Iterator[None]:
        observe(call)
        yield

    around(owner, name, observed)


def around(owner: Any, name: str, manager: Callable[[Mapping[str, Any]], AbstractContextManager[Any]]) -> None:
    """Run every call of a function or method of `owner` inside a context manager made from the call's arguments.

    What goes wrong while the manager is made, entered or left is reported once; the function's own result and
    exceptions pass unchanged. Functions, methods, class methods and static methods can be wrapped, each once; a
    coroutine function is surrounded while it is awaited.

    Raises:
        AttributeError: there is no such function.
    """
    found = inspect.getattr_static(owner, name)
    binding = type(found) if isinstance(found, (classmethod, staticmethod)) else None
    original = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
    if hasattr(original, "_rl_insight_manager"):
        return
    signature = inspect.signature(original)

    def watching(args: Any, kwargs: Any) -> QuietContext:
        def make() -> AbstractContextManager[Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return manager(bound.arguments)

        return QuietContext(f"the observer of {name}", make)

    replacement: Any = surrounded(original, watching)
    replacement._rl_insight_manager = manager
    setattr(owner, name, replacement if binding is None else binding(replacement))


def between(
    owner: Any,
    names: tuple[str, str],
    manager: Callable[[Mapping[str, Any]], AbstractContextManager[Any]],
    key: Callable[[Mapping[str, Any]], Any] = lambda call: id(call["self"]),
    *,
    in_any_thread: bool = False,
) -> None:
    """Keep a context manager open from the call of one method to the call of another, as a timer's start and stop.

    The two calls belong together when they have the same `key` and, unless `in_any_thread`, come from the same thread.
    Timers may overlap: what begins after one of them was stopped belongs to those that still run.

    Raises:
        AttributeError: there is no such method.
    """
    opened: dict[Any, _Opened] = {}

    def place(call: Mapping[str, Any]) -> Any:
        return (0 if in_any_thread else threading.get_ident(), key(call))

    def begin(call: Mapping[str, Any]) -> None:
        end(call)
        made, outer = manager(call), current_span.get()
        made.__enter__()
        opened[place(call)] = _Opened(made, current_span.get(), outer)

    def end(call: Mapping[str, Any]) -> None:
        one = opened.pop(place(call), None)
        if one is None:
            return
        innermost = current_span.get()
        one.manager.__exit__(None, None, None)
        if innermost is one.current:
            current_span.set(one.outer)
            return
        current_span.set(innermost)
        for other in opened.values():
            if other.outer is one.current:
                other.outer = one.outer

    before(owner, names[0], begin)
    before(owner, names[1], end)


class _Opened:
    """A context manager that no block covers, and which spans were current inside and outside of it."""

    __slots__ = ("current", "manager", "outer")

    def __init__(self, manager: AbstractContextManager[Any], current: Any, outer: Any) -> None:
        self.manager = manager
        self.current = current
        self.outer = outer


class OpenBlock:
    """A block that one call of a framework begins and another one ends."""

    def __init__(self) -> None:
        self._manager: Any = None

    def enter(self, manager: AbstractContextManager[Any]) -> None:
        """Begin a block; ends the one that is open."""
        self.leave()
        self._manager = manager
        manager.__enter__()

    def leave(self, error: BaseException | None = None) -> None:
        """End the block that is open, if there is one."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.__exit__(None if error is None else type(error), error, None)


class QuietContext:
    """A context manager whose making, entering and leaving never raise: what fails is reported once.

    Exceptions of the block itself pass unchanged.

    >>> with QuietContext("an example", lambda: monitor.trace_state("update")):  # doctest: +SKIP
    ...     library_function()
    """

    __slots__ = ("_make", "_opened", "_what")

    def __init__(self, what: str, make: Callable[[], Any]) -> None:
        self._what = what
        self._make = make
        self._opened: Any = None

    def __enter__(self) -> Any:
        """Return what was opened; None where that failed."""
        try:
            opened = self._make()
            opened.__enter__()
        except Exception as error:  # noqa: BLE001  # the library's own call must happen as if we were not here
            report_once(self._what, error)
            return None
        self._opened = opened
        return opened

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
    """Decorate a class that a framework calls: its public methods report once what fails in them, and return None."""

    def decorate(owner: ClassT) -> ClassT:
        for name, method in list(vars(owner).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(owner, name, quiet(what)(method))
        return owner

    return decorate


def quiet(what: str, otherwise: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that a framework calls: what fails in it is reported once, and `otherwise` is returned."""

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


def replace_once(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of `owner` by what `make` returns for it; one that was replaced already stays.

    Raises:
        AttributeError: there is no such function.
    """
    original = getattr(owner, name)
    if not hasattr(original, "_rl_insight"):
        replacement: Any = functools.wraps(original)(make(original))
        replacement._rl_insight = True
        setattr(owner, name, replacement)


def _apply(module: ModuleType, patch: Patch) -> None:
    try:
        patch(module)
    except Exception as error:  # noqa: BLE001  # a version of the library that we do not know
        # One warning per library, however many of its modules have changed.
        report_once(f"the integration with {module.__name__.partition('.')[0]}", error, module.__name__)


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that patches wait for as the others would, and adds the patches to their execution."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.patches: dict[str, list[Patch]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that patches wait for, None for all others."""
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
        # The loader itself stays: programs look at a module's loader, and must find the one they expect.
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
