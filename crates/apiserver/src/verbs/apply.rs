//! `apply`: a patch that says what its manager wants; other managers' fields stay, and what the manager
//! no longer wants goes unless someone else does.

use machinery::managed::{self, Manager};
use machinery::status::{self, Status};
use machinery::{decode, meta};
use serde_json::Value;
use transport::Response;

use super::options::{Validation, WriteOptions};
use super::{check_names, write, written};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::store;

/// The content type.
pub const TYPE: &str = "application/apply-patch+yaml";

/// How often an object may come and go while it is applied.
const ATTEMPTS: usize = 4;

/// An apply patch, read, and how it is meant.
pub struct Apply {
    config: Value,
    pub options: WriteOptions,
    /// Apply notes itself whose fields these are: what writes the object does not.
    pub unmanaged: WriteOptions,
}

impl Apply {
    /// Reads the request.
    ///
    /// # Errors
    /// 400 and 422 for what cannot be read, and when keys are set twice and the client minds.
    pub fn read(call: &Call) -> status::Result<Self> {
        let options = WriteOptions::parse(&call.query, "PatchOptions", true, call.user_agent())?;
        let managed::config::Config { value: config, duplicate } = managed::config::read(&call.body)?;
        match (duplicate, options.validation) {
            (Some(duplicate), Validation::Strict) => {
                return Err(Status::bad_request(format!("error strict decoding YAML: {duplicate}")));
            }
            // One warning a key: the first line is what they have in common.
            (Some(duplicate), Validation::Warn) => {
                call.warn(duplicate.lines().skip(1).map(|line| line.trim().to_owned()));
            }
            _ => {}
        }
        let unmanaged = WriteOptions { manager: String::new(), ..options.clone() };
        Ok(Self { config, options, unmanaged })
    }

    /// The live object with the configuration laid over it, as an object of the type.
    ///
    /// # Errors
    /// As [`managed::apply`], and 400 for values that do not fit.
    pub fn lay_over(
        &self,
        live: Option<&Value>,
        schema: &machinery::schema::Type,
        manager: &Manager,
    ) -> status::Result<Value> {
        let merged = managed::apply(live, &self.config, schema, manager, self.options.force)?;
        Ok(decode::tree(merged, schema, decode::Strictness::Ignore)?.value)
    }
}

/// Serves the request.
///
/// # Errors
/// 409 when other managers own what would change, and what decoding, admission, validation and the
/// store say.
pub async fn run(call: &Call, resource: &Resource, subresource: &str) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let apply = Apply::read(call)?;
    let (schema, shape) = (resource.kind.schema(), resource.shape());
    let name = call.info.name.as_str();
    let manager = Manager {
        name: apply.options.manager.clone(),
        api_version: shape.api_version(),
        also: shape.also_in.iter().map(str::to_owned).collect(),
        subresource: subresource.to_owned(),
        reset: shape.resets(subresource),
        now: call.server.clock.wall(),
    };
    let merged = |live: Option<&Value>| {
        let merged = apply.lay_over(live, &schema, &manager)?;
        let uid = meta::uid(&merged);
        if live.is_none() && !uid.is_empty() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(Status::conflict(&resource.group_resource(), name, why));
        }
        check_names(&merged, resource, name, &call.info.namespace)?;
        Ok(merged)
    };
    let write = write(call, resource, name, subresource, &apply.unmanaged);
    let mut done = store::update(&write, |live| merged(Some(live))).await;
    for _ in 0..ATTEMPTS {
        done = match done {
            Err(status) if status.code == 404 && subresource.is_empty() && is_about(&status, resource, name) => {
                call.authorize("create").await?;
                store::create(&write, merged(None)?).await
            }
            Err(status) if status.is("AlreadyExists") => store::update(&write, |live| merged(Some(live))).await,
            settled => {
                done = settled;
                break;
            }
        };
    }
    written(call, resource, accepted, &done?).await
}

fn is_about(status: &status::Status, resource: &Resource, name: &str) -> bool {
    status.details.as_ref().is_some_and(|d| d.name == name && d.kind == resource.shape().plural)
}
