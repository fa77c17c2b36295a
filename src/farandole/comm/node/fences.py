"""A fence orders what a rank writes to shared memory and reads from it, as another rank sees it.

A rank marks its progress in a word, and who sees the mark reads what was written before it, or overwrites what was read before it:

    writer   data, fence, mark          reader   mark, fence, data

A mark is one aligned word, which nobody sees half written. A full fence on both sides orders all loads and stores before it
against all after it, for every core of the machine: who sees the mark sees the data. x86 keeps this order by itself (only a load
may pass an earlier store, which the pattern has nowhere). Other processors have an instruction for it, which Python does not
know: it is put where the processor may execute it, through a file, as libraries are loaded, so that the system also
sees to the instruction cache. Where it forbids that, or the processor is unknown, there is no fence: ranks then share no memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform

import numpy as np

__all__ = ["fence", "missing"]

_IN_ORDER = ("x86_64", "AMD64")
_CODE = {
    "aarch64": "bf3b03d5 c0035fd6",  # dmb ish; ret
    "ppc64le": "ac04007c 2000804e",  # sync; blr
    "riscv64": "0f003003 67800000",  # fence rw,rw; ret
}


def _executable(code: bytes) -> mmap.mmap:
    handle = os.memfd_create("farandole-fence", os.MFD_CLOEXEC)
    try:
        os.write(handle, code)
        return mmap.mmap(handle, len(code), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(handle)


def _load(machine: str) -> tuple[mmap.mmap | None, str]:
    """The fence's code, if it needs any; why there is none."""
    if machine in _IN_ORDER:
        return None, ""
    if machine not in _CODE:
        return None, f"no memory fence known for {machine}"
    try:
        return _executable(bytes.fromhex(_CODE[machine])), ""
    except OSError as error:
        return None, f"no memory fence: the system lets no memory be executed ({error.strerror})"


_memory, _missing = _load(platform.machine())
_run = None if _memory is None else ctypes.CFUNCTYPE(None)(np.frombuffer(_memory, np.uint8).ctypes.data)


def missing() -> str:
    """Why this rank has no fence; empty where it has one or needs none."""
    return _missing


def fence() -> None:
    """Order this rank's memory accesses before it against those after it."""
    if _run is not None:
        _run()
