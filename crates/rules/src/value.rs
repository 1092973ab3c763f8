//! Values while an expression is evaluated. What comes from an object is not copied: it is read through
//! its schema when it is looked at.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use machinery::quantity::Quantity;
use serde_json::Value as Json;

use crate::library::{Cidr, Format, Semver, Url};
use crate::meter::{Error, Meter};
use crate::schema::Decl;
use crate::time::Timestamp;
use crate::types::{self, Type};

/// What an evaluation gives.
pub type Out<'a> = Result<Val<'a>, Error>;

/// One value.
#[derive(Clone, Debug)]
pub enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    /// In nanoseconds.
    Duration(i64),
    Timestamp(Timestamp),
    Type(Type),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Val<'a>>>),
    Url(Arc<Url>),
    Ip(IpAddr),
    Cidr(Cidr),
    Quantity(Quantity),
    Semver(Arc<Semver>),
    Format(&'static Format),
    /// A field that its schema preserves and says nothing about.
    Unknown(&'a Json),
}

/// A text, of the object or made.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Made(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Made(text) => text,
        }
    }
}

/// A list.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Of the object; the schema is that of the list.
    Data(&'a [Json], &'a Decl),
    Made(Arc<Vec<Val<'a>>>),
    /// What sets and maps of the object became when something was added to them.
    Typed(Arc<Vec<Val<'a>>>, ListType),
    /// Two lists one after the other: putting lists together copies nothing.
    Joined(Arc<(List<'a>, List<'a>)>, usize),
}

/// A map, or an object.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// Of the object; the schema is that of the map.
    Data(&'a serde_json::Map<String, Json>, &'a Decl),
    Made(Arc<BTreeMap<Key, (Val<'a>, Val<'a>)>>),
}

/// A key of a made map, so that 1 and 1u find the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Bool(bool),
    Number(i128),
    String(Box<str>),
}

impl Key {
    /// The key that a value is, if it may be one.
    pub fn of(value: &Val<'_>) -> Option<Self> {
        match value {
            Val::Bool(b) => Some(Self::Bool(*b)),
            Val::Int(i) => Some(Self::Number(i128::from(*i))),
            Val::Uint(u) => Some(Self::Number(i128::from(*u))),
            Val::Double(d) if d.fract() == 0.0 && d.abs() < 2e19 => Some(Self::Number(*d as i128)),
            Val::String(s) => Some(Self::String((**s).into())),
            _ => None,
        }
    }
}

impl<'a> Val<'a> {
    /// A text that was made.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Made(text.into()))
    }

    /// A list that was made.
    pub fn list(items: Vec<Val<'a>>) -> Self {
        Self::List(List::Made(Arc::new(items)))
    }

    /// A list of texts.
    pub fn texts<S: Into<Arc<str>>>(items: impl IntoIterator<Item = S>) -> Self {
        Self::list(items.into_iter().map(Val::text).collect())
    }

    /// A value that is there.
    pub fn some(value: Val<'a>) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// The type it gives as its own.
    pub fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Duration(_) => Type::Duration,
            Self::Timestamp(_) => Type::Timestamp,
            Self::Type(_) => Type::Type(None),
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Url(_) => Type::Named(types::URL),
            Self::Ip(_) => Type::Named(types::IP),
            Self::Cidr(_) => Type::Named(types::CIDR),
            Self::Quantity(_) => Type::Named(types::QUANTITY),
            Self::Semver(_) => Type::Named(types::SEMVER),
            Self::Format(_) => Type::Named(types::FORMAT),
            Self::Unknown(_) => Type::Named("unknown"),
        }
    }

    /// How large it is, if it has a size: characters, bytes, elements.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::String(s) => Some(s.chars().count() as u64),
            Self::Bytes(b) => Some(b.len() as u64),
            Self::List(l) => Some(l.len() as u64),
            Self::Map(m) => Some(m.len() as u64),
            Self::Ip(ip) => Some(if ip.is_ipv4() { 4 } else { 16 }),
            Self::Cidr(cidr) => Some(u64::from(cidr.bits).div_ceil(8)),
            _ => None,
        }
    }

    /// The size where sizes are counted as cost: 1 for what has none.
    pub fn cost_size(&self) -> u64 {
        match self {
            Self::Optional(Some(inner)) => inner.cost_size(),
            other => other.size().unwrap_or(1),
        }
    }

    /// Does it say nothing: zero, empty, none?
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(b) => !b,
            Self::Int(i) => *i == 0,
            Self::Uint(u) => *u == 0,
            Self::Double(d) => *d == 0.0,
            Self::String(s) => s.is_empty(),
            Self::Bytes(b) => b.is_empty(),
            Self::Duration(d) => *d == 0,
            Self::Timestamp(t) => t.is_zero(),
            Self::List(List::Data(..)) | Self::Map(Map::Data(..)) => false,
            Self::List(l) => l.is_empty(),
            Self::Map(m) => m.is_empty(),
            _ => false,
        }
    }

    /// As it is shown in messages.
    pub fn show(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(b) => b.to_string(),
            Self::Int(i) => i.to_string(),
            Self::Uint(u) => u.to_string(),
            Self::Double(d) => crate::number::shortest(*d),
            Self::String(s) => s.to_string(),
            Self::Type(t) => t.runtime_name().to_owned(),
            other => other.type_of().runtime_name().to_owned(),
        }
    }
}

