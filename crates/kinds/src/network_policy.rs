//! NetworkPolicy: which traffic the pods it selects may have.

use api::meta::util::intstr::IntOrString;
use api::types::networking::v1 as networking;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::addresses;
use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

const PROTOCOLS: &[&str] = &["TCP", "UDP", "SCTP"];
const TYPES: &[&str] = &["Ingress", "Egress"];

pub struct NetworkPolicy;

impl Kind for NetworkPolicy {
    type Object = networking::NetworkPolicy;
    const SHAPE: Shape = Shape::namespaced("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
        .singular("networkpolicy")
        .short(&["netpol"])
        .generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, policy: &mut Self::Object) {
        let spec = policy.spec.get_or_insert_default();
        let ingress = spec.ingress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut().flatten());
        let egress = spec.egress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut().flatten());
        for port in ingress.chain(egress) {
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
        if spec.policy_types.as_ref().is_none_or(Vec::is_empty) {
            let outward = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
            let types = if outward { TYPES } else { &TYPES[..1] };
            spec.policy_types = Some(types.iter().map(|t| (*t).to_owned()).collect());
        }
    }

    fn validate(_ctx: &Ctx, policy: &Self::Object, errors: &mut FieldErrors) {
        self::spec(policy, &[], errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        // What an older server took may stay, wherever it stands now.
        *errors = FieldErrors::new();
        self::spec(new, &networks(old), errors);
        let mut before = FieldErrors::new();
        if let Some(selector) = old.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref()) {
            check::selector(selector, &Path::root(), &mut before);
        }
        if !before.is_empty() {
            let is_value = |path: &str| path.contains("Selector.matchExpressions[") && path.contains("].values[");
            errors.0.retain(|error| !is_value(error.path.as_str()));
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let mut out = Vec::new();
        each_peer(new, |peer, path| {
            let Some(block) = &peer.ip_block else { return };
            let path = path.child("ipBlock");
            out.extend(addresses::network_warnings(&block.cidr, &path.child("cidr")));
            for (i, except) in block.except.iter().flatten().enumerate() {
                out.extend(addresses::network_warnings(except, &path.child("except").index(i)));
            }
        });
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("Pod-Selector", "Which pods it is about."), Column::AGE] },
            row: |policy, now| {
                let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.clone()).unwrap_or_default();
                let row =
                    vec![cells::name(&policy.metadata), cells::selector(&selector), cells::of(&policy.metadata, now)];
                (row, Vec::new())
            },
        }
    }
}

/// Calls `look` for every peer of every rule.
fn each_peer<'a>(
    policy: &'a networking::NetworkPolicy,
    mut look: impl FnMut(&'a networking::NetworkPolicyPeer, &Path),
) {
    let Some(spec) = &policy.spec else { return };
    let path = Path::new("spec");
    for (i, rule) in spec.ingress.iter().flatten().enumerate() {
        let path = path.child("ingress").index(i).child("from");
        rule.from.iter().flatten().enumerate().for_each(|(i, peer)| look(peer, &path.index(i)));
    }
    for (i, rule) in spec.egress.iter().flatten().enumerate() {
        let path = path.child("egress").index(i).child("to");
        rule.to.iter().flatten().enumerate().for_each(|(i, peer)| look(peer, &path.index(i)));
    }
}

/// Every network a policy names.
fn networks(policy: &networking::NetworkPolicy) -> Vec<&str> {
    let mut out = Vec::new();
    each_peer(policy, |peer, _| {
        if let Some(block) = &peer.ip_block {
            out.push(block.cidr.as_str());
            out.extend(block.except.iter().flatten().map(String::as_str));
        }
    });
    out
}

