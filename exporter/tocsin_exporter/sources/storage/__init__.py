"""What the node can tell of the storage under its jobs: mounts, their servers, disks and space."""

from __future__ import annotations

from tocsin_exporter.sources.storage.source import StorageReading, StorageSource

__all__ = ["StorageReading", "StorageSource"]
