//! PodTemplate: what a pod is made from, kept by itself.

use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::pod;
use crate::shape::Shape;

pub struct PodTemplate;

impl Kind for PodTemplate {
    type Object = core::PodTemplate;
    const SHAPE: Shape =
        Shape::namespaced("", "v1", "PodTemplate", "podtemplates").singular("podtemplate").generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, object: &mut Self::Object) {
        pod::defaults::template(object.template.get_or_insert_default());
    }

    fn validate(ctx: &Ctx, object: &Self::Object, errors: &mut FieldErrors) {
        let none = core::PodTemplateSpec::default();
        pod::template::alone(ctx, object.template.as_ref().unwrap_or(&none), &Path::new("template"), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let changed = old.is_none_or(|old| old.template != new.template);
        new.template
            .iter()
            .filter(|_| changed)
            .flat_map(|t| pod::template::warnings(t, &Path::new("template")))
            .collect()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Containers", "Names of its containers."),
                    Column::text("Images", "Images of its containers."),
                    Column::text("Pod Labels", "Labels of its pods."),
                ]
            },
            row: |object, _| {
                let template = object.template.as_ref();
                let spec = template.and_then(|template| template.spec.as_ref());
                let labels = template.map(pod::defaults::template_labels);
                let row = vec![
                    cells::name(&object.metadata),
                    cells::container_names(spec),
                    cells::container_images(spec),
                    cells::labels(labels.as_ref()),
                ];
                (row, Vec::new())
            },
        }
    }
}
