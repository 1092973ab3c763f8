//! Objects at random, made of a stream of bytes: what is left of the stream after shrinking is still an
//! object.

use serde_json::{Map, Value, json};

/// A stream of choices.
pub(super) struct Choices<'c> {
    pub(super) left: std::slice::Iter<'c, u8>,
    pub(super) nulls: bool,
}

impl Choices<'_> {
    pub(super) fn pick(&mut self, of: u8) -> u8 {
        self.left.next().copied().unwrap_or(0) % of
    }

    fn word(&mut self) -> Value {
        json!(["x", "y", "z"][usize::from(self.pick(3))])
    }

    /// Some of the names, in some order.
    fn names(&mut self) -> Vec<&'static str> {
        let orders: [&[&str]; 8] =
            [&[], &["a"], &["b"], &["a", "b"], &["b", "a"], &["c", "a"], &["a", "b", "c"], &["c", "b", "a"]];
        orders[usize::from(self.pick(8))].to_vec()
    }

    fn add(&mut self, map: &mut Map<String, Value>, name: &str, of: u8, value: impl FnOnce(&mut Self) -> Value) {
        match self.pick(of) {
            0 => {
                let value = value(self);
                map.insert(name.to_owned(), value);
            }
            1 if self.nulls && self.pick(4) == 0 => drop(map.insert(name.to_owned(), Value::Null)),
            _ => {}
        }
    }

    fn inner(&mut self, depth: u8) -> Value {
        let mut map = Map::new();
        self.add(&mut map, "a", 2, Self::word);
        self.add(&mut map, "b", 2, |c| json!(c.pick(3)));
        if depth > 0 {
            self.add(&mut map, "deep", 2, |c| c.inner(depth - 1));
        }
        Value::Object(map)
    }

    fn ports(&mut self) -> Value {
        let ports = self.names().into_iter().map(|name| {
            let mut port = Map::new();
            let (number, protocol) = match name {
                "a" => (80, None),
                "b" => (443, Some("TCP")),
                _ => (80, Some("UDP")),
            };
            port.insert("port".into(), json!(number));
            if let Some(protocol) = protocol {
                port.insert("protocol".into(), json!(protocol));
            } else if self.pick(2) == 0 {
                // What it says is what it is by default.
                port.insert("protocol".into(), json!("TCP"));
            }
            self.add(&mut port, "name", 2, Self::word);
            Value::Object(port)
        });
        ports.collect::<Vec<_>>().into()
    }

    fn item(&mut self, name: &str) -> Value {
        let mut map = Map::new();
        map.insert("name".into(), json!(name));
        self.add(&mut map, "value", 2, Self::word);
        self.add(&mut map, "ports", 3, Self::ports);
        self.add(&mut map, "inner", 3, |c| c.inner(1));
        self.add(&mut map, "tags", 3, |c| json!(c.names()));
        Value::Object(map)
    }

    fn words(&mut self) -> Value {
        self.names().into_iter().map(|name| (name.to_owned(), self.word())).collect::<Map<_, _>>().into()
    }

    fn spec(&mut self) -> Value {
        let mut map = Map::new();
        self.add(&mut map, "number", 2, |c| json!(c.pick(3)));
        self.add(&mut map, "text", 2, Self::word);
        self.add(&mut map, "set", 2, |c| json!(c.names()));
        self.add(&mut map, "ports", 2, Self::ports);
        self.add(&mut map, "items", 2, |c| c.names().into_iter().map(|name| c.item(name)).collect::<Vec<_>>().into());
        self.add(&mut map, "whole", 3, |c| json!(c.names()));
        self.add(&mut map, "selector", 3, |c| json!({"labels": c.words()}));
        self.add(&mut map, "labels", 2, Self::words);
        self.add(&mut map, "inner", 2, |c| c.inner(2));
        self.add(&mut map, "inners", 3, |c| {
            c.names().into_iter().map(|name| (name.to_owned(), c.inner(1))).collect::<Map<_, _>>().into()
        });
        self.add(&mut map, "always", 4, |c| c.inner(1));
        Value::Object(map)
    }

    pub(super) fn object(&mut self) -> Value {
        let mut object = json!({"kind": "Thing", "apiVersion": "apps/v1", "metadata": {"name": "thing"}});
        if self.pick(3) == 0 {
            object["metadata"]["labels"] = self.words();
        }
        if self.pick(4) == 0 {
            object["metadata"]["finalizers"] = json!(self.names());
        }
        object["spec"] = self.spec();
        if self.pick(6) == 0 {
            object["status"] = self.inner(1);
        }
        object
    }
}
