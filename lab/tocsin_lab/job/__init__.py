"""A sample training job: real processes as ranks, and the launcher that supervises them."""
