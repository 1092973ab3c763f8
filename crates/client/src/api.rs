//! Typed (or JSON) access to one kind: every verb, one method each.

use std::marker::PhantomData;

use bytes::Bytes;
use http::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{Call, Client};
use crate::error::{Error, Result};
use crate::object::Key;
use crate::params::{DeleteParams, ListParams, Patch, WatchParams};
use crate::resource::Resource;
use crate::watch::{Frames, TypedFrames};

/// One page of a list.
#[derive(Clone, Debug)]
pub struct List<K> {
    pub items: Vec<K>,
    pub revision: u64,
    /// Empty on the last page.
    pub continue_token: String,
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// Access to one kind, in all namespaces or one.
#[derive(Clone, Debug)]
pub struct Api<K> {
    client: Client,
    resource: Resource,
    namespace: String,
    kind: PhantomData<fn() -> K>,
}

impl<K> Api<K> {
    pub(crate) fn new(client: Client, resource: Resource) -> Self {
        Self { client, resource, namespace: String::new(), kind: PhantomData }
    }

    /// The same within a namespace; no effect on kinds of cluster scope.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// What is accessed.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    fn path(&self, name: Option<&str>, subresource: Option<&str>) -> String {
        self.resource.path(&self.namespace, name, subresource)
    }
}

impl<K: Serialize + DeserializeOwned> Api<K> {
    /// Reads one object, as it is now.
    pub async fn get(&self, name: &str) -> Result<K> {
        decode(&self.client.send(Call::get(self.path(Some(name), None))).await?)
    }

