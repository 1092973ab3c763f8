//! ImageLocality: better where large images of the pod are already present.

use super::{Judge, MAX_SCORE, Plugin};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct ImageLocality;

/// Images below this are pulled in no time.
const SMALL: i64 = 23 * 1024 * 1024;
/// Per container, above this more makes no difference.
const LARGE: i64 = 1000 * 1024 * 1024;

struct Prepared {
    /// Normalized names with the part of all nodes that have them.
    images: Vec<(String, f64)>,
}

/// The name with `:latest` when it has neither tag nor digest.
fn normalized(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') { image.to_owned() } else { format!("{image}:latest") }
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn prepare<'a>(&'a self, pod: &'a PodInfo, snapshot: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        let nodes = snapshot.len().max(1) as f64;
        let spread = |image: &String| {
            let image = normalized(image);
            let part = snapshot.nodes_with_image(&image) as f64 / nodes;
            (image, part)
        };
        let images: Vec<_> = pod.images.iter().map(spread).collect();
        // Where no node has any of them all nodes are alike.
        if images.iter().all(|(_, part)| *part == 0.0) {
            return None;
        }
        Some(Box::new(Prepared { images }))
    }
}

impl Judge for Prepared {
    fn scores(&self) -> bool {
        true
    }

    /// A rare image counts for less, so that its one node does not draw all pods.
    fn score(&self, node: &NodeInfo) -> i64 {
        let present = self.images.iter().filter_map(|(image, part)| Some(*node.images.get(image)? as f64 * part));
        let sum = present.sum::<f64>() as i64;
        let most = LARGE.saturating_mul(self.images.len() as i64);
        MAX_SCORE * (sum.clamp(SMALL, most) - SMALL) / (most - SMALL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{node, pod, roomy, scores};
    use super::*;
    use serde_json::json;

    #[test]
    fn a_large_image_present_scores() {
        let with = |name: &str, size: Option<i64>| {
            let mut facts = roomy(name);
            facts.images.extend(size.map(|s| ("registry:5000/app:latest".to_owned(), s)));
            node(facts, vec![])
        };
        let pod = pod("p", json!({"containers": [{"name": "c", "image": "registry:5000/app"}]}));
        let nodes = [with("a", Some(1000 * 1024 * 1024)), with("b", None)];
        assert_eq!(scores(&ImageLocality, &pod, &nodes), Some(vec![48, 0]));
        assert_eq!(scores(&ImageLocality, &pod, &[with("a", Some(1)), with("b", None)]), Some(vec![0, 0]));
        assert_eq!(scores(&ImageLocality, &pod, &[with("b", None)]), None);
        assert_eq!(normalized("a/b@sha256:0"), "a/b@sha256:0");
    }
}
