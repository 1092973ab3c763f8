//! A view that caches hold and readers share without copying it.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};

/// An object behind a shared pointer, as it is decoded.
#[derive(Clone, Debug, Default)]
pub struct Shared<T>(pub Arc<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(|object| Self(Arc::new(object)))
    }
}
