"""Image transforms: pixels are right, and all randomness is from the generator and in training only."""

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from tardigrad.errors import ConfigError
from tardigrad.learning.images import CentreCrop, Flip, Images, ImageStep, RandomCrop


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(count=64, channels=3, side=8):
    """Images in which all pixels of a channel differ, and every image is different."""
    pixels = torch.arange(side * side, dtype=torch.uint8).reshape(1, 1, side, side)
    return (
        pixels
        + torch.arange(count, dtype=torch.uint8)[:, None, None, None]
        + torch.zeros((1, channels, 1, 1), dtype=torch.uint8)
    )


def test_images_are_normalised_by_mean_and_deviation():
    images = torch.tensor([[0, 51], [102, 255]], dtype=torch.uint8).reshape(1, 1, 2, 2).repeat(2, 2, 1, 1)
    transform = Images(mean=[0.2, 0.5], deviation=[0.5, 0.25])
    out = transform.evaluate(images)
    assert out.dtype == torch.float32
    assert out[1, 0].flatten().tolist() == pytest.approx([-0.4, 0.0, 0.4, 1.6], abs=1e-6)
    assert out[1, 1].flatten().tolist() == pytest.approx([-2.0, -1.2, -0.4, 2.0], abs=1e-6)
    assert torch.equal(transform.train(images, generator()), out)


def test_stored_examples_are_not_changed():
    for images in (numbered(), numbered().float()):
        before = images.clone()
        steps = [RandomCrop(side=8, padding=2), Flip()]
        transform = Images(steps, mean=[0.5] * 3, deviation=[0.5] * 3)
        transform.train(images, generator())
        transform.evaluate(images)
        assert torch.equal(images, before)


def test_centre_crop_takes_the_middle():
    images = numbered(side=8)
    for crop in (CentreCrop(side=4), RandomCrop(side=4)):
        assert torch.equal(crop.evaluate(images), images[:, :, 2:6, 2:6])
        assert crop.shape((3, 8, 8)) == (3, 4, 4)
    assert torch.equal(CentreCrop(side=4).train(images, generator()), images[:, :, 2:6, 2:6])
    assert torch.equal(CentreCrop(side=8).evaluate(images), images)


def places(out, padded, side):
    """The corner of each crop in its own padded image."""
    found = []
    for crop, image in zip(out, padded):
        where = [
            (top, left)
            for top in range(image.shape[1] - side + 1)
            for left in range(image.shape[2] - side + 1)
            if torch.equal(image[:, top : top + side, left : left + side], crop)
        ]
        assert len(where) == 1
        found += where
    return found


def test_random_crops_are_parts_of_their_own_image():
    images = numbered(count=128)
    out = RandomCrop(side=6).train(images, generator())
    assert out.shape == (128, 3, 6, 6)
    assert set(places(out, images, 6)) == {(top, left) for top in range(3) for left in range(3)}


def test_random_crops_of_padded_images():
    images = 1 + numbered(count=400, side=8) // 2
    out = RandomCrop(side=8, padding=2).train(images, generator(3))
    padded = torch.zeros((400, 3, 12, 12), dtype=torch.uint8)
    padded[:, :, 2:10, 2:10] = images
    found = places(out, padded, 8)
    assert {top for top, _ in found} == {left for _, left in found} == set(range(5))
    assert sum(top == left for top, left in found) < 130  # drawn one by one, not together
    assert torch.equal(RandomCrop(side=8, padding=2).evaluate(images), images)


def test_about_half_of_the_images_are_flipped():
    images = numbered(count=400)
    out = Flip().train(images, generator(1))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(out, images)]
    same = [torch.equal(a, b) for a, b in zip(out, images)]
    assert all(a != b for a, b in zip(mirrored, same))
    assert 160 < sum(mirrored) < 240
    assert torch.equal(Flip().evaluate(images), images)


STEPS = [RandomCrop(side=8, padding=2), Flip()]


def test_all_randomness_comes_from_the_generator():
    transform = Images(STEPS, mean=[0.5] * 3, deviation=[0.5] * 3)
    images = numbered()
    state = torch.get_rng_state()
    first, again, other = (transform.train(images, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(99)
    assert torch.equal(transform.train(images, generator(1)), first)
    torch.set_rng_state(state)
    transform.train(images, generator(1))
    transform.evaluate(images)
    assert torch.equal(torch.get_rng_state(), state)
    one = generator(1)
    assert not torch.equal(transform.train(images, one), transform.train(images, one))  # batch after batch


def test_evaluation_has_no_randomness():
    transform = Images([RandomCrop(side=6), Flip()], mean=[0.5] * 3, deviation=[0.5] * 3)
    images = numbered()
    assert torch.equal(transform.evaluate(images), transform.evaluate(images))
    middle = images[:, :, 1:7, 1:7].float() / 255
    assert torch.allclose(transform.evaluate(images), (middle - 0.5) / 0.5, atol=1e-6)
    assert transform.shape((3, 8, 8)) == (3, 6, 6) == tuple(transform.evaluate(images).shape[1:])


def test_images_that_are_not_contiguous_give_the_same_result():
    # CIFAR-10's images are slices of rows in its files, and EMNIST's are transposed
    rows = torch.randint(256, (50, 1 + 3 * 64), dtype=torch.uint8, generator=generator())
    images = rows[:, 1:].unflatten(1, (3, 8, 8)).transpose(2, 3)
    transform = Images(STEPS, mean=[0.5] * 3, deviation=[0.5] * 3)
    assert torch.equal(
        transform.train(images, generator(4)), transform.train(images.contiguous(), generator(4))
    )


def test_crop_larger_than_the_image_is_refused():
    for crop in (CentreCrop(side=9), RandomCrop(side=9, padding=4)):
        with pytest.raises(ConfigError, match="keeps 9 x 9 pixels, but the images have 8 x 10"):
            Images([Flip(), crop], mean=[0.5], deviation=[0.5]).shape((1, 8, 10))


def test_steps_are_chosen_by_name():
    adapter = TypeAdapter(tuple[ImageStep, ...])
    assert adapter.validate_python(["flip", {"kind": "random_crop", "side": 32, "padding": 4}]) == (
        Flip(),
        RandomCrop(side=32, padding=4),
    )
    with pytest.raises(ValidationError):
        adapter.validate_python([{"kind": "centre_crop", "padding": 1}])
