"""The networks, as their papers have them; where implementations differ, docs/cnn.md says which this is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farandole.workloads.cnn.trees import (
    Beside,
    Chain,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Mean,
    Node,
    Norm,
    Pool,
    Shrink,
    Sum,
)

__all__ = ["TREES"]


def _chain(*parts: Node) -> Chain:
    return Chain(parts)


def _beside(*parts: Node) -> Beside:
    return Beside(parts)


def _same(filters: int, rows: int, columns: int | None = None) -> Conv:
    """Leaves images as large as they are."""
    columns = rows if columns is None else columns
    return Conv(filters, (rows, columns), padding=(rows // 2, columns // 2))


# AlexNet in one column (Krizhevsky 2014), and VGG (Simonyan and Zisserman 2014)


def _plain(filters: int, size: int, stride: int = 1, padding: int = 0) -> Conv:
    return Conv(filters, size, stride, padding, norm=False, bias=True)


def _alexnet(classes: int) -> Node:
    pool = Pool("max", 3, 2)
    features: list[Node] = [_plain(64, 11, 4, 2), pool, _plain(192, 5, 1, 2), pool, *(_plain(n, 3, 1, 1) for n in (384, 256, 256)), pool]
    return _chain(*features, Flatten(), Dropout(0.5), Dense(4096, relu=True), Dropout(0.5), Dense(4096, relu=True), Dense(classes))


def _vgg(*stages: int) -> Callable[[int], Node]:
    """By how many convolutions each of five stages has."""

    def tree(classes: int) -> Node:
        features: list[Node] = []
        for filters, count in zip((64, 128, 256, 512, 512), stages):
            features += [*(_plain(filters, 3, 1, 1) for _ in range(count)), Pool("max", 2, 2)]
        wide = (Dense(4096, relu=True), Dropout(0.5))
        return _chain(*features, Flatten(), *wide, *wide, Dense(classes))

    return tree


# Inception v1 (Szegedy 2014), without auxiliary outputs and local response normalisation


def _inception_v1(classes: int) -> Node:
    def block(one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> Node:
        return _beside(
            _plain(one, 1), _chain(_plain(three[0], 1), _plain(three[1], 3, 1, 1)), _chain(_plain(five[0], 1), _plain(five[1], 5, 1, 2)),
            _chain(Pool("max", 3, 1, 1), _plain(pooled, 1)),
        )  # fmt: skip

    halve = Pool("max", 3, 2, 1)
    return _chain(
        _plain(64, 7, 2, 3), halve, _plain(64, 1), _plain(192, 3, 1, 1), halve,
        block(64, (96, 128), (16, 32), 32), block(128, (128, 192), (32, 96), 64), halve,
        block(192, (96, 208), (16, 48), 64), block(160, (112, 224), (24, 64), 64), block(128, (128, 256), (24, 64), 64),
        block(112, (144, 288), (32, 64), 64), block(256, (160, 320), (32, 128), 128), halve,
        block(256, (160, 320), (32, 128), 128), block(384, (192, 384), (48, 128), 128),
        Mean(), Dropout(0.4), Dense(classes),
    )  # fmt: skip


# Inception v3 (Szegedy 2015), without the auxiliary output

_MEAN, _MAX = Pool("mean", 3, 1, 1), Pool("max", 3, 2)


def _crossed(filters: int) -> Node:
    return _beside(_same(filters, 1, 3), _same(filters, 3, 1))


def _inception_v3(classes: int) -> Node:
    def a(pooled: int) -> Node:
        return _beside(
            _same(64, 1), _chain(_same(48, 1), _same(64, 5)), _chain(_same(64, 1), _same(96, 3), _same(96, 3)), _chain(_MEAN, _same(pooled, 1))
        )

    def c(width: int) -> Node:
        twice = (_same(width, 1), _same(width, 7, 1), _same(width, 1, 7), _same(width, 7, 1), _same(192, 1, 7))
        return _beside(
            _same(192, 1), _chain(_same(width, 1), _same(width, 1, 7), _same(192, 7, 1)), _chain(*twice), _chain(_MEAN, _same(192, 1))
        )

    smaller = _beside(Conv(384, 3, 2), _chain(_same(64, 1), _same(96, 3), Conv(96, 3, 2)), _MAX)
    smallest = _beside(
        _chain(_same(192, 1), Conv(320, 3, 2)), _chain(_same(192, 1), _same(192, 1, 7), _same(192, 7, 1), Conv(192, 3, 2)), _MAX
    )
    e = _beside(
        _same(320, 1), _chain(_same(384, 1), _crossed(384)), _chain(_same(448, 1), _same(384, 3), _crossed(384)), _chain(_MEAN, _same(192, 1))
    )
    return _chain(
        Conv(32, 3, 2), Conv(32, 3), _same(64, 3), _MAX, Conv(80, 1), Conv(192, 3), _MAX, a(32), a(64), a(64), smaller,
        c(128), c(160), c(160), c(192), smallest, e, e, Mean(), Dropout(0.5), Dense(classes),
    )  # fmt: skip


# Inception v4 (Szegedy 2016)


def _inception_v4(classes: int) -> Node:
    stem: list[Node] = [
        Conv(32, 3, 2), Conv(32, 3), _same(64, 3), _beside(_MAX, Conv(96, 3, 2)),
        _beside(_chain(_same(64, 1), Conv(96, 3)), _chain(_same(64, 1), _same(64, 1, 7), _same(64, 7, 1), Conv(96, 3))),
        _beside(Conv(192, 3, 2), _MAX),
    ]  # fmt: skip
    a = _beside(
        _same(96, 1), _chain(_same(64, 1), _same(96, 3)), _chain(_same(64, 1), _same(96, 3), _same(96, 3)), _chain(_MEAN, _same(96, 1))
    )
    smaller = _beside(Conv(384, 3, 2), _chain(_same(192, 1), _same(224, 3), Conv(256, 3, 2)), _MAX)
    b = _beside(
        _same(384, 1), _chain(_same(192, 1), _same(224, 1, 7), _same(256, 7, 1)),
        _chain(_same(192, 1), _same(192, 7, 1), _same(224, 1, 7), _same(224, 7, 1), _same(256, 1, 7)), _chain(_MEAN, _same(128, 1)),
    )  # fmt: skip
    smallest = _beside(
        _chain(_same(192, 1), Conv(192, 3, 2)), _chain(_same(256, 1), _same(256, 1, 7), _same(320, 7, 1), Conv(320, 3, 2)), _MAX
    )
    c = _beside(
        _same(256, 1), _chain(_same(384, 1), _crossed(256)), _chain(_same(384, 1), _same(448, 3, 1), _same(512, 1, 3), _crossed(256)),
        _chain(_MEAN, _same(256, 1)),
    )  # fmt: skip
    return _chain(*stem, *[a] * 4, smaller, *[b] * 7, smallest, *[c] * 3, Mean(), Dropout(0.2), Dense(classes))


# CIFAR's ResNets: v1 of 6n + 2 layers, shortcuts without weights (He 2015); v2 of 9n + 2 layers (He 2016)


def _cifar_v1(blocks: int) -> Callable[[int], Node]:
    def block(filters: int, stride: int) -> Node:
        body = _chain(Conv(filters, 3, stride, 1), Conv(filters, 3, 1, 1, relu=False))
        return Sum(body, Shrink(filters) if stride > 1 else None, relu=True)

    def tree(classes: int) -> Node:
        stages = [block(filters, 2 if filters > 16 and not number else 1) for filters in (16, 32, 64) for number in range(blocks)]
        return _chain(_same(16, 3), *stages, Mean(), Dense(classes))

    return tree


def _cifar_v2(blocks: int) -> Callable[[int], Node]:
    def conv(filters: int, size: int, stride: int = 1) -> Conv:
        return Conv(filters, size, stride, size // 2, norm=False, relu=False)

    def body(width: int, stride: int) -> list[Node]:
        return [conv(width, 1), Norm(), conv(width, 3, stride), Norm(), conv(4 * width, 1)]

    def first(width: int, stride: int) -> Node:
        """Its shortcut begins behind the normalisation."""
        return _chain(Norm(), Sum(_chain(*body(width, stride)), conv(4 * width, 1, stride)))

    def tree(classes: int) -> Node:
        stages: list[Node] = []
        for width in (16, 32, 64):
            stages += [first(width, 1 if width == 16 else 2), *(Sum(_chain(Norm(), *body(width, 1))) for _ in range(blocks - 1))]
        return _chain(conv(16, 3), *stages, Norm(), Mean(), Dense(classes))

    return tree


TREES: Mapping[str, Callable[[int], Node]] = {
    "alexnet": _alexnet,
    "vgg_a": _vgg(1, 1, 2, 2, 2), "vgg16": _vgg(2, 2, 3, 3, 3), "vgg19": _vgg(2, 2, 4, 4, 4),
    "inception_v1": _inception_v1, "inception_v3": _inception_v3, "inception_v4": _inception_v4,
    "resnet8": _cifar_v1(1), "resnet20": _cifar_v1(3), "resnet110": _cifar_v1(18), "resnet1001": _cifar_v2(111),
}  # fmt: skip
"""By name: from the number of classes to the network."""
