//! The options of requests, from query and body to typed values, refused with upstream's words; pure.

use machinery::field::{FieldErrors, Path};
use machinery::status::{self, Status};
use serde::Deserialize;
use serde_json::Value;

use crate::request::Query;

/// What to do with unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub validation: Validation,
    /// Who the fields written belong to.
    pub manager: String,
    /// Of server-side apply: take fields over from other managers.
    pub force: bool,
}

/// What an options object is called in error texts.
fn invalid(kind: &str, errors: FieldErrors) -> status::Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("meta.k8s.io", kind, "", &errors)) }
}

fn dry_run(asked: &[&str], errors: &mut FieldErrors) -> bool {
    let asked: Vec<&str> = asked.iter().copied().filter(|v| !v.is_empty()).collect();
    if asked.iter().any(|v| *v != "All") {
        let values: Vec<Value> = asked.iter().map(|v| (*v).into()).collect();
        errors.not_supported(&Path::new("dryRun"), Value::from(values), &["All"]);
    }
    !asked.is_empty()
}

impl WriteOptions {
    /// `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`; `apply` is true for an apply patch.
    ///
    /// # Errors
    /// 422 that names every mistake.
    pub fn parse(query: &Query, kind: &str, apply: bool, user_agent: &str) -> status::Result<Self> {
        let mut errors = FieldErrors::new();
        let given = query.text("fieldManager").unwrap_or_default();
        let path = Path::new("fieldManager");
        if apply && given.is_empty() {
            errors.required(&path, "is required for apply patch");
        }
        if given.len() > MAX_MANAGER {
            errors.too_long(&path, MAX_MANAGER);
        }
        if given.chars().any(|c| !printable(c)) {
            errors.invalid(&path, given, "should only contain printable characters");
        }
        let force = query.optional_flag("force");
        if kind == "PatchOptions" && force.is_some() && !apply {
            errors.forbidden(&Path::new("force"), "may not be specified for non-apply patch");
        }
        let dry_run = dry_run(&query.all("dryRun"), &mut errors);
        let validation = match query.text("fieldValidation") {
            None | Some("Warn") => Validation::Warn,
            Some("Ignore") => Validation::Ignore,
            Some("Strict") => Validation::Strict,
            Some(other) => {
                errors.not_supported(&Path::new("fieldValidation"), other, &["", "Ignore", "Strict", "Warn"]);
                Validation::Warn
            }
        };
        invalid(kind, errors)?;
        let manager = if given.is_empty() { manager_of(user_agent) } else { given.to_owned() };
        Ok(Self { dry_run, validation, manager, force: force.unwrap_or(false) })
    }
}

const MAX_MANAGER: usize = 128;

fn printable(c: char) -> bool {
    !c.is_control() && c != '\u{feff}'
}

/// The manager of a client that names none: its user agent up to the first slash.
fn manager_of(user_agent: &str) -> String {
    let name: String = user_agent.split('/').next().unwrap_or_default().chars().filter(|c| printable(*c)).collect();
    let end = (0..=MAX_MANAGER.min(name.len())).rev().find(|i| name.is_char_boundary(*i)).unwrap_or(0);
    if end == 0 { "unknown".to_owned() } else { name[..end].to_owned() }
}

/// What happens to dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagate {
    Orphan,
    Background,
    Foreground,
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub grace: Option<i64>,
    /// `None`: what the object's finalizers or its kind say.
    pub propagate: Option<Propagate>,
    /// True when the client used `orphanDependents: false`, which is answered with 202.
    pub not_orphan: bool,
    pub uid: Option<String>,
    pub revision: Option<String>,
    /// Delete an object that cannot be read.
    pub unreadable: bool,
}

