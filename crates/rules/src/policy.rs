//! Expressions of admission policies and of match conditions, checked when they are written: what does not compile,
//! or gives something else than what is wanted, is told in upstream's words.
//!
//! Of `object`, `oldObject` and `params` nothing is declared: what fields they have is found out when they are
//! there. `request` and `namespaceObject` have the fields that they always have, and each of `variables` has the
//! type that its expression gives.

use std::sync::{Arc, LazyLock};

use crate::env::Env;
use crate::patches;
use crate::schema::Decl;
use crate::types::{self, Object, Type};

/// What an expression may refer to beside the objects.
#[derive(Clone, Copy, Debug)]
pub struct World<'w> {
    pub params: bool,
    pub authorizer: bool,
    /// May it say what a patch is made of?
    pub patches: bool,
    /// The variables of the policy that are known at this place; `None` where there are none at all.
    pub variables: Option<&'w Variables>,
}

/// The variables of a policy, as far as they are known. Each may use those before it:
///
/// ```text
/// {}                       names: "object.spec.names.map(n, string(n))" gives list(string)
/// {names: list(string)}    one: "variables.names[0]" gives string
/// ```
#[derive(Clone, Debug)]
pub struct Variables(Arc<Decl>);

impl Default for Variables {
    fn default() -> Self {
        Self(Arc::new(Decl::object("kubernetes.variables")))
    }
}

impl Variables {
    /// One more variable, by the type that its expression gives; `Type::Dyn` if that is wrong.
    pub fn add(&mut self, name: &str, t: Type) {
        let declared = kept(&t, &mut { MAX_PARTS });
        // It may be that of all variables, which are copied unless nothing else holds them.
        drop(t);
        Arc::make_mut(&mut self.0).declare(name, declared);
    }
}

/// Of so many parts is the type of a variable at most; what is beyond is found out when it is there. Without a bound,
/// variables made of each other would have types that take for ever to look at.
const MAX_PARTS: u32 = 64;

/// What is known of a variable's type: that of plain values, and of lists and maps of them.
fn kept(t: &Type, parts: &mut u32) -> Type {
    if *parts == 0 {
        return Type::Dyn;
    }
    *parts -= 1;
    match t {
        Type::Bool
        | Type::Bytes
        | Type::Double
        | Type::Duration
        | Type::Int
        | Type::Null
        | Type::String
        | Type::Timestamp
        | Type::Uint => t.clone(),
        Type::List(items) => Type::list(kept(items, parts)),
        Type::Map(entry) => Type::map(kept(&entry.0, parts), kept(&entry.1, parts)),
        _ => Type::Dyn,
    }
}

/// What an expression is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Bool,
    Text,
    TextOrNull,
    /// What is to be applied to the object: `Object{…}`.
    Configuration,
    /// Operations on the object: `[JSONPatch{…}]`.
    Operations,
    Anything,
}

/// What is asked: everything of an AdmissionRequest but its objects and its uid.
static REQUEST: LazyLock<Type> = LazyLock::new(|| {
    let kind = Type::object(
        "kubernetes.GroupVersionKind",
        [("group", Type::String), ("version", Type::String), ("kind", Type::String)],
    );
    let resource = Type::object(
        "kubernetes.GroupVersionResource",
        [("group", Type::String), ("version", Type::String), ("resource", Type::String)],
    );
    let user = Type::object(
        "kubernetes.UserInfo",
        [
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::String, Type::list(Type::String))),
        ],
    );
    Type::object(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", Type::String),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", Type::String),
            ("name", Type::String),
            ("namespace", Type::String),
            ("operation", Type::String),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
});

