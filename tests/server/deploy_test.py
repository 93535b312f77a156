#!/usr/bin/env python3
"""Checks that Kubernetes, Prometheus and Grafana can read the files in deploy/: by schemas of PyPI's
kubernetes-validate, by deploy_shapes.py for the rest, and by names that must match. operations_test.py checks that the
flags and metrics there exist."""

import copy
import json
import re
import sys
import unittest

from clients_venv import enter

enter(["kubernetes_validate==1.34.1"], "deploy-venv")

import jsonschema  # noqa: E402
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

import deploy_shapes  # noqa: E402
from support import ROOT, main  # noqa: E402

DEPLOY = ROOT / "deploy"
BASE, REPLICAS, TWO_GPUS = (DEPLOY / "kubernetes" / name for name in ["base", "replicas", "two-gpus"])


def documents(path):
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def resources(folder):
    """The resources that `kubectl apply -k FOLDER` would send, before its generators."""
    found = []
    (kustomization,) = documents(folder / "kustomization.yaml")
    for name in kustomization["resources"]:
        path = folder / name
        found += resources(path) if path.is_dir() else documents(path)
    for patch in kustomization.get("patches", []):
        target = patch["target"]
        (resource,) = [r for r in found if r["kind"] == target["kind"] and r["metadata"]["name"] == target["name"]]
        (operations,) = documents(folder / patch["path"])
        for operation in operations:
            apply(operation, resource)
    return found


def apply(operation, document):
    """Applies one operation of a JSON patch (RFC 6902): test, or replace of an existing value."""
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    at = document
    for part in path:
        at = at[int(part) if isinstance(at, list) else part]
    last = int(last) if isinstance(at, list) else last
    before = at[last]
    if operation["op"] == "replace":
        at[last] = operation["value"]
    elif operation["op"] != "test" or before != operation["value"]:
        raise ValueError("%s is %s" % (operation["path"], before))


def one(kind, folder=REPLICAS):
    (found,) = [r for r in resources(folder) if r["kind"] == kind]
    return found