    /// Reads one object; `None` when it does not exist.
    pub async fn find(&self, name: &str) -> Result<Option<K>> {
        match self.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a subresource (`scale`).
    pub async fn get_subresource(&self, name: &str, subresource: &str) -> Result<Value> {
        decode(&self.client.send(Call::get(self.path(Some(name), Some(subresource)))).await?)
    }

    /// Reads one page.
    pub async fn list(&self, params: &ListParams) -> Result<List<K>> {
        Ok(self.page(params).await?.0)
    }

    /// The same, and how long its objects are.
    async fn page(&self, params: &ListParams) -> Result<(List<K>, usize)> {
        let (raw, (revision, continue_token)) = self.list_raw(params).await?;
        let size = raw.iter().map(Bytes::len).sum();
        let items = raw.iter().map(|item| decode(item)).collect::<Result<_>>()?;
        Ok((List { items, revision, continue_token }, size))
    }

    /// Reads every page, each consistent with the first.
    pub async fn list_all(&self, params: &ListParams) -> Result<List<K>> {
        let mut params = params.clone();
        params.limit.get_or_insert(500);
        let (mut list, mut size) = self.page(&params).await?;
        let longest = self.client.bounds().list;
        while !list.continue_token.is_empty() {
            params.continue_token = std::mem::take(&mut list.continue_token);
            params.resource_version = None;
            let (page, more) = self.page(&params).await?;
            size += more;
            if size > longest {
                return Err(Error::Interrupted(format!("the list is longer than {longest} bytes")));
            }
            list.items.extend(page.items);
            list.continue_token = page.continue_token;
        }
        Ok(list)
    }

    /// Reads one page as the objects' bytes; with the revision and the continue token.
    pub async fn list_raw(&self, params: &ListParams) -> Result<(Vec<Bytes>, (u64, String))> {
        self.list_accepting(params, crate::client::JSON).await
    }

    pub(crate) async fn list_accepting(
        &self,
        params: &ListParams,
        accept: &'static str,
    ) -> Result<(Vec<Bytes>, (u64, String))> {
        let path = format!("{}{}", self.path(None, None), params.query().as_str());
        let mut call = Call::get(path);
        call.accept = accept;
        let bytes = self.client.send(call).await?;
        let list: RawList = serde_json::from_slice(&bytes).map_err(Error::decode)?;
        let revision = list.metadata.resource_version.as_deref().unwrap_or_default();
        let revision = if revision.is_empty() { 0 } else { revision.parse().map_err(Error::decode)? };
        let items = list.items.unwrap_or_default();
        // Each item gets bytes of its own: a slice would keep the whole page in memory.
        let items = items.into_iter().map(|raw| Bytes::copy_from_slice(raw.get().as_bytes())).collect();
        Ok((items, (revision, list.metadata.continue_token.unwrap_or_default())))
    }

    /// Watches; each event carries the object typed.
    pub async fn watch(&self, params: &WatchParams) -> Result<TypedFrames<K>> {
        Ok(TypedFrames::new(self.watch_raw(params).await?))
    }

    /// Watches; each event carries the object's bytes.
    pub async fn watch_raw(&self, params: &WatchParams) -> Result<Frames> {
        self.watch_accepting(params, crate::client::JSON).await
    }

    pub(crate) async fn watch_accepting(&self, params: &WatchParams, accept: &'static str) -> Result<Frames> {
        let path = format!("{}{}", self.path(None, None), params.query().as_str());
        let mut call = Call::get(path);
        call.accept = accept;
        Ok(Frames::new(self.client.open(call).await?, self.client.bounds().answer))
    }

    /// Creates an object; the answer is what was stored.
    pub async fn create(&self, object: &K) -> Result<K> {
        let body = serde_json::to_vec(object).map_err(invalid)?;
        decode(&self.client.send(Call::write(Method::POST, self.path(None, None), body)).await?)
    }

    /// Replaces an object, which names itself; its resourceVersion guards against lost updates.
    pub async fn update(&self, object: &K) -> Result<K> {
        self.put(object, None).await
    }

    /// Replaces the status of an object, which names itself.
    pub async fn update_status(&self, object: &K) -> Result<K> {
        self.put(object, Some("status")).await
    }

    async fn put(&self, object: &K, subresource: Option<&str>) -> Result<K> {
        let value = serde_json::to_value(object).map_err(invalid)?;
        let name = value.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.ok_or_else(|| Error::Invalid("the object to update has no name".into()))?;
        let body = serde_json::to_vec(&value).map_err(invalid)?;
        decode(&self.client.send(Call::write(Method::PUT, self.path(Some(name), subresource), body)).await?)
    }

    /// Changes an object.
    pub async fn patch(&self, name: &str, patch: &Patch) -> Result<K> {
        self.send_patch(name, None, patch).await
    }

    /// Changes the status of an object.
    pub async fn patch_status(&self, name: &str, patch: &Patch) -> Result<K> {
        self.send_patch(name, Some("status"), patch).await
    }

    /// The same, reading of the answer what `V` reads.
    pub async fn patch_status_as<V: DeserializeOwned>(&self, name: &str, patch: &Patch) -> Result<V> {
        self.send_patch(name, Some("status"), patch).await
    }

    async fn send_patch<V: DeserializeOwned>(&self, name: &str, subresource: Option<&str>, patch: &Patch) -> Result<V> {
        let path = format!("{}{}", self.path(Some(name), subresource), patch.query().as_str());
        let mut call = Call::write(Method::PATCH, path, serde_json::to_vec(patch.value()).map_err(invalid)?);
        call.content_type = patch.content_type();
        decode(&self.client.send(call).await?)
    }

    /// Deletes an object. The answer is the object when it is still being deleted, else a Status.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<Value> {
        let body = serde_json::to_vec(&params.body()).map_err(invalid)?;
        decode(&self.client.send(Call::write(Method::DELETE, self.path(Some(name), None), body)).await?)
    }

    /// Deletes every object of the namespace that the list selects.
    pub async fn delete_collection(&self, params: &DeleteParams, list: &ListParams) -> Result<Value> {
        let path = format!("{}{}", self.path(None, None), list.query().as_str());
        let body = serde_json::to_vec(&params.body()).map_err(invalid)?;
        decode(&self.client.send(Call::write(Method::DELETE, path, body)).await?)
    }

    /// Sends an object to a subresource (`binding`, `token`, `eviction`).
    pub async fn create_subresource(&self, name: &str, subresource: &str, body: &Value) -> Result<Value> {
        let body = serde_json::to_vec(body).map_err(invalid)?;
        let path = self.path(Some(name), Some(subresource));
        decode(&self.client.send(Call::write(Method::POST, path, body)).await?)
    }

    /// Replaces a subresource (`finalize`, `scale`).
    pub async fn update_subresource(&self, name: &str, subresource: &str, body: &Value) -> Result<Value> {
        let body = serde_json::to_vec(body).map_err(invalid)?;
        let path = self.path(Some(name), Some(subresource));
        decode(&self.client.send(Call::write(Method::PUT, path, body)).await?)
    }

    /// The key of an object of this kind in the chosen namespace.
    pub fn key(&self, name: &str) -> Key {
        Key::new(self.namespace.clone(), name)
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(Error::decode)
}

fn invalid(error: serde_json::Error) -> Error {
    Error::Invalid(error.to_string())
}
