//! IPAddress: the claim of one address of the Service range, named after it.

use std::net::IpAddr;

use api::types::networking::v1 as networking;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

pub struct IPAddress;

impl Kind for IPAddress {
    type Object = networking::IPAddress;
    const SHAPE: Shape =
        Shape::cluster("networking.k8s.io", "v1", "IPAddress", "ipaddresses").singular("ipaddress").short(&["ip"]);
    const HAS_DEFAULTS: bool = false;
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("/spec/parentRef", "")];

    fn name_rule(name: &str) -> Vec<String> {
        match name.parse::<IpAddr>() {
            Err(_) => vec![check::IP_ADDRESS.to_owned()],
            Ok(address) if address.to_string() != name => vec![format!("must be in canonical form (\"{address}\")")],
            Ok(_) => Vec::new(),
        }
    }

    fn validate(_ctx: &Ctx, address: &Self::Object, errors: &mut FieldErrors) {
        let parent = &address.spec.parent_ref;
        let path = Path::new("spec").child("parentRef");
        if let Some(group) = parent.group.as_deref().filter(|group| !group.is_empty()) {
            check::all(names::dns1123_subdomain(group), &path.child("group"), group, errors);
        }
        for (text, field) in [(&parent.resource, "resource"), (&parent.name, "name")] {
            if text.is_empty() {
                errors.required(&path.child(field), "");
            } else {
                check::all(names::path_segment(text), &path.child(field), text, errors);
            }
        }
        if let Some(namespace) = parent.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
            check::all(names::path_segment(namespace), &path.child("namespace"), namespace, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let path = Path::new("spec").child("parentRef");
        check::immutable(&new.spec.parent_ref, &old.spec.parent_ref, &path, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("ParentRef", "Whose address it is.")] },
            row: |address, _| {
                let parent = &address.spec.parent_ref;
                let part = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
                let mut out = parent.resource.clone();
                if let Some(group) = part(&parent.group) {
                    out.push('.');
                    out.push_str(&group);
                }
                out.push('/');
                if let Some(namespace) = part(&parent.namespace) {
                    out.push_str(&namespace);
                    out.push('/');
                }
                out.push_str(&parent.name);
                (vec![cells::name(&address.metadata), out.into()], Vec::new())
            },
        }
    }
}
