#!/usr/bin/env python3
"""Makes this folder: small JPEG files of every kind, pictures resized and recoloured, as Pillow and OpenCV make them.

    python3 make.py           writes the files
    python3 make.py --check   compares what the installed packages give with what is here

Needs numpy, pillow and opencv-python-headless; `golden.json` names the versions that made it. Digests are SHA-256 over
the pixels, row by row, u8[height, width, channels].
"""
import hashlib
import io
import json
import os
import sys

import cv2
import numpy as np
from PIL import Image, ImageEnhance, features

HERE = os.path.dirname(os.path.abspath(__file__))


def picture(width, height):
    """Waves, edges and noise: u8[height, width, 3]."""
    rng = np.random.default_rng(width * 1000 + height)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 90 * np.sin(x / a + y / b) for a, b in ((9, 31), (23, 7), (5, 17))]
    out = np.stack(waves, -1) + rng.normal(0, 12, (height, width, 3))
    out[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 60)
    return np.clip(out, 0, 255).astype(np.uint8)


def by_pillow(image, **options):
    out = io.BytesIO()
    image.save(out, "jpeg", **options)
    return out.getvalue()


def by_opencv(image, sampling, progressive=0):
    options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling, cv2.IMWRITE_JPEG_QUALITY, 85, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
    return cv2.imencode(".jpg", np.asarray(image)[:, :, ::-1], options)[1].tobytes()


def jpegs():
    """Name to file."""
    colour = Image.fromarray(picture(61, 47))
    tiny = Image.fromarray(picture(3, 5))
    files = {
        "444": by_pillow(colour, subsampling="4:4:4", quality=90),
        "422": by_pillow(colour, subsampling="4:2:2"),
        "420": by_pillow(colour, subsampling="4:2:0", quality=95),
        "440": by_opencv(colour, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440),
        "411": by_opencv(colour, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411),
        "420_coarse": by_pillow(colour, subsampling="4:2:0", quality=8),
        "444_fine": by_pillow(colour, subsampling="4:4:4", quality=100),
        "420_restarts": by_pillow(colour, subsampling="4:2:0", restart_marker_blocks=2),
        "420_progressive": by_pillow(colour, subsampling="4:2:0", progressive=True),
        "422_progressive_restarts": by_pillow(colour, subsampling="4:2:2", progressive=True, restart_marker_rows=1),
        "440_progressive": by_opencv(colour, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, 1),
        "grey": by_pillow(colour.convert("L")),
        "grey_progressive": by_pillow(colour.convert("L"), progressive=True),
        "rgb": by_pillow(colour, keep_rgb=True),
        "cmyk": by_pillow(colour.convert("CMYK")),
        "cmyk_progressive": by_pillow(colour.convert("CMYK"), progressive=True),
        "optimised": by_pillow(colour, optimize=True, quality=60),
        "tiny_420": by_pillow(tiny, subsampling="4:2:0"),
        "tiny_422": by_pillow(tiny, subsampling="4:2:2", progressive=True),
    }
    # YCCK: the four components of a CMYK file, said to be that.
    adobe = files["cmyk"].index(b"Adobe")
    ycck = bytearray(files["cmyk"])
    ycck[adobe + 11] = 2
    files["ycck"] = bytes(ycck)
    return files


def decoded(file, divisor):
    """The pixels, at a part of the size as libjpeg's transform makes it; CMYK as RGB, which has no smaller sizes in Pillow."""
    image = Image.open(io.BytesIO(file))
    if divisor > 1:
        if image.mode == "CMYK":
            return None
        size = tuple(-(-side // divisor) for side in image.size)
        image.decoderconfig = (divisor, 0)
        image._size = size
        image.tile = [image.tile[0]._replace(extents=(0, 0, *size))]
    return np.asarray(image.convert("RGB") if image.mode == "CMYK" else image)


def digest(pixels):
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()


def golden(files):
    expected = {}
    for name, file in files.items():
        pixels = {str(divisor): decoded(file, divisor) for divisor in (1, 2, 4, 8)}
        expected[name] = {d: {"shape": list(p.shape), "sha256": digest(p)} for d, p in pixels.items() if p is not None}
    return expected


def png(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def transformed():
    """Name to pixels. `resize-LIBRARY-METHOD-HEIGHTxWIDTH`; `colour-CHANGE-FACTOR`, which is what torchvision calls for Pillow pictures."""
    pixels = picture(61, 47)
    image = Image.fromarray(pixels)
    out = {"picture": pixels}
    for height, width in ((24, 40), (13, 17), (47, 20), (90, 130)):
        for name in ("nearest", "bilinear", "bicubic"):
            resized = image.resize((width, height), getattr(Image.Resampling, name.upper()))
            out[f"resize-pillow-{name}-{height}x{width}"] = np.asarray(resized)
        for name in ("linear", "cubic", "area"):
            if name == "area" and height > 47:
                continue
            resized = cv2.resize(pixels, (width, height), interpolation=getattr(cv2, f"INTER_{name.upper()}"))
            out[f"resize-opencv-{name}-{height}x{width}"] = resized
    for factor in (0.6, 1.4):
        out[f"colour-brightness-{factor}"] = np.asarray(ImageEnhance.Brightness(image).enhance(factor))
        out[f"colour-contrast-{factor}"] = np.asarray(ImageEnhance.Contrast(image).enhance(factor))
        out[f"colour-saturation-{factor}"] = np.asarray(ImageEnhance.Color(image).enhance(factor))
    for factor in (-0.4, 0.1, 0.5):
        hue, saturation, value = image.convert("HSV").split()
        hue = Image.fromarray(np.asarray(hue) + np.array(int(factor * 255)).astype(np.uint8), "L")
        out[f"colour-hue-{factor}"] = np.asarray(Image.merge("HSV", (hue, saturation, value)).convert("RGB"))
    return out


def main():
    path = os.path.join(HERE, "golden.json")
    if "--check" in sys.argv:
        with open(path) as file:
            kept = json.load(file)
        files = {name: open(os.path.join(HERE, f"{name}.jpg"), "rb").read() for name in kept["jpeg"]}
        assert golden(files) == kept["jpeg"], "the installed Pillow decodes other pixels"
        for name, pixels in transformed().items():
            with Image.open(os.path.join(HERE, f"{name}.png")) as image:
                assert np.array_equal(np.asarray(image), pixels), name
        return
    files = jpegs()
    for name, file in files.items():
        with open(os.path.join(HERE, f"{name}.jpg"), "wb") as out:
            out.write(file)
    for name, pixels in transformed().items():
        with open(os.path.join(HERE, f"{name}.png"), "wb") as out:
            out.write(png(pixels))
    versions = {"pillow": Image.__version__, "libjpeg-turbo": features.version("libjpeg_turbo"), "opencv": cv2.__version__, "numpy": np.__version__}
    with open(path, "w") as out:
        json.dump({"versions": versions, "jpeg": golden(files)}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
