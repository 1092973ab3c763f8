//! What can be done at which path, as data that both forms of OpenAPI are written from; pure.

use kinds::{Keep, Shape};
use machinery::schema::{Type, TypeRef};

use super::model;
use crate::discovery::{self, Sub, Version};
use crate::verbs;

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: String,
    /// `boolean`, `integer`, `string`.
    pub(super) kind: &'static str,
    /// `query` or `path`.
    pub(super) place: &'static str,
}

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    /// `get`, `put`, `post`, `patch`, `delete`.
    pub(super) method: &'static str,
    /// `list`, `get`, …: upstream's word for it.
    pub(super) action: &'static str,
    pub(super) id: String,
    pub(super) tag: String,
    /// Group, version and kind it is about.
    pub(super) kind: (String, String, String),
    pub(super) parameters: Vec<Parameter>,
    /// The definition of what is sent.
    pub(super) body: Option<String>,
    /// The definition of what comes back; `None` for text.
    pub(super) reply: Option<String>,
    pub(super) codes: &'static [u16],
}

/// One path with its operations.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) path: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

/// What patches may be written in.
pub(super) fn patch_types() -> Vec<&'static str> {
    verbs::patch::TYPES.iter().copied().chain([verbs::apply::TYPE]).collect()
}

/// What objects come back in.
pub(super) const TYPES: &[&str] = &["application/json", "application/yaml"];
/// What objects may be sent in.
pub(super) const BODY_TYPES: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

const LIST: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITE: &[(&str, &str)] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];

