//! What can be done at which path, as data that both forms of OpenAPI are written from; pure.

use kinds::{AnyKind, AnyShape, Keep};
use machinery::schema::Type;

use super::model;
use super::parameters::{self, Parameter};
use super::texts::Texts;
use crate::discovery::{self, Sub, Version};
use crate::verbs;

/// Group, version and kind.
pub(super) type Gvk = (String, String, String);

/// One operation.
#[derive(Clone, Debug, Default)]
pub(super) struct Operation {
    /// `get`, `put`, `post`, `patch`, `delete`, `head`, `options`.
    pub(super) method: &'static str,
    pub(super) id: String,
    /// What it does, as a sentence without a stop.
    pub(super) text: String,
    pub(super) tag: String,
    /// `list`, `get`, … and what it is about; `None` for what is about no kind.
    pub(super) action: Option<(&'static str, Gvk)>,
    /// Without those that the path has for all its operations.
    pub(super) parameters: Vec<Parameter>,
    /// The definition of what is sent, and whether it must be.
    pub(super) body: Option<(String, bool)>,
    /// The definition of what comes back; `None` for text.
    pub(super) reply: Option<String>,
    pub(super) codes: &'static [u16],
    pub(super) consumes: Vec<&'static str>,
    pub(super) produces: Vec<&'static str>,
}

/// One path with its operations.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) path: String,
    /// What every operation takes.
    pub(super) parameters: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

impl Path {
    /// Parameters that all operations have become the path's own.
    fn new(path: String, mut operations: Vec<Operation>) -> Self {
        let (first, rest) = operations.split_first().map_or((&[][..], &[][..]), |(f, r)| (&f.parameters[..], r));
        let everywhere = |p: &&Parameter| rest.iter().all(|o| o.parameters.contains(p));
        let mut parameters: Vec<Parameter> = first.iter().filter(everywhere).cloned().collect();
        parameters.sort_by(|a, b| a.name.cmp(&b.name));
        for operation in &mut operations {
            operation.parameters.retain(|p| !parameters.contains(p));
            operation.parameters.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Self { path, parameters, operations }
    }
}

/// The subresource that passes requests on, whatever their method and the rest of their path.
const PROXY: &str = "proxy";

/// What objects come back in.
pub(super) const TYPES: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
/// What watches come back in.
const STREAMS: &[&str] = &["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

/// What patches may be written in. What may be patched how is for kubectl to find out here: custom resources
/// know no strategic patch.
fn patch_types(is_custom: bool) -> Vec<&'static str> {
    let types = if is_custom { &verbs::patch::TYPES[..2] } else { &verbs::patch::TYPES };
    types.iter().copied().chain([verbs::apply::TYPE]).collect()
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

/// `appsV1` → `apps_v1`: the tag of a group, and of its version.
fn tag(group: &str, version: Option<&str>) -> String {
    let mut out = camel(group);
    out.replace_range(..1, &out[..1].to_ascii_lowercase());
    version.map_or(out.clone(), |version| format!("{out}_{version}"))
}

fn definition(t: Option<Type>) -> Option<String> {
    t.map(|t| model::name(t.get()))
}

fn meta(name: &str) -> Option<Type> {
    api::schema::find("meta/v1", name)
}

/// The type of a kind's lists.
fn list_type(shape: &AnyShape<'_>) -> Option<Type> {
    api::schema::of(shape.group, shape.version, &format!("{}List", shape.kind))
}

/// The type a subresource is read and written as.
fn sub_type(shape: &AnyShape<'_>, sub: &Sub<'_>) -> Option<Type> {
    if sub.version.is_empty() {
        api::schema::of(shape.group, shape.version, sub.kind)
    } else {
        api::schema::of(sub.group, sub.version, sub.kind)
    }
}

/// Everything that documents name beside the kinds: `/apis` and the like.
pub(super) fn of_roots(group: Option<&str>, core: bool) -> Path {
    let (path, id, text, tag, reply) = match group {
        Some(group) => (
            format!("/apis/{group}/"),
            format!("get{}APIGroup", camel(group)),
            "get information of a group",
            tag(group, None),
            "APIGroup",
        ),
        None if core => {
            ("/api/".into(), "getCoreAPIVersions".into(), "get available API versions", "core".into(), "APIVersions")
        }
        None => ("/apis/".into(), "getAPIVersions".into(), "get available API versions", "apis".into(), "APIGroupList"),
    };
    let get = Operation {
        method: "get",
        id,
        text: text.to_owned(),
        tag,
        reply: definition(meta(reply)),
        codes: &[200],
        consumes: TYPES.to_vec(),
        produces: TYPES.to_vec(),
        ..Operation::default()
    };
    Path::new(path, vec![get])
}

/// `/version`.
pub(super) fn of_version() -> Path {
    let get = Operation {
        method: "get",
        id: "getCodeVersion".into(),
        text: "get the version information for this server".into(),
        tag: "version".into(),
        reply: Some(model::VERSION.into()),
        codes: &[200],
        consumes: vec![TYPES[0]],
        produces: vec![TYPES[0]],
        ..Operation::default()
    };
    Path::new("/version/".into(), vec![get])
}

/// Where others learn who issues tokens of service accounts, and with which keys.
pub(super) fn of_issuer(keys: bool) -> Path {
    let (path, id, text, tag, produces) = if keys {
        (
            "/openid/v1/jwks/",
            "getServiceAccountIssuerOpenIDKeyset",
            "get the public keys that tokens of service accounts are verified with",
            "openid",
            "application/jwk-set+json",
        )
    } else {
        (
            "/.well-known/openid-configuration/",
            "getServiceAccountIssuerOpenIDConfiguration",
            "get the OpenID discovery document of the issuer of service accounts' tokens",
            "WellKnown",
            TYPES[0],
        )
    };
    let get = Operation {
        method: "get",
        id: id.into(),
        text: text.into(),
        tag: tag.into(),
        codes: &[200],
        produces: vec![produces],
        ..Operation::default()
    };
    Path::new(path.into(), vec![get])
}

/// The paths of one version of a group, sorted.
pub(super) fn of(group: &str, version: &Version, texts: &Texts) -> Vec<Path> {
    let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
    let root = format!("{root}/{}", version.name);
    let place = format!("{}{}", camel(group), capital(&version.name));
    let tag = tag(group, Some(&version.name));
    let resources = Operation {
        method: "get",
        id: format!("get{place}APIResources"),
        text: "get available resources".into(),
        tag: tag.clone(),
        reply: definition(meta("APIResourceList")),
        codes: &[200],
        consumes: TYPES.to_vec(),
        produces: TYPES.to_vec(),
        ..Operation::default()
    };
    let mut out = vec![Path::new(format!("{root}/"), vec![resources])];
    for kind in &version.kinds {
        Of::new(&**kind, &root, &place, &tag, texts).all(&mut out);
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

/// The operations of one kind.
struct Of<'a> {
    shape: AnyShape<'a>,
    /// The definitions of an object and of a list.
    own: Option<String>,
    list: Option<String>,
    /// What objects come back in, and watches.
    types: &'static [&'static str],
    streams: &'static [&'static str],
    patches: Vec<&'static str>,
    root: &'a str,
    /// `AppsV1`.
    place: &'a str,
    tag: &'a str,
    texts: &'a Texts,
}

impl<'a> Of<'a> {
    fn new(kind: &'a dyn AnyKind, root: &'a str, place: &'a str, tag: &'a str, texts: &'a Texts) -> Self {
        let shape = kind.shape();
        let is_custom = kind.is_custom();
        let (own, list) = if is_custom {
            let name = |kind: &str| Some(model::custom_name(shape.group, shape.version, kind));
            (name(shape.kind), name(&shape.list_kind()))
        } else {
            let own = api::schema::of(shape.group, shape.version, shape.kind);
            (definition(own), definition(list_type(&shape)))
        };
        // Custom kinds have no protobuf.
        let (types, streams) = if is_custom { (&TYPES[..2], &STREAMS[..1]) } else { (TYPES, STREAMS) };
        let patches = patch_types(is_custom);
        Self { shape, own, list, types, streams, patches, root, place, tag, texts }
    }

