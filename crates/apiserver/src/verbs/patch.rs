//! `patch`: JSON patch, merge patch, strategic merge patch; an apply patch is a verb of its own.

use http::header::CONTENT_TYPE;
use machinery::field::{FieldErrors, Path};
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::{decode, managed, meta, patch};
use serde_json::Value;
use transport::Response;

use super::options::{Validation, WriteOptions};
use super::{apply, check_names, write, written};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::store;

/// The kinds of patch that change an object as it is.
pub const TYPES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];

/// Upstream compares it letter for letter.
fn media_type(content_type: Option<&str>) -> &str {
    content_type.unwrap_or_default().split(';').next().unwrap_or_default()
}

/// True for the content type of server-side apply.
pub fn is_apply(content_type: Option<&str>) -> bool {
    media_type(content_type) == apply::TYPE
}

const MANAGED_FIELDS: &[u8] = b"managedFields";

/// A patch, read. What is wrong with it is told when there is an object to apply it to.
pub struct Patch {
    kind: status::Result<Kind>,
    validation: Validation,
    /// It may look into `metadata.managedFields`.
    names_managers: bool,
}

enum Kind {
    Json(patch::JsonPatch),
    Merge(patch::Tree),
    Strategic(patch::Tree),
}

/// An object that a patch made of another.
pub struct Patched {
    pub object: Value,
    /// Unknown and duplicate fields, to warn of.
    pub warnings: Vec<String>,
}

impl Patch {
    /// Reads a patch of the type the client says, which must be among those given, in the order of [`TYPES`].
    ///
    /// # Errors
    /// 415 for other types, 400 for what is no JSON.
    pub fn read(
        content_type: Option<&str>,
        types: &[&str],
        body: &[u8],
        validation: Validation,
    ) -> status::Result<Self> {
        let media = media_type(content_type);
        let checked = validation != Validation::Ignore;
        let kind = match types.iter().position(|t| *t == media) {
            Some(0) => patch::JsonPatch::parse(body, checked).map(Kind::Json),
            Some(1) => patch::parse(body, checked, "error decoding patch: ").map(Kind::Merge),
            Some(_) => patch::parse(body, checked, "").map(Kind::Strategic),
            None => {
                return Err(Status::unsupported_media_type(format!(
                    "the body of the request was in an unknown format - accepted media types include: {}, {}",
                    types.join(", "),
                    apply::TYPE
                )));
            }
        };
        patch::check_syntax(body)?;
        let names_managers = body.windows(MANAGED_FIELDS.len()).any(|window| window == MANAGED_FIELDS);
        Ok(Self { kind, validation, names_managers })
    }

    /// Applies it to an object of the type, and checks what comes out like an object that a client sent.
    ///
    /// # Errors
    /// 400 and 413 for what is no such patch, 422 for one that does not fit the object, or whose outcome
    /// does not fit the type.
    pub fn apply(&self, old: &Value, schema: &Type) -> status::Result<Patched> {
        let kind = self.kind.as_ref().map_err(Clone::clone)?;
        let mut new = old.clone();
        if self.names_managers {
            managed::expand(&mut new);
        }
        let (errors, converted) = match kind {
            Kind::Json(patch) => {
                patch.apply(&mut new)?;
                (&patch.errors, None)
            }
            Kind::Merge(tree) => {
                patch::merge(&mut new, &tree.patch);
                (&tree.errors, None)
            }
            Kind::Strategic(tree) => {
                patch::strategic(&mut new, &tree.patch, schema)?;
                (&tree.errors, Some(&tree.patch))
            }
        };
        let report = self.validation != Validation::Ignore;
        // The text of an error shows the object, or the patch when the object never was a text.
        let invalid = |why: &str| {
            let mut errors = FieldErrors::new();
            let shown = converted.map_or_else(|| outcome(kind, old).to_string(), patch::print);
            errors.invalid(&Path::new("patch"), shown, why);
            Status::invalid("", "", "", &errors)
        };
        let patched = decode::patched(new, schema, report, converted.is_some()).map_err(|why| invalid(&why))?;
        let errors: Vec<String> = errors.iter().cloned().chain(patched.errors).collect();
        if self.validation == Validation::Strict && !errors.is_empty() {
            return Err(invalid(&format!("strict decoding error: {}", errors.join(", "))));
        }
        let warnings = if self.validation == Validation::Warn { errors } else { Vec::new() };
        Ok(Patched { object: patched.value, warnings })
    }
}

