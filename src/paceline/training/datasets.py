"""Reads pictures with labels from files as they are published, checks them, and makes normalised tensors of them.

Nothing is downloaded here; what `paceline download` fetched is found. Every set is read as bytes first; the float32
tensors are filled once and normalised in place, each channel with the mean and the standard deviation of the training
set.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.training.downloads import CIFAR10_ARCHIVE, cache_folder

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
CLASSES = 10  # in each of the sets
DIGITS_FOR_TRAINING = 1437  # of 1797: four fifths
# All that gzip, lzma, tarfile, zipfile and numpy.load were seen to raise for bytes that somebody changed. A false size
# in a header is a MemoryError or an OverflowError, a flag that says "encrypted" a RuntimeError.
UNPACKING_ERRORS = (
    OSError, EOFError, MemoryError, OverflowError, RuntimeError, ValueError,
    lzma.LZMAError, tarfile.TarError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Bytes = npt.NDArray[np.uint8]


class Pictures(NamedTuple):
    """A set of float32 images and int64 labels; the shape of an image is (channels, height, width)."""

    train: TensorDataset
    test: TensorDataset
    classes: int
    shape: tuple[int, int, int]


class _Part(NamedTuple):
    """The training or the test part as it was read: images (count, channels, height, width) and labels (count)."""

    images: Bytes
    labels: Bytes


@lru_cache(maxsize=1)  # one: a process works on one data set, and two of them may be more than fits
def load(name: str, path: Path | None = None) -> Pictures:
    """What `read` gives, read once per process: all tasks on the set share its tensors, and none may write to them."""
    return read(name, path)


def read(name: str, path: Path | None = None) -> Pictures:
    """The data set of this name, from its usual place or from `path`; ConfigurationError says what is missing."""
    reader = DATASETS.get(name)
    if reader is None:
        raise ConfigurationError(f"unknown data set {name!r}; there are: {', '.join(DATASETS)}")
    return reader(path)


# -- from bytes to tensors --


def _pictures(train: _Part, test: _Part) -> Pictures:
    mean, std = _mean_and_std(train.images)
    _, channels, height, width = train.images.shape
    return Pictures(_tensors(train, mean, std), _tensors(test, mean, std), CLASSES, (channels, height, width))


def _mean_and_std(images: Bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each channel. Counted in whole numbers: every process gets the same bits, however many threads it has."""
    levels = np.arange(256)
    counts = np.zeros((images.shape[1], 256), np.int64)
    for begin in range(0, len(images), 1000):  # in pieces, because bincount makes 8 bytes of each
        for channel in range(len(counts)):
            counts[channel] += np.bincount(images[begin : begin + 1000, channel].ravel(), minlength=256)
    shares = counts / counts.sum(1, keepdims=True)
    mean = (shares * levels).sum(1, keepdims=True)
    std = np.sqrt((shares * (levels - mean) ** 2).sum(1, keepdims=True))
    std[std == 0] = 1  # a channel that is the same everywhere becomes 0, not NaN
    return torch.from_numpy(mean).float()[..., None], torch.from_numpy(std).float()[..., None]


def _tensors(part: _Part, mean: torch.Tensor, std: torch.Tensor) -> TensorDataset:
    images = torch.empty(part.images.shape, dtype=torch.float32)
    np.copyto(images.numpy(), part.images)
    return TensorDataset(images.sub_(mean).div_(std), torch.from_numpy(part.labels.astype(np.int64)))


# -- digits --


def _digits(path: Path | None) -> Pictures:
    if path is not None:
        raise ConfigurationError(f"digits come with scikit-learn and are not read from {path}: leave out --data")
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise _not_installed("digits", "scikit-learn") from None
    found = load_digits()
    # RandomState, not default_rng: NumPy promises that its numbers stay the same from version to version.
    order = np.random.RandomState(0).permutation(len(found.target))
    images = found.images.astype(np.uint8)[order, None]
    labels = found.target.astype(np.uint8)[order]
    return _pictures(
        _Part(images[:DIGITS_FOR_TRAINING], labels[:DIGITS_FOR_TRAINING]),
        _Part(images[DIGITS_FOR_TRAINING:], labels[DIGITS_FOR_TRAINING:]),
    )


# -- Fashion-MNIST: IDX files --


FASHION_MNIST_ADVICE = (
    "paceline download fashion-mnist, or apt-get install dataset-fashion-mnist,"
    " or give the folder that has it with --data PATH"
)


def _fashion_mnist(path: Path | None) -> Pictures:
    folder = _usual_folder() if path is None else path
    return _pictures(_idx_part(folder, "train"), _idx_part(folder, "t10k"))