/// The form of a body that was decoded as its schema says.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeleteBody {
    grace_period_seconds: Option<i64>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    dry_run: Option<Vec<String>>,
    preconditions: Option<Preconditions>,
    ignore_store_read_error_with_cluster_breaking_potential: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    /// From the body (see [`body::delete_options`](super::body::delete_options)) when there is one, else
    /// from the query.
    ///
    /// # Errors
    /// 400 for a query that cannot be read, 422 that names every mistake.
    pub fn parse(query: &Query, body: Option<&Value>) -> status::Result<Self> {
        let body: DeleteBody = match body {
            Some(body) => DeleteBody::deserialize(body).map_err(|e| Status::bad_request(e.to_string()))?,
            None => DeleteBody {
                grace_period_seconds: query.number("gracePeriodSeconds")?,
                propagation_policy: query.get("propagationPolicy").map(str::to_owned),
                orphan_dependents: query.optional_flag("orphanDependents"),
                dry_run: Some(query.all("dryRun").into_iter().map(str::to_owned).collect()),
                preconditions: None,
                ignore_store_read_error_with_cluster_breaking_potential: query.optional_flag(UNREADABLE),
            },
        };
        let mut errors = FieldErrors::new();
        let policy = Path::new("propagationPolicy");
        let named = body.propagation_policy.as_deref();
        if let (Some(named), Some(_)) = (named, body.orphan_dependents) {
            errors.invalid(&policy, named, "orphanDependents and deletionPropagation cannot be both set");
        }
        let propagate = match named {
            Some("Orphan") => Some(Propagate::Orphan),
            Some("Background") => Some(Propagate::Background),
            Some("Foreground") => Some(Propagate::Foreground),
            Some(other) => {
                errors.not_supported(&policy, other, &["Foreground", "Background", "Orphan", "nil"]);
                None
            }
            None => body.orphan_dependents.map(|o| if o { Propagate::Orphan } else { Propagate::Background }),
        };
        let asked = body.dry_run.unwrap_or_default();
        let dry_run = dry_run(&asked.iter().map(String::as_str).collect::<Vec<_>>(), &mut errors);
        let unreadable = body.ignore_store_read_error_with_cluster_breaking_potential == Some(true);
        for (given, other) in [
            (named.is_some(), ".propagationPolicy"),
            (body.orphan_dependents.is_some(), ".orphanDependents"),
            (body.grace_period_seconds.is_some(), ".gracePeriodSeconds"),
            (body.preconditions.is_some(), ".preconditions"),
        ] {
            if unreadable && given {
                errors.invalid(&Path::new(UNREADABLE), true, format!("cannot be set together with {other}"));
            }
        }
        invalid("DeleteOptions", errors)?;
        let preconditions = body.preconditions.unwrap_or_default();
        Ok(Self {
            dry_run,
            // A negative wish means "as soon as possible".
            grace: body.grace_period_seconds.map(|g| if g < 0 { 1 } else { g }),
            propagate,
            not_orphan: body.orphan_dependents == Some(false),
            uid: preconditions.uid,
            revision: preconditions.resource_version,
            unreadable,
        })
    }

    /// The same for deletecollection, where an object that cannot be read is not named.
    ///
    /// # Errors
    /// As [`parse`](DeleteOptions::parse).
    pub fn parse_collection(query: &Query, body: Option<&Value>) -> status::Result<Self> {
        let options = Self::parse(query, body)?;
        let mut errors = FieldErrors::new();
        if options.unreadable {
            let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
            errors.invalid(&Path::new(UNREADABLE), true, why);
        }
        invalid("DeleteOptions", errors)?;
        Ok(options)
    }
}

const UNREADABLE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// How a list's or watch's resourceVersion is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Exact,
    NotOlderThan,
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListOptions {
    pub labels: machinery::labels::Selector,
    pub fields: machinery::fields::Selector,
    /// `None`: the most recent state.
    pub revision: Option<u64>,
    pub matching: Option<Match>,
    /// 0: all.
    pub limit: usize,
    pub continue_token: String,
    pub timeout_seconds: Option<i64>,
    pub bookmarks: bool,
    pub initial_events: Option<bool>,
}

/// More requirements than any client has; each is compared with every object.
const MAX_REQUIREMENTS: usize = 1000;

