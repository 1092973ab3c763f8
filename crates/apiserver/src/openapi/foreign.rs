//! What other servers say of what they answer for: in the index of v3 as a place, and as a part of the one
//! document of v2.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::Kept;
use super::converted::Converted;
use super::gnostic::v2 as gnostic;
use super::gnostic::v3 as gnostic_v3;
use crate::aggregation::{Part, add};

/// What a server says of one version.
#[derive(Clone, Default)]
pub struct Foreign {
    pub group: String,
    pub version: String,
    /// Where its document of v3 is had through this server; `None` when it has none.
    pub v3: Option<String>,
    pub v2: Option<Arc<Part>>,
    /// The document of v3 that is made of that of v2, where there is no other.
    pub made: Option<Arc<Made>>,
}

/// A document of v3 that is made here.
pub struct Made {
    part: Arc<Part>,
    pub(super) kept: Kept,
}

impl Made {
    /// Of a document of v2.
    pub fn of(part: Arc<Part>) -> Self {
        Self { part, kept: Kept::default() }
    }

    pub(super) fn json(&self, head: Value, security: &Value) -> Vec<u8> {
        Converted::of(&self.part).json(head, security)
    }

    pub(super) fn protobuf(&self, head: &Value, security: &Value) -> Vec<u8> {
        let Converted { paths, schemas } = Converted::of(&self.part);
        let mut out = gnostic_v3::Document::start(head);
        out.paths(paths.iter().map(|(path, item)| (path.as_str(), item.clone())));
        out.components(schemas.iter().map(|(name, schema)| (name.as_str(), schema.clone())), security);
        out.finish()
    }
}

impl Foreign {
    /// The path of the version, as the index of v3 has it.
    pub fn path(&self) -> String {
        if self.group.is_empty() {
            format!("api/{}", self.version)
        } else {
            format!("apis/{}/{}", self.group, self.version)
        }
    }

    /// True when the document of v3 is asked for where it is.
    pub fn is_elsewhere(&self) -> bool {
        self.v3.is_some()
    }

    /// True when both say the same. A part that was read again only when it had changed is known by its place.
    pub fn is_as(&self, other: &Self) -> bool {
        fn same<T>(own: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            match (own, other) {
                (Some(own), Some(other)) => Arc::ptr_eq(own, other),
                (own, other) => own.is_none() && other.is_none(),
            }
        }
        let part = |made: &Arc<Made>| made.part.clone();
        let same_made = same(self.made.as_ref().map(part).as_ref(), other.made.as_ref().map(part).as_ref());
        same_made && same(self.v2.as_ref(), other.v2.as_ref()) && self.path() == other.path() && self.v3 == other.v3
    }
}

/// The document of v2 with the parts of others.
pub(super) struct Written(Value);

impl Written {
    /// `None` when there are none.
    pub fn of(own: &[u8], foreign: &[Arc<Foreign>]) -> Option<Self> {
        let parts: Vec<&Arc<Part>> = foreign.iter().filter_map(|foreign| foreign.v2.as_ref()).collect();
        if parts.is_empty() {
            return None;
        }
        let mut document: Value = serde_json::from_slice(own).ok()?;
        add(&mut document, parts.into_iter().map(|part| &**part));
        Some(Self(document))
    }

    pub fn json(&self) -> Vec<u8> {
        self.0.to_string().into_bytes()
    }

    pub fn protobuf(&self) -> Vec<u8> {
        let none = Map::new();
        let map = |field: &str| self.0.get(field).and_then(Value::as_object).unwrap_or(&none);
        let mut out = gnostic::Document::start(&self.0);
        out.paths(map("paths").iter().map(|(path, item)| (path.as_str(), item.clone())));
        out.definitions(map("definitions").iter().map(|(name, definition)| (name.as_str(), definition.clone())));
        let parameters: BTreeMap<String, Value> = map("parameters").clone().into_iter().collect();
        out.finish(&parameters, &self.0["security"], &self.0["securityDefinitions"])
    }
}
