"""numpy's arrays begin at 16, 32 or 48 bytes past a multiple of 64, as malloc may put them.

Tensors of torch always begin at a multiple of 64. Where a test compares an array with a tensor bit for bit, it must
say why that holds at any address; by chance alone it holds on one machine and not on the next.
"""

import ctypes
import itertools

import numpy as np

SHIFTS = (16, 32, 48)
SET_HANDLER = 304
"""The place of PyDataMem_SetHandler among numpy's functions for C (NEP 49)."""

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", MALLOC),
        ("calloc", CALLOC),
        ("realloc", REALLOC),
        ("free", FREE),
    ]


shift = itertools.cycle(SHIFTS).__next__


def allocate(_, size):
    base = libc.malloc(size + 128)
    if not base:
        return None
    begin = (base + 16 + 63) // 64 * 64 + shift()
    note(begin, base, size)
    return begin


def note(begin, base, size):
    """Before the array stand what malloc gave and the array's size."""
    (ctypes.c_size_t * 2).from_address(begin - 16)[:] = (base, size)


def noted(begin):
    return (ctypes.c_size_t * 2).from_address(begin - 16)[:]


def allocate_zeros(context, count, size):
    begin = allocate(context, count * size)
    if begin:
        ctypes.memset(begin, 0, count * size)
    return begin


def reallocate(context, old, size):
    begin = allocate(context, size)
    if begin and old:
        ctypes.memmove(begin, old, min(size, noted(old)[1]))
        release(context, old, 0)
    return begin


def release(_, begin, size):
    if begin:
        libc.free(noted(begin)[0])


HANDLER = Handler(b"odd_memory", 1, None, MALLOC(allocate), CALLOC(allocate_zeros), REALLOC(reallocate), FREE(release))


def install():
    """From now on, in this thread."""
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype, python.PyCapsule_GetPointer.argtypes = (
        ctypes.c_void_p,
        [ctypes.py_object, ctypes.c_char_p],
    )
    python.PyCapsule_New.restype = ctypes.py_object
    python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    table = python.PyCapsule_GetPointer(np._core._multiarray_umath._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[SET_HANDLER]
    ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)(
        python.PyCapsule_New(ctypes.addressof(HANDLER), b"mem_handler", None)
    )
    begins = {np.empty(size).ctypes.data % 64 for size in range(1, 50)}
    assert begins == set(SHIFTS), f"numpy's memory was not moved: {begins}"
