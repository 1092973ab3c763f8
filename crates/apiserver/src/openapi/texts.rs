//! What types and fields are for, as `kubectl explain` shows it: gathered by `build.rs`, packed in the
//! binary, unpacked while a document is written and then forgotten.

use std::io::Read as _;
use std::ops::Range;

const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/texts.z"));

/// Where texts are that belong to many types alike.
const ANY_ROOT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const ANY_LIST: &str = "io.k8s.List";

/// A definition, what it is for, and its fields with what they are for.
type About = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The texts of the kinds of this project.
const OWN: &[About] = &[
    (
        "dev.pintle.explain.v1alpha1.Wait",
        "Wait says what an object waits for. It exists while the object waits and no longer.",
        &[
            ("metadata", "Metadata of the Wait, not of what waits."),
            ("layer", "The component that waits, for example scheduler or kubelet."),
            ("code", "The reason as one word, for programs."),
            ("object", "What waits."),
            ("on", "What is waited for."),
            ("since", "Since when."),
            ("text", "The reason as a sentence, for people."),
        ],
    ),
    (
        "io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics",
        "NodeMetrics says what a node uses.",
        &[
            ("metadata", "Metadata of the answer: the node's name and labels."),
            ("timestamp", "The end of the window."),
            ("window", "How long the use of processors was looked at."),
            ("usage", "The use of processors over the window, and of memory at its end."),
        ],
    ),
    (
        "io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics",
        "PodMetrics says what the containers of a pod use.",
        &[
            ("metadata", "Metadata of the answer: the pod's name, namespace and labels."),
            ("timestamp", "The end of the window."),
            ("window", "How long the use of processors was looked at."),
            ("containers", "What each container uses, all over the same window."),
        ],
    ),
    (
        "io.k8s.metrics.pkg.apis.metrics.v1beta1.ContainerMetrics",
        "ContainerMetrics says what a container uses.",
        &[
            ("name", "Name of the container in the pod."),
            ("usage", "The use of processors over the window, and of memory at its end."),
        ],
    ),
    (
        "dev.pintle.explain.v1alpha1.WaitObject",
        "WaitObject names what waits.",
        &[
            ("apiVersion", "Group and version of the object."),
            ("kind", "Kind of the object."),
            ("namespace", "Namespace of the object; empty at cluster scope."),
            ("name", "Name of the object."),
            ("uid", "UID of the object."),
        ],
    ),
];

/// The unpacked texts.
pub struct Texts {
    text: String,
    /// Definitions with their records, sorted by name.
    records: Vec<(Range<usize>, Range<usize>)>,
}

impl Texts {
    /// Unpacks them: some 800 KB, in some milliseconds.
    pub fn unpack() -> Self {
        let mut text = String::new();
        // A test reads them; what is damaged here is the program itself.
        if flate2::read::ZlibDecoder::new(PACKED).read_to_string(&mut text).is_err() {
            text.clear();
        }
        let mut records = Vec::new();
        let mut start = 0;
        for record in text.split_terminator('\x01') {
            let end = start + record.len();
            if let Some(name) = record.find('\0') {
                records.push((start..start + name, start + name + 1..end));
            }
            start = end + 1;
        }
        records.sort_by(|a, b| text[a.0.clone()].cmp(&text[b.0.clone()]));
        Self { text, records }
    }

    fn record(&self, definition: &str) -> Option<&str> {
        let found = self.records.binary_search_by(|(name, _)| self.text[name.clone()].cmp(definition)).ok()?;
        Some(&self.text[self.records[found].1.clone()])
    }

    fn part(&self, definition: &str, field: &str) -> Option<&str> {
        let mut parts = self.record(definition)?.split('\0').skip(1);
        while let (Some(name), Some(text)) = (parts.next(), parts.next()) {
            if name == field {
                return Some(text);
            }
        }
        None
    }

    /// What a type is for: `about("io.k8s.api.core.v1.Pod")`.
    pub fn about(&self, definition: &str) -> Option<String> {
        let own = OWN.iter().find(|(name, ..)| *name == definition).map(|(_, text, _)| *text);
        let text = own.or_else(|| self.record(definition)?.split('\0').next()).filter(|text| !text.is_empty());
        text.map(str::to_owned).or_else(|| {
            let kind = definition.rsplit('.').next()?;
            let item = kind.strip_suffix("List").filter(|item| !item.is_empty())?;
            Some(format!("{kind} is a list of objects of kind {item}."))
        })
    }

    /// What a field of a type is for. `root` is true for types with a kind of their own.
    pub fn field(&self, definition: &str, field: &str, root: bool) -> Option<&str> {
        let own = OWN.iter().find(|(name, ..)| *name == definition);
        let own = own.and_then(|(_, _, fields)| fields.iter().find(|(name, _)| *name == field));
        own.map(|(_, text)| *text).or_else(|| self.part(definition, field)).or_else(|| match field {
            "kind" | "apiVersion" if root => self.part(ANY_ROOT, field),
            "items" | "metadata" if root && definition.ends_with("List") => self.part(ANY_LIST, field),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_under_the_names_of_json() {
        let texts = Texts::unpack();
        assert!(texts.records.len() > 700, "{}", texts.records.len());
        let container = "io.k8s.api.core.v1.Container";
        assert!(texts.about(container).is_some_and(|t| t.contains("container")));
        for field in ["name", "envFrom", "restartPolicyRules"] {
            assert!(texts.field(container, field, false).is_some_and(|t| t.len() > 20), "{field}");
        }
        assert_eq!(texts.field(container, "env_from", false), None);
        // A name that Rust keeps for itself.
        assert!(texts.field("io.k8s.api.core.v1.NodeCondition", "type", false).is_some());
        assert_eq!(texts.about("io.k8s.api.core.v1.Nothing"), None);
    }

    #[test]
    fn what_no_source_tells_is_told_alike_for_all() {
        let texts = Texts::unpack();
        let (pod, list) = ("io.k8s.api.core.v1.Pod", "io.k8s.api.core.v1.PodList");
        for (definition, field) in [(pod, "kind"), (pod, "apiVersion"), (list, "items"), (list, "metadata")] {
            assert!(texts.field(definition, field, true).is_some(), "{definition}.{field}");
        }
        assert_eq!(texts.about(list).as_deref(), Some("PodList is a list of objects of kind Pod."));
        assert_eq!(texts.field("io.k8s.api.core.v1.ContainerState", "kind", false), None);
    }

    #[test]
    fn texts_have_no_marks_of_another_language() {
        let texts = Texts::unpack();
        for mark in ["\\<", "\\>", "\\[", "\\`", "\\*", "\\_"] {
            assert!(!texts.text.contains(mark), "{mark}");
        }
    }
}
