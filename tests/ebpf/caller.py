"""
A rank that calls exported functions of libraries by name: ``caller.py ANSWERS LIBRARY…``.

Each line of its standard input is ``SYMBOL TIMES [INTEGER…]``; it answers with the last result as one line.
``quit`` ends it.
"""

from __future__ import annotations

import ctypes
import os
import sys


def main() -> None:
    answers = int(sys.argv[1])
    libraries = [ctypes.CDLL(path) for path in sys.argv[2:]]
    os.write(answers, b"ready\n")
    for line in sys.stdin:
        name, times, *numbers = line.split()
        function = next(getattr(each, name) for each in libraries if hasattr(each, name))
        # All of these functions take integers and pointers; what is not given is null.
        arguments = [ctypes.c_size_t(int(number)) for number in numbers]
        arguments += [ctypes.c_size_t(0)] * (11 - len(arguments))
        result = 0
        for _ in range(int(times)):
            result = function(*arguments)
        os.write(answers, b"%d\n" % result)


if __name__ == "__main__":
    main()
