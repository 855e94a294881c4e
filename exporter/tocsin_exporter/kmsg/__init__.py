"""What the kernel log says about devices: a parser that only reads text."""
