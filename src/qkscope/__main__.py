"""`python -m qkscope` is `qkscope`."""

from qkscope.cli import main

if __name__ == "__main__":
    main(prog_name="qkscope")
