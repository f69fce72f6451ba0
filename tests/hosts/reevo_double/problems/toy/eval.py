"""Scores `grow_v2`: its value at 1 is the objective."""

import os
import sys

import gpt

if __name__ == "__main__":
    print("running", os.environ.get("MY_API_KEY"), os.path.dirname(sys.executable), flush=True)
    print(gpt.grow_v2(float(sys.argv[1])) * (10 if sys.argv[3] == "val" else 1))
