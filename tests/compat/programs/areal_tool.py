"""One of AReaL's tools, without the rest of AReaL: `areal_tool.py NAME ARGUMENTS...`."""

import runpy
import sys

import stubs

for name in ("areal", "areal.tools"):
    stubs.package(name)
tool = sys.argv[1]
sys.argv = [tool, *sys.argv[2:]]
runpy.run_module(f"areal.tools.{tool}", run_name="__main__")
