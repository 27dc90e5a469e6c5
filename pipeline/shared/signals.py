"""Signals with structure, as real inputs have it: smooth images, rectangles, chords, waves, ids of texts.

What noise hides shows here: a network of noise hardly decides anything, and the errors of its products average out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Float64

SAMPLE_RATE = 16_000  # per second, that a chord is written for
CHORD_HZ = (220.0, 277.18, 329.63)  # A major
HARMONICS = 4
STRUCK_S = 0.5  # from one time to the next
DECAY_S = 0.2
LOUDNESS = 0.5  # the largest sample
WAVES = 3
BLOBS = 3
RECTANGLES = 6
GRAIN = 0.004  # a step of a byte: without it equal regions would give equal scores, and chance would rank them
PHRASE = 8  # ids
GLYPH = (4, 3)  # dots of a letter, high and wide
DOT = 2  # pixels
LINE = 16  # pixels from one line of letters to the next
SPACES = 0.15  # share of letters
INK = 0.1  # how dark, or how light, letters are at most; the ground is as far from the other end
FEW_IDS = 4  # as of token types: such ids come in two runs

Draw = Callable[[int, int, int, np.random.Generator], Float64]  # an image of so many channels, rows and columns


def draw_waves(shape: Sequence[int], rng: np.random.Generator) -> Float64:
    """Return float64 [shape], a few waves along the last two dimensions, of mean 0 and deviation 1 about zero."""
    total = np.zeros(tuple(shape))
    for axis in range(max(0, len(shape) - 2), len(shape)):
        n = shape[axis]
        position = np.arange(n) / max(n, 1)
        along = sum(
            np.sin(2 * np.pi * ((k + rng.uniform(0.2, 1.0)) * position + rng.uniform())) / (k + 1) for k in range(WAVES)
        )
        total = total + np.asarray(along).reshape([n if a == axis else 1 for a in range(len(shape))])
    size = float(np.sqrt(np.mean(np.square(total)))) if total.size else 0.0
    return total / size if size else total


def draw_chord(shape: Sequence[int], rng: np.random.Generator) -> Float64:
    """Return float64 [shape], a chord along the longest dimension: three tones with harmonics, struck repeatedly."""
    axis = int(np.argmax(shape))
    seconds = np.arange(shape[axis]) / SAMPLE_RATE
    sound = np.zeros(shape[axis])
    for tone_hz in CHORD_HZ:
        for h in range(1, HARMONICS + 1):
            sound += np.sin(2 * np.pi * (h * tone_hz * seconds + rng.uniform())) / h
    sound *= np.exp(-(seconds % STRUCK_S) / DECAY_S)
    sound *= LOUDNESS / max(float(np.abs(sound).max()), 1e-9)
    return np.broadcast_to(sound.reshape([-1 if a == axis else 1 for a in range(len(shape))]), tuple(shape)).copy()


def draw_gradients(shape: Sequence[int], rng: np.random.Generator, *, channels: Sequence[int]) -> Float64:
    """Return float64 [shape], images within [0, 1]: a gradient with soft blobs, in another colour each.

    channels: how many an image may have, in its second or last dimension.
    """
    return _draw_images(shape, rng, channels, _draw_gradient)


def draw_grey_waves(shape: Sequence[int], rng: np.random.Generator, *, channels: Sequence[int], most: int) -> Float64:
    """Return float64 [shape], images of few waves, equal in all channels; see `draw_gradients`.

    most: of mean 0 and deviation 1 where it is 0, or else within [0, most].
    """
    waves = _draw_images(shape, rng, channels, _draw_grey_waves)
    return np.clip(0.5 + waves / (2 * WAVES), 0.0, 1.0) * most if most else waves


def draw_rectangles(shape: Sequence[int], rng: np.random.Generator, *, channels: Sequence[int]) -> Float64:
    """Return float64 [shape], images within [0, 1]: rectangles of a colour each, with a grain; see `draw_gradients`."""
    return _draw_images(shape, rng, channels, _draw_rectangles)


def draw_lines_of_letters(shape: Sequence[int], rng: np.random.Generator, *, channels: Sequence[int]) -> Float64:
    """Return float64 [shape], images within [0, 1]: lines of letters, dark on light; see `draw_gradients`.

    Letters are of drawn dots. What finds or reads text answers nearly nothing on anything else.
    """
    return _draw_images(shape, rng, channels, _draw_lines_of_letters)


def _draw_images(shape: Sequence[int], rng: np.random.Generator, channels: Sequence[int], draw: Draw) -> Float64:
    n, *rest = shape
    first = rest[0] in channels or rest[-1] not in channels
    c, h, w = rest if first else (rest[2], rest[0], rest[1])
    drawn = np.stack([draw(c, h, w, rng) for _ in range(n)]) if n else np.zeros((0, c, h, w))
    return drawn if first else np.moveaxis(drawn, 1, -1)


def _draw_gradient(c: int, h: int, w: int, rng: np.random.Generator) -> Float64:
    y, x = np.mgrid[0:h, 0:w] / np.array([max(h - 1, 1), max(w - 1, 1)]).reshape(2, 1, 1)
    slope = rng.uniform(-1, 1, (2, c, 1, 1))
    image: Float64 = slope[0] * y + slope[1] * x
    for _ in range(BLOBS):
        (cy, cx), size = rng.uniform(0.1, 0.9, 2), rng.uniform(0.1, 0.3)
        image = image + rng.uniform(-1, 1, (c, 1, 1)) * np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / (2 * size**2))
    low, high = float(image.min(initial=0.0)), float(image.max(initial=0.0))
    return (image - low) / (high - low or 1.0)


def _draw_grey_waves(c: int, h: int, w: int, rng: np.random.Generator) -> Float64:
    return np.broadcast_to(draw_waves((h, w), rng), (c, h, w))


def _draw_rectangles(c: int, h: int, w: int, rng: np.random.Generator) -> Float64:
    image = np.broadcast_to(rng.uniform(0, 1, (c, 1, 1)), (c, h, w)).copy()
    for _ in range(RECTANGLES):
        top, left = int(rng.integers(0, h)), int(rng.integers(0, w))
        bottom, right = int(rng.integers(top, h)) + 1, int(rng.integers(left, w)) + 1
        image[:, top:bottom, left:right] = rng.uniform(0, 1, (c, 1, 1))
    return np.clip(image + GRAIN * rng.standard_normal(image.shape), 0.0, 1.0)


def _draw_lines_of_letters(c: int, h: int, w: int, rng: np.random.Generator) -> Float64:
    rows, columns = max(h - LINE // 2, 0) // LINE, w // (DOT * (GLYPH[1] + 1))
    letters = (rng.random((rows, GLYPH[0], columns, GLYPH[1])) < 0.5) & (rng.random((rows, 1, columns, 1)) >= SPACES)
    spaced = np.pad(letters, ((0, 0), (0, LINE // DOT - GLYPH[0]), (0, 0), (0, 1)))
    dots = spaced.reshape(rows * LINE // DOT, columns * (GLYPH[1] + 1))
    ink = np.zeros((h, w), bool)
    ink[LINE // 2 : LINE // 2 + rows * LINE, : DOT * dots.shape[1]] = np.kron(dots, np.ones((DOT, DOT), bool))
    ground, colour = rng.uniform(1 - INK, 1, (c, 1, 1)), rng.uniform(0, INK, (c, 1, 1))
    return np.clip(np.where(ink, colour, ground) + GRAIN * rng.standard_normal((c, h, w)), 0.0, 1.0)


def rising_ids(shape: Sequence[int], rows: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return int64 [shape], ids below `rows` that rise by a drawn step, and begin anew, from a drawn one."""
    ids = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(tuple(shape))
    return np.asarray(rng.integers(0, rows) + rng.integers(1, max(2, rows // 8)) * ids) % rows


def text_ids(shape: Sequence[int], rows: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return int64 [shape], ids below `rows` as texts have them, along the last dimension.

    Frequent ones and rare ones (by 1 / rank), a phrase that comes back, and a run of one id at the end, as of padding.
    Few ids, as of token types, come in two runs.
    """
    if not shape:
        return np.asarray(rng.integers(0, rows, ()))
    n = shape[-1]
    ids = np.empty(tuple(shape), np.int64)
    for at in np.ndindex(*shape[:-1]):
        if rows <= FEW_IDS:
            ids[at] = np.arange(n) >= n // 2
            continue
        known = rng.integers(0, rows, min(rows, max(4, n // 2)))
        weight = 1 / np.arange(1, known.size + 1)
        line = known[rng.choice(known.size, n, p=weight / weight.sum())]
        phrase = line[: min(PHRASE, n // 3)]
        line[n // 2 : n // 2 + phrase.size] = phrase
        line[n - n // 8 :] = known[0]
        ids[at] = line
    return np.minimum(ids, rows - 1)
