"""Images: folders of JPEG files to batches that depend on seed, epoch and image alone; and what is wrong with files, by name."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from farandole.errors import DataError, SettingsError

pytestmark = pytest.mark.skipif(find_spec("simplejpeg") is None or find_spec("cv2") is None, reason="simplejpeg and OpenCV are not installed")

from farandole.data.images import ImageFiles, ImageSamples, MiddleView, RandomView, find_images, make_images  # noqa: E402
from farandole.data.images.codec import decoded, encoded  # noqa: E402

SIZE = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("images") / "set"
    assert make_images(place, classes=3, train=6, test=2, width=50, height=40, seed=1) == 24
    return place


@pytest.fixture
def one(tmp_path: Path) -> Path:
    make_images(tmp_path / "one", classes=2, train=4, test=1, width=20, height=20)
    return tmp_path / "one"


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.intp)


def image(height: int, width: int) -> np.ndarray:
    """Rows differ in red, columns in green."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, height)[:, None]
    pixels[..., 1] = np.linspace(0, 255, width)
    return pixels


def seen(view: RandomView | MiddleView, pixels: np.ndarray, seed: int = 0) -> np.ndarray:
    out = np.empty((view.size, view.size, 3), np.float32)
    view.see(pixels, np.random.default_rng(seed), out)
    return out


def colours(found: np.ndarray) -> np.ndarray:
    """Back to 0 to 255."""
    return found * (255 * np.array([0.229, 0.224, 0.225])) + 255 * np.array([0.485, 0.456, 0.406])


def test_a_folder_a_class_in_train_and_val(folder: Path) -> None:
    found = find_images(folder)
    assert found.classes == ("class0000", "class0001", "class0002")
    assert (len(found.train), len(found.test)) == (18, 6)
    assert found.train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert all(Path(path).parent.name == f"class{label:04d}" for path, label in zip(found.test.paths, found.test.labels))


def test_one_folder_is_divided_by_a_seed(folder: Path) -> None:
    first, again, other = (find_images(folder / "train", test=0.3, seed=seed) for seed in (1, 1, 2))
    assert first.test.paths == again.test.paths != other.test.paths
    assert (len(first.train), len(first.test)) == (13, 5)
    assert not {*first.train.paths} & {*first.test.paths}


def test_made_images_repeat_and_are_told_apart_by_their_colours(folder: Path, tmp_path: Path) -> None:
    make_images(tmp_path / "again", classes=3, train=6, test=2, width=50, height=40, seed=1)
    found, again = find_images(folder), find_images(tmp_path / "again")
    for path, other in zip(found.train.paths, again.train.paths):
        assert Path(path).read_bytes() == Path(other).read_bytes()

    def mean(files: ImageFiles, label: int) -> np.ndarray:
        return np.mean([decoded(Path(p).read_bytes(), p).mean((0, 1)) for p, n in zip(files.paths, files.labels) if n == label], axis=0)

    means = np.array([mean(found.train, label) for label in range(3)])
    for label in range(3):
        assert np.abs(means - mean(found.test, label)).sum(1).argmin() == label


def test_a_batch_depends_on_seed_epoch_and_image_alone(folder: Path) -> None:
    files, orders = find_images(folder).train, [rows(3, 1), rows(0, 17, 4), rows(2)]
    one, four, other = (ImageSamples(files, RandomView(SIZE, distort=True), seed=seed, threads=threads) for seed, threads in ((5, 1), (5, 4), (6, 1)))
    for first, second, order in zip(one.batches(2, orders), four.batches(2, orders), orders, strict=True):
        assert first[0].shape == (len(order), SIZE, SIZE, 3) and first[0].dtype == np.float32
        np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(first[1], files.labels[order])
    (again, _), (later, _), (seed, _) = next(one.batches(2, [rows(1)])), next(one.batches(3, [rows(1)])), next(other.batches(2, [rows(1)]))
    np.testing.assert_array_equal(again[0], next(four.batches(2, orders))[0][1])
    assert not np.array_equal(again, later) and not np.array_equal(again, seed)


def test_time_is_told_by_part(folder: Path) -> None:
    samples = ImageSamples(find_images(folder).train, RandomView(SIZE))
    samples.batch(rows(0, 1, 2))
    spent = samples.spent()
    assert spent["images"] == 3
    assert all(spent[name] > 0 for name in ("read_s", "decode_s", "view_s"))


