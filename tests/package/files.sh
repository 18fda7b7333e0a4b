#!/bin/sh
# Fails unless the alert rules, the dashboard, the Kubernetes files and the Helm chart are well-formed.
#
#   files.sh FOLDER     where what is needed for that is kept
set -eu
folder=$1
here=$(dirname "$0")
deploy=$here/../../deploy

promtool check rules "$deploy/prometheus/jjleak.rules.yml"
promtool test rules "$deploy/prometheus/jjleak.rules.test.yml"

if ! [ -x "$folder/python/bin/kubernetes-validate" ] || ! "$folder/python/bin/python3" -c 'import helm_python, yaml' 2>/dev/null; then
    python3 -m venv "$folder/python"
    "$folder/python/bin/pip" install --quiet --disable-pip-version-check kubernetes-validate pyyaml helm-python-sdk
fi
"$folder/python/bin/kubernetes-validate" --strict "$deploy/kubernetes/daemonset.yaml"
"$folder/python/bin/python3" "$here/chart.py" "$deploy/helm/jjleak" "$deploy/kubernetes/daemonset.yaml" "$folder"
"$folder/python/bin/kubernetes-validate" --strict "$folder/chart-defaults.yaml" "$folder/chart-other.yaml"

# That the metrics which the rules and the dashboard name are there is a unit test's.
python3 -m json.tool "$deploy/grafana/jjleak.json" >/dev/null
