//! `patch`: JSON patch, merge patch, strategic merge patch; an apply patch is a verb of its own.

use http::header::CONTENT_TYPE;
use kinds::AnyKind;
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::{decode, patch};
use parking_lot::Mutex;
use serde_json::Value;
use transport::Response;

use super::options::{Validation, WriteOptions};
use super::{apply, body, write, written};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::store;

/// The kinds of patch that change an object as it is.
pub const TYPES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];

fn media_type(content_type: Option<&str>) -> &str {
    content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

/// True for the content type of server-side apply.
fn is_apply(content_type: Option<&str>) -> bool {
    media_type(content_type).eq_ignore_ascii_case(apply::TYPE)
}

/// A patch, read.
pub enum Patch<'a> {
    Json(&'a [u8]),
    Merge(Value),
    Strategic(Value),
}

impl<'a> Patch<'a> {
    /// Reads a patch of the type the client says.
    ///
    /// # Errors
    /// 415 for other types, 400 for what cannot be read.
    pub fn read(content_type: Option<&str>, body: &'a [u8]) -> status::Result<Self> {
        let media = media_type(content_type);
        let tree = || {
            let value: Value = serde_json::from_slice(body)
                .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
            if !value.is_object() {
                return Err(Status::bad_request("error decoding patch: the patch is not an object"));
            }
            Ok(value)
        };
        match TYPES.iter().position(|t| t.eq_ignore_ascii_case(media)) {
            Some(0) => Ok(Self::Json(body)),
            Some(1) => Ok(Self::Merge(tree()?)),
            Some(2) => Ok(Self::Strategic(tree()?)),
            _ => Err(Status::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: {}, {}",
                TYPES.join(", "),
                apply::TYPE
            ))),
        }
    }

    /// Applies it to an object of the type.
    ///
    /// # Errors
    /// 400 and 422 for a patch that does not fit.
    pub fn apply(&self, object: &mut Value, schema: &Type) -> status::Result<()> {
        match self {
            Self::Json(bytes) => patch::json(object, bytes),
            Self::Merge(tree) => patch::merge(object, tree),
            Self::Strategic(tree) => patch::strategic(object, tree, schema),
        }
    }
}

/// Serves the request.
///
/// # Errors
/// 415 for other kinds of patch, 400 and 422 for patches that cannot be applied, and what admission,
/// validation and the store say.
pub async fn run(call: &Call, resource: &Resource, subresource: &str) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    if is_apply(call.header(CONTENT_TYPE)) {
        return apply::run(call, resource, subresource).await;
    }
    let patch = Patch::read(call.header(CONTENT_TYPE), &call.body)?;
    let options = WriteOptions::parse(&call.query, "PatchOptions", false, call.user_agent())?;
    let warnings = Mutex::new(Vec::new());
    let change = |old: &Value| {
        let (new, found) = patched(&patch, old, resource.kind, options.validation)?;
        *warnings.lock() = found;
        Ok(new)
    };
    let done = store::update(&write(call, resource, &call.info.name, subresource, &options), change).await?;
    written(call, resource, accepted, &done, &warnings.into_inner()).await
}

/// The patched object, checked like one that a client sent, and the warnings about it.
fn patched(
    patch: &Patch<'_>,
    old: &Value,
    kind: &dyn AnyKind,
    validation: Validation,
) -> status::Result<(Value, Vec<String>)> {
    let mut new = old.clone();
    patch.apply(&mut new, &kind.schema())?;
    let decoded = decode::tree(new, &kind.schema(), body::strictness(validation))?;
    Ok((decoded.value, decoded.warnings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_known_by_their_content_type() {
        for (media, body, want) in [
            (Some("application/json-patch+json"), "[]", Ok(())),
            (Some("application/merge-patch+json; charset=utf-8"), "{}", Ok(())),
            (Some("application/Strategic-Merge-Patch+json"), "{}", Ok(())),
            (Some("application/apply-patch+yaml"), "{}", Err(415)),
            (Some("application/json"), "{}", Err(415)),
            (None, "{}", Err(415)),
            (Some("application/merge-patch+json"), "{", Err(400)),
            (Some("application/merge-patch+json"), "[1]", Err(400)),
            (Some("application/strategic-merge-patch+json"), "", Err(400)),
        ] {
            let got = Patch::read(media, body.as_bytes()).map(|_| ()).map_err(|s| s.code);
            assert_eq!(got, want, "{media:?} {body}");
        }
    }
}
