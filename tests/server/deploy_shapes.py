"""Schemas of resources in deploy/ for which PyPI has no package: HTTPRoute of the Gateway API v1
(sigs.k8s.io/gateway-api, apis/v1), InferencePool of its Inference Extension v1
(sigs.k8s.io/gateway-api-inference-extension, api/v1), and kustomize's files (sigs.k8s.io/kustomize, api/types). Most
optional fields that are not used here are left out, so they are refused."""

from jsonschema import Draft202012Validator

NAME = {"type": "string", "minLength": 1, "maxLength": 253}
GROUP = {"type": "string", "maxLength": 253, "pattern": r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}
KIND = {"type": "string", "maxLength": 63, "pattern": r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
COUNT = {"type": "integer", "minimum": 0}
DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
LABEL = {"type": "string", "maxLength": 63, "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}
LABELS = {"type": "object", "additionalProperties": LABEL, "minProperties": 1, "maxProperties": 64}


def record(required, **fields):
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": fields}


def list_of(item, most, least=0):
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


def resource(api, kind, **spec):
    return record("apiVersion kind metadata spec", apiVersion={"const": api}, kind={"const": kind},
                  metadata=record("name", name=NAME, namespace=NAME, labels=LABELS), **spec)


# A picker that is a service needs a port. It is a service if no kind is given.
PICKER = record("name", group=GROUP, kind=KIND, name=NAME, port=record("number", number=PORT), failureMode={"enum": ["FailOpen", "FailClose"]})
PICKER["anyOf"] = [{"required": ["port"]}, {"required": ["kind"], "properties": {"kind": {"not": {"const": "Service"}}}}]
POOL = record("selector targetPorts endpointPickerRef", selector=record("matchLabels", matchLabels=LABELS),
              targetPorts=list_of(record("number", number=PORT), 8, 1), endpointPickerRef=PICKER)

# A service that a route leads to also needs a port. It is a service if no other kind is given.
BACKEND = record("name", group=GROUP, kind=KIND, namespace=NAME, name=NAME, port=PORT, weight=dict(COUNT, maximum=1000000))
BACKEND["anyOf"] = PICKER["anyOf"]
PATH = record("", type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value={"type": "string", "pattern": "^/", "maxLength": 1024})
RULE = record("", name=NAME, matches=list_of(record("", path=PATH), 64), backendRefs=list_of(BACKEND, 16),
              timeouts=record("", request=DURATION, backendRequest=DURATION))
PARENT = record("name", group=GROUP, kind=KIND, namespace=NAME, name=NAME, sectionName=NAME, port=PORT)
ROUTE = record("", parentRefs=list_of(PARENT, 32), hostnames=list_of(NAME, 16), rules=list_of(RULE, 16, 1))

STRINGS = list_of(NAME, 1000, 1)
KUSTOMIZATION = record("apiVersion kind resources", apiVersion={"const": "kustomize.config.k8s.io/v1beta1"}, kind={"const": "Kustomization"},
                       resources=STRINGS, images=list_of(record("name", name=NAME, newName=NAME, newTag=NAME, digest=NAME), 100),
                       replicas=list_of(record("name count", name=NAME, count=COUNT), 100),
                       patches=list_of(record("path target", path=NAME, target=record("kind name", kind=KIND, name=NAME)), 100),
                       secretGenerator=list_of(record("name", name=NAME, files=STRINGS, literals=STRINGS, envs=STRINGS), 100))

SHAPES = {
    "InferencePool": resource("inference.networking.k8s.io/v1", "InferencePool", spec=POOL),
    "HTTPRoute": resource("gateway.networking.k8s.io/v1", "HTTPRoute", spec=ROUTE),
    "Kustomization": KUSTOMIZATION,
}


def check(document):
    """Raises jsonschema.ValidationError."""
    Draft202012Validator(SHAPES[document["kind"]]).validate(document)
