"""manifests.py FILE...: manifests for Kubernetes are YAML, follow its schemas, and fit the image (needs kubernetes-validate)."""
import os
import sys

import kubernetes_validate
import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
failed = 0


def strict(manifest):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def containers(manifest):
    spec = manifest["spec"].get("template", manifest)["spec"]
    return spec, spec.get("initContainers", []) + spec["containers"]


for name in sys.argv[1:]:
    with open(name) as file:
        manifest = yaml.safe_load(file)
    try:
        strict(manifest)
        spec, parts = containers(manifest)
        volumes = {volume["name"] for volume in spec["volumes"]}
        for part in parts:
            assert {mount["name"] for mount in part["volumeMounts"]} <= volumes, part
            if "/gpucache:" in part["image"]:
                assert part["command"][0] in ("/gpucache/gpucache", "/bin/cp"), part["command"]
        # The schemas would notice: the same with a field that there is not.
        parts[0]["volumeMount"] = []
        try:
            strict(manifest)
        except kubernetes_validate.ValidationError:
            continue
        raise AssertionError("a field that Kubernetes does not know is taken")
    except (AssertionError, kubernetes_validate.ValidationError) as error:
        print("FAIL %s: %s" % (name, error))
        failed += 1
print("%d manifests, %d failed" % (len(sys.argv) - 1, failed))
sys.exit(failed > 0 or len(sys.argv) == 1)
