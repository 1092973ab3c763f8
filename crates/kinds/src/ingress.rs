//! Ingress: which Service answers which host and path for requests from outside.

use api::types::networking::v1 as networking;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::addresses;
use crate::cells;
use crate::check;
use crate::ingress_class;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

/// How a class was named before there was a field for it.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const NOT_AN_ADDRESS: &str = "must be a DNS name, not an IP address";
/// How many hosts a row shows.
const SHOWN_HOSTS: usize = 3;

pub struct Ingress;

impl Kind for Ingress {
    type Object = networking::Ingress;
    const SHAPE: Shape = Shape::namespaced("networking.k8s.io", "v1", "Ingress", "ingresses")
        .singular("ingress")
        .short(&["ing"])
        .status();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, ingress: &Self::Object, errors: &mut FieldErrors) {
        spec(ingress, errors);
        let class = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref());
        if let (Some(annotation), Some(class)) = (annotated_class(ingress), class)
            && annotation != class
        {
            errors.invalid(&annotation_path(), annotation, "must match `ingressClassName` when both are specified");
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        // An older server took more: such an object can still be changed.
        let secrets_may_be_odd = rules_broken(old, |path| path.ends_with(".secretName"));
        let wildcards: Vec<String> = match rules_broken(old, |path| is_in_wildcard_rule(old, path)) {
            true => wildcard_rules(new),
            false => Vec::new(),
        };
        let annotation = annotation_path();
        errors.0.retain(|error| {
            let path = error.path.as_str();
            error.path != annotation
                && !(secrets_may_be_odd && path.starts_with("spec.tls[") && path.ends_with(".secretName"))
                && !wildcards.iter().any(|rule| path.starts_with(rule))
        });
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let before: Vec<&str> = balanced(old).iter().filter_map(|entry| entry.ip.as_deref()).collect();
        let path = Path::new("status").child("loadBalancer").child("ingress");
        for (i, entry) in balanced(new).iter().enumerate() {
            let path = path.index(i);
            if let Some(ip) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) {
                addresses::address(ip, &before, &path.child("ip"), errors);
            }
            if let Some(name) = entry.hostname.as_deref().filter(|name| !name.is_empty()) {
                check::all(names::dns1123_subdomain(name), &path.child("hostname"), name, errors);
                if addresses::read(name).is_some() {
                    errors.invalid(&path.child("hostname"), name, NOT_AN_ADDRESS);
                }
            }
        }
    }

    fn status_warnings(_ctx: &Ctx, new: &Self::Object) -> Vec<String> {
        let balancer = new.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let reported = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
        addresses::balancer_warnings(reported.map(|entry| entry.ip.as_deref()))
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let class = new.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref());
        match (old, annotated_class(new), class) {
            (None, Some(_), None) => vec![format!(
                "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
            )],
            _ => Vec::new(),
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Class", "Which class serves it."),
                    Column::text("Hosts", "The hosts it is about."),
                    Column::text("Address", "Where it can be reached."),
                    Column::text("Ports", "The ports it answers on."),
                    Column::AGE,
                ]
            },
            row: |ingress, now| {
                let spec = ingress.spec.clone().unwrap_or_default();
                let secure = spec.tls.as_ref().is_some_and(|tls| !tls.is_empty());
                let row = vec![
                    cells::name(&ingress.metadata),
                    spec.ingress_class_name.clone().unwrap_or_else(|| "<none>".into()).into(),
                    hosts(spec.rules.as_deref().unwrap_or_default()).into(),
                    address(ingress).into(),
                    if secure { "80, 443" } else { "80" }.into(),
                    cells::of(&ingress.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn annotation_path() -> Path {
    Path::new("annotations").child(CLASS_ANNOTATION)
}

fn annotated_class(ingress: &networking::Ingress) -> Option<&str> {
    ingress.metadata.annotations.as_ref()?.get(CLASS_ANNOTATION).map(String::as_str)
}

fn balanced(ingress: &networking::Ingress) -> &[networking::IngressLoadBalancerIngress] {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default()
}

/// True when the object breaks a rule at such a path.
fn rules_broken(ingress: &networking::Ingress, at: impl Fn(&str) -> bool) -> bool {
    let mut errors = FieldErrors::new();
    spec(ingress, &mut errors);
    errors.0.iter().any(|error| at(error.path.as_str()))
}

/// Where the paths of the rules for wildcard hosts begin.
fn wildcard_rules(ingress: &networking::Ingress) -> Vec<String> {
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten()).enumerate();
    let wildcards = rules.filter(|(_, rule)| rule.host.as_deref().is_some_and(|host| host.contains('*')));
    wildcards.map(|(i, _)| format!("spec.rules[{i}].http.")).collect()
}

fn is_in_wildcard_rule(ingress: &networking::Ingress, path: &str) -> bool {
    wildcard_rules(ingress).iter().any(|rule| path.starts_with(rule))
}

fn spec(ingress: &networking::Ingress, errors: &mut FieldErrors) {
    let spec = ingress.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    let rules = spec.rules.as_deref().unwrap_or_default();
    match &spec.default_backend {
        None if rules.is_empty() => {
            errors.invalid(&path, check::value(&spec.rules), "either `defaultBackend` or `rules` must be specified");
        }
        None => {}
        Some(backend) => self::backend(backend, &path.child("defaultBackend"), errors),
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(i);
        let host = rule.host.as_deref().unwrap_or_default();
        if addresses::read(host).is_some() {
            errors.invalid(&path.child("host"), host, NOT_AN_ADDRESS);
        }
        if !host.is_empty() {
            self::host(host, &path.child("host"), errors);
        }
        if let Some(http) = &rule.http {
            let path = path.child("http").child("paths");
            if http.paths.is_empty() {
                errors.required(&path, "");
            }
            http.paths.iter().enumerate().for_each(|(i, http)| self::path(http, &path.index(i), errors));
        }
    }
    for (i, tls) in spec.tls.iter().flatten().enumerate() {
        let path = path.child("tls").index(i);
        for (i, host) in tls.hosts.iter().flatten().enumerate() {
            self::host(host, &path.child("hosts").index(i), errors);
        }
        if let Some(secret) = tls.secret_name.as_deref().filter(|name| !name.is_empty()) {
            check::all(names::dns1123_subdomain(secret), &path.child("secretName"), secret, errors);
        }
    }
    if let Some(class) = &spec.ingress_class_name {
        check::all(names::dns1123_subdomain(class), &path.child("ingressClassName"), class, errors);
    }
}

fn host(host: &str, path: &Path, errors: &mut FieldErrors) {
    let wrong = if host.contains('*') { names::wildcard_subdomain(host) } else { names::dns1123_subdomain(host) };
    check::all(wrong, path, host, errors);
}

fn path(http: &networking::HTTPIngressPath, at: &Path, errors: &mut FieldErrors) {
    let (path, text) = (at.child("path"), http.path.as_deref().unwrap_or_default());
    let absolute = text.starts_with('/');
    match http.path_type.as_str() {
        "" => {
            errors.required(&at.child("pathType"), "pathType must be specified");
            return;
        }
        "Exact" | "Prefix" => {
            if !absolute {
                errors.invalid(&path, text, "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|part| text.contains(**part)) {
                errors.invalid(&path, text, format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].iter().filter(|end| text.ends_with(**end)) {
                errors.invalid(&path, text, format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" if !absolute && !text.is_empty() => {
            errors.invalid(&path, text, "must be an absolute path");
        }
        "ImplementationSpecific" => {}
        other => {
            errors.not_supported(&at.child("pathType"), other, &["Exact", "ImplementationSpecific", "Prefix"]);
        }
    }
    backend(&http.backend, &at.child("backend"), errors);
}

fn backend(backend: &networking::IngressBackend, path: &Path, errors: &mut FieldErrors) {
    let service = match (&backend.resource, &backend.service) {
        (Some(_), Some(_)) => return errors.invalid(path, "", "cannot set both resource and service backends"),
        (None, None) => return errors.invalid(path, "", "resource or service backend is required"),
        (Some(to), None) => {
            let path = path.child("resource");
            return ingress_class::reference(to.api_group.as_deref(), &to.kind, &to.name, &path, errors);
        }
        (None, Some(service)) => service,
    };
    let at = path.child("service");
    if service.name.is_empty() {
        errors.required(&at.child("name"), "");
    } else {
        check::all(names::dns1123_label(&service.name), &at.child("name"), &service.name, errors);
    }
    let port = service.port.clone().unwrap_or_default();
    let at = at.child("port");
    match (port.name.as_deref().unwrap_or_default(), port.number.unwrap_or(0)) {
        ("", 0) => errors.required(path, "port name or number is required"),
        ("", number) => check::port(number, &at.child("number"), errors),
        (name, 0) => check::all(names::port_name(name), &at.child("name"), name, errors),
        _ => errors.invalid(path, "", "cannot set both port name & port number"),
    }
}

fn hosts(rules: &[networking::IngressRule]) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= shown.len() == SHOWN_HOSTS;
        match rule.host.as_deref() {
            Some(host) if !more && !host.is_empty() => shown.push(host),
            _ => {}
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => shown.join(","),
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - SHOWN_HOSTS),
    }
}

/// Where a load balancer takes its requests, addresses before names of the same entry.
fn address(ingress: &networking::Ingress) -> String {
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let mut out: Vec<String> =
        balanced(ingress).iter().filter_map(|entry| filled(&entry.ip).or_else(|| filled(&entry.hostname))).collect();
    out.sort();
    out.dedup();
    out.join(",")
}
