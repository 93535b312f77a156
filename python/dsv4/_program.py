"""The script `dsv4`: starts the program of the package."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).parent / "bin" / "dsv4"
    try:
        os.execv(program, ["dsv4", *sys.argv[1:]])
    except FileNotFoundError:
        sys.exit("dsv4: error: this wheel was built without the program: install another one, or build it with "
                 "--config-settings cmake.define.DSV4_WITH_PROGRAM=ON")
