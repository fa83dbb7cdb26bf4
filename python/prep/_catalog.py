"""`Catalog`: what there is, and its changes that move no data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, List

from prep import _core
from prep._progress import Progress, staged

_log = logging.getLogger("prep")


class Catalog:
    """A catalog of datasets: what the commands `prep list`, `show`, `tag`, `rm` and `verify` do. Made by `prep.catalog`.

    Holds nothing open: each call reads what is there then. Names are `name`, `name/config`, `name:version`, `name@tag`.
    """

    def __init__(self, location: str | os.PathLike[str] | None = None) -> None:
        self.location = None if location is None else os.fspath(location)
        """Folder or URL; `None` for `$PREP_CATALOG`, else a folder under `$PREP_HOME`."""

    def __repr__(self) -> str:
        return f"prep.catalog({'' if self.location is None else repr(self.location)})"

    def list(self) -> List[dict[str, Any]]:
        """Lists all versions: `name`, `config`, `version`, `splits`, `fingerprint`, `path`, `tags`, as `prep list --json`. What cannot be read is
        logged as a warning."""
        versions, problems = _core.list(self.location)
        for problem in problems:
            _log.warning("%s", problem)
        return versions

    def show(self, name: str) -> dict[str, Any]:
        """Describes one version: as `list`, and `features`, `sources`, `statistics`, as `prep show --json`.

        Raises:
            NotFoundError: No such dataset, version or tag (near names are told).
        """
        return _core.show(name, self.location)

    def tag(self, name: str, tag: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Gives a version a tag, which moves if it was another one's: `status` (`tagged`, `up to date`, `planned`), `version`, `tag` and more.

        Raises:
            NotFoundError: No such dataset, version or tag.
            InvalidError: The tag is no name.
        """
        return _core.tag(name, tag, False, dry_run, self.location)

    def untag(self, name: str, tag: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Takes a tag away; its version stays.

        Raises:
            NotFoundError: No such dataset or tag.
        """
        return _core.tag(name, tag, True, dry_run, self.location)

    def remove(self, name: str, *, all: bool = False, dry_run: bool = False) -> List[dict[str, Any]]:
        """Removes a version, or all of a dataset; the data stay until `prep gc`. For each `status`, `version`, `tags`, `path` and more.

        Raises:
            NotFoundError: No such dataset, version or tag.
            InvalidError: There are several versions, and it is not said which one.
        """
        return _core.remove(name, all, dry_run, self.location)

    def verify(
        self, name: str, *, quick: bool = False, workers: int | None = None, progress: Progress | None = None
    ) -> List[dict[str, Any]]:
        """Checks every hash and checksum of a version, as `prep verify --json`: for each file `path`, `ok`, `records`, and `damaged`, a list of
        {`records`, `offset`, `reason`}. Goes on past damage.

        Args:
            name: The version.
            quick: Reads footers and headers only: finds files that are cut or mixed up.
            workers: Files looked at at once. Default: one per core.
            progress: Called many times a second, with how far it is. What it raises stops it.

        Raises:
            NotFoundError: No such dataset, version or tag.
        """
        return _core.verify(name, quick, workers, self.location, staged(progress))
