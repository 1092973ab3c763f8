//! An operator's bundle, made up: two dozen definitions of the size and shape that operators bring, and
//! objects of them.
//!
//! Each definition has a pod template's worth of structure with texts, defaults, enumerations, patterns,
//! lists by key, sets, quantities, embedded objects and rules; half have two versions.

use serde_json::{Map, Value, json};

/// What the operator manages, with who manages it.
const KINDS: [(&str, &str); 24] = [
    ("store", "Cluster"),
    ("store", "Backup"),
    ("store", "Restore"),
    ("store", "Pooler"),
    ("store", "Replica"),
    ("queue", "Broker"),
    ("queue", "Topic"),
    ("queue", "Connector"),
    ("queue", "Mirror"),
    ("mesh", "Gateway"),
    ("mesh", "Route"),
    ("mesh", "Policy"),
    ("mesh", "Certificate"),
    ("mesh", "Issuer"),
    ("watch", "Monitor"),
    ("watch", "Rule"),
    ("watch", "Alert"),
    ("watch", "Probe"),
    ("flow", "Workflow"),
    ("flow", "Task"),
    ("flow", "Trigger"),
    ("fleet", "Machine"),
    ("fleet", "Pool"),
    ("fleet", "Template"),
];

fn text(words: &str) -> String {
    format!("{words} It is what people read when they ask what a field is for, and as long as such texts are.")
}

fn string(words: &str) -> Value {
    json!({"type": "string", "description": text(words)})
}

fn object(words: &str, properties: Value) -> Value {
    json!({"type": "object", "description": text(words), "properties": properties})
}

fn quantity() -> Value {
    json!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        "x-kubernetes-int-or-string": true,
        "description": text("An amount of a resource."),
    })
}

fn selector() -> Value {
    object(
        "Which objects are meant.",
        json!({
            "matchLabels": {"type": "object", "additionalProperties": {"type": "string"}},
            "matchExpressions": {
                "type": "array", "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object", "required": ["key", "operator"],
                    "properties": {
                        "key": string("The label."),
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                        "values": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}},
                    },
                },
            },
        }),
    )
}

fn probe() -> Value {
    let port = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
    object(
        "How it is known to be well.",
        json!({
            "initialDelaySeconds": {"type": "integer", "format": "int32", "minimum": 0, "default": 0},
            "periodSeconds": {"type": "integer", "format": "int32", "minimum": 1, "default": 10},
            "timeoutSeconds": {"type": "integer", "format": "int32", "minimum": 1, "default": 1},
            "failureThreshold": {"type": "integer", "format": "int32", "minimum": 1, "default": 3},
            "httpGet": {"type": "object", "required": ["port"], "properties": {
                "path": string("Where to ask."), "port": port, "scheme": {"type": "string", "enum": ["HTTP", "HTTPS"]},
                "host": string("Whom to ask."),
            }},
            "tcpSocket": {"type": "object", "required": ["port"], "properties": {"port": port}},
            "exec": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
        }),
    )
}

fn container() -> Value {
    let reference = object(
        "Where the value comes from.",
        json!({
            "name": string("Of what."), "key": string("Which part."), "optional": {"type": "boolean"},
        }),
    );
    json!({
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
            "image": string("What runs."),
            "imagePullPolicy": {"type": "string", "enum": ["Always", "IfNotPresent", "Never"], "default": "IfNotPresent"},
            "command": {"type": "array", "items": {"type": "string"}},
            "args": {"type": "array", "items": {"type": "string"}},
            "env": {
                "type": "array", "maxItems": 100, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string", "maxLength": 253}, "value": string("The value."),
                    "valueFrom": object("Instead of a value.", json!({
                        "configMapKeyRef": reference, "secretKeyRef": reference,
                        "fieldRef": object("A field of the pod.", json!({"fieldPath": {"type": "string"}})),
                    })),
                }},
            },
            "ports": {
                "type": "array", "maxItems": 32, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
                "items": {"type": "object", "required": ["containerPort"], "properties": {
                    "containerPort": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
                    "protocol": {"type": "string", "default": "TCP", "enum": ["TCP", "UDP", "SCTP"]},
                    "name": {"type": "string", "maxLength": 15},
                }},
            },
            "resources": object("What it may take.", json!({
                "limits": {"type": "object", "additionalProperties": quantity()},
                "requests": {"type": "object", "additionalProperties": quantity()},
            })),
            "livenessProbe": probe(), "readinessProbe": probe(), "startupProbe": probe(),
            "securityContext": object("What it may do.", json!({
                "runAsUser": {"type": "integer", "format": "int64"}, "runAsNonRoot": {"type": "boolean"},
                "capabilities": object("What it adds and drops.", json!({
                    "add": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 64, "items": {"type": "string", "maxLength": 64}},
                    "drop": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 64, "items": {"type": "string", "maxLength": 64}},
                })),
            })),
            "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"], "properties": {
                "name": {"type": "string"}, "mountPath": string("Where."), "readOnly": {"type": "boolean"},
                "subPath": string("Which part of it."),
            }}},
        },
    })
}

fn affinity() -> Value {
    let term = object(
        "One wish.",
        json!({
            "labelSelector": selector(), "namespaceSelector": selector(),
            "topologyKey": string("What counts as one place."),
            "namespaces": {"type": "array", "items": {"type": "string"}},
        }),
    );
    let one = object(
        "Wishes about pods.",
        json!({
            "preferred": {"type": "array", "items": {"type": "object", "properties": {"weight": {"type": "integer"}, "term": term}}},
            "required": {"type": "array", "items": term},
        }),
    );
    object("Where it may run.", json!({"podAffinity": one, "podAntiAffinity": one, "nodeSelector": selector()}))
}

