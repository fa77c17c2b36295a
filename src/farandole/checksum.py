"""CRC-32, as zlib has it: by zlib-ng where that is installed, which is faster by far."""

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32

__all__ = ["crc32"]
