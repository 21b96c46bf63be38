"""The data sets and the models of the ready tasks: tiny files in every accepted form, and each sentence of refusal."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.core.errors import ConfigurationError
from paceline.experiment.tasks import TaskOptions, task_of
from paceline.training import datasets, models
from paceline.training.datasets import DATASETS, Pictures, load, read

TRAIN, TEST = 20, 7  # images in the tiny sets
IDX_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR10_FORMS = (
    "the file cifar-10-binary.tar.gz, or the folder of what is in it (data_batch_1.bin to data_batch_5.bin and"
    " test_batch.bin), or the file cifar10-jpeg.npz or cifar10-jpeg.npz.xz"
)
FASHION_MNIST_ADVICE = (
    "paceline download fashion-mnist, or apt-get install dataset-fashion-mnist,"
    " or give the folder that has it with --data PATH"
)


def noise(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels_of(count: int) -> np.ndarray:
    return (np.arange(count) % 10).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_idx(folder: Path, packed: bool = True) -> None:
    for count, (images, labels) in zip((TRAIN, TEST), IDX_NAMES.values(), strict=True):
        for name, array in ((images, noise(count, 28, 28)), (labels, labels_of(count))):
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))


def write_binary(folder: Path) -> None:
    """Four records in each batch, so that the five batches are the training images in their order."""
    for part, count, files in (("data_batch_{}.bin", TRAIN, 5), ("test_batch.bin", TEST, 1)):
        records = np.concatenate([labels_of(count)[:, None], noise(count, 3 * 32 * 32)], axis=1)
        for number, piece in enumerate(np.split(records, files), 1):
            (folder / part.format(number)).write_bytes(piece.tobytes())


def jpeg(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=95)
    return file.getvalue()


def flat_colours(count: int) -> np.ndarray:
    """Images of one colour each, because JPEG keeps those."""
    return np.broadcast_to(noise(count, 1, 1, 3), (count, 32, 32, 3)).copy()


def archive_of(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part, count in (("train", TRAIN), ("test", TEST)):
        files = [jpeg(image) for image in flat_colours(count)]
        found[f"{part}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        found[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
        found[f"{part}_labels"] = labels_of(count)
    return found | changed


def write_archive(path: Path, arrays: dict[str, Any]) -> Path:
    file = io.BytesIO()
    np.savez(file, **arrays)
    path.write_bytes(lzma.compress(file.getvalue(), preset=0) if path.suffix == ".xz" else file.getvalue())
    return path


def check(pictures: Pictures, train: int, test: int, shape: tuple[int, int, int]) -> None:
    """What holds for every set."""
    assert pictures.classes == 10 and pictures.shape == shape
    for part, count in ((pictures.train, train), (pictures.test, test)):
        images, labels = part.tensors
        assert images.shape == (count, *shape) and images.dtype == torch.float32 and images.is_contiguous()
        assert labels.shape == (count,) and labels.dtype == torch.int64
        assert int(labels.min()) >= 0 and int(labels.max()) < 10
    images = pictures.train.tensors[0].double()
    assert images.mean((0, 2, 3)).abs().max() < 1e-5
    assert (images.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def undone(part: torch.Tensor, raw: np.ndarray, train: np.ndarray) -> bool:
    """Whether these normalised images are the raw ones, seen with the mean and std of the raw training images."""
    mean = train.mean((0, 2, 3), keepdims=True)
    std = train.std((0, 2, 3), keepdims=True)
    return np.allclose(part.numpy(), (raw - mean) / std, atol=1e-5)


def refusal(name: str, path: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(name, path)
    return str(caught.value)


def test_an_unknown_data_set_is_told_what_there_is() -> None:
    assert refusal("imagenet") == "unknown data set 'imagenet'; there are: digits, fashion-mnist, cifar10"


def test_a_channel_that_is_the_same_everywhere_becomes_zero(tmp_path: Path) -> None:
    write_idx(tmp_path)
    name = IDX_NAMES["train"][0]
    (tmp_path / f"{name}.gz").write_bytes(idx(np.full((TRAIN, 28, 28), 9, np.uint8)))
    assert not read("fashion-mnist", tmp_path).train.tensors[0].any()


# -- digits --


@pytest.mark.slow  # the import of scikit-learn takes a second
def test_digits_are_split_the_same_way_each_time() -> None:
    first, second = read("digits"), read("digits")
    check(first, 1437, 360, (1, 8, 8))
    for one, other in ((first.train, second.train), (first.test, second.test)):
        assert all(torch.equal(*pair) for pair in zip(one.tensors, other.tensors, strict=True))
    # NumPy promises these for every version; if they change, figures of old runs no longer compare.
    assert first.train.tensors[1][:12].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5, 2, 8]


def test_a_set_is_read_once_per_process_and_a_failure_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.cache_clear()
    with pytest.raises(ConfigurationError):
        load("fashion-mnist", tmp_path)
    pictures = load("digits")
    for name in DATASETS:
        monkeypatch.setitem(DATASETS, name, lambda path: Pictures(*pictures[:3], (1, 1, 1)))
    assert load("digits") is pictures
    first, second = (task_of(TaskOptions("digits", "mlp"), seed=seed) for seed in (0, 1))
    assert first.train is second.train and first.model is not second.model
    assert load("fashion-mnist", tmp_path).shape == (1, 1, 1)  # what failed is tried again
    load.cache_clear()


def test_digits_have_no_file(tmp_path: Path) -> None:
    expected = f"digits come with scikit-learn and are not read from {tmp_path}: leave out --data"
    assert refusal("digits", tmp_path) == expected


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    expected = "digits needs scikit-learn, which is not installed: pip install 'paceline[tasks]'"
    assert refusal("digits") == expected


# -- Fashion-MNIST --


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_packed_or_not(tmp_path: Path, packed: bool) -> None:
    write_idx(tmp_path, packed)
    found = read("fashion-mnist", tmp_path)
    check(found, TRAIN, TEST, (1, 28, 28))
    train, test = noise(TRAIN, 28, 28)[:, None], noise(TEST, 28, 28)[:, None]
    assert undone(found.train.tensors[0], train, train) and undone(found.test.tensors[0], test, train)
    assert found.train.tensors[1].tolist() == labels_of(TRAIN).tolist()


def test_fashion_mnist_is_found_where_debian_puts_it_or_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian, cache = tmp_path / "debian", tmp_path / "paceline" / "fashion-mnist"
    monkeypatch.setattr(datasets, "FASHION_MNIST", debian)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    missing = f"fashion-mnist is neither in {debian} nor in {cache}, or not all of it; {FASHION_MNIST_ADVICE}"
    assert refusal("fashion-mnist") == missing
    cache.mkdir(parents=True)
    write_idx(cache)
    check(read("fashion-mnist"), TRAIN, TEST, (1, 28, 28))
    (cache / "t10k-labels-idx1-ubyte.gz").unlink()
    assert refusal("fashion-mnist") == missing
    debian.mkdir()
    write_idx(debian, packed=False)
    check(read("fashion-mnist"), TRAIN, TEST, (1, 28, 28))


def test_a_missing_idx_file_is_named(tmp_path: Path) -> None:
    name = "train-images-idx3-ubyte"
    expected = f"fashion-mnist: there is no {name}.gz or {name} in {tmp_path}; {FASHION_MNIST_ADVICE}"
    assert refusal("fashion-mnist", tmp_path) == expected


IMAGES, LABELS = IDX_NAMES["test"]
WHOLE = idx(noise(TEST, 28, 28))


@pytest.mark.parametrize(
    ("name", "contents", "problem"),
    [
        (IMAGES, gzip.compress(WHOLE)[:-9], "it cannot be unpacked (Compressed file ended before the end-of-stream"),
        (IMAGES, b"", "it begins with 0x, not with the magic number 0x00000803"),
        (IMAGES, idx(labels_of(TEST)), "it begins with 0x00000801, not with the magic number 0x00000803"),
        (LABELS, WHOLE, "it begins with 0x00000803, not with the magic number 0x00000801"),
        (IMAGES, WHOLE[:10], "it ends within its header, after 10 bytes"),
        (IMAGES, WHOLE[:-1], f"its header promises 7x28x28 bytes, but {TEST * 784 - 1} follow"),
        (IMAGES, WHOLE + b"x", f"its header promises 7x28x28 bytes, but {TEST * 784 + 1} follow"),
        (IMAGES, WHOLE[:4] + b"\xff" * 12, "its header promises 4294967295x4294967295x4294967295 bytes, but 0 follow"),
        (IMAGES, idx(noise(TEST, 28, 28)[:0]), "it is empty"),
        (IMAGES, idx(noise(TEST, 20, 30)), "its images are 20x30, not 28x28"),
        (LABELS, idx(labels_of(6)), "labels: uint8 of shape (6,), but there are 7 images"),
        (LABELS, idx(labels_of(TEST) + 4), "labels: 10 is not a label; they go from 0 to 9"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, name: str, contents: bytes, problem: str) -> None:
    write_idx(tmp_path)
    path = tmp_path / f"{name}.gz"
    path.write_bytes(contents)
    assert refusal("fashion-mnist", tmp_path).startswith(f"{path}: is damaged or the wrong file: {problem}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    write_idx(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything, so the mode of the file is no test
    path = tmp_path / "train-images-idx3-ubyte.gz"
    assert refusal("fashion-mnist", tmp_path) == f"{path}: cannot be read: Permission denied"


# -- CIFAR-10 --


def test_cifar10_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = tmp_path / "paceline" / "cifar10" / "cifar-10-binary.tar.gz"
    assert refusal("cifar10") == (
        f"cifar10: there is no {archive}; paceline download cifar10, or give --data PATH, {CIFAR10_FORMS}"
    )
    nowhere = tmp_path / "nowhere.npz"
    assert refusal("cifar10", nowhere) == f"cifar10: there is no {nowhere}; --data PATH must be {CIFAR10_FORMS}"


def test_the_binary_version(tmp_path: Path) -> None:
    write_binary(tmp_path)
    found = read("cifar10", tmp_path)
    check(found, TRAIN, TEST, (3, 32, 32))
    train, test = (noise(count, 3 * 32 * 32).reshape(-1, 3, 32, 32) for count in (TRAIN, TEST))
    assert undone(found.train.tensors[0], train, train) and undone(found.test.tensors[0], test, train)
    assert found.train.tensors[1].tolist() == labels_of(TRAIN).tolist()


def test_a_missing_or_damaged_batch_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path)
    batch = tmp_path / "data_batch_3.bin"
    whole = batch.read_bytes()
    for contents, problem in (
        (whole[:-1], f"{4 * 3073 - 1} bytes are not one or more records of 3073"),
        (b"", "0 bytes are not one or more records of 3073"),
        (b"\x0b" + whole[1:], "labels: 11 is not a label; they go from 0 to 9"),
    ):
        batch.write_bytes(contents)
        assert refusal("cifar10", tmp_path) == f"{batch}: is damaged or the wrong file: {problem}"
    batch.unlink()
    expected = f"cifar10: there is no data_batch_3.bin in {tmp_path}; --data PATH must be {CIFAR10_FORMS}"
    assert refusal("cifar10", tmp_path) == expected


def tar_of(folder: Path, path: Path) -> Path:
    """The archive as it is published: with a folder in it, and with more than the batches."""
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "cifar-10-batches-bin")
    return path


def test_the_archive_of_the_binary_version_by_its_name_or_by_its_folder(tmp_path: Path) -> None:
    batches = tmp_path / "batches"
    batches.mkdir()
    write_binary(batches)
    (batches / "readme.html").write_text("not a batch")
    path = tar_of(batches, tmp_path / "cifar-10-binary.tar.gz")
    for place in (path, tmp_path, tar_of(batches, tmp_path / "renamed")):
        found = read("cifar10", place)
        check(found, TRAIN, TEST, (3, 32, 32))
        train, test = (noise(count, 3 * 32 * 32).reshape(-1, 3, 32, 32) for count in (TRAIN, TEST))
        assert undone(found.train.tensors[0], train, train) and undone(found.test.tensors[0], test, train)


def test_a_damaged_tar_archive_is_named(tmp_path: Path) -> None:
    batches = tmp_path / "batches"
    batches.mkdir()
    write_binary(batches)
    whole = gzip.decompress(tar_of(batches, tmp_path / "some.tar.gz").read_bytes())
    (batches / "test_batch.bin").unlink()
    path = tar_of(batches, tmp_path / "some.tar.gz")
    expected = f"cifar10: there is no test_batch.bin in {path}; --data PATH must be {CIFAR10_FORMS}"
    assert refusal("cifar10", path) == expected
    start = f"{path}: is damaged or the wrong file: it is no archive, neither NumPy's (.npz) nor tar's ("
    for contents, problem in (
        (whole[:50_000], "unexpected end of data)"),
        (b"", "empty file)"),
        (b"some text" * 100, ""),
        (with_size(whole, -512), "a size below 0)"),
        (with_size(whole, 1 << 80), ""),
    ):
        path.write_bytes(contents)
        assert refusal("cifar10", path).startswith(start + problem)


def with_size(whole: bytes, size: int) -> bytes:
    """A tar archive whose first file claims this size."""
    at = whole.index(b"cifar-10-batches-bin/data")
    header = bytearray(whole[at : at + 512])
    header[124:136] = (size % (1 << 96)).to_bytes(12, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return whole[:at] + bytes(header) + whole[at + 512 :]


@pytest.mark.parametrize("name", ["cifar10-jpeg.npz", "cifar10-jpeg.npz.xz"])
def test_an_archive_of_jpeg_files(tmp_path: Path, name: str) -> None:
    found = read("cifar10", write_archive(tmp_path / name, archive_of()))
    check(found, TRAIN, TEST, (3, 32, 32))
    assert found.train.tensors[1].tolist() == labels_of(TRAIN).tolist()
    train, test = (flat_colours(count).transpose(0, 3, 1, 2) for count in (TRAIN, TEST))
    std = train.std((0, 2, 3), keepdims=True)
    for part, raw in ((found.train, train), (found.test, test)):
        expected = (raw - train.mean((0, 2, 3), keepdims=True)) / std
        assert np.abs(part.tensors[0].numpy() - expected).max() < 0.1  # what JPEG loses


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.update({name: value(arrays[name])})


def replace_last_jpeg(contents: bytes) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        offsets = arrays["test_offsets"]
        arrays["test_jpeg"] = np.concatenate([arrays["test_jpeg"][: offsets[-2]], np.frombuffer(contents, np.uint8)])
        offsets[-1] = offsets[-2] + len(contents)

    return change


COLOUR = jpeg(flat_colours(1)[0])
NOISE = jpeg(noise(1, 32, 32, 3)[0])
HUGE = COLOUR.replace(struct.pack(">HH", 32, 32), struct.pack(">HH", 65500, 65500))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (drop("test_labels"), "it has no test_labels"),
        (put("test_labels", lambda a: a.astype(object)), "it cannot be unpacked (Object arrays cannot be loaded"),
        (put("test_labels", lambda a: a[1:]), "test_labels: uint8 of shape (6,), but there are 7 images"),
        (put("test_labels", lambda a: a / 2), "test_labels: float64 of shape (7,), but there are 7 images"),
        (put("test_labels", lambda a: a.astype(int) - 1), "test_labels: -1 is not a label; they go from 0 to 9"),
        (put("test_jpeg", lambda a: a.astype(int)), "test_jpeg is int64 of shape ("),
        (put("test_offsets", lambda a: a[:1]), "test_offsets is int64 of shape (1,), not one row of integers"),
        (put("test_offsets", lambda a: a / 1), "test_offsets is float64 of shape (8,), not one row of integers"),
        (put("test_offsets", lambda a: a[::-1]), "test_offsets does not rise from 0 to"),
        (put("test_offsets", lambda a: a[:-1]), "test_offsets does not rise from 0 to"),
        (put("test_offsets", lambda a: a[[0, 2, 1, *range(3, 8)]]), "test_offsets does not rise from 0 to"),
        (replace_last_jpeg(b"nothing"), "image 6 of test_jpeg cannot be decoded (cannot identify image file"),
        (replace_last_jpeg(NOISE[:-99]), "image 6 of test_jpeg cannot be decoded (image file is truncated"),
        (replace_last_jpeg(HUGE), "image 6 of test_jpeg cannot be decoded (Image size (4290250000 pixels)"),
        (replace_last_jpeg(jpeg(noise(1, 24, 32, 3)[0])), "image 6 of test_jpeg is RGB of 32x24, not RGB of 32x32"),
        (replace_last_jpeg(jpeg(noise(1, 32, 32)[0])), "image 6 of test_jpeg is L of 32x32, not RGB of 32x32"),
    ],
)
def test_a_damaged_archive_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str) -> None:
    arrays = archive_of()
    change(arrays)
    path = write_archive(tmp_path / "some.npz", arrays)
    assert refusal("cifar10", path).startswith(f"{path}: is damaged or the wrong file: {problem}")


def test_bytes_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "some.npz.xz", archive_of())
    start = f"{path}: is damaged or the wrong file: "
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert refusal("cifar10", path).startswith(start + "it cannot be unpacked (Compressed data ended")
    path.write_bytes(lzma.decompress(whole)[:-50])
    assert refusal("cifar10", path) == start + "it cannot be unpacked (File is not a zip file)"
    np.save(tmp_path / "one.npy", labels_of(3))
    path.write_bytes((tmp_path / "one.npy").read_bytes())
    assert refusal("cifar10", path).startswith(start + "it is no archive, neither NumPy's (.npz) nor tar's (")


@pytest.mark.slow  # some hundred archives
def test_no_single_changed_byte_gives_anything_but_a_sentence(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "some.npz", archive_of())
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    # Headers of arrays, which numpy parses before zipfile has seen the sum of all bytes, and the directory at the end.
    headers = [at + 6 for at in range(len(whole)) if whole[at : at + 6] == b"\x93NUMPY"]
    places = [at + step for at in headers for step in range(0, 60, 2)] + list(range(len(whole) - 400, len(whole), 2))
    refused = 0
    for place in places:
        path.write_bytes(whole[:place] + generator.bytes(1) + whole[place + 1 :])
        try:
            read("cifar10", path)
        except ConfigurationError:
            refused += 1
    assert refused > len(places) / 2


def test_jpeg_files_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_archive(tmp_path / "some.npz", archive_of())
    monkeypatch.setitem(sys.modules, "PIL", None)
    expected = "cifar10 from JPEG files needs Pillow, which is not installed: pip install 'paceline[tasks]'"
    assert refusal("cifar10", path) == expected


# -- models --


SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_scores_every_class_and_learns_from_all_its_parameters(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = models.make(name, shape, 10)
    scores = model(torch.randn(4, *shape))
    assert scores.shape == (4, 10)
    scores.square().sum().backward()
    assert all(each.grad is not None and bool(each.grad.any()) for each in model.parameters())


@pytest.mark.parametrize("name", models.MODELS)
def test_a_seed_decides_the_model_and_it_travels_between_processes(name: str) -> None:
    torch.manual_seed(5)
    model = models.make(name, (3, 32, 32), 10)
    torch.manual_seed(5)
    again = models.make(name, (3, 32, 32), 10)
    copied = pickle.loads(pickle.dumps(model))
    for other in (again, copied):
        assert model.state_dict().keys() == other.state_dict().keys()
        assert all(torch.equal(each, other.state_dict()[key]) for key, each in model.state_dict().items())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model.eval()(images), copied.eval()(images))


def size(name: str, shape: tuple[int, int, int]) -> int:
    return sum(each.numel() for each in models.make(name, shape, 10).parameters())


def test_the_sizes_of_the_models() -> None:
    assert size("resnet20", (3, 32, 32)) == 269_722  # "0.27M" in He et al. 2015, table 6
    assert size("resnet110", (3, 32, 32)) == 1_727_962  # "1.7M"
    assert size("cnn", (1, 28, 28)) == 20_490
    assert size("lenet", (1, 28, 28)) == 26 * 32 + (25 * 32 + 1) * 64 + (64 * 49 + 1) * 512 + 513 * 10
    convolutions = 76 * 32 + (25 * 32 + 1) * 64 + (9 * 64 + 1) * 128
    assert size("alexnet", (3, 32, 32)) == convolutions + (128 * 16 + 1) * 256 + 257 * 10
    assert size("mlp", (1, 8, 8)) == 65 * 128 + 129 * 10


def test_resnet20_has_twenty_layers_and_halves_the_image_twice() -> None:
    model = models.make("resnet20", (3, 32, 32), 10)
    layers = [each for each in model.modules() if isinstance(each, (torch.nn.Conv2d, torch.nn.Linear))]
    assert len(layers) == 20
    for side, last in ((32, 8), (28, 7), (8, 2)):
        assert model.blocks(torch.zeros(1, 16, side, side)).shape == (1, 64, last, last)


def test_an_unknown_model_is_told_what_there_is() -> None:
    with pytest.raises(ConfigurationError) as caught:
        models.make("vgg", (3, 32, 32), 10)
    assert str(caught.value) == "unknown model 'vgg'; there are: mlp, cnn, lenet, alexnet, resnet20, resnet110"
