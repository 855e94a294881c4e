"""A whole stack on one machine: simulated GPU nodes, real processes, live faults."""
