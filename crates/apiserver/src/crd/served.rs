//! A definition that is served: its versions compiled, its objects cached, its resources in the catalogue.

use std::sync::Arc;

use kinds::SharedKind;
use kinds::custom::CustomKind;
use kinds::custom_resource_definition::{Definition, Names};
use machinery::status::{self, GroupResource, Status};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::RwLock;

use super::webhook::Webhook;
use crate::cacher::{CachedObject, Cacher};
use crate::registry::catalogue::Resource;
use crate::server::ApiServer;

/// What its requests need beside the kind of their own version.
pub struct Custom {
    /// Every version, served or not.
    pub versions: Vec<Arc<CustomKind>>,
    /// The place among them of the version objects are stored in.
    pub storage: usize,
    /// Who converts between them; none: only what they are called differs.
    pub webhook: Option<Webhook>,
    /// False once the definition is being deleted: nothing is created then. One for the whole life of the
    /// definition.
    pub open: Arc<RwLock<bool>>,
}

impl Custom {
    /// The version objects are stored in.
    pub fn storage(&self) -> &Arc<CustomKind> {
        &self.versions[self.storage]
    }

    /// True when objects may be wanted in another version than the stored one.
    pub fn has_several_versions(&self) -> bool {
        self.versions.len() > 1
    }

    /// The kind of the version.
    pub fn version(&self, name: &str) -> Option<&Arc<CustomKind>> {
        self.versions.iter().find(|kind| kind.version() == name)
    }
}

/// A definition as it is served.
pub(super) struct Served {
    name: GroupResource,
    /// What it was compiled from.
    of: Print,
    names: Names,
    pub custom: Arc<Custom>,
    cacher: Arc<Cacher>,
}

/// The hash of what is defined, which may be large: by it is known whether that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print([u8; 32]);

/// A definition without its schemas, and its print.
pub(super) fn light(mut tree: Value) -> status::Result<(Definition, Print)> {
    let print = Print(Sha256::digest(tree["spec"].to_string()).into());
    for version in tree.pointer_mut("/spec/versions").and_then(Value::as_array_mut).into_iter().flatten() {
        version.as_object_mut().and_then(|version| version.remove("schema"));
    }
    Ok((kinds::view::read(&tree)?, print))
}

impl Served {
    /// Serves a definition, as it is stored, under these names, in the place of what was served of it before.
    ///
    /// # Errors
    /// The outer one when the store cannot be read; the inner one says what is wrong with the definition.
    pub async fn begin(
        server: &ApiServer,
        stored: Arc<CachedObject>,
        names: &Names,
        open: &Arc<RwLock<bool>>,
    ) -> status::Result<Result<Self, String>> {
        let (under, open) = (names.clone(), open.clone());
        // A large schema takes its time.
        let compiled = tokio::task::spawn_blocking(move || {
            let tree = stored.value().map_err(|status| status.message.clone())?;
            let definition: Definition = kinds::view::read(&tree).map_err(|status| status.message.clone())?;
            let custom = Arc::new(compile(&definition, &under, open)?);
            let (definition, print) = light(tree).map_err(|status| status.message.clone())?;
            Ok::<_, String>((custom, definition, print))
        });
        let (custom, definition, of) = match compiled.await.map_err(Status::internal)? {
            Ok(compiled) => compiled,
            Err(why) => return Ok(Err(why)),
        };
        let storage = SharedKind::Custom(custom.storage().clone());
        let cacher = server.cachers.add(storage).await?;
        let resource = |kind: &Arc<CustomKind>| {
            let (kind, store) = (SharedKind::Custom(kind.clone()), server.cachers.durable_store().clone());
            Arc::new(Resource::custom(kind, store, cacher.clone(), custom.clone()))
        };
        let versions = definition.spec.versions.iter().zip(&custom.versions).filter(|(version, _)| version.served);
        let resources = versions.map(|(_, kind)| resource(kind)).collect();
        let name = name(&definition);
        server.catalogue.set_custom(name.clone(), resources);
        Ok(Ok(Self { name, of, names: names.clone(), custom, cacher }))
    }

    /// True when nothing that matters for serving has changed.
    pub fn is_of(&self, print: Print, names: &Names) -> bool {
        self.names == *names && self.of == print
    }

    /// Nothing is created any more. False when that was so before. What is watched goes on: it ends object by
    /// object.
    pub fn begin_ending(&self) -> bool {
        self.custom.versions.iter().filter(|kind| kind.begin_ending()).count() > 0
    }

    /// Ends it: requests find nothing, watches end.
    pub fn end(self, server: &ApiServer) {
        server.catalogue.set_custom(self.name, Vec::new());
        server.cachers.remove(&self.cacher);
    }
}

fn name(definition: &Definition) -> GroupResource {
    GroupResource::new(definition.spec.group.as_str(), definition.spec.names.plural.as_str())
}

fn compile(definition: &Definition, names: &Names, open: Arc<RwLock<bool>>) -> Result<Custom, String> {
    let storage = definition.spec.versions.iter().position(|version| version.storage);
    let storage = storage.ok_or_else(|| "no version is the one to store".to_owned())?;
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    let conversion = definition.spec.conversion.as_ref().filter(|conversion| conversion.strategy == "Webhook");
    let webhook = conversion.and_then(|conversion| conversion.webhook.as_ref());
    let webhook = webhook.map(|webhook| Webhook::new(name, webhook)).transpose()?;
    let version = |version| {
        let kind = CustomKind::compile(definition, version, names);
        kind.map(Arc::new).map_err(|why| format!("version {}: {why}", version.name))
    };
    let versions = definition.spec.versions.iter().map(version).collect::<Result<_, _>>()?;
    Ok(Custom { versions, storage, webhook, open })
}