fn query(list: &[(&str, &'static str)]) -> Vec<Parameter> {
    list.iter().map(|(name, kind)| Parameter { name: (*name).to_owned(), kind, place: "query" }).collect()
}

fn in_path(name: &str) -> Parameter {
    Parameter { name: name.to_owned(), kind: "string", place: "path" }
}

/// `rbac.authorization.k8s.io` → `RbacAuthorization`.
fn camel(group: &str) -> String {
    let group = if group.is_empty() { "core" } else { group.strip_suffix(".k8s.io").unwrap_or(group) };
    group.split('.').map(capital).collect()
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// What the operations of one kind share.
struct Names {
    /// `AppsV1`.
    place: String,
    /// `Namespaced` or empty.
    scope: &'static str,
    tag: String,
    kind: (String, String, String),
}

fn definition(t: Option<Type>) -> Option<String> {
    t.map(|t| model::name(t.get()))
}

/// The type of a kind's lists.
pub(super) fn list_type(shape: &Shape) -> Option<Type> {
    api::schema::of(shape.group, shape.version, &format!("{}List", shape.kind))
}

/// The type a subresource is read and written as.
pub(super) fn sub_type(shape: &Shape, sub: &Sub) -> Option<Type> {
    if sub.version.is_empty() {
        api::schema::of(shape.group, shape.version, sub.kind)
    } else {
        api::schema::of(sub.group, sub.version, sub.kind)
    }
}

/// Types that the documents of all groups use.
pub(super) fn common() -> Vec<Type> {
    ["DeleteOptions", "Status", "APIResourceList", "WatchEvent"]
        .into_iter()
        .filter_map(|name| api::schema::find("meta/v1", name))
        .collect()
}

/// The paths of one version of a group, sorted.
pub(super) fn of(group: &str, version: &Version) -> Vec<Path> {
    let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
    let root = format!("{root}/{}", version.name);
    let mut first = camel(group);
    first.replace_range(..1, &first[..1].to_ascii_lowercase());
    let place = format!("{}{}", camel(group), capital(version.name));
    let tag = format!("{first}_{}", version.name);
    let mut out = vec![resources(&root, group, version.name, &place, &tag)];
    for kind in &version.kinds {
        let shape = kind.shape();
        let names = Names {
            place: place.clone(),
            scope: if shape.is_namespaced() { "Namespaced" } else { "" },
            tag: tag.clone(),
            kind: (shape.group.to_owned(), shape.version.to_owned(), shape.kind.to_owned()),
        };
        of_kind(&root, shape, &names, &mut out);
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

fn resources(root: &str, group: &str, version: &str, place: &str, tag: &str) -> Path {
    let get = Operation {
        method: "get",
        action: "",
        id: format!("get{place}APIResources"),
        tag: tag.to_owned(),
        kind: (group.to_owned(), version.to_owned(), String::new()),
        parameters: Vec::new(),
        body: None,
        reply: definition(api::schema::find("meta/v1", "APIResourceList")),
        codes: &[200],
    };
    Path { path: format!("{root}/"), parameters: Vec::new(), operations: vec![get] }
}

impl Names {
    fn operation(&self, method: &'static str, action: &'static str, id: String) -> Operation {
        Operation {
            method,
            action,
            id,
            tag: self.tag.clone(),
            kind: self.kind.clone(),
            parameters: Vec::new(),
            body: None,
            reply: None,
            codes: &[200],
        }
    }
}

fn of_kind(root: &str, shape: &'static Shape, names: &Names, out: &mut Vec<Path>) {
    let object = definition(api::schema::of(shape.group, shape.version, shape.kind));
    let list = definition(list_type(shape));
    let status = definition(api::schema::find("meta/v1", "Status"));
    let options = definition(api::schema::find("meta/v1", "DeleteOptions"));
    let can = |verb: &str| shape.verbs.contains(&verb);
    let Names { place, scope, .. } = names;
    let kind = shape.kind;
    let base = if shape.is_namespaced() { "/namespaces/{namespace}" } else { "" };
    let mut parameters = vec![Parameter { name: "pretty".into(), kind: "string", place: "query" }];
    if shape.is_namespaced() {
        parameters.push(in_path("namespace"));
    }
    let mut collection = Vec::new();
    let lists =
        |id: String| Operation { parameters: query(LIST), reply: list.clone(), ..names.operation("get", "list", id) };
    if can("list") {
        collection.push(lists(format!("list{place}{scope}{kind}")));
    }
    if can("create") {
        // Reviews are answered in their own kind as well.
        collection.push(Operation {
            parameters: query(WRITE),
            body: object.clone(),
            reply: object.clone(),
            codes: &[200, 201, 202],
            ..names.operation("post", "post", format!("create{place}{scope}{kind}"))
        });
    }
    if can("deletecollection") {
        let mut all = query(DELETE);
        let selecting = |(name, _): &&(&str, &str)| !matches!(*name, "allowWatchBookmarks" | "watch");
        all.extend(query(&LIST.iter().filter(selecting).copied().collect::<Vec<_>>()));
        collection.push(Operation {
            parameters: all,
            body: options.clone(),
            reply: status.clone(),
            ..names.operation("delete", "deletecollection", format!("delete{place}Collection{scope}{kind}"))
        });
    }
    let path = format!("{root}{base}/{}", shape.plural);
    out.push(Path { path: path.clone(), parameters: parameters.clone(), operations: collection });
    if shape.is_namespaced() && can("list") {
        let pretty = vec![parameters[0].clone()];
        let everywhere = lists(format!("list{place}{kind}ForAllNamespaces"));
        let path = format!("{root}/{}", shape.plural);
        out.push(Path { path, parameters: pretty, operations: vec![everywhere] });
    }
    parameters.push(in_path("name"));
    let mut one = Vec::new();
    if can("get") {
        one.push(Operation {
            reply: object.clone(),
            ..names.operation("get", "get", format!("read{place}{scope}{kind}"))
        });
    }
    if can("update") {
        one.push(put(names, object.clone(), format!("replace{place}{scope}{kind}")));
    }
    if can("patch") {
        one.push(patch(names, object.clone(), format!("patch{place}{scope}{kind}")));
    }
    if can("delete") {
        one.push(Operation {
            parameters: query(DELETE),
            body: options,
            reply: status,
            codes: &[200, 202],
            ..names.operation("delete", "delete", format!("delete{place}{scope}{kind}"))
        });
    }
    let path = format!("{path}/{{name}}");
    if !one.is_empty() {
        out.push(Path { path: path.clone(), parameters: parameters.clone(), operations: one });
    }
    if shape.keep == Keep::Virtual {
        return;
    }
    for sub in discovery::subresources(shape) {
        let operations = of_sub(shape, &sub, names);
        out.push(Path { path: format!("{path}/{}", sub.name), parameters: parameters.clone(), operations });
    }
}

fn put(names: &Names, object: Option<String>, id: String) -> Operation {
    Operation {
        parameters: query(WRITE),
        body: object.clone(),
        reply: object,
        codes: &[200, 201],
        ..names.operation("put", "put", id)
    }
}

fn patch(names: &Names, object: Option<String>, id: String) -> Operation {
    let mut parameters = query(WRITE);
    parameters.extend(query(&[("force", "boolean")]));
    Operation {
        parameters,
        body: Some("io.k8s.apimachinery.pkg.apis.meta.v1.Patch".to_owned()),
        reply: object,
        codes: &[200, 201],
        ..names.operation("patch", "patch", id)
    }
}

fn of_sub(shape: &'static Shape, sub: &Sub, names: &Names) -> Vec<Operation> {
    let Names { place, scope, .. } = names;
    let what = format!("{scope}{}{}", shape.kind, capital(sub.name));
    let object = definition(sub_type(shape, sub));
    let own = Names {
        place: names.place.clone(),
        scope: names.scope,
        tag: names.tag.clone(),
        kind: if sub.version.is_empty() {
            (names.kind.0.clone(), names.kind.1.clone(), sub.kind.to_owned())
        } else {
            (sub.group.to_owned(), sub.version.to_owned(), sub.kind.to_owned())
        },
    };
    // Streams take their options from the query; `log` is one of them though it names the Pod.
    let stream = if sub.name == "log" {
        api::schema::of("", "v1", "PodLogOptions")
    } else {
        sub_type(shape, sub).filter(|_| sub.kind.ends_with("Options"))
    };
    let mut out = Vec::new();
    for verb in sub.verbs {
        out.push(match (*verb, &stream) {
            ("get", Some(options)) => {
                let (action, id) = if sub.name == "log" {
                    ("get", format!("read{place}{what}"))
                } else {
                    ("connect", format!("connect{place}Get{what}"))
                };
                Operation { parameters: options_as_query(options.get()), ..own.operation("get", action, id) }
            }
            ("create", Some(options)) => Operation {
                parameters: options_as_query(options.get()),
                ..own.operation("post", "connect", format!("connect{place}Post{what}"))
            },
            (_, Some(_)) => continue,
            ("get", None) => {
                Operation { reply: object.clone(), ..own.operation("get", "get", format!("read{place}{what}")) }
            }
            ("create", None) => Operation {
                parameters: query(WRITE),
                body: object.clone(),
                reply: object.clone(),
                codes: &[200, 201, 202],
                ..own.operation("post", "post", format!("create{place}{what}"))
            },
            ("update", None) => put(&own, object.clone(), format!("replace{place}{what}")),
            ("patch", None) => patch(&own, object.clone(), format!("patch{place}{what}")),
            _ => continue,
        });
    }
    out
}

fn options_as_query(t: TypeRef<'_>) -> Vec<Parameter> {
    use machinery::schema::{Scalar, Shape};
    let kind = |shape: Shape<'_>| match shape {
        Shape::Scalar(Scalar::Bool) => "boolean",
        Shape::Scalar(Scalar::Int32 | Scalar::Int64) => "integer",
        _ => "string",
    };
    t.fields()
        .filter(|f| !matches!(f.name(), "kind" | "apiVersion"))
        .map(|f| Parameter { name: f.name().to_owned(), kind: kind(f.shape()), place: "query" })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_in_operation_names() {
        for (group, want) in [
            ("", "Core"),
            ("apps", "Apps"),
            ("rbac.authorization.k8s.io", "RbacAuthorization"),
            ("explain.pintle.dev", "ExplainPintleDev"),
        ] {
            assert_eq!(camel(group), want);
        }
    }
}
