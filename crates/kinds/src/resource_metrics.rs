//! NodeMetrics and PodMetrics: what nodes and pods use, as `kubectl top` and autoscalers ask. Answered from
//! what kubelets tell, never stored.

use std::collections::BTreeMap;

use api::k8s::apimachinery::pkg::api::resource::Quantity as Text;
use api::resource_metrics as own;
use machinery::names;
use machinery::quantity::Quantity;

use crate::cells;
use crate::kind::{Cell, Column, Columns, Kind};
use crate::shape::{Keep, Shape};

pub struct NodeMetrics;

impl Kind for NodeMetrics {
    type Object = own::NodeMetrics;
    const SHAPE: Shape = Shape::cluster(own::GROUP, "v1beta1", "NodeMetrics", "nodes")
        .singular("nodemetrics")
        .keep(Keep::Virtual)
        .verbs(&["get", "list"]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn columns() -> Columns<Self::Object> {
        Columns { columns: COLUMNS, row: |m, _| (row(cells::name(&m.metadata), [&m.usage], &m.window), Vec::new()) }
    }
}

pub struct PodMetrics;

impl Kind for PodMetrics {
    type Object = own::PodMetrics;
    const SHAPE: Shape = Shape::namespaced(own::GROUP, "v1beta1", "PodMetrics", "pods")
        .singular("podmetrics")
        .keep(Keep::Virtual)
        .verbs(&["get", "list"]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: COLUMNS,
            row: |m, _| (row(cells::name(&m.metadata), m.containers.iter().map(|c| &c.usage), &m.window), Vec::new()),
        }
    }
}

const COLUMNS: &[Column<'static>] = &[
    Column::NAME,
    Column::text("cpu", "Processors used, on average over the window."),
    Column::text("memory", "Memory used that cannot be given back."),
    Column::text("Window", "What the use of processors is an average of."),
];

fn row<'a>(name: Cell, usages: impl IntoIterator<Item = &'a BTreeMap<String, Text>>, window: &str) -> Vec<Cell> {
    let (mut milli, mut bytes) = (0i128, 0i128);
    for usage in usages {
        let of = |name: &str| usage.get(name).and_then(|text| text.0.parse::<Quantity>().ok());
        // Rounded up, as quantities are: a processor that is used a little is used.
        milli += of("cpu").map_or(0, |q| q.milli());
        bytes += of("memory").map_or(0, |q| q.value());
    }
    vec![name, format!("{milli}m").into(), format!("{}Ki", bytes / 1024).into(), window.to_owned().into()]
}