def _usual_folder() -> Path:
    """Debian's, or the one that `paceline download` fills: the first that has all of it."""
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    if all(_packed_or_not(FASHION_MNIST, name) for name in names):
        return FASHION_MNIST
    downloaded = cache_folder("fashion-mnist")
    if all(_packed_or_not(downloaded, name) for name in names):
        return downloaded
    raise ConfigurationError(
        f"fashion-mnist is neither in {FASHION_MNIST} nor in {downloaded}, or not all of it; {FASHION_MNIST_ADVICE}"
    )


def _idx_part(folder: Path, part: str) -> _Part:
    images_file = _idx_file(folder, f"{part}-images-idx3-ubyte")
    labels_file = _idx_file(folder, f"{part}-labels-idx1-ubyte")
    images, labels = _idx(images_file, 3), _idx(labels_file, 1)
    if images.shape[1:] != (28, 28):
        raise _damaged(images_file, f"its images are {images.shape[1]}x{images.shape[2]}, not 28x28")
    return _Part(images[:, None], _checked(labels, len(images), labels_file, "labels"))


def _idx_file(folder: Path, name: str) -> Path:
    found = _packed_or_not(folder, name)
    if found is None:
        raise ConfigurationError(f"fashion-mnist: there is no {name}.gz or {name} in {folder}; {FASHION_MNIST_ADVICE}")
    return found


def _packed_or_not(folder: Path, name: str) -> Path | None:
    # Not Path.is_file, which is an error where a folder is closed to us, such as a home that is another user's.
    return next((path for path in (folder / f"{name}.gz", folder / name) if os.path.isfile(path)), None)


def _idx(path: Path, dimensions: int) -> Bytes:
    """An IDX file of bytes: a magic number, the size in each dimension (big-endian, 4 bytes each), the bytes."""
    contents = _contents(path)
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))  # 8: unsigned bytes
    if contents[:4] != magic:
        raise _damaged(path, f"it begins with 0x{contents[:4].hex()}, not with the magic number 0x{magic.hex()}")
    if len(contents) < header:
        raise _damaged(path, f"it ends within its header, after {len(contents)} bytes")
    shape = struct.unpack(f">{dimensions}I", contents[4:header])
    expected = 1
    for size in shape:
        expected *= size  # in Python's integers, which do not overflow
    if expected == 0:
        raise _damaged(path, "it is empty")
    if len(contents) - header != expected:
        sizes = "x".join(map(str, shape))
        raise _damaged(path, f"its header promises {sizes} bytes, but {len(contents) - header} follow")
    return np.frombuffer(contents, np.uint8, offset=header).reshape(shape)


# -- CIFAR-10: a NumPy archive of JPEG files, or the binary version --


CIFAR10_FORMS = (
    f"the file {CIFAR10_ARCHIVE}, or the folder of what is in it (data_batch_1.bin to data_batch_5.bin and"
    " test_batch.bin), or the file cifar10-jpeg.npz or cifar10-jpeg.npz.xz"
)
CIFAR10_SHAPE = (3, 32, 32)


def _cifar10(path: Path | None) -> Pictures:
    if path is None:
        path = cache_folder("cifar10") / CIFAR10_ARCHIVE
        if not os.path.isfile(path):
            advice = f"paceline download cifar10, or give --data PATH, {CIFAR10_FORMS}"
            raise ConfigurationError(f"cifar10: there is no {path}; {advice}")
    elif (path / CIFAR10_ARCHIVE).is_file():
        path = path / CIFAR10_ARCHIVE
    if path.is_dir():
        return _binary_version(path, {file.name: _contents(file) for file in path.glob("*_batch*.bin")})
    if not path.is_file():
        raise ConfigurationError(f"cifar10: there is no {path}; --data PATH must be {CIFAR10_FORMS}")
    contents = _contents(path)
    if not contents.startswith(b"PK"):
        return _binary_version(path, _tar(contents, path))
    archive = _archive(contents, path)
    return _pictures(_jpeg_part(archive, path, "train"), _jpeg_part(archive, path, "test"))


def _tar(contents: bytes, path: Path) -> dict[str, bytes]:
    """What is in the files of a tar archive, by their names without folders. Nothing is written anywhere."""
    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(contents), mode="r:") as archive:
            for member in archive:
                if member.size < 0:  # some versions of tarfile would go back and forth for ever
                    raise tarfile.ReadError("a size below 0")
                if member.isreg():
                    files[Path(member.name).name] = contents[member.offset_data : member.offset_data + member.size]
    except UNPACKING_ERRORS as problem:
        raise _damaged(path, f"it is no archive, neither NumPy's (.npz) nor tar's ({problem})") from None
    return files


def _binary_version(path: Path, batches: dict[str, bytes]) -> Pictures:
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _pictures(_binary_part(path, batches, train), _binary_part(path, batches, ["test_batch.bin"]))