/// What a patch that can be applied makes of an object, unchecked.
fn outcome(kind: &Kind, old: &Value) -> Value {
    let mut new = old.clone();
    managed::expand(&mut new);
    match kind {
        Kind::Json(patch) => drop(patch.apply(&mut new)),
        Kind::Merge(tree) | Kind::Strategic(tree) => patch::merge(&mut new, &tree.patch),
    }
    new
}

/// Serves the request.
///
/// # Errors
/// 415 for other kinds of patch, 400 and 422 for patches that cannot be applied, and what admission,
/// validation and the store say.
pub async fn run(call: &Call, resource: &Resource, subresource: &str) -> status::Result<Response> {
    if is_apply(call.header(CONTENT_TYPE)) {
        return apply::run(call, resource, subresource).await;
    }
    let options = WriteOptions::parse(&call.query, "PatchOptions", false, call.user_agent());
    let validation = options.as_ref().map_or(Validation::Warn, |o| o.validation);
    let types = if resource.kind.is_custom() { &TYPES[..2] } else { &TYPES };
    let patch = Patch::read(call.header(CONTENT_TYPE), types, &call.body, validation);
    // Another kind of patch is told before all else, what is wrong with this one after the options.
    if let Err(status) = &patch
        && status.code == 415
    {
        return Err(status.clone());
    }
    let accepted = call.accept(Offer::Objects { list: false })?;
    let (options, patch) = (options?, patch?);
    let schema = resource.kind.schema();
    let change = |old: &Value| {
        let patched = patch.apply(old, &schema)?;
        call.warn(patched.warnings);
        check_identity(&patched.object, old, resource, &call.info.namespace)?;
        Ok(patched.object)
    };
    let done = store::update(&write(call, resource, &call.info.name, subresource, &options), change).await?;
    written(call, resource, accepted, &done).await
}

/// A patch cannot make another object of an object.
///
/// # Errors
/// 400 for another name or namespace, 422 for another uid.
pub fn check_identity(new: &Value, old: &Value, resource: &Resource, namespace: &str) -> status::Result<()> {
    let shape = resource.shape();
    let its_namespace = meta::namespace(new);
    if shape.is_namespaced() && !its_namespace.is_empty() && its_namespace != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let name = meta::name(old);
    check_names(new, resource, name, namespace)?;
    let uid = meta::uid(new);
    if !uid.is_empty() && uid != meta::uid(old) {
        let mut errors = FieldErrors::new();
        errors.invalid(&Path::new("metadata").child("uid"), uid, "field is immutable");
        return Err(Status::invalid(shape.group, shape.kind, name, &errors));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_known_by_their_content_type() {
        for (media, body, want) in [
            (Some("application/json-patch+json"), "[]", Ok(())),
            (Some("application/merge-patch+json; charset=utf-8"), "{}", Ok(())),
            (Some("application/Strategic-Merge-Patch+json"), "{}", Err(415)),
            (Some("application/apply-patch+yaml"), "{}", Err(415)),
            (Some("application/json"), "{}", Err(415)),
            (None, "{}", Err(415)),
            (Some("application/merge-patch+json"), "{", Err(400)),
            (Some("application/strategic-merge-patch+json"), "", Err(400)),
            // Only where there is an object: see `patches.rs`.
            (Some("application/merge-patch+json"), "[1]", Ok(())),
        ] {
            let got = Patch::read(media, &TYPES, body.as_bytes(), Validation::Warn).map(|_| ()).map_err(|s| s.code);
            assert_eq!(got, want, "{media:?} {body}");
        }
    }
}