def test_training_sees_random_parts_and_mirror_images() -> None:
    whole = image(120, 160)
    found = [colours(seen(RandomView(SIZE), whole, seed)) for seed in range(200)]
    heights = [abs(one[-1, 0, 0] - one[0, 0, 0]) for one in found]
    assert min(heights) < 110 and max(heights) > 200  # of 255: parts of less than half and of nearly all of it
    mirrored = sum(one[0, -1, 1] < one[0, 0, 1] for one in found)
    assert 70 < mirrored < 130
    assert all(one[..., 2].max() < 1 for one in found)  # there is no blue


def test_an_image_too_long_for_a_random_part_gives_its_middle() -> None:
    found = colours(seen(RandomView(SIZE), image(20, 2000)))
    assert found[0, :, 1].min() > 115 and found[0, :, 1].max() < 140


def test_tests_see_the_middle() -> None:
    found = colours(seen(MiddleView(SIZE), image(100, 200)))
    assert found[SIZE // 2, SIZE // 2, 0] == pytest.approx(127, abs=8)
    assert found[0, 0, 0] == pytest.approx(255 / 18, abs=4) and found[-1, 0, 0] == pytest.approx(255 * 16.3 / 18, abs=4)
    assert found[0, 0, 1] == pytest.approx(255 * (1 / 4 + 1 / 36), abs=6)  # half of the width, and its margin, are left out


def test_distortion_changes_light_and_nothing_else() -> None:
    plain, distorted = seen(RandomView(SIZE), image(60, 60), 3), seen(RandomView(SIZE, distort=True), image(60, 60), 3)
    change = np.polyfit(plain[..., 0].ravel(), distorted[..., 0].ravel(), 1)
    assert 0.5 <= change[0] <= 1.5 and change[0] != pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(np.polyval(change, plain[..., 0]), distorted[..., 0], atol=1e-3)


def test_grey_images_and_png_by_another_name_are_seen() -> None:
    import cv2
    import simplejpeg

    grey = simplejpeg.encode_jpeg(np.full((10, 12, 1), 77, np.uint8), colorspace="gray")
    assert decoded(grey, "grey.jpg").tolist() == np.full((10, 12, 3), 77).tolist()
    png = cv2.imencode(".png", np.full((9, 8, 3), (1, 2, 200), np.uint8))[1].tobytes()
    assert decoded(png, "really.png.jpg")[0, 0].tolist() == [200, 2, 1]


WHOLE = image(20, 20)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"no image", "is no JPEG that can be read"), (b"", "is no JPEG that can be read"),
        (lambda: encoded(WHOLE, 90)[:-200], "is no JPEG that can be read: Premature end"),
        (lambda: encoded(WHOLE[:5], 90), "is too small, 20 x 5 pixels: expected 8 or more on a side"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_image_is_named(one: Path, content: object, told: str) -> None:
    bad = one / "train" / "class0001" / "000002.jpg"
    bad.write_bytes(content() if callable(content) else content)  # type: ignore[arg-type]
    samples = ImageSamples(find_images(one).train, RandomView(SIZE))
    with pytest.raises(DataError, match=f"{bad} {told}"):
        list(samples.batches(0, [np.arange(8)]))


def test_folders_that_lack_something_are_named(one: Path, tmp_path: Path) -> None:
    def told(folder: Path) -> str:
        with pytest.raises(DataError) as error:
            find_images(folder)
        return str(error.value)

    assert "nowhere: there is no such folder. Expected" in told(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/empty has no folders. Expected one for each class" in told(tmp_path / "empty")
    lost = one / "val" / "class0001"
    (lost / "000000.jpg").rename(one / "moved.jpg")
    assert f"{lost} has no images" in told(one)
    lost.rmdir()
    assert f"{lost}: this class has no folder here" in told(one)
    lost.with_name("dog").mkdir()
    assert "val/dog: no class of that name is trained on. There are class0000, class0001." in told(one)
    (one / "val").rename(one / "kept")
    assert "has train and none of val, validation, test" in told(one)


def test_where_the_libraries_are_missing_it_says_what_to_type(one: Path) -> None:
    script = (
        "import sys; sys.modules['simplejpeg'] = None\n"
        "from farandole.data.images import *\n"
        f"ImageSamples(find_images({str(one)!r}).train, MiddleView(8))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert run.stderr.strip().endswith("Type: pip install 'farandole[images]'")


def test_images_are_not_written_among_others(one: Path) -> None:
    with pytest.raises(SettingsError, match="is not empty"):
        make_images(one)
    with pytest.raises(SettingsError, match="width=3: expected 8 or more"):
        make_images(one / "more", width=3)