def _binary_part(path: Path, batches: dict[str, bytes], names: list[str]) -> _Part:
    """Records of one byte for the label and 3072 for the image: all of red, all of green, all of blue."""
    images, labels = [], []
    for name in names:
        if name not in batches:
            raise ConfigurationError(f"cifar10: there is no {name} in {path}; --data PATH must be {CIFAR10_FORMS}")
        contents = batches[name]
        if not contents or len(contents) % 3073:
            raise _damaged(path / name, f"{len(contents)} bytes are not one or more records of 3073")
        records = np.frombuffer(contents, np.uint8).reshape(-1, 3073)
        images.append(records[:, 1:].reshape(-1, *CIFAR10_SHAPE))
        labels.append(_checked(records[:, 0], len(records), path / name, "labels"))
    return _Part(np.concatenate(images), np.concatenate(labels))


def _archive(contents: bytes, path: Path) -> dict[str, npt.NDArray[Any]]:
    names = [f"{part}_{kind}" for part in ("train", "test") for kind in ("jpeg", "offsets", "labels")]
    try:
        with np.load(io.BytesIO(contents), allow_pickle=False) as archive:
            found = {name: np.asarray(archive[name]) for name in names if name in archive.files}
    except UNPACKING_ERRORS as problem:
        raise _damaged(path, f"it cannot be unpacked ({problem})") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise _damaged(path, f"it has no {' and no '.join(missing)}")
    return found


def _jpeg_part(archive: dict[str, npt.NDArray[Any]], path: Path, part: str) -> _Part:
    """All JPEG files stand one after another; offsets has where each begins, and where the last one ends."""
    packed, offsets = archive[f"{part}_jpeg"], archive[f"{part}_offsets"]
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise _damaged(path, f"{part}_jpeg is {packed.dtype} of shape {packed.shape}, not one row of uint8")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise _damaged(path, f"{part}_offsets is {offsets.dtype} of shape {offsets.shape}, not one row of integers")
    edges: list[int] = offsets.tolist()
    rising = all(begin < end for begin, end in pairwise(edges))
    if edges[0] != 0 or edges[-1] != len(packed) or not rising:
        raise _damaged(path, f"{part}_offsets does not rise from 0 to {len(packed)}, the length of {part}_jpeg")
    labels = _checked(archive[f"{part}_labels"], len(edges) - 1, path, f"{part}_labels")
    return _Part(_decoded(packed, edges, path, part), labels)


def _decoded(packed: Bytes, edges: list[int], path: Path, part: str) -> Bytes:
    try:
        from PIL import Image
    except ImportError:
        raise _not_installed("cifar10 from JPEG files", "Pillow") from None
    images = np.empty((len(edges) - 1, *CIFAR10_SHAPE), np.uint8)
    for number, target in enumerate(images):
        where = f"image {number} of {part}_jpeg"
        try:
            # The size is known before anything is decoded, so that a false one costs no memory.
            image = Image.open(io.BytesIO(packed[edges[number] : edges[number + 1]].tobytes()), formats=("JPEG",))
            if (image.mode, image.size) != ("RGB", (32, 32)):
                raise _damaged(path, f"{where} is {image.mode} of {image.width}x{image.height}, not RGB of 32x32")
            target[:] = np.asarray(image).transpose(2, 0, 1)
        except (OSError, SyntaxError, Image.DecompressionBombError) as problem:
            raise _damaged(path, f"{where} cannot be decoded ({problem})") from None
    return images


# -- what they share --


def _contents(path: Path) -> bytes:
    """All bytes of a file, unpacked if it is packed; its first bytes tell, not its name."""
    try:
        contents = path.read_bytes()
    except OSError as problem:
        raise ConfigurationError(f"{path}: cannot be read: {problem.strerror}") from None
    try:
        if contents.startswith(b"\x1f\x8b"):
            return gzip.decompress(contents)
        if contents.startswith(b"\xfd7zXZ\x00"):
            return lzma.decompress(contents)
    except UNPACKING_ERRORS as problem:
        raise _damaged(path, f"it cannot be unpacked ({problem})") from None
    return contents


def _checked(labels: npt.NDArray[Any], expected: int, path: Path, what: str) -> Bytes:
    if labels.dtype.kind not in "iu" or labels.shape != (expected,):
        raise _damaged(path, f"{what}: {labels.dtype} of shape {labels.shape}, but there are {expected} images")
    if labels.min() < 0 or labels.max() >= CLASSES:
        wrong = labels[(labels < 0) | (labels >= CLASSES)][0]
        raise _damaged(path, f"{what}: {wrong} is not a label; they go from 0 to {CLASSES - 1}")
    return labels.astype(np.uint8)


def _damaged(path: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{path}: is damaged or the wrong file: {problem}")


def _not_installed(what: str, package: str) -> ConfigurationError:
    return ConfigurationError(f"{what} needs {package}, which is not installed: pip install 'paceline[tasks]'")


DATASETS: dict[str, Callable[[Path | None], Pictures]] = {
    "digits": _digits,
    "fashion-mnist": _fashion_mnist,
    "cifar10": _cifar10,
}
