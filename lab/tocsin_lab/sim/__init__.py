"""Simulated GPU nodes: native stand-ins of the driver libraries, their shared state, and the node's files."""
