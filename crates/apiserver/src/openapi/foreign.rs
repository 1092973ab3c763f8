//! What other servers say of what they answer for: in the index of v3 as a place, and as a part of the one
//! document of v2.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::gnostic::v2 as gnostic;
use crate::aggregation::{Part, add};

/// What a server says of one version.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    pub group: String,
    pub version: String,
    /// Where its document of v3 is had through this server; `None` when it has none.
    pub v3: Option<String>,
    pub v2: Option<Arc<Part>>,
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
        let same_part = match (&self.v2, &other.v2) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        };
        same_part && self.path() == other.path() && self.v3 == other.v3
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
