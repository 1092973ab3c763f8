//! RuntimeClass: which handler of the runtime runs a pod, what that costs, and on which nodes it is.

use api::types::core::v1::ResourceRequirements;
use api::types::node::v1 as node;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::metadata;
use crate::old_labels;
use crate::pod::{validate_container, validate_scheduling};
use crate::resources;
use crate::shape::Shape;

pub struct RuntimeClass;

impl Kind for RuntimeClass {
    type Object = node::RuntimeClass;
    const SHAPE: Shape = Shape::cluster("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
        .singular("runtimeclass")
        .create_on_update()
        .conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, class: &mut Self::Object) {
        if let Some(overhead) = &mut class.overhead {
            resources::round(&mut overhead.pod_fixed);
        }
    }

    fn validate(_ctx: &Ctx, class: &Self::Object, errors: &mut FieldErrors) {
        check::all(names::dns1123_label(&class.handler), &Path::new("handler"), &class.handler, errors);
        if let Some(overhead) = &class.overhead {
            let limits = ResourceRequirements { limits: overhead.pod_fixed.clone(), ..Default::default() };
            validate_container::requirements(&limits, &Path::new("overhead"), errors);
        }
        if let Some(scheduling) = &class.scheduling {
            let path = Path::new("scheduling");
            let labels = scheduling.node_selector.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
            metadata::validate_labels(labels, &path.child("nodeSelector"), errors);
            validate_scheduling::tolerations(&scheduling.tolerations, &path.child("tolerations"), errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.handler, &old.handler, &Path::new("handler"), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let path = Path::new("scheduling").child("nodeSelector");
        let keys = new.scheduling.iter().flat_map(|scheduling| scheduling.node_selector.iter().flatten());
        let old = keys.filter_map(|(key, _)| Some((key, old_labels::advice(key)?)));
        old.map(|(key, advice)| format!("{}: {advice}", path.key(key))).collect()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("Handler", "What the runtime calls it."), Column::AGE] },
            row: |class, now| {
                let row =
                    vec![cells::name(&class.metadata), class.handler.clone().into(), cells::of(&class.metadata, now)];
                (row, Vec::new())
            },
        }
    }
}
