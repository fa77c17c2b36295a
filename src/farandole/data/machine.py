"""What a processor does in one instruction and Python has no word for, for compiled functions.

Imports numba: only compiled modules import this one.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["as_float64", "high_product", "leading_zeros", "load8", "trailing_zeros"]


@intrinsic
def leading_zeros(typing_context, word):
    """How many zeros a 64-bit word (not 0) begins with."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """How many zeros a 64-bit word (not 0) ends with."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def high_product(typing_context, a, b):
    """The upper half of the product of two 64-bit words; the lower one is a * b."""

    def generate(context, builder, signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def as_float64(typing_context, bits):
    """The number that has these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def load8(typing_context, array, index):
    """Eight bytes of an array as one word, the first byte lowest; the caller knows that they exist."""

    def generate(context, builder, signature, arguments):
        view = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        place = builder.gep(view.data, [arguments[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(array, types.int64), generate
