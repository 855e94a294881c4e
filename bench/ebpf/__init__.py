"""What the probes cost the job and the exporter, beside no probes and beside bpftrace."""
