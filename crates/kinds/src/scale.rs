//! Scale: how many pods an object wants and has, whatever kind it is. The form of the subresource
//! `scale`; there is no collection of it.

use api::types::autoscaling::v1::Scale as Object;
use machinery::names;

use crate::cells;
use crate::kind::{Column, Columns, Kind};
use crate::shape::{Keep, Shape};

pub struct Scale;

impl Kind for Scale {
    type Object = Object;
    const SHAPE: Shape =
        Shape::namespaced("autoscaling", "v1", "Scale", "scales").singular("scale").keep(Keep::Virtual).verbs(&[]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::number("Desired", "Pods wanted."),
                    Column::number("Available", "Pods there."),
                    Column::AGE,
                ]
            },
            row: |scale, now| {
                let wanted = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
                let there = scale.status.as_ref().map_or(0, |status| status.replicas);
                let row =
                    vec![cells::name(&scale.metadata), wanted.into(), there.into(), cells::of(&scale.metadata, now)];
                (row, Vec::new())
            },
        }
    }
}
