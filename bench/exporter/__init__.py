"""What the exporter costs, beside what a user would pick instead, and whether it grows."""