fn spec(policy: &networking::NetworkPolicy, before: &[&str], errors: &mut FieldErrors) {
    let Some(spec) = &policy.spec else { return };
    let path = Path::new("spec");
    if let Some(selector) = &spec.pod_selector {
        check::selector(selector, &path.child("podSelector"), errors);
    }
    for (i, rule) in spec.ingress.iter().flatten().enumerate() {
        let path = path.child("ingress").index(i);
        ports(rule.ports.as_deref(), &path.child("ports"), errors);
        peers(rule.from.as_deref(), before, &path.child("from"), errors);
    }
    for (i, rule) in spec.egress.iter().flatten().enumerate() {
        let path = path.child("egress").index(i);
        ports(rule.ports.as_deref(), &path.child("ports"), errors);
        peers(rule.to.as_deref(), before, &path.child("to"), errors);
    }
    let types = spec.policy_types.as_deref().unwrap_or_default();
    let path = path.child("policyTypes");
    if types.len() > TYPES.len() {
        errors.invalid(&path, check::value(&types), "may not specify more than two policyTypes");
        return;
    }
    for (i, text) in types.iter().enumerate().filter(|(_, text)| !TYPES.contains(&text.as_str())) {
        errors.not_supported(&path.index(i), text.as_str(), TYPES);
    }
}

fn ports(ports: Option<&[networking::NetworkPolicyPort]>, path: &Path, errors: &mut FieldErrors) {
    for (i, port) in ports.unwrap_or_default().iter().enumerate() {
        let path = path.index(i);
        check::one_of_or_absent(port.protocol.as_deref(), PROTOCOLS, &path.child("protocol"), errors);
        let end = path.child("endPort");
        match (&port.port, port.end_port) {
            (Some(first @ IntOrString::Int(number)), last) => {
                check::port_or_name(first, &path.child("port"), errors);
                if let Some(last) = last {
                    if last < *number {
                        errors.invalid(&end, last, "must be greater than or equal to `port`");
                    }
                    check::port(last, &end, errors);
                }
            }
            (Some(name), last) => {
                if let Some(last) = last {
                    errors.invalid(&end, last, "may not be specified when `port` is non-numeric");
                }
                check::port_or_name(name, &path.child("port"), errors);
            }
            (None, Some(last)) => errors.invalid(&end, last, "may not be specified when `port` is not specified"),
            (None, None) => {}
        }
    }
}

fn peers(peers: Option<&[networking::NetworkPolicyPeer]>, before: &[&str], path: &Path, errors: &mut FieldErrors) {
    for (i, peer) in peers.unwrap_or_default().iter().enumerate() {
        let path = path.index(i);
        let selectors = [(&peer.pod_selector, "podSelector"), (&peer.namespace_selector, "namespaceSelector")];
        for (selector, field) in &selectors {
            if let Some(selector) = selector {
                check::selector(selector, &path.child(field), errors);
            }
        }
        if let Some(block) = &peer.ip_block {
            self::block(block, before, &path.child("ipBlock"), errors);
        }
        let selected = selectors.iter().any(|(selector, _)| selector.is_some());
        match (selected, peer.ip_block.is_some()) {
            (false, false) => errors.required(&path, "must specify a peer"),
            (true, true) => errors.forbidden(&path, "may not specify both ipBlock and another peer"),
            _ => {}
        }
    }
}

fn block(block: &networking::IPBlock, before: &[&str], path: &Path, errors: &mut FieldErrors) {
    if block.cidr.is_empty() {
        errors.required(&path.child("cidr"), "");
        return;
    }
    addresses::network(&block.cidr, before, &path.child("cidr"), errors);
    let Some(whole) = addresses::read_network(&block.cidr) else { return };
    for (i, text) in block.except.iter().flatten().enumerate() {
        let path = path.child("except").index(i);
        addresses::network(text, before, &path, errors);
        let Some(part) = addresses::read_network(text) else { continue };
        if !whole.contains(&part.network()) || whole.prefix_len() >= part.prefix_len() {
            errors.invalid(&path, text.as_str(), "must be a strict subset of `cidr`");
        }
    }
}
