"""Devices as the driver shows them: `quantities` says what is read, `child` reads, `source` watches it."""
