//! ServiceCIDR: a range that Services get their addresses from.

use api::types::networking::v1 as networking;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

pub struct ServiceCIDR;

impl Kind for ServiceCIDR {
    type Object = networking::ServiceCIDR;
    const SHAPE: Shape = Shape::cluster("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs")
        .singular("servicecidr")
        .status_without_generation()
        .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"])
        .status_resets(&[&["spec"], &["metadata"]]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, range: &Self::Object, errors: &mut FieldErrors) {
        let cidrs = cidrs(range);
        let path = Path::new("spec").child("cidrs");
        if cidrs.is_empty() {
            errors.required(&path, "at least one CIDR must be specified");
            return;
        }
        if cidrs.len() > 2 {
            let wrong = "may only specify up to two values, one for each IP family";
            errors.invalid(&path, check::value(&cidrs), wrong);
            return;
        }
        for (i, cidr) in cidrs.iter().enumerate() {
            check::cidr(cidr, &path.index(i), errors);
        }
        let families: Vec<bool> =
            cidrs.iter().filter_map(|cidr| cidr.parse::<ipnet::IpNet>().ok()).map(|net| net.addr().is_ipv4()).collect();
        if let [a, b] = families[..] {
            if a == b {
                let wrong = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
                errors.invalid(&path, check::value(&cidrs), wrong);
            }
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let (new, old) = (cidrs(new), cidrs(old));
        let path = Path::new("spec").child("cidrs");
        // A range may get its second family later.
        let grows = old.len() == 1 && new.len() == 2 && new[0] == old[0];
        if !grows {
            check::immutable(new, old, &path, errors);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("CIDRs", "The ranges, one for each IP family."), Column::AGE] },
            row: |range, now| {
                let text = cidrs(range).join(",");
                (vec![cells::name(&range.metadata), text.into(), cells::of(&range.metadata, now)], Vec::new())
            },
        }
    }
}

fn cidrs(range: &networking::ServiceCIDR) -> &[String] {
    range.spec.as_ref().and_then(|spec| spec.cidrs.as_deref()).unwrap_or_default()
}