/// The namespace that the object is in. Upstream declares `UID`, and no `uid`.
static NAMESPACE: LazyLock<Type> = LazyLock::new(|| {
    let labels = Type::map(Type::String, Type::String);
    let metadata = Type::object(
        "kubernetes.NamespaceMetadata",
        [
            ("name", Type::String),
            ("generateName", Type::String),
            ("namespace", Type::String),
            ("labels", labels.clone()),
            ("annotations", labels),
            ("UID", Type::String),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", Type::String),
            ("finalizers", Type::list(Type::String)),
        ],
    );
    let spec = Type::object("kubernetes.NamespaceSpec", [("finalizers", Type::list(Type::String))]);
    let condition = Type::object(
        "kubernetes.NamespaceCondition",
        [
            ("status", Type::String),
            ("type", Type::String),
            ("lastTransitionTime", Type::Timestamp),
            ("message", Type::String),
            ("reason", Type::String),
        ],
    );
    let status =
        Type::object("kubernetes.NamespaceStatus", [("conditions", Type::list(condition)), ("phase", Type::String)]);
    Type::object("kubernetes.Namespace", [("metadata", metadata), ("spec", spec), ("status", status)])
});

impl World<'_> {
    fn env(self) -> Env {
        let mut env = Env::new()
            .with_bind()
            .with("object", Type::Dyn)
            .with("oldObject", Type::Dyn)
            .with("namespaceObject", NAMESPACE.clone())
            .with("request", REQUEST.clone());
        if self.params {
            env = env.with("params", Type::Dyn);
        }
        if self.authorizer {
            env = env
                .with("authorizer", Type::Named(types::AUTHORIZER))
                .with("authorizer.requestResource", Type::Named(types::RESOURCE_CHECK));
        }
        if self.patches {
            env = env.with_patches();
        }
        match self.variables {
            Some(variables) => env.with("variables", Type::Object(Object(Arc::clone(&variables.0)))),
            None => env,
        }
    }
}

/// Checks an expression; the type that it gives.
///
/// # Errors
/// What is wrong with it, as one text.
pub fn check(text: &str, world: World<'_>, wanted: Wanted) -> Result<Type, String> {
    let checked = world.env().compile(text).map_err(|wrong| format!("compilation failed: {wrong}"))?;
    let given = checked.type_of(checked.expr.id);
    let (fits, words) = match wanted {
        Wanted::Bool => (*given == Type::Bool, "bool"),
        Wanted::Text => (*given == Type::String, "string"),
        Wanted::TextOrNull => (matches!(given, Type::String | Type::Null), "one of [string null_type]"),
        Wanted::Configuration => (*given == patches::object(patches::OBJECT), patches::OBJECT),
        Wanted::Operations => (*given == patches::operations(), "list(JSONPatch)"),
        Wanted::Anything => (true, ""),
    };
    if fits { Ok(given.clone()) } else { Err(format!("must evaluate to {words} but got {}", shown(given))) }
}

