"""Binding a launch's arguments: functions made as text for each kernel, as dataclasses make theirs.

`bind` gives the arguments in order and the options besides. `classify` does that too, and in the same go finds the
key of the compiled kernel and the words it takes: tensors of torch and integers are looked at in place, since a call of
`inspect.Signature.bind`, or of a function for each argument, would take longer than the rest of a launch. `launch` does
the same and, where the kernel is known, runs it.
"""

from __future__ import annotations

import inspect
import struct
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

from weft.frontends.triton.errors import ArgumentError
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.runtime.hooks import ENTER, EXIT
from weft.frontends.triton.runtime.jit import JITFunction, interpreted_here, options_fit
from weft.frontends.triton.runtime.memory_places import address_of, place_of_foreign
from weft.frontends.triton.runtime.specialise import Parameter, Words, alias_groups, constant_key

Bound = tuple[tuple[Any, ...], dict[str, Any]]
Classified = tuple[tuple[Hashable, ...], Words, tuple[Any, ...], dict[str, Any]]
"""The key, the words, all arguments in order, the options."""


class _NoTensor:
    """Stands for torch's tensors where torch is not loaded."""


def make_bind(function: JITFunction) -> Callable[..., Bound]:
    """A function that takes what the kernel takes, and gives all arguments in order and the options besides."""
    head, scope, options = _head(function)
    return _made(f"{head}\n    return ({_tuple(function.arg_names)}), {options}", function, scope)


def make_classify(function: JITFunction) -> Callable[..., Classified]:
    """A function that takes what the kernel takes, and finds out all that a launch needs to know."""
    head, scope, options = _head(function)
    lines, key = _classifying(function, scope, options)
    lines.append(f"    return {key}, words_, ({_tuple(function.arg_names)}), {options}")
    return _made("\n".join([head, *lines]), function, scope)


def make_launch(
    function: JITFunction,
    kernels: Mapping[Any, Any],
    used: Sequence[Any],
    triple: Callable[[Any], tuple[int, int, int]],
    otherwise: Callable[..., Any],
    watched: bool,
) -> Callable[..., Any]:
    """A function that takes the grid and what the kernel takes, and runs the kernel that there is among `kernels`.

    It leaves the launch to `otherwise` where there is none, where an option is not known, or one of the names that the
    kernel uses (`used`: scope, name, value) is bound to something else by now. If it is `watched`, it first looks
    whether the kernel is to run as Python, or someone wants to know of the launch.
    """
    head, scope, options = _head(function, "grid_of_the_launch_")
    if function.params and all(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in function.params):
        # Python would count the grid, which is no argument of the kernel's.
        head = head.replace(f"**{options}", f"*surplus_, **{options}")
        head += "\n    if surplus_: refuse_(function_, surplus_)"
        scope["refuse_"] = _refuse
    scope |= {"kernels_": kernels, "used_": used, "triple_": triple, "otherwise_": otherwise}
    scope |= {"grid_function_": FunctionType, "unwrap_": unwrap, "enter_": ENTER.calls, "exit_": EXIT.calls}
    scope |= {"function_": function, "here_": interpreted_here, "seen_": _seen}
    classifying, key = _classifying(function, scope, options)
    given = _tuple(function.arg_names)
    rest = f"otherwise_(grid_of_the_launch_, key_, words_, ({given}), {options})"
    lines = [
        "    chosen_ = here_()",
        "    if chosen_ is None:",
        "        chosen_ = function_.by_environment",
        "    if chosen_ or function_.watcher or function_.pre_run_hooks or enter_ or exit_:",
        f"        return function_.run({_passed(function)}grid=grid_of_the_launch_, **{options})",
    ]
    lines = [
        *(lines if watched else ()),
        *classifying,
        f"    key_ = {key}",
        "    fit_ = True",
        f"    if {options}:",
        f"        more_, fit_ = seen_({options})",
        "        if more_: key_ = (*key_[:-1], *more_, key_[-1])",
        "    kernel_ = kernels_.get(key_)",
        "    if type_(grid_of_the_launch_) is grid_function_:",
        f"        grid_of_the_launch_ = grid_of_the_launch_({_shown(function)})",
        "    if kernel_ is None or not fit_ or type_(grid_of_the_launch_) is not tuple_:",
        f"        return {rest}",
        "    for scope_, name_, value_ in used_:",
        "        if scope_.get(name_) is not value_:",
        f"            return {rest}",
        "    try:",
        "        kernel_.launch(triple_(grid_of_the_launch_), words_)",
        "    except errors_:",
        f"        return {rest}",
        "    return kernel_",
    ]
    scope["errors_"] = (OverflowError, struct.error)
    return _made("\n".join([head, *lines]), function, scope)


def _classifying(function: JITFunction, scope: dict[str, Any], options: str) -> tuple[list[str], str]:
    """The lines that look at all arguments, and the text of the key."""
    torch: Any = sys.modules.get("torch")
    scope |= {
        "Tensor_": torch.Tensor if torch is not None else _NoTensor,
        "constant_key_": constant_key,
        "alias_groups_": alias_groups,
        "foreign_": place_of_foreign,
        "address_of_": address_of,
        "strided_": torch.strided if torch is not None else None,
        **{"type_": type, "len_": len, "int_": int, "tuple_": tuple},  # a parameter may be called like these
    }
    lines = ["    words_ = []", "    storages_ = []"]
    for parameter in function.params:
        scope[f"general_{parameter.num}"] = parameter.classifier
        lines += [f"    {line}" for line in _classify(parameter)]
    keys = _tuple([f"k{parameter.num}_" for parameter in function.params])
    groups = "alias_groups_(storages_) if len_(storages_) > 1 else None"
    debug = f"{options}.get('debug') if {options} else None"
    return lines, f"({keys}{debug}, {groups})"


