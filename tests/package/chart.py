"""Fails unless the Helm chart is well-formed, and with its defaults equals the manifest in deploy/kubernetes.

    chart.py CHART MANIFEST FOLDER    FOLDER receives the rendered manifests, to be validated
"""

import pathlib
import sys

import helm_python
import yaml

VARIANTS = {
    "defaults": {},
    "other": {
        "image": {"repository": "registry.example/jjleak", "tag": "1.2.3", "pullSecrets": ["key"]},
        "olderKernels": True,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [],
        "priorityClassName": "",
        "config": "[watch]\nnames = ['^nginx$']\n",
    },
}


def rendered(chart, values):
    manifests = chart.render(values, name="jjleak", namespace="jjleak")
    return "\n---\n".join(text for path, text in manifests.items() if path.endswith(".yaml"))


def documents(text):
    """The documents without what only one of the two has."""
    loaded = [it for it in yaml.safe_load_all(text) if it and it["kind"] != "Namespace"]
    for document in loaded:
        document.get("spec", {}).get("template", {}).get("metadata", {}).pop("annotations", None)
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            container.pop("imagePullPolicy", None)
    return loaded


def main(path, manifest, folder):
    found = helm_python.lint(path, namespace="jjleak")
    if found["errors"]:
        sys.exit(f"chart: {found}")
    chart = helm_python.Chart.load(path)
    for name, values in VARIANTS.items():
        chart.validate_schema(values)
        pathlib.Path(folder, f"chart-{name}.yaml").write_text(rendered(chart, values))
    try:
        chart.validate_schema({"olderKernel": True})
    except helm_python.HelmValuesError:
        pass
    else:
        sys.exit("chart: a value that it does not have is accepted")
    if documents(rendered(chart, {})) != documents(pathlib.Path(manifest).read_text()):
        sys.exit(f"chart: with its defaults it differs from {manifest}")


main(*sys.argv[1:])
