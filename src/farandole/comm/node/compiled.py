"""Sums of floats, and whole reductions of them, as one compiled call, without the interpreter or its lock.

It brings a chunk of each array into the cache, adds them up there in their order, and writes the result, past the
cache where nobody on this core is about to read it: an ordinary store would first read the lines it overwrites.
Imports numba: only `load` of arithmetic.py imports this module.
"""

import platform

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from farandole.comm.node.exchange import POSTED, REDUCED, RELEASED, RESULT, SOURCE

__all__ = ["NOTHING", "reduce_posted", "sum_slices", "sum_slices_16"]

NOTHING = -1

_read_memory = types.ExternalFunction(
    "process_vm_readv",
    types.intp(types.int32, types.voidptr, types.uintp, types.voidptr, types.uintp, types.uintp),
)
_LINE = 64
_WORD = ir.IntType(64)


@intrinsic
def _pointer(typing_context, address):
    """A number as an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@intrinsic
def _pointer_like(typing_context, address, array):
    """The same, of elements of an array's type."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.args[1].dtype).as_pointer())

    return types.CPointer(array.dtype)(types.int64, array), generate


@intrinsic
def _stream_sum_line(typing_context, a, b, factor, target):
    """64 bytes of (a + b) * factor, past the cache; `target` is a multiple of 64."""

    def generate(context, builder, signature, arguments):
        number = context.get_value_type(signature.args[2])
        line = ir.VectorType(number, _LINE // context.get_abi_sizeof(number))
        one, other, goal = (builder.inttoptr(arguments[i], line.as_pointer()) for i in (0, 1, 3))
        lane = ir.IntType(32)
        first = builder.insert_element(ir.Constant(line, ir.Undefined), arguments[2], ir.Constant(lane, 0))
        everywhere = ir.Constant(ir.VectorType(lane, line.count), [0] * line.count)
        factors = builder.shuffle_vector(first, first, everywhere)
        total = builder.fadd(_unaligned(builder, one), _unaligned(builder, other))
        store = builder.store(builder.fmul(total, factors), goal)
        store.align = _LINE
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(lane, 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, factor, types.int64), generate


def _unaligned(builder, place):
    value = builder.load(place)
    value.align = 1
    return value


@intrinsic
def _stores_done(typing_context):
    """Stores past the cache keep no order by themselves: whoever sees a later one sees these."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _seen(typing_context, address):
    """A word that another process may be writing, and whatever it wrote before."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(builder.inttoptr(arguments[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _tell(typing_context, address, value):
    """Write a word that another process may be looking at, after whatever was written before."""

    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], _WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _pause(typing_context):
    """Leave the core to its other thread for a moment."""

    def generate(context, builder, signature, arguments):
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _from_half(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _to_half(typing_context, value):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _as_float(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _as_bits(typing_context, value):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@njit(nogil=True, cache=True)
def _from_bfloat16(bits):
    return _as_float(np.uint32(bits) << np.uint32(16))


@njit(nogil=True, cache=True)
def _to_bfloat16(value):
    """The nearest one, ties to even."""
    bits = _as_bits(value)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded) if value == value else np.uint16(0x7FC0)


@njit(nogil=True, cache=True, error_model="numpy")
def _stream_sum(a, b, factor, target):
    """target = (a + b) * factor, past the cache."""
    width = target.itemsize
    head = min((-target.ctypes.data % _LINE) // width, target.size)
    tail = head + (target.size - head) * width // _LINE * _LINE // width
    for i in range(head):
        target[i] = (a[i] + b[i]) * factor
    for i in range(head, tail, _LINE // width):
        at = i * width
        _stream_sum_line(a.ctypes.data + at, b.ctypes.data + at, factor, target.ctypes.data + at)
    for i in range(tail, target.size):
        target[i] = (a[i] + b[i]) * factor
    _stores_done()


@njit(nogil=True, cache=True)
def _bring(pid, address, read, vectors):
    """What lies at an address of a process, as much as fits `read`; process 0 is this one. Empty if it cannot be read."""
    if pid == 0:
        return carray(_pointer_like(address, read), (read.size,))
    done, total = 0, read.size * read.itemsize
    here = vectors.ctypes.data
    while done < total:
        vectors[0], vectors[1] = read.ctypes.data + done, total - done
        vectors[2], vectors[3] = address + done, total - done
        count = _read_memory(pid, _pointer(here), 1, _pointer(here + 16), 1, 0)
        if count <= 0:
            return read[:0]
        done += count
    return read


@njit(nogil=True, cache=True, error_model="numpy")
def _add(a, b, total):
    for i in range(total.size):
        total[i] = a[i] + b[i]


@njit(nogil=True, cache=True, error_model="numpy")
def _add_to(total, x):
    for i in range(total.size):
        total[i] += x[i]


@njit(nogil=True, cache=True, error_model="numpy")
def _scale(total, multiply, divide):
    if multiply != 1:
        for i in range(total.size):
            total[i] *= multiply
    if divide != 1:
        for i in range(total.size):
            total[i] /= divide


@njit(nogil=True, cache=True, error_model="numpy")
def _add_to_scaled(total, x, factor):
    for i in range(total.size):
        total[i] = (total[i] + x[i]) * factor


@njit(nogil=True, cache=True, error_model="numpy")
def _sum_scaled(a, b, factor, out):
    for i in range(out.size):
        out[i] = (a[i] + b[i]) * factor


@njit(nogil=True, cache=True, error_model="numpy")
def sum_slices(pids, addresses, out, total, reads, vectors, multiply, divide, stream):
    """out = (the sum of the slices, in their order) * multiply / divide.

    Slice i is at `addresses[i]` in the process `pids[i]`, this one if that is 0, and may be `out` itself. `total` is
    scratch of one chunk, `reads` of two, `vectors` is room for four words. Returns the number of a slice that could
    not be read, or -1.
    """
    step, last = total.size, pids.size - 1
    here, exact = out.ctypes.data, divide == 1
    first_is_out = exact and last == 1 and pids[0] == 0 and addresses[0] == here
    second_is_out = exact and last == 1 and pids[1] == 0 and addresses[1] == here
    for at in range(0, out.size, step):
        count = min(step, out.size - at)
        offset, target, sum_ = at * out.itemsize, out[at : at + count], total[:count]
        so_far = _bring(pids[0], addresses[0] + offset, reads[0, :count], vectors)
        if so_far.size < count:
            return 0
        for number in range(1, pids.size):
            part = _bring(pids[number], addresses[number] + offset, reads[number & 1, :count], vectors)
            if part.size < count:
                return number
            if first_is_out:
                _add_to_scaled(target, part, multiply)
            elif second_is_out:
                _add_to_scaled(target, so_far, multiply)
            elif number == last and exact and stream:
                _stream_sum(so_far, part, multiply, target)
            elif number == last and exact:
                _sum_scaled(so_far, part, multiply, target)
            elif number == last:
                _finish(so_far, part, sum_, number > 1, multiply, divide)
                target[:] = sum_
            elif number > 1:
                _add_to(sum_, part)
            else:
                _add(so_far, part, sum_)
            so_far = sum_
    return -1


@njit(nogil=True, cache=True)
def _all_at(words, value, spins):
    """Whether every word comes to `value` while this thread looks `spins` times."""
    for number in range(words.size):
        address = words.ctypes.data + number * words.itemsize
        while _seen(address) < value:
            if spins == 0:
                return False
            spins -= 1
            _pause()
    return True


@njit(nogil=True, cache=True)
def _read_back(pids, addresses, step, out, vectors):
    """The slices of the others, each into its place in `out`; the number of one that could not be read, or -1."""
    for number in range(pids.size):
        slice_ = out[number * step : (number + 1) * step]
        if pids[number] != 0 and slice_.size > 0:
            address = addresses[number] + number * step * out.itemsize
            if _bring(pids[number], address, slice_, vectors).size < slice_.size:
                return number
    return -1


@njit(nogil=True, cache=True, error_model="numpy")
def reduce_posted(board, slot, rank, sequence, pids, step, out, total, reads, vectors, multiply, divide, spins, shared):
    """The phases of a reduction of posted arrays into every rank's `out`, as far as the neighbours come in time.

    `board` is the exchange's words, of every slot and rank; rank i makes the i-th slice of `step` elements; the rest as for
    `sum_slices`. With `shared`, `out` is the same memory on all ranks, and nothing is read back. Returns the word that was
    marked last (`NOTHING` for none), and the number of a neighbour that could not be read, or -1.
    """
    if not _all_at(board[POSTED, slot], sequence, spins):
        return NOTHING, -1
    sources = board[SOURCE, slot] + rank * step * out.itemsize
    mine, number = out[rank * step : (rank + 1) * step], out.dtype.type
    failed = sum_slices(pids, sources, mine, total, reads, vectors, number(multiply), number(divide), shared)
    if failed >= 0:
        return NOTHING, failed
    if not shared:
        _tell(board[REDUCED, slot, rank:].ctypes.data, sequence)
        if not _all_at(board[REDUCED, slot], sequence, spins):
            return REDUCED, -1
        failed = _read_back(pids, board[RESULT, slot], step, out, vectors)
        if failed >= 0:
            return REDUCED, failed
    _tell(board[RELEASED, slot, rank:].ctypes.data, sequence)
    _all_at(board[RELEASED, slot], sequence, spins)  # all will be waited for: perhaps they have come already
    return RELEASED, -1


@njit(nogil=True, cache=True, error_model="numpy")
def _finish(so_far, part, total, begun, multiply, divide):
    """total = (so_far + part) * multiply / divide; `begun` if so_far is total."""
    if begun:
        _add_to(total, part)
    else:
        _add(so_far, part, total)
    _scale(total, multiply, divide)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_to_16(total, part, brain, first):
    """total += part; or total = part, for the first one."""
    if brain and first:
        for i in range(total.size):
            total[i] = _from_bfloat16(part[i])
    elif brain:
        for i in range(total.size):
            total[i] += _from_bfloat16(part[i])
    elif first:
        for i in range(total.size):
            total[i] = _from_half(part[i])
    else:
        for i in range(total.size):
            total[i] += _from_half(part[i])


@njit(nogil=True, cache=True, error_model="numpy")
def _round_16(total, out, brain):
    if brain:
        for i in range(total.size):
            out[i] = _to_bfloat16(total[i])
    else:
        for i in range(total.size):
            out[i] = _to_half(total[i])


@njit(nogil=True, cache=True, error_model="numpy")
def sum_slices_16(pids, addresses, out, total, reads, vectors, multiply, divide, brain):
    """The same for 16-bit floats, as words: bfloat16 if `brain` says so; sums are float32 and rounded once."""
    step = total.size
    for at in range(0, out.size, step):
        count = min(step, out.size - at)
        offset, sum_ = at * out.itemsize, total[:count]
        for number in range(pids.size):
            part = _bring(pids[number], addresses[number] + offset, reads[number & 1, :count], vectors)
            if part.size < count:
                return number
            _add_to_16(sum_, part, brain, number == 0)
        _scale(sum_, multiply, divide)
        _round_16(sum_, out[at : at + count], brain)
    return -1
