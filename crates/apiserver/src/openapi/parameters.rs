//! The parameters of operations: those of paths, and those that come from the types of options; pure.

use machinery::schema::{Scalar, Shape, Type};

use super::texts::Texts;

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: String,
    /// `boolean`, `integer`, `string`.
    pub(super) kind: &'static str,
    /// `query` or `path`.
    pub(super) place: &'static str,
    pub(super) text: String,
}

/// What options are for whose types no source describes.
const TEXTS: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "Lets a watch send BOOKMARK events, which carry a resourceVersion to resume from."),
    ("command", "The command to run, as it is: one parameter per argument, no shell."),
    ("container", "The container; may be left out when the pod has only one."),
    ("continue", "The token of the page before, to get the next page of a list."),
    ("fieldManager", "The name under which the fields that the request sets are owned. Apply requires it."),
    ("fieldSelector", "Only objects whose fields have these values."),
    (
        "fieldValidation",
        "What is done about unknown and duplicate fields: Ignore drops them, Warn (the default) drops them and warns, \
         Strict refuses the request.",
    ),
    ("follow", "Go on sending lines as they are written."),
    ("force", "Take over fields that other managers own. Only for apply."),
    ("insecureSkipTLSVerifyBackend", "Do not check the kubelet's serving certificate."),
    ("labelSelector", "Only objects whose labels match."),
    ("limit", "At most this many objects; the answer says how to get the next."),
    ("limitBytes", "End after this many bytes."),
    ("path", "The path of the request that is passed on."),
    ("ports", "The ports to forward."),
    ("previous", "The log of the container before its last restart."),
    ("resourceVersion", "How new the answer must be, or where a watch starts."),
    ("resourceVersionMatch", "How resourceVersion is meant: NotOlderThan or Exact."),
    ("sendInitialEvents", "Lets a watch begin with the objects there are, ended by a bookmark."),
    ("shardSelector", "Only objects of a part of the whole, for several clients that share one list."),
    ("sinceSeconds", "Only lines of the last so many seconds."),
    ("stderr", "Attach the standard error."),
    ("stdin", "Attach the standard input."),
    ("stdout", "Attach the standard output."),
    ("stream", "Which of the container's streams: All, Stdout or Stderr."),
    ("tailLines", "Only the last so many lines."),
    ("timeoutSeconds", "When a list or watch ends, whatever its state."),
    ("timestamps", "Begin each line with the time it was written."),
    ("tty", "Allocate a terminal."),
    ("watch", "Send changes as they happen instead of a list."),
];

fn path(name: &str, text: String) -> Parameter {
    Parameter { name: name.to_owned(), kind: "string", place: "path", text }
}

/// Takes the output indented.
pub(super) fn pretty() -> Parameter {
    let text = "Indents the answer when 'true', as it is for browsers and command-line tools by default.".to_owned();
    Parameter { name: "pretty".to_owned(), kind: "string", place: "query", text }
}

/// The namespace in a path.
pub(super) fn namespace() -> Parameter {
    path("namespace", "The namespace of the objects.".to_owned())
}

/// The rest of a path that is passed on.
pub(super) fn rest() -> Parameter {
    path("path", "path to the resource".to_owned())
}

/// The name in a path, of an object of the kind.
pub(super) fn name(kind: &str) -> Parameter {
    path("name", format!("name of the {kind}"))
}

/// The fields of a type as parameters of a query: scalars, and lists of them.
pub(super) fn of_options(t: &Type, except: &[&str], texts: &Texts) -> Vec<Parameter> {
    let definition = super::model::name(t.get());
    // Options to create, update and patch share what is said of those to delete.
    let shared = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
    let mut out = Vec::new();
    for field in t.fields() {
        let Some(kind) = kind(field.shape()) else { continue };
        let name = field.name();
        if matches!(name, "kind" | "apiVersion") || except.contains(&name) {
            continue;
        }
        let own = texts.field(&definition, name, false).or_else(|| texts.field(shared, name, false));
        let text = own.or_else(|| TEXTS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)).unwrap_or_default();
        out.push(Parameter { name: name.to_owned(), kind, place: "query", text: text.to_owned() });
    }
    out
}

fn kind(shape: Shape<'_>) -> Option<&'static str> {
    match shape {
        Shape::Scalar(Scalar::Bool) => Some("boolean"),
        Shape::Scalar(Scalar::Int32 | Scalar::Int64) => Some("integer"),
        Shape::Scalar(Scalar::String) => Some("string"),
        Shape::List(inner) => kind(inner.shape()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_says_what_it_is_for() {
        let texts = Texts::unpack();
        let (mut seen, mut said) = (Vec::new(), 0);
        for (package, name) in [
            ("meta/v1", "ListOptions"),
            ("meta/v1", "DeleteOptions"),
            ("meta/v1", "CreateOptions"),
            ("meta/v1", "UpdateOptions"),
            ("meta/v1", "PatchOptions"),
            ("core/v1", "PodLogOptions"),
            ("core/v1", "PodExecOptions"),
            ("core/v1", "PodAttachOptions"),
            ("core/v1", "PodPortForwardOptions"),
            ("core/v1", "PodProxyOptions"),
        ] {
            let t = api::schema::find(package, name).expect(name);
            for parameter in of_options(&t, &[], &texts) {
                assert!(!parameter.text.is_empty(), "{name}.{}", parameter.name);
                said += 1;
                seen.push(parameter.name);
            }
        }
        assert!(said > 40, "{said}");
        for (name, _) in TEXTS {
            assert!(seen.iter().any(|s| s == name), "{name} is described and nowhere used");
        }
    }

    #[test]
    fn structs_and_times_are_no_parameters() {
        let t = api::schema::find("core/v1", "PodLogOptions").expect("a type");
        let names: Vec<String> = of_options(&t, &["follow"], &Texts::unpack()).into_iter().map(|p| p.name).collect();
        assert!(names.contains(&"tailLines".to_owned()));
        assert!(!names.iter().any(|n| n == "sinceTime" || n == "follow" || n == "kind"), "{names:?}");
    }
}
