#!/usr/bin/env bash
# Ask, measure, tell: the reward is minus the size of the reply, so that short answers pay.  bash shorter.sh [REQUESTS]
set -euo pipefail
server=${TTC_ESOPT_URL:-http://127.0.0.1:8000}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ask() { curl -sS --fail-with-body -H "X-Api-Key: ${TTC_ESOPT_TOKEN:-}" "$@"; }

for request in $(seq "${1:-40}"); do
  ask -D "$folder/head" -o "$folder/reply" "$server/completions" \
    -d '{"prompt": "Name a colour.", "repeat_prompt": 1}'
  id=$(sed -n 's/^X-Esopt-Id: \([0-9]*\).*/\1/p' "$folder/head")
  size=$(wc -c < "$folder/reply")
  ask -o "$folder/told" "$server/es/tell" -d "{\"id\": $id, \"reward\": -$size}"
  echo "$request: $size bytes"
done
ask "$server/es/state"
