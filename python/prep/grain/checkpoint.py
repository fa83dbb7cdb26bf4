"""Grain's names for what saves iterators with Orbax: `prep.orbax`, which is imported with this module and needs `orbax-checkpoint`."""

from prep.orbax import CheckpointHandler
from prep.orbax import RestoreArgs as CheckpointRestore
from prep.orbax import SaveArgs as CheckpointSave

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]