impl ListOptions {
    /// Reads and checks the options of a list, or of a watch. A watch that asks for no particular state
    /// begins with the whole of it (`initial_events`).
    ///
    /// # Errors
    /// 400 for selectors and numbers that cannot be read, 422 for combinations that make no sense.
    pub fn parse(query: &Query, watch: bool) -> status::Result<Self> {
        let labels = match query.text("labelSelector") {
            Some(text) => machinery::labels::Selector::parse(text).map_err(Status::bad_request)?,
            None => machinery::labels::Selector::everything(),
        };
        let fields = match query.text("fieldSelector") {
            Some(text) => machinery::fields::Selector::parse(text).map_err(Status::bad_request)?,
            None => machinery::fields::Selector::everything(),
        };
        if labels.requirements().len() > MAX_REQUIREMENTS || fields.terms().len() > MAX_REQUIREMENTS {
            return Err(Status::bad_request(format!("a selector has at most {MAX_REQUIREMENTS} requirements")));
        }
        let continue_token = query.text("continue").unwrap_or_default().to_owned();
        let mut initial_events = query.optional_flag("sendInitialEvents");
        let limit = query.number("limit")?.unwrap_or(0);
        let timeout_seconds = query.number("timeoutSeconds")?;
        let version = query.text("resourceVersion");
        let mut given = query.text("resourceVersionMatch");
        if watch && initial_events.is_none() && given.is_none() && matches!(version, None | Some("0")) {
            // Such a watch has always begun with the whole state.
            (initial_events, given) = (Some(true), Some("NotOlderThan"));
        }
        check_matching(given, version, &continue_token, initial_events, watch)?;
        let revision = version.map(revision).transpose().map_err(|mut wrong| {
            if !watch {
                wrong.message = format!("invalid resource version: {}", wrong.message);
            }
            wrong
        })?;
        Ok(Self {
            labels,
            fields,
            revision,
            matching: given.map(|m| if m == "Exact" { Match::Exact } else { Match::NotOlderThan }),
            limit: usize::try_from(limit).unwrap_or(0),
            continue_token,
            timeout_seconds,
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events,
        })
    }
}

/// A resourceVersion as the number it is.
///
/// # Errors
/// 400 for anything but a decimal number.
pub fn revision(text: &str) -> status::Result<u64> {
    let wrong = |why: &str| {
        let detail = format!("strconv.ParseUint: parsing {text:?}: {why}");
        let mut errors = FieldErrors::new();
        errors.invalid(&Path::new("resourceVersion"), text, detail);
        Status::bad_request(errors.to_string())
    };
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong("invalid syntax"));
    }
    text.parse().map_err(|_| wrong("value out of range"))
}