impl<'a> List<'a> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Data(items, _) => items.len(),
            Self::Made(items) | Self::Typed(items, _) => items.len(),
            Self::Joined(_, length) => *length,
        }
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`.
    pub fn get(&self, index: usize) -> Option<Out<'a>> {
        match self {
            Self::Data(items, decl) => items.get(index).map(|item| decl.items().read(item)),
            Self::Made(items) | Self::Typed(items, _) => items.get(index).cloned().map(Ok),
            Self::Joined(parts, _) => {
                let first = parts.0.len();
                if index < first { parts.0.get(index) } else { parts.1.get(index - first) }
            }
        }
    }

    /// The elements, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = Out<'a>> + '_ {
        (0..self.len()).map_while(|index| self.get(index))
    }

    /// How it is merged and compared.
    fn list_type(&self) -> &ListType {
        match self {
            Self::Data(_, decl) => decl.list_type(),
            Self::Typed(_, list_type) => list_type,
            Self::Made(_) | Self::Joined(..) => &ListType::Atomic,
        }
    }

    /// This list and another. Sets take what they lack, maps also what has keys of theirs.
    pub fn join(&self, other: &List<'a>, meter: &mut Meter) -> Result<Self, Error> {
        let list_type = self.list_type();
        if *list_type == ListType::Atomic {
            let length = self.len().saturating_add(other.len());
            return Ok(Self::Joined(Arc::new((self.clone(), other.clone())), length));
        }
        meter.allocate(self.len().saturating_add(other.len()).saturating_mul(2 * size_of::<Val<'_>>()))?;
        let mut out: Vec<Val<'a>> = self.iter().collect::<Result<_, _>>()?;
        let mut places = BTreeMap::new();
        for (place, item) in out.iter().enumerate() {
            places.insert(list_type.key(item)?, place);
        }
        for item in other.iter() {
            let item = item?;
            match (places.get(&list_type.key(&item)?), list_type) {
                (Some(place), ListType::Map(_)) => {
                    if let Some(slot) = out.get_mut(*place) {
                        *slot = item;
                    }
                }
                (Some(_), _) => {}
                (None, ListType::Map(_)) => out.push(item),
                (None, _) => {
                    places.insert(list_type.key(&item)?, out.len());
                    out.push(item);
                }
            }
        }
        Ok(Self::Typed(Arc::new(out), list_type.clone()))
    }
}

/// How a list of the object is merged and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    /// By these keys of its elements.
    Map(Vec<String>),
}

impl ListType {
    /// What an element is told by: itself, or its keys.
    fn key(&self, item: &Val<'_>) -> Result<Vec<Option<Key>>, Error> {
        let scalar = |value: &Val<'_>| Key::of(value).unwrap_or_else(|| Key::String(format!("{value:?}").into()));
        match (self, item) {
            (Self::Map(keys), Val::Map(map)) => {
                Ok(keys.iter().map(|key| map.named(key).and_then(Result::ok).map(|v| scalar(&v))).collect())
            }
            (Self::Map(keys), _) => Ok(vec![None; keys.len()]),
            (_, Val::List(_) | Val::Map(_)) => {
                Err(Error::new("listSet operations are only supported on lists of scalar values"))
            }
            (_, item) => Ok(vec![Some(scalar(item))]),
        }
    }
}

impl<'a> Map<'a> {
    /// A map of these entries, in the order of their keys.
    pub fn made(entries: BTreeMap<Key, (Val<'a>, Val<'a>)>) -> Self {
        Self::Made(Arc::new(entries))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Data(fields, _) => fields.len(),
            Self::Made(entries) => entries.len(),
        }
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key. The names of an object's fields are those that expressions use.
    pub fn find(&self, key: &Val<'_>) -> Option<Out<'a>> {
        match self {
            Self::Data(..) => match key {
                Val::String(name) => self.named(name),
                _ => Some(Err(Error::no_such_overload())),
            },
            Self::Made(entries) => entries.get(&Key::of(key)?).map(|(_, value)| Ok(value.clone())),
        }
    }

    /// The value of a name as expressions use it.
    pub fn named(&self, name: &str) -> Option<Out<'a>> {
        match self {
            Self::Data(fields, decl) => decl.read_field(fields, name),
            Self::Made(entries) => entries.get(&Key::String(name.into())).map(|(_, value)| Ok(value.clone())),
        }
    }

    /// The value of a name as the object has it.
    fn field(&self, name: &str) -> Option<Out<'a>> {
        match self {
            Self::Data(fields, decl) => fields.get(name).map(|value| match decl.child(name) {
                Some(child) => child.read(value),
                None => Ok(Val::Unknown(value)),
            }),
            Self::Made(_) => self.named(name),
        }
    }

    /// The keys, and with each its value when that is asked for.
    pub fn keys(&self) -> Vec<Val<'a>> {
        match self {
            Self::Data(fields, decl) => fields.keys().filter_map(|key| decl.key_name(key)).map(Val::String).collect(),
            Self::Made(entries) => entries.values().map(|(key, _)| key.clone()).collect(),
        }
    }
}

/// Are two values equal? Numbers compare by value, whatever their type.
pub fn equal(a: &Val<'_>, b: &Val<'_>, meter: &mut Meter) -> Result<bool, Error> {
    meter.step(1)?;
    Ok(match (a, b) {
        (Val::Null, other) | (other, Val::Null) => matches!(other, Val::Null),
        (Val::Bool(a), Val::Bool(b)) => a == b,
        (Val::String(a), Val::String(b)) => {
            meter.step(a.len() as u64 / 64)?;
            **a == **b
        }
        (Val::Bytes(a), Val::Bytes(b)) => a == b,
        (Val::Duration(a), Val::Duration(b)) => a == b,
        (Val::Timestamp(a), Val::Timestamp(b)) => a.same(b),
        (Val::Type(a), Val::Type(b)) => a.runtime_name() == b.runtime_name(),
        (Val::List(a), Val::List(b)) => equal_lists(a, b, meter)?,
        (Val::Map(a), Val::Map(b)) => equal_maps(a, b, meter)?,
        // What a schema declares is not compared with something else.
        (Val::List(List::Data(_, decl)) | Val::Map(Map::Data(_, decl)), _) => {
            return if decl.is_any() { Ok(false) } else { Err(Error::no_such_overload()) };
        }
        (Val::Optional(a), Val::Optional(b)) => match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => equal(a, b, meter)?,
            _ => false,
        },
        (Val::Url(a), Val::Url(b)) => a == b,
        (Val::Ip(a), Val::Ip(b)) => a == b,
        (Val::Cidr(a), Val::Cidr(b)) => a == b,
        (Val::Quantity(a), Val::Quantity(b)) => a == b,
        (Val::Semver(a), Val::Semver(b)) => a.order(b).is_eq(),
        (Val::Format(a), Val::Format(b)) => a.name == b.name,
        (Val::Unknown(a), Val::Unknown(b)) => a == b,
        (Val::Url(_) | Val::Ip(_) | Val::Cidr(_) | Val::Quantity(_) | Val::Semver(_) | Val::Format(_), _) => {
            return Err(Error::no_such_overload());
        }
        (a, b) => crate::number::order(a, b).is_some_and(std::cmp::Ordering::is_eq),
    })
}

fn equal_lists(a: &List<'_>, b: &List<'_>, meter: &mut Meter) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    let list_type = a.list_type();
    if *list_type != ListType::Atomic {
        return equal_unordered(a, b, list_type, meter);
    }
    for (x, y) in a.iter().zip(b.iter()) {
        if !equal(&x?, &y?, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Has every element of each list one in the other that is the same?
fn equal_unordered(a: &List<'_>, b: &List<'_>, list_type: &ListType, meter: &mut Meter) -> Result<bool, Error> {
    meter.allocate(a.len().saturating_mul(2 * size_of::<Val<'_>>()))?;
    let mut known = BTreeMap::new();
    for item in a.iter() {
        let item = item?;
        known.insert(list_type.key(&item)?, (item, false));
    }
    for item in b.iter() {
        let item = item?;
        let Some((own, seen)) = known.get_mut(&list_type.key(&item)?) else { return Ok(false) };
        *seen = true;
        if matches!(list_type, ListType::Map(_)) && !equal(own, &item, meter)? {
            return Ok(false);
        }
    }
    Ok(known.values().all(|(_, seen)| *seen))
}

fn equal_maps(a: &Map<'_>, b: &Map<'_>, meter: &mut Meter) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    if let Map::Data(fields, decl) = a {
        for (name, value) in *fields {
            meter.step(1)?;
            if decl.child(name).is_some() {
                let (own, other) = (a.field(name), b.field(name));
                match (own, other) {
                    (Some(x), Some(y)) => {
                        if !equal(&x?, &y?, meter)? {
                            return Ok(false);
                        }
                    }
                    _ => return Ok(false),
                }
            } else {
                let Map::Data(others, _) = b else { return Err(Error::no_such_overload()) };
                if others.get(name).is_some_and(|other| other != value) {
                    return Ok(false);
                }
            }
        }
        return Ok(true);
    }
    for key in a.keys() {
        match (a.find(&key), b.find(&key)) {
            (Some(x), Some(y)) => {
                if !equal(&x?, &y?, meter)? {
                    return Ok(false);
                }
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}
