"""Pillow and OpenCV, as they are installed, give the pixels that the golden files say: those which the Rust tests compare with."""
import pathlib
import subprocess
import sys

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "images" / "make.py"


def test_golden_pictures_are_what_the_packages_make():
    subprocess.run([sys.executable, GOLDEN, "--check"], check=True)