fn check_matching(
    given: Option<&str>,
    revision: Option<&str>,
    continue_token: &str,
    initial_events: Option<bool>,
    watch: bool,
) -> status::Result<()> {
    const CONTINUED: &str = "resourceVersionMatch is forbidden when continue is provided";
    let (path, initial) = (Path::new("resourceVersionMatch"), Path::new("sendInitialEvents"));
    let mut errors = FieldErrors::new();
    if watch {
        if initial_events.is_some() && given != Some("NotOlderThan") {
            errors.forbidden(&path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        }
        if let Some(given) = given {
            if initial_events.is_none() {
                errors.forbidden(
                    &path,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                );
            }
            if given != "NotOlderThan" {
                errors.not_supported(&path, given, &["NotOlderThan"]);
            }
            if !continue_token.is_empty() {
                errors.forbidden(&path, CONTINUED);
            }
        }
        return invalid("ListOptions", errors);
    }
    if let Some(given) = given {
        if revision.is_none() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !continue_token.is_empty() {
            errors.forbidden(&path, CONTINUED);
        }
        if !matches!(given, "Exact" | "NotOlderThan") {
            errors.not_supported(&path, given, &["Exact", "NotOlderThan", ""]);
        }
        if given == "Exact" && revision == Some("0") {
            errors.forbidden(&path, r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#);
        }
    }
    if initial_events.is_some() {
        errors.forbidden(&initial, "sendInitialEvents is forbidden for list");
    }
    invalid("ListOptions", errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn write_options() {
        let parse = |query: &str, kind: &str, apply| {
            WriteOptions::parse(&Query::parse(query), kind, apply, "kubectl/v1.37 (x)").map_err(|s| s.message)
        };
        let ok = parse("dryRun=All&fieldValidation=Strict", "CreateOptions", false).expect("fine");
        assert_eq!((ok.dry_run, ok.validation, ok.manager.as_str()), (true, Validation::Strict, "kubectl"));
        for (query, kind, apply, want) in [
            (
                "dryRun=x",
                "CreateOptions",
                false,
                r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["x"]: supported values: "All""#,
            ),
            (
                "",
                "PatchOptions",
                true,
                r#"PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch"#,
            ),
            (
                "force=true",
                "PatchOptions",
                false,
                r#"PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch"#,
            ),
        ] {
            assert_eq!(parse(query, kind, apply).expect_err("refused"), want);
        }
        assert_eq!(manager_of(&"ü".repeat(100)).len(), 128);
        assert_eq!((manager_of(""), manager_of("/x")), ("unknown".into(), "unknown".into()));
    }

    #[test]
    fn delete_options_from_body_or_query() {
        let body = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": -5,
            "propagationPolicy": "Foreground", "preconditions": {"uid": "u", "resourceVersion": "7"}});
        let options = DeleteOptions::parse(&Query::parse("gracePeriodSeconds=9"), Some(&body)).expect("fine");
        assert_eq!(options.grace, Some(1));
        assert_eq!(options.propagate, Some(Propagate::Foreground));
        assert_eq!((options.uid.as_deref(), options.revision.as_deref()), (Some("u"), Some("7")));
        let options = DeleteOptions::parse(&Query::parse("orphanDependents=false&dryRun=All"), None).expect("fine");
        assert_eq!((options.propagate, options.not_orphan, options.dry_run), (Some(Propagate::Background), true, true));
        for (query, body, code) in [
            ("propagationPolicy=Orphan&orphanDependents=true", None, 422),
            ("propagationPolicy=Nonsense", None, 422),
            ("ignoreStoreReadErrorWithClusterBreakingPotential=true&gracePeriodSeconds=1", None, 422),
            ("gracePeriodSeconds=soon", None, 400),
        ] {
            let got = DeleteOptions::parse(&Query::parse(query), body.as_ref());
            assert_eq!(got.map_err(|s| s.code), Err(code), "{query} {body:?}");
        }
    }

    #[test]
    fn list_and_watch_options() {
        for (query, watch, want) in [
            ("", false, Ok(())),
            ("resourceVersion=0", false, Ok(())),
            ("resourceVersion=7&resourceVersionMatch=Exact", false, Ok(())),
            ("watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", true, Ok(())),
            ("resourceVersionMatch=Exact", false, Err(422)),
            ("resourceVersion=0&resourceVersionMatch=Exact", false, Err(422)),
            ("resourceVersion=1&resourceVersionMatch=Nearly", false, Err(422)),
            ("resourceVersion=1&resourceVersionMatch=Exact&continue=x", false, Err(422)),
            ("sendInitialEvents=true", false, Err(422)),
            ("sendInitialEvents=true", true, Err(422)),
            ("resourceVersionMatch=NotOlderThan", true, Err(422)),
            ("sendInitialEvents=false&resourceVersionMatch=Exact", true, Err(422)),
            ("watch=1&resourceVersion=0&allowWatchBookmarks=true", true, Ok(())),
            ("resourceVersion=abc&resourceVersionMatch=Nearly", false, Err(422)),
            ("resourceVersion=abc", false, Err(400)),
            ("resourceVersion=abc", true, Err(400)),
            ("timeoutSeconds=soon", true, Err(400)),
            ("resourceVersion=-1", false, Err(400)),
            ("resourceVersion=99999999999999999999", false, Err(400)),
            ("limit=x", false, Err(400)),
            ("labelSelector=a%20in", false, Err(400)),
            ("fieldSelector=a%20b", false, Err(400)),
        ] {
            let got = ListOptions::parse(&Query::parse(query), watch).map(|_| ()).map_err(|s| s.code);
            assert_eq!(got, want, "{query}");
        }
        let begins = |query: &str| ListOptions::parse(&Query::parse(query), true).expect("fine").initial_events;
        assert_eq!(
            (begins(""), begins("resourceVersion=0"), begins("resourceVersion=7")),
            (Some(true), Some(true), None)
        );
        assert_eq!(begins("sendInitialEvents=false&resourceVersionMatch=NotOlderThan"), Some(false));
        let many = format!("labelSelector={}", "!a,".repeat(1001).trim_end_matches(','));
        assert_eq!(ListOptions::parse(&Query::parse(&many), false).map(|_| ()).map_err(|s| s.code), Err(400));
    }
}
