"""Runs in a virtual environment that holds the wheel and NumPy only: what a user has right after `pip install`."""

import importlib.metadata
import pathlib
import subprocess
import sys

import prep

DATA = pathlib.Path(__file__).parent / "data"


def main() -> None:
    distribution = importlib.metadata.distribution("prep-data")
    assert distribution.version == prep.__version__
    tags = [line.split(": ")[1] for line in distribution.read_text("WHEEL").splitlines() if line.startswith("Tag")]
    assert all(tag.startswith("cp311-abi3-") and not tag.endswith("-any") for tag in tags), tags

    source = prep.ArrayRecordDataSource(DATA / "words.array_record")
    assert list(source) == [b"alpha", b"beta", b"gamma"]

    command = pathlib.Path(sys.executable).parent / "prep"
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"prep {prep.__version__}\n", version.stdout
    assert subprocess.run([command, "no-such"], capture_output=True).returncode == 2
    print(f"clean install of prep-data {prep.__version__} ({', '.join(tags)}): works")


if __name__ == "__main__":
    main()
