"""Which files are images that a model can be shown, told without decoding any."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.images import WEBP_LOSSLESS, WEBP_LOSSY, gif, jpeg, png, webp_extended

from remote_sandbox_mcp.core.texts.image import Image, recognise

WHOLE = {
    "png": (png(), Image("image/png", 3, 2, True)),
    "png with bytes after its end": (png() + b"\0" * 100, Image("image/png", 3, 2, True)),
    "jpeg": (jpeg(), Image("image/jpeg", 3, 2, True)),
    "jpeg with filling and a bare marker": (
        jpeg(before=b"\xff\xff\xfe\0\x04ab\xff\xd0"),
        Image("image/jpeg", 3, 2, True),
    ),
    "gif": (gif(), Image("image/gif", 3, 2, True)),
    "lossy webp": (WEBP_LOSSY, Image("image/webp", 1, 1, True)),
    "lossless webp": (WEBP_LOSSLESS, Image("image/webp", 1, 1, True)),
    "extended webp": (webp_extended(), Image("image/webp", 3, 2, True)),
}


@pytest.mark.parametrize(("data", "image"), WHOLE.values(), ids=WHOLE)
def test_an_image_is_recognized_by_its_bytes(data: bytes, image: Image) -> None:
    assert recognise(data) == image
    assert image.problem == ""


@pytest.mark.parametrize("data", [data for data, _ in WHOLE.values()], ids=WHOLE)
def test_an_image_that_is_cut_off_is_not_shown(data: bytes) -> None:
    for end in (len(data) // 3, 20):
        part = recognise(data[:end].rstrip(b"\0"))
        assert part is None or part.problem


HOSTILE = {
    "more pixels than a service takes": png(100_000, 100_000),
    "one side too long": jpeg(65_535, 1),
    "no pixels": gif(0, 0),
    "no width": png(0, 5),
    "a png without its header": png().replace(b"IHDR", b"iHDR"),
    "a jpeg without a frame": b"\xff\xd8\xff\xe0\x00\x04\0\0\xff\xda\xff\xd9",
    "a jpeg of markers alone": b"\xff\xd8" + b"\xff\xe1\x00\x02" * 300_000 + b"\xff\xd9",
    "a jpeg of filling alone": b"\xff\xd8" + b"\xff" * 1_000_000 + b"\0\xff\xd9",
    "a webp of no known form": b"RIFF\x10\0\0\0WEBPVP9 " + b"\0" * 20,
    "a webp with more than it has": b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\0" * 20,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_images_that_a_model_service_would_refuse_are_not_shown(data: bytes) -> None:
    begun = time.process_time()
    image = recognise(data)
    assert time.process_time() - begun < 0.1
    assert image is not None
    assert image.problem


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a is a format for images; PNG is another",
        b"RIFF....WEBP, said the text",
        b"<svg/>",
        b"\x89PNG",
        b"\0",
    ],
    ids=repr,
)
def test_other_files_are_not_images(data: bytes) -> None:
    assert recognise(data) is None


@given(st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF0000WEBP"]), st.binary(max_size=200))
def test_no_bytes_make_the_recognition_fail(begin: bytes, rest: bytes) -> None:
    recognise(begin + rest)
