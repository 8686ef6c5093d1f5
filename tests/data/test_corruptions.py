"""Corruptions: what they promise to callers, and each against an oracle of its own."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import torch
from PIL import Image
from torch import Tensor

import bnn.data.corruptions.kinds as front
from bnn.data.corruptions import CORRUPTIONS, GROUPS, OF_COLOUR, blur, corrupt
from bnn.data.corruptions.blur import blur_along, zoomed
from bnn.data.corruptions.digital import _affine
from bnn.data.corruptions.pixel_noise import Streams
from bnn.data.corruptions.spatter import distance, edges, equalised, relief
from bnn.data.corruptions.weather import plasma, textures

FIXED = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}  # nothing random
FIXED |= {"gaussian_blur", "saturate"}
SEVERITIES = range(1, 6)


def pictures(count: int = 12, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    """Smooth random textures with some detail, values spread over 0 to 255."""
    generator = torch.Generator().manual_seed(1)
    size = (height, width)
    total = torch.zeros(count, channels, height, width)
    for cells, weight in ((4, 1.0), (8, 0.6), (16, 0.3)):
        coarse = torch.rand(count, channels, cells, cells, generator=generator) - 0.5
        total += weight * torch.nn.functional.interpolate(coarse, size, mode="bilinear", align_corners=False)
    return ((total * 0.8 + 0.5).clamp(0, 1) * 255).to(torch.uint8)


def flat(value: int, count: int = 8, channels: int = 3) -> Tensor:
    return torch.full((count, channels, 32, 32), value, dtype=torch.uint8)


def change(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).abs().mean())


def test_the_nineteen_in_the_usual_order() -> None:
    usual = "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow frost fog"
    usual += " brightness contrast elastic_transform pixelate jpeg_compression"
    extra = "speckle_noise gaussian_blur spatter saturate"
    assert list(CORRUPTIONS) == [*usual.split(), *extra.split()]
    assert list(GROUPS) == ["noise", "blur", "weather", "digital", "extra"]
    assert set(front._FUNCTIONS) == set(CORRUPTIONS)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_same_shape_and_type_and_the_input_is_left_alone(kind: str) -> None:
    for shape in [(3, 3, 32, 32), (2, 1, 28, 28), (2, 3, 8, 8), (2, 1, 5, 9), (1, 3, 1, 1)]:
        if kind in OF_COLOUR and shape[1] == 1:
            continue
        x = pictures(*shape)
        before = x.clone()
        for severity in (1, 5):
            y = corrupt(x, kind, severity)
            assert y.shape == x.shape
            assert y.dtype == torch.uint8
            assert torch.equal(x, before)
            assert shape[-1] < 28 or change(x, y) > 0.5
        assert corrupt(x[:0], kind, 1).shape == (0, *shape[1:])


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_depends_on_seed_and_severity_only(kind: str) -> None:
    x = pictures(4)
    y = corrupt(x, kind, 3, seed=7)
    assert torch.equal(y, corrupt(x, kind, 3, seed=7))
    assert torch.equal(y, corrupt(x, kind, 3, seed=8)) == (kind in FIXED)
    assert not torch.equal(y, corrupt(x, kind, 4, seed=7))
    same = x[:1].expand(4, -1, -1, -1)
    assert bool((corrupt(same, kind, 3).diff(dim=0) == 0).all()) == (kind in FIXED)  # images differ in their noise


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_chunks_agree_with_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pictures(7)
    whole = corrupt(x, kind, 4, seed=3)
    parts = [corrupt(x[a:b], kind, 4, seed=3, start=a) for a, b in ((0, 1), (1, 5), (5, 7))]
    assert torch.equal(torch.cat(parts), whole)
    changed = x.clone()
    changed[2] = 255 - changed[2]  # another image in the batch
    assert torch.equal(corrupt(changed, kind, 4, seed=3)[3:], whole[3:])
    monkeypatch.setattr(front, "_CHUNK", 3 * 32 * 32)  # and the pieces it works in do not show
    assert torch.equal(corrupt(x, kind, 4, seed=3), whole)


# Severities whose mean absolute change is not above the one before. The authors chose severities by eye:
# glass: at equal rounds of shuffling the stronger blur smooths the shuffled pixels, so that 3 and 5 are no further from
#   the image than 2 and 4 (a second round, from 3 to 4, is);
# frost: from 3 on the image is darkened as frost is added, and the two cancel in the mean;
# elastic: displacements become smaller, but rougher;
# spatter: drops of water up to 3, from 4 on of mud, which hides more of what it covers, but covers less;
# saturate: the first two make colours paler, the others gaudier.
# (Motion hardly differs between 3 and 4: the kernel of sd 2 is cut off at 16 pixels instead of 12.)
NOT_RISING = {"glass_blur": {3, 5}, "frost": {4, 5}, "elastic_transform": {2, 3, 4, 5}, "saturate": {3}, "spatter": {4}}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_change_rises_with_severity(kind: str) -> None:
    x = pictures(40)
    changes = [change(x, corrupt(x, kind, severity)) for severity in SEVERITIES]
    falls = {severity for severity in range(2, 6) if changes[severity - 1] <= changes[severity - 2]}
    assert falls == NOT_RISING.get(kind, set()), changes
    assert changes[0] > 0.3


@pytest.mark.parametrize(("severity", "sd"), list(enumerate([0.04, 0.06, 0.08, 0.09, 0.10], 1)))
def test_gaussian_noise_has_its_sd(severity: int, sd: float) -> None:
    y = corrupt(flat(128, count=40), "gaussian_noise", severity).double()  # 122,880 values: sd within 0.2 %
    assert float(y.std()) == pytest.approx(255 * sd, rel=0.02)
    assert float(y.mean()) == pytest.approx(127.5, abs=0.3)  # cutting off takes 1/2


@pytest.mark.parametrize(("severity", "photons"), list(enumerate([500, 250, 100, 75, 50], 1)))
def test_shot_noise_is_poisson(severity: int, photons: int) -> None:
    y = corrupt(flat(102, count=40), "shot_noise", severity).double() / 255
    assert float(y.mean()) == pytest.approx(0.4 - 0.5 / 255, abs=0.002)
    assert float(y.var()) == pytest.approx(0.4 / photons, rel=0.04)


@pytest.mark.parametrize(("severity", "share"), list(enumerate([0.01, 0.02, 0.03, 0.05, 0.07], 1)))
def test_impulse_noise_replaces_its_share(severity: int, share: float) -> None:
    y = corrupt(flat(100, count=40), "impulse_noise", severity)
    black, white, kept = (float((y == value).double().mean()) for value in (0, 255, 100))
    assert black + white + kept == pytest.approx(1)
    assert black == pytest.approx(share / 2, rel=0.15)  # 614 values or more of each: sd 4 %
    assert white == pytest.approx(share / 2, rel=0.15)


@pytest.mark.parametrize(
    ("severity", "radius", "sigma"), [(1, 0.3, 0.4), (2, 0.4, 0.5), (3, 0.5, 0.6), (4, 1, 0.2), (5, 1.5, 0.1)]
)
def test_defocus_is_convolution_with_the_authors_disk(severity: int, radius: float, sigma: float) -> None:
    side = np.arange(-8, 9)
    disk = (side[:, None] ** 2 + side**2 <= radius**2).astype(float)
    tail = np.exp(-1 / (2 * sigma**2))
    edge = np.array([tail, 1, tail]) / (1 + 2 * tail)
    kernel = scipy.signal.convolve2d(disk / disk.sum(), np.outer(edge, edge), mode="same")  # 17 x 17
    np.testing.assert_allclose(np.pad(blur.disk(*blur.DEFOCUS[severity - 1]), 6), kernel, atol=1e-12)
    x = pictures(1)
    expected = [
        scipy.signal.convolve2d(np.pad(channel, 8, mode="reflect"), kernel, mode="valid")
        for channel in x[0].double().numpy()
    ]
    assert_cut_off(corrupt(x, "defocus_blur", severity)[0], np.stack(expected))


@pytest.mark.parametrize(
    ("severity", "sigma", "rounds"), [(1, 0.05, 1), (2, 0.25, 1), (3, 0.4, 1), (4, 0.25, 2), (5, 0.4, 2)]
)
def test_glass_blur_is_the_authors_walk_over_pixels(severity: int, sigma: float, rounds: int) -> None:
    x = pictures(2)
    steps = Streams(seed=5, kind="glass_blur", severity=severity, start=0, count=2)
    draws = [steps.integers(-1, 1, 2, 30, 30)[1] for _ in range(rounds)]
    options = {"sigma": (sigma, sigma, 0), "mode": "nearest", "truncate": 4}
    image = np.uint8(scipy.ndimage.gaussian_filter(x[1].permute(1, 2, 0).numpy() / 255, **options) * 255)
    for dx, dy in draws:
        for h in range(31, 1, -1):
            for w in range(31, 1, -1):
                there = h + dy[h - 2, w - 2], w + dx[h - 2, w - 2]
                image[h, w], image[there] = image[there], image[h, w]  # views: the second writes nothing new
    expected = scipy.ndimage.gaussian_filter(image / 255, **options) * 255
    assert_cut_off(corrupt(x, "glass_blur", severity, seed=5)[1], expected.transpose(2, 0, 1))


def test_blur_along_a_line_pixel_by_pixel() -> None:
    x = pictures(3, 1, 9, 11).double().numpy()
    angles = np.array([0.0, -37.0, 100.0])
    y = blur_along(x, 4, 3.0, angles)
    weights = [np.exp(-(i**2) / 18) for i in range(9)]
    for n, angle in enumerate(np.deg2rad(angles)):
        for row, col in ((0, 0), (4, 5), (8, 10), (7, 2)):
            total = 0.0
            for i, weight in enumerate(weights):
                r = min(max(row + int(np.ceil(i * np.sin(angle) - 0.5)), 0), 8)
                c = min(max(col + int(np.ceil(i * np.cos(angle) - 0.5)), 0), 10)
                total += weight * x[n, 0, r, c]
            assert y[n, 0, row, col] == round(total / sum(weights))


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (8, 8), (5, 5)])
@pytest.mark.parametrize("factor", [1.0, 1.01, 1.25, 1.75, 2.25])
def test_zooming_is_scipys(size: tuple[int, int], factor: float) -> None:
    x = pictures(2, 1, *size).double().numpy()
    side = size[0]
    kept = int(np.ceil(side / factor))
    middle = slice((side - kept) // 2, (side - kept) // 2 + kept)
    large = scipy.ndimage.zoom(x[1, 0, middle, middle], factor, order=1)
    cut = (len(large) - side) // 2
    np.testing.assert_allclose(zoomed(x, factor)[1, 0], large[cut : cut + side, cut : cut + side], atol=1e-9)


@pytest.mark.parametrize(("severity", "last"), list(enumerate([1.06, 1.11, 1.16, 1.21, 1.26], 1)))
def test_zoom_blur_is_a_mean_over_enlargements(severity: int, last: float) -> None:
    x = pictures(2)
    factors = np.arange(1, last, 0.01)
    total = x.double().numpy() + sum(zoomed(x.double().numpy(), factor) for factor in factors)
    assert_cut_off(corrupt(x, "zoom_blur", severity), total / (1 + len(factors)))


@pytest.mark.parametrize(("severity", "radius", "sigma"), [(1, 6, 1), (2, 6, 1.5), (3, 6, 2), (4, 8, 2), (5, 9, 2.5)])
def test_motion_blur_is_along_a_random_line(severity: int, radius: int, sigma: float) -> None:
    x = pictures(3)
    angles = Streams(0, "motion_blur", severity, 0, 3).uniform(-45, 45)
    assert np.abs(angles).max() < 45
    expected = torch.from_numpy(blur_along(x.numpy(), radius, sigma, angles)).to(torch.uint8)
    assert torch.equal(corrupt(x, "motion_blur", severity), expected)


def test_snow_without_flakes_is_the_paler_image() -> None:
    x = flat(60)
    x[:, 0] = 120
    y = corrupt(x, "snow", 1)
    grey = (0.299 * 120 + 0.587 * 60 + 0.114 * 60) / 255
    pale = 0.95 * 60 + 0.05 * 255 * (1.5 * grey + 0.5)
    assert int(y[:, 1].min()) == int(pale)
    lit = (y[:, 1] > int(pale)).double().mean()
    assert 0.05 < float(lit) < 0.6  # flakes on some of it


def test_frost_adds_a_texture_to_the_image() -> None:
    dark, light = (corrupt(flat(value), "frost", 3, seed=1).int() for value in (0, 100))
    assert int((light - dark - 90).abs().max()) <= 1  # 0.9 x + 0.4 f, cut off
    assert int(dark.max()) <= 0.4 * 255
    assert float(dark.double().std()) > 10  # and the texture is one
    bank = textures()
    assert bank.min() >= 0
    assert bank.max() <= 1
    seam = np.abs(bank[..., 0] - bank[..., -1]).mean() / np.abs(np.diff(bank, axis=-1)).mean()
    assert 0.7 < seam < 1.4  # no edge where it repeats


def test_fog_is_lighter_where_the_cloud_is() -> None:
    cloud = plasma(Streams(seed=2, kind="fog", severity=4, start=0, count=8), 32, 2.0)[:, None]
    x = pictures(8)
    brightest = x.amax((1, 2, 3), keepdim=True).double().numpy() / 255
    expected = (x.double().numpy() / 255 + cloud) * brightest / (brightest + 1)
    assert_cut_off(corrupt(x, "fog", 4, seed=2), expected * 255)
    assert int(corrupt(flat(0), "fog", 5).max()) == 0  # black has no light to scatter


@pytest.mark.parametrize("side", [2, 32])
def test_clouds_fill_their_square_point_by_point(side: int) -> None:
    got = plasma(Streams(0, "fog", 1, 0, 2), side, 2.5)[1]
    streams = Streams(0, "fog", 1, 0, 2)
    streams.uniform(0, 0, side, side)
    cloud, step, wobble = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half, cells = step // 2, side // step
        for rows, cols in ((half, half), (0, half), (half, 0)):
            beside = rows == cols  # the middle of a cell: its corners; else: above, below, left and right
            around = ((1, 1), (1, -1), (-1, 1), (-1, -1)) if beside else ((1, 0), (-1, 0), (0, 1), (0, -1))
            noise = streams.uniform(-(wobble**2), wobble**2, cells, cells)[1]
            for i, j in np.ndindex(cells, cells):
                r, c = i * step + rows, j * step + cols
                total = sum(cloud[(r + half * a) % side, (c + half * b) % side] for a, b in around)
                cloud[r, c] = total / 4 + noise[i, j]
        step, wobble = half, wobble / 2.5
    cloud -= cloud.min()
    np.testing.assert_allclose(got, cloud / cloud.max(), atol=1e-12)


@pytest.mark.parametrize(("severity", "added"), list(enumerate([0.05, 0.1, 0.15, 0.2, 0.3], 1)))
def test_brightness_is_that_of_hsv(severity: int, added: float) -> None:
    x = pictures(1)
    x[0, :, 0, :3] = torch.tensor([[0, 0, 0], [255, 0, 7], [30, 30, 30]], dtype=torch.uint8).T  # black, pure, grey
    expected = np.empty((3, 32, 32))
    for row, col in np.ndindex(32, 32):
        h, s, v = colorsys.rgb_to_hsv(*(x[0, :, row, col].double() / 255).tolist())
        expected[:, row, col] = [255 * value for value in colorsys.hsv_to_rgb(h, s, min(v + added, 1))]
    assert_cut_off(corrupt(x, "brightness", severity)[0], expected)


@pytest.mark.parametrize(("severity", "factor"), list(enumerate([0.75, 0.5, 0.4, 0.3, 0.15], 1)))
def test_contrast_draws_towards_the_mean(severity: int, factor: float) -> None:
    x = pictures(3)
    mean = x.double().mean((2, 3), keepdim=True)
    assert_cut_off(corrupt(x, "contrast", severity), (mean + factor * (x.double() - mean)).numpy())


@pytest.mark.parametrize(("severity", "small"), list(enumerate([30, 28, 27, 24, 20], 1)))
@pytest.mark.parametrize("channels", [1, 3])
def test_pixelate_is_pillows_box_twice(severity: int, small: int, channels: int) -> None:
    x = pictures(2, channels)
    image = as_image(x[1]).resize((small, small), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
    assert torch.equal(corrupt(x, "pixelate", severity)[1], as_tensor(image))


@pytest.mark.parametrize(("severity", "quality"), list(enumerate([80, 65, 58, 50, 40], 1)))
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_a_file_of_that_quality(severity: int, quality: int, channels: int) -> None:
    x = pictures(2, channels)
    file = io.BytesIO()
    as_image(x[1]).save(file, "JPEG", quality=quality)
    assert torch.equal(corrupt(x, "jpeg_compression", severity)[1], as_tensor(Image.open(file)))


def test_elastic_moves_three_corners_where_they_belong() -> None:
    moves = np.array([[[1.0, 2.0], [-2.0, 0.0], [0.0, 1.0]]])  # of (26, 26), (26, 6), (6, 6), as (x, y)
    rows, cols = _affine(moves, *np.mgrid[:32, :32].astype(float))
    for end, point in (((27, 28), (26, 26)), ((24, 6), (26, 6)), ((6, 7), (6, 6))):
        assert cols[0, end[1], end[0]] == pytest.approx(point[0])
        assert rows[0, end[1], end[0]] == pytest.approx(point[1])


def test_the_mildest_elastic_is_affine_and_the_others_are_not() -> None:
    ramp = (torch.arange(32) * 5 + torch.arange(32)[:, None] * 2).to(torch.uint8).expand(6, 1, 32, 32)
    bends = []
    for severity in (1, 5):
        y = corrupt(ramp, "elastic_transform", severity)[:, 0, 10:22, 10:22].double()
        bends.append(float((y[..., 2:] - 2 * y[..., 1:-1] + y[..., :-2]).abs().max()))
    assert bends[0] <= 2  # a ramp stays a ramp but for the cutting off
    assert bends[1] > 4
    assert int((corrupt(flat(90), "elastic_transform", 5).int() - 90).abs().max()) <= 1  # weights add up to one


def luma(x: Tensor) -> Tensor:
    return torch.einsum("c,nchw->nhw", torch.tensor([0.299, 0.587, 0.114], dtype=torch.double), x.double())[:, None]


@pytest.mark.parametrize(("severity", "sd"), list(enumerate([0.06, 0.1, 0.12, 0.16, 0.2], 1)))
def test_speckle_noise_is_in_proportion_to_the_light(severity: int, sd: float) -> None:
    x = pictures(3)
    noise = Streams(2, "speckle_noise", severity, 0, 3).normal(3, 32, 32)
    assert_cut_off(corrupt(x, "speckle_noise", severity, seed=2), x.double().numpy() * (1 + sd * noise))
    assert int(corrupt(flat(0), "speckle_noise", severity).max()) == 0  # black stays black
    y = corrupt(flat(100, count=40), "speckle_noise", severity).double()  # 122,880 values: sd within 0.2 %
    assert float(y.std()) == pytest.approx(100 * sd, rel=0.02)


@pytest.mark.parametrize(("severity", "sigma"), list(enumerate([0.4, 0.6, 0.7, 0.8, 1.0], 1)))
def test_gaussian_blur_is_scipys(severity: int, sigma: float) -> None:
    x = pictures(2, 3, 32, 24)
    for channel in range(3):
        image = x[1, channel].double().numpy()
        expected = scipy.ndimage.gaussian_filter(image, sigma, mode="nearest", truncate=4)
        assert_cut_off(corrupt(x, "gaussian_blur", severity)[1, channel], expected)


@pytest.mark.parametrize(
    ("severity", "factor", "added"), [(1, 0.3, 0), (2, 0.1, 0), (3, 1.5, 0), (4, 2, 0.1), (5, 2.5, 0.2)]
)
def test_saturate_is_that_of_hsv(severity: int, factor: float, added: float) -> None:
    x = pictures(1)
    x[0, :, 0, :4] = torch.tensor([[0, 0, 0], [255, 0, 7], [30, 30, 30], [9, 9, 80]], dtype=torch.uint8).T
    expected = np.empty((3, 32, 32))
    for row, col in np.ndindex(32, 32):
        h, s, v = colorsys.rgb_to_hsv(*(x[0, :, row, col].double() / 255).tolist())
        expected[:, row, col] = [255 * one for one in colorsys.hsv_to_rgb(h, min(factor * s + added, 1), v)]
    assert_cut_off(corrupt(x, "saturate", severity)[0], expected)


WATER = [(1, 0.62, 0.1, 0.7, 0.7, 0.5), (2, 0.65, 0.1, 0.8, 0.7, 0.5), (3, 0.65, 0.3, 1, 0.69, 0.5)]


@pytest.mark.parametrize(("severity", "mean", "sd", "smooth", "threshold", "strength"), WATER)
def test_water_lights_up_its_drops_alone(
    severity: int, mean: float, sd: float, smooth: float, threshold: float, strength: float
) -> None:
    noise = mean + sd * Streams(4, "spatter", severity, 0, 6).normal(1, 32, 32)[:, 0]
    liquid = np.stack([scipy.ndimage.gaussian_filter(one, smooth, mode="nearest", truncate=4) for one in noise])
    drops = np.where(liquid < threshold, 0, np.floor(255 * liquid))
    assert 0.02 < (drops > 0).mean() < 0.6
    shine = drops * relief(drops)
    shine /= shine.max(axis=(1, 2), keepdims=True)
    added = strength * shine[:, None] * np.array([175, 238, 238])[:, None, None]
    x = pictures(6)
    assert_cut_off(corrupt(x, "spatter", severity, seed=4), x.double().numpy() + added)
    assert int(corrupt(flat(0), "spatter", severity).amax((1, 2, 3)).min()) == strength * 238  # of every image


@pytest.mark.parametrize(("severity", "smooth", "threshold"), [(4, 0.7, 0.69), (5, 0.5, 0.68)])
def test_mud_covers_what_is_below(severity: int, smooth: float, threshold: float) -> None:
    noise = 0.65 + 0.1 * Streams(4, "spatter", severity, 0, 6).normal(1, 32, 32)[:, 0]
    options = {"mode": "nearest", "truncate": 4}
    liquid = [scipy.ndimage.gaussian_filter(one, smooth, **options) > threshold for one in noise]
    cover = np.stack([scipy.ndimage.gaussian_filter(one.astype(float), 0.6, **options) for one in liquid])[:, None]
    cover[cover < 0.8] = 0
    assert 0.02 < (cover > 0).mean() < 0.6
    x = pictures(6)
    brown = np.array([63, 42, 20])[:, None, None]
    assert_cut_off(corrupt(x, "spatter", severity, seed=4), (1 - cover) * x.double().numpy() + cover * brown)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_spatter_of_grey_images_has_the_luma_of_its_colours(severity: int) -> None:
    grey = pictures(3, channels=1) // 3  # dark enough that nothing is cut off at white
    colour = corrupt(grey.expand(-1, 3, -1, -1), "spatter", severity)
    assert float((luma(colour) - corrupt(grey, "spatter", severity)).abs().max()) <= 1


def test_edges_surround_a_square_and_weak_ones_need_a_strong_one() -> None:
    x = np.zeros((2, 16, 16))
    x[0, 4:10, 5:12] = 200
    found = edges(x)
    inner = np.zeros((16, 16), dtype=bool)
    inner[5:9, 6:11] = True
    outer = np.zeros((16, 16), dtype=bool)
    outer[3:11, 4:13] = True
    assert found[0].any()
    assert not (found[0] & (inner | ~outer)).any()  # on its outline, to a pixel
    assert not found[1].any()  # and not in another image
    faint = np.zeros((1, 16, 16))
    faint[0, :, 8:] = 20  # a gradient of 80: weak
    assert not edges(faint).any()
    faint[0, :6, 8:] = 60  # where it goes on as a strong one, it is one edge
    assert edges(faint)[0, :, 7:9].any(axis=1).all()


def test_distances_are_to_edges_of_the_same_image() -> None:
    edge = np.zeros((2, 40, 40), dtype=bool)
    edge[0, 3, 5] = True
    rows, cols = np.mgrid[:40, :40]
    np.testing.assert_allclose(distance(edge)[0], np.minimum(np.hypot(rows - 3, cols - 5), 20))
    assert (distance(edge)[1] == 20).all()
    assert (distance(edge[1:]) == 20).all()


def test_equalised_values_are_ranks() -> None:
    x = np.array([[[2.0, 2.0], [5.0, 20.0]], [[7.0, 7.0], [7.0, 7.0]]])
    assert equalised(x).tolist() == [[[0, 0], [128, 255]], [[7, 7], [7, 7]]]  # (share - lowest's) / (1 - lowest's)


@pytest.mark.parametrize(
    "kind",
    sorted(
        set(CORRUPTIONS) - set(GROUPS["noise"]) - {"speckle_noise", "frost", "jpeg_compression", "spatter", *OF_COLOUR}
    ),
)
def test_grey_images_are_changed_as_their_colour_copies(kind: str) -> None:
    grey = pictures(3, channels=1)
    colour = corrupt(grey.expand(-1, 3, -1, -1), kind, 4).int()
    assert int((colour - corrupt(grey, kind, 4).int()).abs().max()) <= 1  # luma of equal channels, rounded


@pytest.mark.parametrize(
    ("x", "kind", "severity", "options", "error", "message"),
    [
        (flat(1), "fogg", 1, {}, ValueError, r"unknown corruption 'fogg' \(did you mean 'fog'\?\); expected one of"),
        (flat(1), "fog", 0, {}, ValueError, "severity must be an integer from 1 to 5, got 0"),
        (flat(1), "fog", 6, {}, ValueError, "severity must be an integer from 1 to 5, got 6"),
        (flat(1), "fog", 2.0, {}, ValueError, "severity must be an integer from 1 to 5, got 2.0"),
        (flat(1), "fog", True, {}, ValueError, "severity must be an integer from 1 to 5, got True"),
        (flat(1), "fog", 1, {"seed": -1}, ValueError, "seed must be an integer >= 0, got -1"),
        (flat(1), "fog", 1, {"start": -1}, ValueError, "start must be an integer >= 0, got -1"),
        (flat(1).float(), "fog", 1, {}, TypeError, "must be uint8 from 0 to 255, got torch.float32; corrupt them as"),
        (flat(1).numpy(), "fog", 1, {}, TypeError, r"a uint8 tensor \(N, C, H, W\), got a ndarray"),
        (flat(1)[:, :1], "saturate", 1, {}, ValueError, "saturate changes colours, and these images are grey"),
        (flat(1)[0], "fog", 1, {}, ValueError, r"got \(3, 32, 32\); x\[:, None\] adds"),
        (flat(1).permute(0, 2, 3, 1), "fog", 1, {}, ValueError, r"got \(8, 32, 32, 3\); .* moves one that comes last"),
    ],
)
def test_errors_say_what_to_pass(x, kind, severity, options, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        corrupt(x, kind, severity, **options)


def as_image(x: Tensor) -> Image.Image:
    return Image.fromarray(x[0].numpy() if len(x) == 1 else np.ascontiguousarray(x.permute(1, 2, 0).numpy()))


def as_tensor(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


def assert_cut_off(y: Tensor, expected: np.ndarray) -> None:
    """y is `expected`, clipped and cut off; where a whole number falls just short of itself, one less."""
    expected = np.clip(expected, 0, 255)
    whole = np.round(expected)
    near = np.abs(expected - whole) < 1e-6
    got = y.numpy().astype(int)
    assert (got == np.floor(expected))[~near].all()
    assert ((got == whole) | (got == whole - 1))[near].all()
