"""A stand-in for `ttc-esopt run` and `resume`: a run folder in milliseconds, or what can go wrong.

STUDY_RUNS holds JSON: name of a folder's arm and seed, such as "esopt-1", -> fail, killed, slow, invalid or torn.
"""

import json
import os
import signal
import sys
import time
import tomllib
from pathlib import Path

import tomli_w


def main(words: list[str]) -> int:
    command = words.pop(0)
    out = Path(words[words.index("--out") + 1] if command == "run" else words[0])
    name = f"{out.parent.name}-{out.name.removeprefix('seed-')}"
    how = json.loads(os.environ.get("STUDY_RUNS", "{}")).get(name, "")
    print(f"{command} {name} threads {os.environ.get('OMP_NUM_THREADS')} gpu {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    if how == "fail":
        print("ttc-esopt: the disk is full\n", file=sys.stderr)
        return 1
    if command == "run":
        settings = tomllib.loads(Path(words[words.index("--config") + 1]).read_text())
        if "--workers" in words:
            settings["workers"] = int(words[words.index("--workers") + 1])
        out.mkdir(parents=True)
        document = {"settings": settings, "run": {"command": "run"}, "versions": {"ttc-esopt": "1"}}
        document["model"] = {"fingerprint": "00"}
        (out / "run.toml").write_text(tomli_w.dumps(document))
    document = tomllib.loads((out / "run.toml").read_text())
    settings = document["settings"]
    seed, limit = settings["seed"], settings.get("max_tokens_total", 0)
    value = 6.5 + seed / 100 - {"esopt": 0.1, "best": 0.05}.get(out.parent.name, 0.0)
    lines = min(settings["budget"], -(-limit // 30)) if limit else settings["budget"]
    tokens = 30 if limit else 45 + seed
    written = ""
    for order in range(lines):
        objective = None if how == "invalid" else value + order % 3
        line = {
            "order": order,
            "objective": objective,
            "reply": f"{settings['problem']} {name} {order}",
            "tokens": tokens,
        }
        written += json.dumps(line) + "\n"
        if order == 1 and command == "run" and how in ("slow", "torn", "killed"):
            (out / "samples.jsonl").write_text(written + ('{"order": 2, "ob' if how == "torn" else ""))
            print(f"pid {os.getpid()}", flush=True)
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.signal(signal.SIGINT, lambda *_: os._exit(0))
            time.sleep(600)
    (out / "samples.jsonl").write_text(written)
    rows = [{"name": "greedy", "train": 7.0, "val": 7.0, "test": 7.0}]
    best = {"order": 0, "objective": value, "val": value, "test": value, "size": 50, "chosen_on": "val", "rows": rows}
    if how != "invalid":
        (out / "best.json").write_text(json.dumps(best))
    if not limit or lines == settings["budget"]:
        document["result"] = {"fingerprint": "01"}
        (out / "run.toml").write_text(tomli_w.dumps(document))
    if how == "invalid":
        print("ttc-esopt: No candidate was valid (60 tried).", file=sys.stderr)
        return 1
    print("best heuristic: somewhere")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