class Kubernetes(unittest.TestCase):
    def check(self, folder, kinds):
        for resource in resources(folder):
            if resource["kind"] in deploy_shapes.SHAPES:
                deploy_shapes.check(resource)
            else:
                kubernetes_validate.validate(resource, "1.34", strict=True)
        self.assertEqual(sorted(resource["kind"] for resource in resources(folder)), kinds)

    def test_resources_keep_their_schemas(self):
        self.check(REPLICAS, ["HTTPRoute", "InferencePool", "PersistentVolumeClaim", "Service", "StatefulSet"])
        self.check(TWO_GPUS, ["PersistentVolumeClaim", "Service", "StatefulSet"])

    def test_two_gpus_are_asked_for_and_named(self):
        (base,), (two,) = (one("StatefulSet", folder)["spec"]["template"]["spec"]["containers"] for folder in [BASE, TWO_GPUS])
        self.assertEqual(self.flags(two), {**self.flags(base), "device": "cuda:0,1"})
        self.assertEqual(two["resources"]["limits"], {**base["resources"]["limits"], "nvidia.com/gpu": 2})
        self.assertEqual({**two, "args": [], "resources": {}}, {**base, "args": [], "resources": {}})
        other = one("StatefulSet", BASE)
        other["spec"]["template"]["spec"]["containers"][0]["args"].insert(0, "--threads=8")
        with self.assertRaises(ValueError):  # the patch names the position of a flag
            for operation in documents(TWO_GPUS / "gpus.yaml")[0]:
                apply(operation, other)

    def test_a_wrong_resource_is_found(self):
        wrong = one("StatefulSet")
        wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, "1.34", strict=True)

    def test_kustomizations_keep_their_shape(self):
        for folder in [BASE, REPLICAS, TWO_GPUS]:
            (kustomization,) = documents(folder / "kustomization.yaml")
            deploy_shapes.check(kustomization)

    def test_what_the_shapes_do_not_allow_is_found(self):
        pool, route = one("InferencePool"), one("HTTPRoute")
        kustomization = documents(REPLICAS / "kustomization.yaml")[0]
        wrong = [
            (pool, ["apiVersion"], "inference.networking.x-k8s.io/v1alpha2"),
            (pool, ["spec", "targetPorts"], []),
            (pool, ["spec", "targetPorts", 0, "number"], 65536),
            (pool, ["spec", "selector"], {"app": "dsv4"}),  # the form before v1
            (pool, ["spec", "targetPortNumber"], 8000),
            (pool, ["spec", "endpointPickerRef"], {"name": "dsv4-epp"}),  # a service without its port
            (route, ["spec", "rules", 0, "timeouts", "request"], "3600"),
            (route, ["spec", "rules", 0, "matches", 0, "path", "type"], "Prefix"),
            (route, ["spec", "rules", 0, "matches", 0, "path", "value"], "v1"),
            (route, ["spec", "rules", 0, "backendRefs", 0, "kind"], "Service"),
            (route, ["spec", "rules", 0, "backends"], []),
            (kustomization, ["replicas", 0, "count"], "4"),
            (kustomization, ["resource"], ["pool.yaml"]),
        ]
        for document, path, value in wrong:
            changed = copy.deepcopy(document)
            at = changed
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
            with self.subTest(path=path), self.assertRaises(jsonschema.ValidationError):
                deploy_shapes.check(changed)

    def test_the_route_leads_to_the_pool(self):
        (rule,) = one("HTTPRoute")["spec"]["rules"]
        pool = one("InferencePool")
        self.assertEqual(rule["backendRefs"], [{"group": pool["apiVersion"].split("/")[0], "kind": pool["kind"], "name": pool["metadata"]["name"]}])

    def test_every_file_is_used(self):
        for folder in [BASE, REPLICAS, TWO_GPUS]:
            (kustomization,) = documents(folder / "kustomization.yaml")
            secrets = [f for s in kustomization.get("secretGenerator", []) for f in s["files"]]
            patches = [p["path"] for p in kustomization.get("patches", [])]
            used = {"kustomization.yaml", *secrets, *patches, *(r for r in kustomization["resources"] if "/" not in r)}
            self.assertEqual(used, {path.name for path in folder.iterdir()})

    def test_names_fit(self):
        spec = one("StatefulSet")["spec"]
        labels = spec["template"]["metadata"]["labels"]
        for selector in [spec["selector"]["matchLabels"], one("Service")["spec"]["selector"],
                         one("InferencePool")["spec"]["selector"]["matchLabels"]]:
            self.assertLessEqual(selector.items(), labels.items())
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        volumes = {v["name"]: v for v in pod["volumes"]}
        claims = {c["metadata"]["name"] for c in spec["volumeClaimTemplates"]}
        self.assertEqual({m["name"] for m in container["volumeMounts"]}, claims | set(volumes))
        self.assertEqual(volumes["model"]["persistentVolumeClaim"]["claimName"], one("PersistentVolumeClaim")["metadata"]["name"])
        (secret,) = documents(BASE / "kustomization.yaml")[0]["secretGenerator"]
        self.assertEqual(volumes["keys"]["secret"]["secretName"], secret["name"])
        self.assertIn("%s/%s" % (self.mounts(container)["keys"], secret["files"][0]), self.flags(container)["api-key-file"])
        self.assertEqual(documents(BASE / "kustomization.yaml")[0]["images"][0]["name"], container["image"])
        self.assertEqual(documents(REPLICAS / "kustomization.yaml")[0]["replicas"][0]["name"], one("StatefulSet")["metadata"]["name"])

    @staticmethod
    def flags(container):
        return dict(re.fullmatch(r"--([a-z-]+)=(.*)", arg).groups() for arg in container["args"])

    @staticmethod
    def mounts(container):
        return {m["name"]: m["mountPath"] for m in container["volumeMounts"]}

    def test_ports_and_paths_are_those_of_the_flags(self):
        spec = one("StatefulSet")["spec"]["template"]
        (container,) = spec["spec"]["containers"]
        flags, ports = self.flags(container), {p["name"]: p["containerPort"] for p in container["ports"]}
        self.assertEqual(ports, {"http": int(flags["port"]), "metrics": int(flags["metrics-port"]), "kv-events": int(flags["kv-events"])})
        self.assertEqual(spec["metadata"]["annotations"]["prometheus.io/port"], flags["metrics-port"])
        self.assertEqual(one("InferencePool")["spec"]["targetPorts"], [{"number": ports["http"]}])
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
            self.assertIn(container[probe]["httpGet"]["port"], ports)
        for flag, volume in [("model", "model"), ("kv-disk", "kv")]:
            self.assertEqual(flags[flag], self.mounts(container)[volume])

    def test_there_is_time_to_drain(self):
        spec = one("StatefulSet")["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
        drain, save, hangs = int(self.flags(container)["drain-timeout"]), 60, 20
        self.assertGreater(spec["terminationGracePeriodSeconds"], before + drain + save + hangs)


class Monitoring(unittest.TestCase):
    def test_rules(self):
        (rules,) = documents(DEPLOY / "monitoring" / "alerts.yaml")
        names = []
        for group in rules["groups"]:
            self.assertEqual(set(group) - {"interval"}, {"name", "rules"})
            for rule in group["rules"]:
                self.assertEqual(set(rule) - {"for", "labels", "annotations"}, {"alert", "expr"})
                self.assertRegex(rule.get("for", "0s"), r"^\d+[smhd]$")
                self.assertTrue(all(isinstance(text, str) for text in rule["annotations"].values()))
                names.append(rule["alert"])
        self.assertEqual(len(names), len(set(names)))

    def test_the_dashboard_fits_its_grid(self):
        board = json.loads((DEPLOY / "monitoring" / "grafana.json").read_text())
        taken = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells


if __name__ == "__main__":
    main()
