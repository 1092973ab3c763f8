//! Twenty rules of a custom resource, applied to one object and compiled from its definition.

use anyhow::{Result, ensure};
use machinery::field::Path;
use rules::crd::{BUDGET, Rules, check};
use serde_json::{Value, json};
use stdx::SharedClock;

use super::figures::{Figures, median};

/// Objects that are judged.
const ROUNDS: usize = 2001;

/// What people write: bounds, names, lists without doubles, fields that hang together, fields that stay.
const RULES: [&str; 20] = [
    "self.minReplicas <= self.maxReplicas",
    "self.replicas >= self.minReplicas && self.replicas <= self.maxReplicas",
    "self.name == oldSelf.name",
    "self.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "self.image.contains(':') && !self.image.endsWith(':latest')",
    "has(self.tls) == (self.port == 443)",
    "self.ports.all(p, p.port > 0 && p.port < 65536)",
    "self.ports.all(p, self.ports.exists_one(q, q.name == p.name))",
    "self.ports.map(p, p.port).distinct().size() == self.ports.size()",
    "self.labels.all(k, k.size() < 64 && self.labels[k].size() < 64)",
    "!('kubernetes.io/metadata.name' in self.labels)",
    "duration(self.timeout) <= duration('1h')",
    "quantity(self.memory).isLessThan(quantity('4Gi'))",
    "self.mode in ['Active', 'Passive', 'Standby']",
    "self.mode != 'Active' || self.replicas > 0",
    "self.?tls.?secret.orValue('').size() < 64",
    "cidr(self.network).containsIP(self.address)",
    "type(self.surge) == int ? self.surge <= 10 : self.surge.endsWith('%')",
    "self.url.startsWith('https://') && isURL(self.url)",
    "self.hosts.isSorted() && self.hosts.all(h, h.lowerAscii() == h)",
];

fn definition() -> Value {
    let text = json!({"type": "string", "maxLength": 64});
    let number = json!({"type": "integer"});
    let written: Vec<Value> = RULES.iter().map(|rule| json!({"rule": rule})).collect();
    json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "x-kubernetes-validations": written,
        "properties": {
            "name": text, "image": text, "mode": text, "timeout": text, "memory": text, "network": text,
            "address": text, "url": text, "minReplicas": number, "maxReplicas": number, "replicas": number,
            "port": number, "surge": {"x-kubernetes-int-or-string": true},
            "tls": {"type": "object", "properties": {"secret": text}},
            "hosts": {"type": "array", "maxItems": 16, "items": text},
            "labels": {"type": "object", "maxProperties": 16, "additionalProperties": text},
            "ports": {"type": "array", "maxItems": 16, "items": {
                "type": "object", "properties": {"name": text, "port": number},
            }},
        },
    }}})
}

fn object() -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Web", "metadata": {"name": "web"}, "spec": {
        "name": "web-frontend", "image": "registry.example.com/web:1.2.3", "mode": "Active", "timeout": "30s",
        "memory": "512Mi", "network": "10.0.0.0/8", "address": "10.1.2.3", "url": "https://example.com/path",
        "minReplicas": 1, "maxReplicas": 10, "replicas": 3, "port": 443, "surge": "25%",
        "tls": {"secret": "web-tls"}, "hosts": ["a.example.com", "b.example.com", "c.example.com"],
        "labels": {"app": "web", "tier": "frontend", "team": "one"},
        "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}, {"name": "metrics", "port": 9090}],
    }})
}

/// Measures.
///
/// # Errors
/// When a rule does not compile or does not hold.
pub fn run(clock: &SharedClock, figures: &mut Figures) -> Result<()> {
    let (definition, object) = (definition(), object());
    let begin = clock.now();
    let wrong = check(&definition, &Path::root(), false);
    let checked = clock.now().since(begin);
    ensure!(wrong.is_empty(), "the rules do not compile: {wrong}");
    let rules = Rules::compile(&definition);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begin = clock.now();
        let mut budget = BUDGET;
        let wrong = rules.validate(&object, Some(&object), &Path::root(), &mut budget, &mut Vec::new());
        times.push(clock.now().since(begin));
        ensure!(wrong.is_empty(), "the rules do not hold: {wrong}");
    }
    let p50 = median(&mut times);
    let shown = format!("{:.0} µs", p50.as_secs_f64() * 1e6);
    figures.add("20 CEL rules applied to one object", shown, "≤ 100 µs", Some(p50.as_micros() <= 100));
    figures.add("20 CEL rules checked and estimated", super::figures::ms(checked), "", None);
    Ok(())
}
