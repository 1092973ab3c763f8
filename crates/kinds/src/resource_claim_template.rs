//! ResourceClaimTemplate: the claim that each pod gets one of its own from.

use api::types::resource::v1 as resource;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::devices as rules;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::metadata;
use crate::shape::Shape;

pub struct ResourceClaimTemplate;

impl Kind for ResourceClaimTemplate {
    type Object = resource::ResourceClaimTemplate;
    const SHAPE: Shape = Shape::namespaced("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
        .singular("resourceclaimtemplate");

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, template: &mut Self::Object) {
        rules::default_claim(template.spec.as_mut().and_then(|spec| spec.spec.as_mut()));
    }

    fn validate(ctx: &Ctx, template: &Self::Object, errors: &mut FieldErrors) {
        let Some(spec) = template.spec.as_ref().filter(|_| ctx.verb == Verb::Create) else { return };
        let path = Path::new("spec");
        if let Some(given) = &spec.metadata {
            let path = path.child("metadata");
            let pairs = |map: &'_ Option<std::collections::BTreeMap<String, String>>| map.clone().unwrap_or_default();
            let (labels, notes) = (pairs(&given.labels), pairs(&given.annotations));
            let notes = notes.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            metadata::validate_annotations(notes, &path.child("annotations"), errors);
            let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            metadata::validate_labels(labels, &path.child("labels"), errors);
        }
        rules::claim(spec.spec.as_ref(), &path.child("spec"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::AGE] },
            row: |template, now| {
                (vec![cells::name(&template.metadata), cells::of(&template.metadata, now)], Vec::new())
            },
        }
    }
}
