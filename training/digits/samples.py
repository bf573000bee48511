"""The handwritten digits that scikit-learn carries, in a fixed split.

1,797 digits of 8 x 8 pixels with 17 grey levels: the test part of "Optical Recognition of Handwritten Digits"
(E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPLIT_SEED = 20_240_607
HELD_OUT = 360
VALIDATION = 120


@dataclass(frozen=True, slots=True)
class Samples:
    """Some of the digits.

    Attributes:
        index: Position of each in scikit-learn's data set, int64 (samples).
        ink: 0 where there is none, 255 where it is full, uint8 (samples, 8, 8).
        labels: 0 to 9, int64 (samples).
    """

    index: NDArray[np.int64]
    ink: NDArray[np.uint8]
    labels: NDArray[np.int64]


def split() -> tuple[Samples, Samples, Samples]:
    """Give the samples to train on, to watch the training by, and to hold out; each has every digit equally often."""
    bunch = load_digits()
    ink = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    everything = np.arange(labels.size)
    rest, held_out = train_test_split(everything, test_size=HELD_OUT, random_state=SPLIT_SEED, stratify=labels)
    training, validation = train_test_split(
        rest, test_size=VALIDATION, random_state=SPLIT_SEED + 1, stratify=labels[rest]
    )
    first, second, third = (
        Samples(index=np.sort(chosen), ink=ink[np.sort(chosen)], labels=labels[np.sort(chosen)])
        for chosen in (training, validation, held_out)
    )
    return first, second, third