/// A type by the name its values give, also within others.
fn shown(t: &Type) -> String {
    match t {
        Type::List(items) => format!("list({})", shown(items)),
        Type::Map(entry) => format!("map({}, {})", shown(&entry.0), shown(&entry.1)),
        Type::Optional(inner) => format!("optional_type({})", shown(inner)),
        other => other.runtime_name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables in order, as a policy has them.
    fn variables(of: &[(&str, &str)]) -> Variables {
        let mut known = Variables::default();
        for (name, text) in of {
            let world = World { params: true, authorizer: true, patches: false, variables: Some(&known) };
            let t = check(text, world, Wanted::Anything).unwrap_or(Type::Dyn);
            known.add(name, t);
        }
        known
    }

    /// Where a mistake is said to be.
    fn at(text: &str, column: usize, wrong: &str) -> String {
        format!("compilation failed: ERROR: <input>:1:{column}: {wrong}\n | {text}\n | {}^", ".".repeat(column - 1))
    }

    #[test]
    fn what_is_written_is_checked() {
        let known = variables(&[("image", "object.spec.image"), ("x", "object.x")]);
        let world = World { params: false, authorizer: true, patches: false, variables: Some(&known) };
        let with_params = World { params: true, ..world };
        let condition = World { variables: None, ..world };
        let message = World { authorizer: false, ..world };
        for (text, world, wanted, want) in [
            ("object.spec.replicas <= 5", world, Wanted::Bool, String::new()),
            ("has(object.spec) && variables.image.startsWith('a')", world, Wanted::Bool, String::new()),
            (
                "request.operation == 'DELETE' || namespaceObject.metadata.name != 'x'",
                condition,
                Wanted::Bool,
                String::new(),
            ),
            ("object.spec.replicas <= params.most", with_params, Wanted::Bool, String::new()),
            ("'no ' + string(object.spec.replicas)", message, Wanted::Text, String::new()),
            ("null", world, Wanted::TextOrNull, String::new()),
            ("[1, 2]", world, Wanted::Anything, String::new()),
            ("object.variables.other == object.authorizer", world, Wanted::Bool, String::new()),
            ("object.spec.on", world, Wanted::Bool, "must evaluate to bool but got dyn".into()),
            (
                "[duration('1s')]",
                world,
                Wanted::Bool,
                "must evaluate to bool but got list(google.protobuf.Duration)".into(),
            ),
            ("1", world, Wanted::TextOrNull, "must evaluate to one of [string null_type] but got int".into()),
            (
                "params.most > 1",
                world,
                Wanted::Bool,
                at("params.most > 1", 1, "undeclared reference to 'params' (in container '')"),
            ),
            ("variables.other == 1", world, Wanted::Bool, at("variables.other == 1", 10, "undefined field 'other'")),
            (
                "variables.x == 1",
                condition,
                Wanted::Bool,
                at("variables.x == 1", 1, "undeclared reference to 'variables' (in container '')"),
            ),
            (
                "object.spec.",
                world,
                Wanted::Bool,
                at("object.spec.", 13, "Syntax error: no viable alternative at input '.'"),
            ),
        ] {
            let found = check(text, world, wanted).err().unwrap_or_default();
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn what_is_asked_has_types() {
        let world = World { params: false, authorizer: false, patches: false, variables: None };
        for (text, wanted, want) in [
            ("request.dryRun", Wanted::Bool, String::new()),
            ("request.userInfo.username", Wanted::TextOrNull, String::new()),
            ("request.namespace == request.name", Wanted::Bool, String::new()),
            (
                "request.userInfo.extra['a'][0] + request.kind.group + request.requestResource.resource",
                Wanted::Text,
                String::new(),
            ),
            ("request.userInfo.groups.exists(group, group == 'system:masters')", Wanted::Bool, String::new()),
            ("request.options.dryRun == ['All']", Wanted::Bool, String::new()),
            ("namespaceObject.metadata.name", Wanted::Text, String::new()),
            ("namespaceObject.metadata.labels['team']", Wanted::Text, String::new()),
            (
                "has(namespaceObject.metadata.labels) && namespaceObject.status.phase == 'Active'",
                Wanted::Bool,
                String::new(),
            ),
            (
                "namespaceObject.metadata.deletionTimestamp < timestamp('2026-12-01T00:00:00Z')",
                Wanted::Bool,
                String::new(),
            ),
            ("namespaceObject.status.conditions.all(c, c.type != 'a')", Wanted::Bool, String::new()),
            ("request.dryRun", Wanted::Text, "must evaluate to string but got bool".into()),
            ("request.options", Wanted::Bool, "must evaluate to bool but got dyn".into()),
            (
                "request.userInfo",
                Wanted::TextOrNull,
                "must evaluate to one of [string null_type] but got kubernetes.UserInfo".into(),
            ),
            (
                "namespaceObject.metadata.labels",
                Wanted::Text,
                "must evaluate to string but got map(string, string)".into(),
            ),
            ("request.uid", Wanted::Text, at("request.uid", 8, "undefined field 'uid'")),
            ("request.object.spec.on", Wanted::Bool, at("request.object.spec.on", 8, "undefined field 'object'")),
            ("request.userInfo.name", Wanted::Text, at("request.userInfo.name", 17, "undefined field 'name'")),
            (
                "has(namespaceObject.metadata.uid)",
                Wanted::Bool,
                at("has(namespaceObject.metadata.uid)", 4, "undefined field 'uid'"),
            ),
            (
                "request.operation == 1",
                Wanted::Bool,
                at("request.operation == 1", 19, "found no matching overload for '_==_' applied to '(string, int)'"),
            ),
        ] {
            let found = check(text, world, wanted).err().unwrap_or_default();
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn variables_have_the_types_of_their_expressions() {
        let known = variables(&[
            ("ok", "object.spec.replicas <= 5"),
            ("message", "'at most ' + string(params.most)"),
            ("names", "object.spec.names.map(n, string(n))"),
            ("first", "variables.names[0]"),
            ("by", "{'a': [1]}"),
            ("user", "request.userInfo"),
            ("maybe", "object.?spec"),
            ("wrong", "1 +"),
            ("may", "authorizer.group('').resource('pods').namespace('a').name('b').check('get').allowed()"),
            ("all", "variables"),
            ("twice", "1"),
            ("twice", "'1'"),
        ]);
        let world = World { params: false, authorizer: true, patches: false, variables: Some(&known) };
        for (text, wanted, want) in [
            ("variables.ok", Wanted::Bool, String::new()),
            ("variables.may", Wanted::Bool, String::new()),
            ("variables.message", Wanted::Text, String::new()),
            ("object.a == 1 ? variables.message : 'x'", Wanted::Text, String::new()),
            ("variables.first", Wanted::Text, String::new()),
            ("has(variables.ok)", Wanted::Bool, String::new()),
            ("variables.by['a'][0] == 1", Wanted::Bool, String::new()),
            ("variables.user.anything == 1 && variables.wrong > 1 && variables.all.b", Wanted::Bool, String::new()),
            ("variables.twice", Wanted::Text, String::new()),
            ("variables.ok", Wanted::Text, "must evaluate to string but got bool".into()),
            ("variables.message", Wanted::Bool, "must evaluate to bool but got string".into()),
            ("variables.names", Wanted::Text, "must evaluate to string but got list(string)".into()),
            ("variables.by", Wanted::Bool, "must evaluate to bool but got map(string, list(int))".into()),
            ("variables.user", Wanted::Text, "must evaluate to string but got dyn".into()),
            ("variables.maybe", Wanted::Bool, "must evaluate to bool but got dyn".into()),
            ("variables.wrong", Wanted::Bool, "must evaluate to bool but got dyn".into()),
            ("variables", Wanted::Text, "must evaluate to string but got kubernetes.variables".into()),
            ("has(variables.no)", Wanted::Bool, at("has(variables.no)", 4, "undefined field 'no'")),
            (
                "variables.ok > 5",
                Wanted::Bool,
                at("variables.ok > 5", 14, "found no matching overload for '_>_' applied to '(bool, int)'"),
            ),
        ] {
            let found = check(text, world, wanted).err().unwrap_or_default();
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn patches_are_written_out() {
        let known = variables(&[("n", "object.spec.replicas > 1 ? 1 : 2")]);
        let world = World { params: false, authorizer: true, patches: true, variables: Some(&known) };
        for (text, wanted, want) in [
            ("Object{}", Wanted::Configuration, String::new()),
            (
                "Object{spec: Object.spec{replicas: variables.n, template: Object.spec.template{}}}",
                Wanted::Configuration,
                String::new(),
            ),
            (
                "Object{metadata: Object.metadata{?labels: object.?metadata.labels}}",
                Wanted::Configuration,
                String::new(),
            ),
            ("has(object.a) ? Object{} : Object{b: [Object.b{}]}", Wanted::Configuration, String::new()),
            ("[JSONPatch{op: 'add', path: '/a', value: Object.a{b: 1}}]", Wanted::Operations, String::new()),
            (
                "[JSONPatch{op: 'remove', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b')}]",
                Wanted::Operations,
                String::new(),
            ),
            ("object.a == 1 ? [JSONPatch{op: 'copy', from: '/a', path: '/b'}] : []", Wanted::Operations, String::new()),
            ("type(object.spec) == Object.spec", Wanted::Bool, String::new()),
            ("Object{}", Wanted::Operations, "must evaluate to list(JSONPatch) but got Object".into()),
            ("Object.spec{}", Wanted::Configuration, "must evaluate to Object but got Object.spec".into()),
            ("{'spec': 1}", Wanted::Configuration, "must evaluate to Object but got map(string, int)".into()),
            ("object", Wanted::Configuration, "must evaluate to Object but got dyn".into()),
            ("[]", Wanted::Operations, "must evaluate to list(JSONPatch) but got list(dyn)".into()),
            ("JSONPatch{op: 'test'}", Wanted::Operations, "must evaluate to list(JSONPatch) but got JSONPatch".into()),
            (
                "[JSONPatch{op: 1}]",
                Wanted::Operations,
                at("[JSONPatch{op: 1}]", 14, "expected type of field 'op' is 'string' but provided type is 'int'"),
            ),
            (
                "[JSONPatch{oper: 'add'}]",
                Wanted::Operations,
                at("[JSONPatch{oper: 'add'}]", 16, "undefined field 'oper'"),
            ),
            ("Objects{}", Wanted::Anything, at("Objects{}", 8, "undeclared reference to 'Objects' (in container '')")),
            ("int{}", Wanted::Anything, at("int{}", 4, "'int' is not a message type")),
            ("object{}", Wanted::Anything, at("object{}", 7, "'object' is not a type")),
        ] {
            let found = check(text, world, wanted).err().unwrap_or_default();
            assert_eq!(found, want, "{text}");
        }
        let other = World { patches: false, ..world };
        let text = "jsonpatch.escapeKey('a')";
        let wrong = check(text, other, Wanted::Text).err().unwrap_or_default();
        assert!(wrong.contains("undeclared reference to"), "{wrong}");
    }

    #[test]
    fn the_authorizer_has_types() {
        let world = World { params: false, authorizer: true, patches: false, variables: None };
        let message = World { authorizer: false, ..world };
        for (text, world, wanted, want) in [
            ("authorizer.group('').resource('pods').check('get').allowed()", world, Wanted::Bool, String::new()),
            ("authorizer.requestResource.check('update').allowed()", world, Wanted::Bool, String::new()),
            (
                "authorizer.serviceAccount('a', 'b').path('/healthz').check('get').reason()",
                world,
                Wanted::Text,
                String::new(),
            ),
            (
                "authorizer.group('').resource('pods').subresource('log').labelSelector('a=b').fieldSelector('c=d').check('get').errored()",
                world,
                Wanted::Bool,
                String::new(),
            ),
            (
                "authorizer.path('/a').check('get')",
                world,
                Wanted::Bool,
                "must evaluate to bool but got kubernetes.authorization.Decision".into(),
            ),
            (
                "authorizer.group(1)",
                world,
                Wanted::Anything,
                at(
                    "authorizer.group(1)",
                    17,
                    "found no matching overload for 'group' applied to 'kubernetes.authorization.Authorizer.(int)'",
                ),
            ),
            (
                "authorizer.path('/a')",
                message,
                Wanted::Text,
                at("authorizer.path('/a')", 1, "undeclared reference to 'authorizer' (in container '')"),
            ),
            (
                "Object{} == object",
                world,
                Wanted::Bool,
                at("Object{} == object", 7, "undeclared reference to 'Object' (in container '')"),
            ),
        ] {
            let found = check(text, world, wanted).err().unwrap_or_default();
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn variables_made_of_each_other_stay_small() {
        let mut known = variables(&[("a", "1")]);
        for _ in 0..2000 {
            let world = World { params: false, authorizer: false, patches: false, variables: Some(&known) };
            let t = check("{'a': [variables.a], 'b': [variables.a]}", world, Wanted::Anything).unwrap_or(Type::Dyn);
            known.add("a", t);
        }
        let world = World { params: false, authorizer: false, patches: false, variables: Some(&known) };
        let t = check("variables.a", world, Wanted::Anything).map(|t| kept(&t, &mut { u32::MAX }));
        assert!(matches!(t, Ok(Type::Map(_))), "{t:?}");
    }
}