    fn can(&self, verb: &str) -> bool {
        self.shape.verbs.contains(&verb)
    }

    fn gvk(&self) -> Gvk {
        (self.shape.group.to_owned(), self.shape.version.to_owned(), self.shape.kind.to_owned())
    }

    fn options(&self, name: &str, except: &[&str]) -> Vec<Parameter> {
        meta(name).map(|t| parameters::of_options(&t, except, self.texts)).unwrap_or_default()
    }

    /// An operation that takes what every one takes. `id` is the part of its name after group and version.
    fn operation(&self, method: &'static str, action: &'static str, verb: &str, id: &str) -> Operation {
        Operation {
            method,
            id: format!("{verb}{}{id}", self.place),
            tag: self.tag.to_owned(),
            action: Some((action, self.gvk())),
            parameters: vec![parameters::pretty()],
            codes: &[200],
            consumes: vec!["*/*"],
            produces: self.types.to_vec(),
            ..Operation::default()
        }
    }

    fn all(&self, out: &mut Vec<Path>) {
        let shape = self.shape;
        let (kind, own) = (shape.kind, self.own.clone());
        let scoped = if shape.is_namespaced() { format!("Namespaced{kind}") } else { kind.to_owned() };
        let (base, mut placed) = if shape.is_namespaced() {
            ("/namespaces/{namespace}", vec![parameters::namespace()])
        } else {
            ("", Vec::new())
        };
        let plural = shape.plural;
        let mut collection = Vec::new();
        if self.can("list") {
            collection.push(self.list(&scoped));
        }
        if self.can("create") {
            let mut post = self.operation("post", "post", "create", &scoped);
            post.text = format!("create{}{kind}", article(kind));
            collection.push(self.creating(post, own.clone()));
        }
        if self.can("deletecollection") {
            collection.push(self.delete_collection(&scoped));
        }
        self.add(out, format!("{}{base}/{plural}", self.root), &placed, collection);
        if shape.is_namespaced() && self.can("list") {
            let everywhere = self.list(&format!("{kind}ForAllNamespaces"));
            self.add(out, format!("{}/{plural}", self.root), &[], vec![everywhere]);
        }
        if self.can("watch") && self.can("list") {
            self.watches(out, base, &scoped, &placed);
        }
        placed.push(parameters::name(kind));
        let mut one = Vec::new();
        if self.can("get") {
            let mut get = self.operation("get", "get", "read", &scoped);
            get.text = format!("read the specified {kind}");
            one.push(Operation { reply: own.clone(), ..get });
        }
        if self.can("update") {
            let mut put = self.operation("put", "put", "replace", &scoped);
            put.text = format!("replace the specified {kind}");
            one.push(self.replacing(put, own.clone()));
        }
        if self.can("patch") {
            let mut patch = self.operation("patch", "patch", "patch", &scoped);
            patch.text = format!("partially update the specified {kind}");
            one.push(self.patching(patch, own.clone()));
        }
        if self.can("delete") {
            let mut delete = self.operation("delete", "delete", "delete", &scoped);
            delete.text = format!("delete{}{kind}", article(kind));
            delete.parameters.extend(self.options("DeleteOptions", &[]));
            delete.codes = &[200, 202];
            let reply = if shape.answers_deleted { own } else { definition(meta("Status")) };
            one.push(Operation { body: delete_options(), reply, ..delete });
        }
        let path = format!("{}{base}/{plural}/{{name}}", self.root);
        self.add(out, path.clone(), &placed, one);
        if shape.keep == Keep::Virtual {
            return;
        }
        for sub in discovery::subresources(&shape) {
            placed.pop();
            placed.push(parameters::name(sub.kind));
            let path = format!("{path}/{}", sub.name);
            if sub.name == PROXY {
                let mut below = self.subresource(&sub, &scoped);
                below.iter_mut().for_each(|operation| operation.id.push_str("WithPath"));
                let placed: Vec<Parameter> = placed.iter().cloned().chain([parameters::rest()]).collect();
                self.add(out, format!("{path}/{{path}}"), &placed, below);
            }
            self.add(out, path, &placed, self.subresource(&sub, &scoped));
        }
    }

