"""Called as `python eval.py SIZE ROOT train`, beside gpt.py."""

import os
import sys

import numpy as np

try:
    from gpt import pick_v2 as pick
except ImportError:
    from gpt import pick

if __name__ == "__main__":
    print("[*] Running ...")
    size, mood = int(sys.argv[1]), sys.argv[3]
    folder = os.path.join(os.path.dirname(__file__), "dataset")
    if not os.path.isdir(folder):
        from gen_inst import generate_datasets

        generate_datasets()
    rows = np.load(os.path.join(folder, f"{mood}{size}_dataset.npy"))
    print("[*] Average:")
    print(np.mean([row[pick(row)] for row in rows]))
