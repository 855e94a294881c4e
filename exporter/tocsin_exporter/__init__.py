"""The node agent: sources, identity, collectors, /metrics."""