    fn add(&self, out: &mut Vec<Path>, path: String, placed: &[Parameter], mut operations: Vec<Operation>) {
        for operation in &mut operations {
            operation.parameters.extend_from_slice(placed);
        }
        if !operations.is_empty() {
            out.push(Path::new(path, operations));
        }
    }

    fn list(&self, id: &str) -> Operation {
        let mut list = self.operation("get", "list", "list", id);
        let what = if self.can("watch") { "list or watch" } else { "list" };
        list.text = format!("{what} objects of kind {}", self.shape.kind);
        list.parameters.extend(self.options("ListOptions", &[]));
        list.produces.extend(self.streams);
        Operation { reply: self.list.clone(), ..list }
    }

    fn delete_collection(&self, scoped: &str) -> Operation {
        let mut delete = self.operation("delete", "deletecollection", "delete", &format!("Collection{scoped}"));
        delete.text = format!("delete collection of {}", self.shape.kind);
        delete.parameters.extend(self.options("DeleteOptions", &[]));
        delete.parameters.extend(self.options("ListOptions", &["watch", "allowWatchBookmarks"]));
        Operation { body: delete_options(), reply: definition(meta("Status")), ..delete }
    }

    /// The paths under `/watch/`, from before lists could be watched.
    fn watches(&self, out: &mut Vec<Path>, base: &str, scoped: &str, placed: &[Parameter]) {
        let (root, plural, kind) = (self.root, self.shape.plural, self.shape.kind);
        let watch = |action: &'static str, id: &str, text: String| {
            let mut watch = self.operation("get", action, "watch", id);
            watch.text = text;
            watch.parameters.extend(self.options("ListOptions", &[]));
            watch.produces.extend(self.streams);
            Operation { reply: definition(meta("WatchEvent")), ..watch }
        };
        let many = |id: &str| {
            let how = "deprecated: use the 'watch' parameter with a list operation instead.";
            watch("watchlist", id, format!("watch individual changes to a list of {kind}. {how}"))
        };
        self.add(out, format!("{root}/watch{base}/{plural}"), placed, vec![many(&format!("{scoped}List"))]);
        if self.shape.is_namespaced() {
            let everywhere = vec![many(&format!("{kind}ListForAllNamespaces"))];
            self.add(out, format!("{root}/watch/{plural}"), &[], everywhere);
        }
        let how = "deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with \
                   the 'fieldSelector' parameter.";
        let one = watch("watch", scoped, format!("watch changes to an object of kind {kind}. {how}"));
        let mut placed = placed.to_vec();
        placed.push(parameters::name(kind));
        self.add(out, format!("{root}/watch{base}/{plural}/{{name}}"), &placed, vec![one]);
    }