fn template() -> Value {
    object(
        "The pods it makes.",
        json!({
            "metadata": object("What they are called.", json!({
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            })),
            "containers": {
                "type": "array", "maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": container(),
            },
            "initContainers": {
                "type": "array", "maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": container(),
            },
            "affinity": affinity(),
            "tolerations": {"type": "array", "items": object("One.", json!({
                "key": {"type": "string"}, "operator": {"type": "string", "enum": ["Exists", "Equal"]},
                "value": {"type": "string"}, "effect": {"type": "string"}, "tolerationSeconds": {"type": "integer"},
            }))},
            "volumes": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                                                  "required": ["name"], "properties": {"name": {"type": "string"}}}},
        }),
    )
}

/// The status that operators agree on.
fn status() -> Value {
    object(
        "What is.",
        json!({
            "phase": {"type": "string", "enum": ["Pending", "Ready", "Failed"]},
            "replicas": {"type": "integer", "minimum": 0}, "selector": {"type": "string"},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "conditions": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "maxItems": 32,
                "items": {
                    "type": "object", "required": ["type", "status", "lastTransitionTime", "reason", "message"],
                    "properties": {
                        "type": {"type": "string", "maxLength": 316}, "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                        "lastTransitionTime": {"type": "string", "format": "date-time"},
                        "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                        "message": {"type": "string", "maxLength": 32768},
                        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                    },
                },
            },
        }),
    )
}

fn schema(kind: &str) -> Value {
    json!({
        "type": "object",
        "description": text(&format!("A {kind} of the operator's.")),
        "required": ["spec"],
        "properties": {
            "apiVersion": string("The version of the schema."),
            "kind": string("The kind of the object."),
            "metadata": {"type": "object"},
            "spec": {
                "type": "object",
                "description": text("What is wanted."),
                "required": ["replicas"],
                "properties": {
                    "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1000, "default": 1},
                    "minReplicas": {"type": "integer", "format": "int32", "minimum": 0},
                    "mode": {"type": "string", "enum": ["Active", "Standby"], "default": "Active"},
                    "className": {"type": "string", "maxLength": 253, "nullable": true},
                    "storage": object("Where it keeps its data.", json!({
                        "size": quantity(),
                        "class": {"type": "string", "x-kubernetes-validations": [
                            {"rule": "self == oldSelf", "message": "the class of the storage cannot be changed"},
                        ], "maxLength": 253},
                    })),
                    "selector": selector(),
                    "template": template(),
                    "owners": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 32, "items": {"type": "string", "maxLength": 63}},
                    "manifest": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
                    "settings": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "target": {
                        "type": "object",
                        "oneOf": [{"required": ["name"]}, {"required": ["address"]}],
                        "properties": {"name": string("By name."), "address": {"type": "string", "format": "hostname"}},
                    },
                },
                "x-kubernetes-validations": [
                    {"rule": "!has(self.minReplicas) || self.minReplicas <= self.replicas",
                     "message": "minReplicas must not be more than replicas", "fieldPath": ".minReplicas"},
                    {"rule": "self.mode != 'Standby' || self.replicas <= 3",
                     "messageExpression": "'a standby has at most 3 replicas' + (has(self.minReplicas) ? ', and minReplicas is one of them' : '')"},
                ],
            },
            "status": status(),
        },
    })
}

/// The definitions.
pub fn definitions() -> Vec<Value> {
    KINDS.iter().enumerate().map(|(i, (group, kind))| definition(group, kind, i % 2 == 1)).collect()
}

fn definition(group: &str, kind: &str, two: bool) -> Value {
    let (group, singular) = (format!("{group}.operator.example"), kind.to_lowercase());
    let plural = match singular.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{singular}s"),
    };
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema(kind)},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            }},
            "additionalPrinterColumns": [
                {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
            "selectableFields": [{"jsonPath": ".spec.mode"}, {"jsonPath": ".spec.className"}],
        })
    };
    let mut versions = vec![version("v1", true)];
    if two {
        versions.push(version("v1beta1", false));
        versions[1]["deprecated"] = true.into();
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": versions,
            "names": {"plural": plural, "singular": singular, "kind": kind, "shortNames": [format!("op{}", &singular[..3])],
                      "categories": ["operator"]},
        },
    })
}

/// An object of a definition, with something of everything.
pub fn object_of(definition: &Value, name: &str) -> Value {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let env: Vec<Value> = (0..20).map(|i| json!({"name": format!("E{i}"), "value": "x"})).collect();
    let labels: Map<String, Value> = (0..5).map(|i| (format!("l{i}"), json!("v"))).collect();
    json!({
        "apiVersion": format!("{}/v1", text(&spec["group"])), "kind": spec["names"]["kind"],
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "replicas": 2, "minReplicas": 1, "className": null,
            "storage": {"size": "10Gi", "class": "fast"},
            "owners": ["a", "b"],
            "manifest": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}},
            "settings": {"anything": [1, {"goes": true}]},
            "target": {"address": "db.example"},
            "template": {"containers": [{
                "name": "main", "image": "example/main:1", "env": env, "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}, "livenessProbe": {"httpGet": {"port": "http"}},
            }]},
        },
    })
}
