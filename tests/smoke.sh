#!/bin/sh
# The command line as a user meets it, end to end: list, verify, judge again, own options, export, bad input.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

joma --version
joma list | grep -q '^thm2 '
joma verify thm2 cdag-angles --out "$work/out" --json "$work/findings.json" | tail -n 1 | grep -q "report: $work/out/report.html"
python - "$work/findings.json" <<'PY'
import json, sys
studies = json.load(open(sys.argv[1]))["studies"]
assert [s["name"] for s in studies] == ["thm2", "cdag-angles"], studies
assert all(f["verdict"] != "not run" and f["measured"] != "" for s in studies for f in s["findings"])
PY
joma show thm2/who-wins --out "$work/out" | head -n 1 | grep -q '^thm2/who-wins: holds'
joma show fig6/fig6-one-layer --scale paper | grep -q '^repeat     joma verify fig6 --scale paper$'
joma report "$work/out" | grep -q report.html
joma run thm2 --tokens 4 --draws 2 --steps 10 --out "$work/own" >"$work/log"
grep -q "report:" "$work/log"
run=$(ls "$work"/own/runs/*.sqlite)
for format in parquet csv npz; do test -s "$(joma export "$run" --to $format --out "$work/run.$format")"; done

# A misspelt study is one sentence and status 2, not a stack trace.
status=0; joma verify thm22 2>"$work/err" || status=$?
test "$status" = 2
test "$(wc -l <"$work/err")" = 1
grep -q "did you mean 'thm2'" "$work/err"
# A claim where a study is needed says which command takes it.
joma verify thm2/who-wins 2>&1 | grep -q 'joma show thm2/who-wins'
echo "smoke: ok"
