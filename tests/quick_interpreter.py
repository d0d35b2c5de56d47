"""Triton's interpreter looks through its whole language at every call of a kernel, which takes a third of the time.

Which names it must replace does not change: `install` has them looked for once. Where Triton is another than this one
knows, nothing is done.
"""

import inspect
from contextlib import suppress


def install():
    with suppress(ImportError, AttributeError):
        import triton.language as language
        from triton.runtime import interpreter

        is_builtin, replace, names = language.core.is_builtin, interpreter._patch_attr, {}
        if list(inspect.signature(interpreter._patch_builtin).parameters) != ["pkg", "builder", "scope"]:
            return

        def replace_builtins(pkg, builder, scope):
            if pkg not in names:  # the first call finds the language as it is
                names[pkg] = [name for name, member in inspect.getmembers(pkg) if is_builtin(member)]
            for name in names[pkg]:
                member = getattr(pkg, name)
                if is_builtin(member):  # else it was replaced for the kernel that called this one
                    replace(pkg, name, member, builder, scope)

        interpreter._patch_builtin = replace_builtins