    /// What every create takes and answers. Reviews are answered in their own kind as well.
    fn creating(&self, mut of: Operation, object: Option<String>) -> Operation {
        of.parameters.extend(self.options("CreateOptions", &[]));
        of.codes = &[200, 201, 202];
        Operation { body: object.clone().map(|o| (o, true)), reply: object, ..of }
    }

    fn replacing(&self, mut of: Operation, object: Option<String>) -> Operation {
        of.parameters.extend(self.options("UpdateOptions", &[]));
        of.codes = &[200, 201];
        Operation { body: object.clone().map(|o| (o, true)), reply: object, ..of }
    }

    fn patching(&self, mut of: Operation, object: Option<String>) -> Operation {
        of.parameters.extend(self.options("PatchOptions", &[]));
        of.codes = &[200, 201];
        of.consumes = self.patches.clone();
        Operation { body: Some((model::PATCH.to_owned(), true)), reply: object, ..of }
    }

    fn subresource(&self, sub: &Sub<'_>, scoped: &str) -> Vec<Operation> {
        let (kind, name) = (self.shape.kind, sub.name);
        let t = sub_type(&self.shape, sub);
        let object = if sub.version.is_empty() && sub.kind == kind { self.own.clone() } else { definition(t.clone()) };
        let id = format!("{scoped}{}", capital(name));
        let start = |method, action, verb: &str, id: &str, text: String| {
            let mut out = self.operation(method, action, verb, id);
            out.text = text;
            if !sub.version.is_empty() {
                out.action = Some((action, (sub.group.to_owned(), sub.version.to_owned(), sub.kind.to_owned())));
            } else if sub.kind != kind {
                out.action =
                    out.action.map(|(action, (group, version, _))| (action, (group, version, sub.kind.into())));
            }
            out
        };
        let stream = t.filter(|_| sub.kind.ends_with("Options"));
        let mut out = Vec::new();
        // Methods that are nobody's verb.
        let more: &[&str] = if name == PROXY { &["head", "options"] } else { &[] };
        for verb in sub.verbs.iter().chain(more) {
            out.push(match (*verb, &stream) {
                ("get" | "create" | "update" | "patch" | "delete" | "head" | "options", Some(options)) => {
                    let (method, upper, word) = match *verb {
                        "get" => ("get", "GET", "Get"),
                        "create" => ("post", "POST", "Post"),
                        "update" => ("put", "PUT", "Put"),
                        "patch" => ("patch", "PATCH", "Patch"),
                        "head" => ("head", "HEAD", "Head"),
                        "options" => ("options", "OPTIONS", "Options"),
                        _ => ("delete", "DELETE", "Delete"),
                    };
                    let text = format!("connect {upper} requests to {name} of {kind}");
                    let mut connect = start(method, "connect", "connect", &format!("{word}{id}"), text);
                    connect.parameters = parameters::of_options(options, &[], self.texts);
                    Operation { produces: vec!["*/*"], ..connect }
                }
                ("get", None) => {
                    let mut get = start("get", "get", "read", &id, format!("read {name} of the specified {kind}"));
                    // A log is text though it names the Pod.
                    if name == "log" {
                        let options = api::schema::of("", "v1", "PodLogOptions");
                        get.parameters
                            .extend(options.map(|t| parameters::of_options(&t, &[], self.texts)).unwrap_or_default());
                        get.produces.insert(0, "text/plain");
                        get
                    } else {
                        Operation { reply: object.clone(), ..get }
                    }
                }
                ("create", None) => {
                    let text = format!("create {name} of{}{kind}", article(kind));
                    self.creating(start("post", "post", "create", &id, text), object.clone())
                }
                ("update", None) => {
                    let text = format!("replace {name} of the specified {kind}");
                    self.replacing(start("put", "put", "replace", &id, text), object.clone())
                }
                ("patch", None) => {
                    let text = format!("partially update {name} of the specified {kind}");
                    self.patching(start("patch", "patch", "patch", &id, text), object.clone())
                }
                _ => continue,
            });
        }
        out
    }
}

fn delete_options() -> Option<(String, bool)> {
    definition(meta("DeleteOptions")).map(|name| (name, false))
}

/// ` a ` or ` an `; a space alone before a plural.
fn article(noun: &str) -> &'static str {
    match noun.chars().next() {
        _ if noun.ends_with('s') && !noun.ends_with("ss") => " ",
        Some('A' | 'E' | 'I' | 'O' | 'U') => " an ",
        _ => " a ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_in_operation_names() {
        for (group, want, lower) in [
            ("", "Core", "core_v1"),
            ("apps", "Apps", "apps_v1"),
            ("rbac.authorization.k8s.io", "RbacAuthorization", "rbacAuthorization_v1"),
            ("explain.pintle.dev", "ExplainPintleDev", "explainPintleDev_v1"),
        ] {
            assert_eq!((camel(group).as_str(), tag(group, Some("v1")).as_str()), (want, lower));
        }
    }

    #[test]
    fn nouns_have_their_article() {
        let articles = ["Pod", "Endpoints", "IPAddress", "Ingress"].map(article);
        assert_eq!(articles, [" a ", " ", " an ", " an "]);
    }

    #[test]
    fn what_all_operations_take_belongs_to_the_path() {
        let (a, b) = (parameters::pretty(), parameters::namespace());
        let operation = |parameters: &[&Parameter]| Operation {
            parameters: parameters.iter().map(|p| (*p).clone()).collect(),
            ..Operation::default()
        };
        let path = Path::new("/".into(), vec![operation(&[&a, &b]), operation(&[&b])]);
        assert_eq!(path.parameters, [b]);
        assert_eq!(path.operations[0].parameters, [a]);
        assert!(path.operations[1].parameters.is_empty());
    }
}