def _classify(parameter: Parameter) -> list[str]:
    """The lines that find one argument's part of the key."""
    name, key = parameter.name, f"k{parameter.num}_"
    general = f"{key} = general_{parameter.num}({name})({name}, words_, storages_)"
    if parameter.is_constexpr:
        return [f"{key} = {name} if type_({name}) is int_ else constant_key_({name})"]
    aligned = "True" if not parameter.do_not_specialize_on_alignment else "False"
    lines = [
        f"if type_({name}) is Tensor_:",
        f"    a_ = {name}.data_ptr() if {name}.layout is strided_ else 0",
        f"    if not a_: a_ = address_of_({name}, {name!r})",
        "    words_.append(a_)",
        f"    s_ = {name}.untyped_storage()",
        "    b_ = s_.data_ptr()",
        "    storages_.append((b_, b_ + s_.nbytes()))",
        f"    p_ = s_.resizable() or foreign_(s_) if {name}.is_cpu else -1 - {name}.get_device()",
        f"    {key} = ({name}.dtype, {aligned} and not a_ & 15, p_)",
    ]
    if parameter.scalar is None and not parameter.do_not_specialize and aligned == "True":
        lines += [
            f"elif type_({name}) is int_ and -0x80000000 <= {name} <= 0x7FFFFFFF:",
            f"    if {name} == 1:",
            f"        {key} = '1'",
            "    else:",
            f"        words_.append({name})",
            f"        {key} = 'i32' if {name} & 15 else 'i32:16'",
        ]
    return [*lines, "else:", f"    {general}"]


def _head(function: JITFunction, *first: str) -> tuple[str, dict[str, Any], str]:
    """The line of the definition, the scope that it needs, and the name of the options."""
    scope: dict[str, Any] = {}
    parts: list[str] = list(first)
    for parameter in function.params:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise ArgumentError(
                f"kernel {function.__name__} takes a variable number of arguments",
                location=f"{function.source.file}:{function.fn.__code__.co_firstlineno}",
                hint="pass a tuple; only functions that kernels call may have *args",
            )
        default = ""
        if parameter.has_default:
            scope[f"default_{parameter.num}"] = parameter.default
            default = f"=default_{parameter.num}"
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(parameter.name + default)
    options = "options_of_the_launch_"
    return f"def {_name(function)}({', '.join([*parts, f'**{options}'])}):", scope, options


def _refuse(function: JITFunction, surplus: tuple[Any, ...]) -> NoReturn:
    """Say, as Python does, that a launch has more arguments than the kernel."""
    takes = len(function.params)
    least = sum(not parameter.has_default for parameter in function.params)
    counts = f"{takes}" if least == takes else f"from {least} to {takes}"
    noun = "argument" if counts == "1" else "arguments"
    raise TypeError(f"{_name(function)}() takes {counts} positional {noun} but {takes + len(surplus)} were given")


def _name(function: JITFunction) -> str:
    """The kernel's own name, which Python's messages about wrong arguments have."""
    return function.__name__ if function.__name__.isidentifier() else "kernel"


def _tuple(names: list[str]) -> str:
    return "".join(f"{name}, " for name in names)


def with_options(key: tuple[Hashable, ...], options: dict[str, Any]) -> tuple[Hashable, ...]:
    """How many warps a program has, and registers a thread of it, shapes its code on a GPU."""
    return (*key[:-1], *_of_code(options), key[-1])


def _of_code(options: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """What the options of a launch add to its key."""
    given = ((name, options.get(name)) for name in ("num_warps", "maxnreg"))
    return tuple(
        [(name, value if type(value) is int else constant_key(value)) for name, value in given if value is not None]
    )


_met: dict[tuple[Any, ...], tuple[Hashable, ...]] = {}
"""What options of launches that are plain integers, and fit, add to the key: most launches have the same."""
_MOST_MET = 1024


def _seen(options: dict[str, Any]) -> tuple[tuple[Hashable, ...], bool]:
    """What options add to the key, and whether nothing is to be said of them."""
    key = (*options.items(), *map(type, options.values()))
    try:
        if (more := _met.get(key)) is not None:
            return more, True
    except TypeError:  # one of them has no hash
        return _of_code(options), options_fit(options)
    more, fit = _of_code(options), options_fit(options)
    if fit and all([type(value) is int for value in options.values()]) and len(_met) < _MOST_MET:
        _met[key] = more
    return more, fit


def _passed(function: JITFunction) -> str:
    """All arguments, handed on."""
    named = inspect.Parameter.KEYWORD_ONLY
    return "".join(f"{p.name}={p.name}, " if p.kind is named else f"{p.name}, " for p in function.params)


def _shown(function: JITFunction) -> str:
    """All arguments by name, for a function that computes the grid."""
    plain = "{0} if type_({0}) is Tensor_ or type_({0}) is int_ else unwrap_({0})"
    return f"{{{', '.join(f'{p.name!r}: {plain.format(p.name)}' for p in function.params)}}}"


def _made(text: str, function: JITFunction, scope: dict[str, Any]) -> Any:
    exec(text, scope)
    return scope[_name(function)]
