#!/bin/sh
# Fails unless the alert rules, the dashboard and the Kubernetes files are well-formed.
#
#   files.sh FOLDER     where what is needed for that is kept
set -eu
folder=$1
deploy=$(dirname "$0")/../../deploy

promtool check rules "$deploy/prometheus/jjleak.rules.yml"
promtool test rules "$deploy/prometheus/jjleak.rules.test.yml"

if ! [ -x "$folder/python/bin/kubernetes-validate" ]; then
    python3 -m venv "$folder/python"
    "$folder/python/bin/pip" install --quiet --disable-pip-version-check kubernetes-validate
fi
"$folder/python/bin/kubernetes-validate" --strict "$deploy/kubernetes/daemonset.yaml"

# That the metrics which the rules and the dashboard name are there is a unit test's.
python3 -m json.tool "$deploy/grafana/jjleak.json" >/dev/null
