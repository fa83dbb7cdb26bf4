"""Native transforms: pictures, numbers and names, in threads of Rust's, without the interpreter lock.

Each is a frozen dataclass of its parameters, for `map`, or for `random_map` where it draws random numbers:

>>> import prep
>>> from prep import transforms
>>> pictures = prep.MapDataset.load("cifar10").shuffle(seed=42)
>>> pictures = pictures.random_map(transforms.Flip("image"), seed=1).map(transforms.Normalize("image", mean=(0.5,), std=(0.5,)))
>>> batch = next(iter(pictures.batch(64)))
>>> batch["image"].shape, batch["image"].dtype
((64, 32, 32, 3), dtype('float32'))

`feature` is the name of the value that is worked on; `a/b` is `b` in the dict `a`. Pictures are arrays `[height, width, channels]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

__all__ = [
    "Cast",
    "CenterCrop",
    "ColorJitter",
    "Crop",
    "DecodeImage",
    "DecodeRandomResizedCrop",
    "Drop",
    "Flip",
    "Native",
    "Normalize",
    "OneHot",
    "Pad",
    "PadOrTruncate",
    "RandomCrop",
    "RandomResizedCrop",
    "Rename",
    "Resize",
    "Select",
]


@dataclasses.dataclass(frozen=True)
class Native:
    """What the transforms here have in common."""

    def parameters(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class DecodeImage(Native):
    """PNG or JPEG bytes to pixels, as Pillow's to the bit.

    `channels=None` takes the file's own; `dtype` is `uint8`, or `uint16` for PNG files of 16 bits.
    """

    feature: str
    channels: int | None = 3
    dtype: str = "uint8"


@dataclasses.dataclass(frozen=True)
class Resize(Native):
    """Height and width `size`: `method` is `nearest`, `bilinear`, `bicubic` or `area`; `antialias` as Pillow, without as OpenCV."""

    feature: str
    size: tuple[int, int]
    method: str = "bilinear"
    antialias: bool = True


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Native):
    """A random part in a fixed size, as torchvision's. Random."""

    feature: str
    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    method: str = "bilinear"
    antialias: bool = True


@dataclasses.dataclass(frozen=True)
class DecodeRandomResizedCrop(RandomResizedCrop):
    """`DecodeImage`, `RandomResizedCrop` and a horizontal `Flip` in one, which decodes no more than the crop. Random.

    `dct_scaling` decodes large JPEG files at a half, a quarter or an eighth where the crop allows it: faster, and a few levels of 255 off.
    """

    flip: float = 0.5
    channels: int = 3
    dct_scaling: bool = False


@dataclasses.dataclass(frozen=True)
class RandomCrop(Native):
    """A part of `size` somewhere. Random."""

    feature: str
    size: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class CenterCrop(Native):
    """The part of `size` in the middle."""

    feature: str
    size: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Crop(Native):
    """The part of `size` whose first pixel is in row `top` and column `left`."""

    feature: str
    top: int
    left: int
    size: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Pad(Native):
    """A border of one value: pixels at the top, at the right, at the bottom and at the left."""

    feature: str
    border: tuple[int, int, int, int]
    value: float = 0.0


@dataclasses.dataclass(frozen=True)
class Flip(Native):
    """Mirrored with a probability: `direction` is `horizontal` or `vertical`. Random."""

    feature: str
    direction: str = "horizontal"
    probability: float = 0.5


@dataclasses.dataclass(frozen=True)
class ColorJitter(Native):
    """Brightness, contrast, saturation and hue in random order and strength, as torchvision's. Random."""

    feature: str
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0


@dataclasses.dataclass(frozen=True)
class Normalize(Native):
    """`(x / divisor - mean) / std` as `float32`, one mean and std for each channel or one for all; `layout` is `channels_last` or `channels_first`.

    >>> Normalize.imagenet("image").mean
    (0.485, 0.456, 0.406)
    """

    feature: str
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    divisor: float = 255.0
    layout: str = "channels_last"

    @classmethod
    def imagenet(cls, feature: str, layout: str = "channels_last") -> Normalize:
        """With the mean and the deviation of ImageNet's training pictures."""
        return cls(feature, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), layout=layout)


@dataclasses.dataclass(frozen=True)
class Cast(Native):
    """Numbers of another type, as NumPy's `astype`: floats lose their fraction where they become whole (-1.5 is -1), all but 0 is true.

    Unlike there nothing wraps: a value that a whole type cannot hold, such as 300 or NaN in `uint8`, is an error.
    """

    feature: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class OneHot(Native):
    """Labels to rows of `depth` with a single 1."""

    feature: str
    depth: int
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True)
class PadOrTruncate(Native):
    """A fixed shape: filled up with `value`, cut at the end."""

    feature: str
    shape: Sequence[int]
    value: float = 0.0


@dataclasses.dataclass(frozen=True)
class Select(Native):
    """Only these values, in this order."""

    features: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Drop(Native):
    """All values but these."""

    features: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Rename(Native):
    """Other names: pairs of the old and the new one."""

    names: Sequence[tuple[str, str]]
