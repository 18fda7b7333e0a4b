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

# Every metric that the rules and the dashboard name is one that jjleak has.
metrics=$(sed -n 's/.*"\(jjleak_[a-z_]*\)".*/\1/p' "$deploy/../jjleak/src/daemon/metrics.rs" | sort -u)
python3 -m json.tool "$deploy/grafana/jjleak.json" >/dev/null
for named in $(grep -oh '\bjjleak_[a-z_]*\b' "$deploy/prometheus/jjleak.rules.yml" "$deploy/grafana/jjleak.json" | sort -u); do
    echo "$metrics" | grep -qx "$named" || {
        echo "deploy: there is no metric $named" >&2
        exit 1
    }
done
