//! The types of expressions, and which may stand for which.

use std::fmt;
use std::sync::Arc;

use crate::schema::Decl;

/// A type. `Param` is a variable that checking fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Dyn,
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    /// The type of a type, which may be known.
    Type(Option<Arc<Type>>),
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    /// Has fields that a schema declares.
    Object(Object),
    /// Has no fields, and a meaning of its own: `kubernetes.Quantity`, `net.IP`.
    Named(&'static str),
    Optional(Arc<Type>),
    Param(u32),
}

/// An object of a schema; its name tells it from others.
#[derive(Clone, Debug)]
pub struct Object(pub Arc<Decl>);

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.name() == other.0.name()
    }
}

impl Eq for Object {}

pub const URL: &str = "kubernetes.URL";
pub const QUANTITY: &str = "kubernetes.Quantity";
pub const SEMVER: &str = "kubernetes.Semver";
pub const FORMAT: &str = "kubernetes.NamedFormat";
pub const IP: &str = "net.IP";
pub const CIDR: &str = "net.CIDR";
pub const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
pub const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
pub const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
pub const DECISION: &str = "kubernetes.authorization.Decision";

impl Type {
    /// A list of `items`.
    pub fn list(items: Type) -> Self {
        Self::List(Arc::new(items))
    }

    /// A map.
    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// A value that may be missing.
    pub fn optional(value: Type) -> Self {
        Self::Optional(Arc::new(value))
    }

    /// An object that has these fields, each of its type.
    pub fn object<const N: usize>(name: &str, fields: [(&str, Type); N]) -> Self {
        let mut object = Decl::object(name);
        for (field, t) in fields {
            object.declare(field, t);
        }
        Arc::new(object).type_of()
    }

    /// What is inside, if this is optional; else itself.
    pub fn unwrap_optional(&self) -> (&Type, bool) {
        match self {
            Self::Optional(inner) => (inner, true),
            other => (other, false),
        }
    }

    /// Has a value of this type always the same size?
    pub fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Double | Self::Duration | Self::Int | Self::Timestamp | Self::Uint => true,
            Self::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }

    /// The name that values of this type give as theirs.
    pub fn runtime_name(&self) -> &str {
        match self {
            Self::Dyn => "dyn",
            Self::Error => "error",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Type(_) => "type",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Object(object) => object.0.name(),
            Self::Named(name) => name,
            Self::Optional(_) => "optional_type",
            Self::Param(_) => "param",
        }
    }

    /// May null be of this type?
    fn nullable(&self) -> bool {
        matches!(
            self,
            Self::Null
                | Self::Dyn
                | Self::Named(_)
                | Self::Optional(_)
                | Self::Object(_)
                | Self::Duration
                | Self::Timestamp
        )
    }

    /// Is this at least as general as `other`?
    fn is_general(&self, other: &Type) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Param(_), _) => true,
            (_, Self::Dyn | Self::Param(_)) => false,
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.is_general(b),
            (Self::Map(a), Self::Map(b)) => a.0.is_general(&b.0) && a.1.is_general(&b.1),
            (Self::Type(_), Self::Type(_)) => true,
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error => f.write_str("!error!"),
            Self::Null => f.write_str("null"),
            Self::Duration => f.write_str("duration"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Type(Some(inner)) => write!(f, "type({inner})"),
            Self::List(items) => write!(f, "list({items})"),
            Self::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Param(id) => write!(f, "_var{id}"),
            other => f.write_str(other.runtime_name()),
        }
    }
}

/// A type may not grow beyond what this many steps walk: nested maps of maps double with each level.
const MAX_STEPS: u64 = 20_000_000;

/// What the type variables of one expression stand for.
#[derive(Default)]
pub struct Unifier {
    known: Vec<Option<Type>>,
    /// What was known before, to go back to when an overload does not fit.
    trail: Vec<(u32, Option<Type>)>,
    steps: u64,
}

impl Unifier {
    /// A new variable.
    pub fn fresh(&mut self) -> Type {
        self.known.push(None);
        Type::Param(u32::try_from(self.known.len() - 1).unwrap_or(u32::MAX))
    }

    /// New variables, `count` of them; the first is returned.
    pub fn reserve(&mut self, count: u32) -> u32 {
        let first = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        self.known.extend((0..count).map(|_| None));
        first
    }

    /// Did types grow too large to go on with?
    pub fn exhausted(&self) -> bool {
        self.steps > MAX_STEPS
    }

    fn find(&self, id: u32) -> Option<&Type> {
        self.known.get(id as usize).and_then(Option::as_ref)
    }

    fn set(&mut self, id: u32, to: Type) {
        if let Some(slot) = self.known.get_mut(id as usize) {
            self.trail.push((id, slot.replace(to)));
        }
    }

    /// May values of `from` stand where `to` is wanted? What that says of variables is kept if so.
    pub fn assignable(&mut self, to: &Type, from: &Type) -> bool {
        self.attempt(|u| u.fits(to, from))
    }

    /// Every `from` for its `to`, or nothing is learnt.
    pub fn assignable_all(&mut self, to: &[Type], from: &[Type]) -> bool {
        to.len() == from.len() && self.attempt(|u| to.iter().zip(from).all(|(a, b)| u.fits(a, b)))
    }

    fn attempt(&mut self, f: impl FnOnce(&mut Self) -> bool) -> bool {
        self.trail.clear();
        let fits = f(self);
        if !fits {
            while let Some((id, before)) = self.trail.pop() {
                if let Some(slot) = self.known.get_mut(id as usize) {
                    *slot = before;
                }
            }
        }
        fits
    }

    fn fits(&mut self, a: &Type, b: &Type) -> bool {
        self.steps += 1;
        if self.exhausted() {
            return false;
        }
        if let Type::Param(id) = b {
            let (fits, known) = self.substitutes(a, *id);
            if fits || known {
                return fits;
            }
        }
        if let Type::Param(id) = a {
            return self.substitutes(b, *id).0;
        }
        match (a, b) {
            (Type::Dyn | Type::Error, _) | (_, Type::Dyn | Type::Error) => true,
            (Type::Null, other) | (other, Type::Null) => other.nullable(),
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                let (a, b) = (Arc::clone(a), Arc::clone(b));
                self.fits(&a, &b)
            }
            (Type::Map(a), Type::Map(b)) => {
                let (a, b) = (Arc::clone(a), Arc::clone(b));
                self.fits(&a.0, &b.0) && self.fits(&a.1, &b.1)
            }
            (Type::Type(_), Type::Type(_)) => true,
            (a, b) => a == b,
        }
    }

    /// May variable `id` stand for `t`? And was it known before?
    fn substitutes(&mut self, t: &Type, id: u32) -> (bool, bool) {
        if matches!(t, Type::Param(other) if *other == id) {
            return (true, true);
        }
        if let Some(known) = self.find(id).cloned() {
            if *t == known {
                return (true, true);
            }
            if self.fits(t, &known) {
                let general = if t.is_general(&known) { t.clone() } else { known };
                if self.is_free_of(id, &general) {
                    self.set(id, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.is_free_of(id, t) {
            self.set(id, t.clone());
            return (true, false);
        }
        (false, false)
    }

    /// Does `t` not mention variable `id`, directly or through what others stand for?
    fn is_free_of(&mut self, id: u32, t: &Type) -> bool {
        self.steps += 1;
        if self.exhausted() {
            return false;
        }
        match t {
            Type::Param(other) => {
                *other != id && self.find(*other).cloned().is_none_or(|known| self.is_free_of(id, &known))
            }
            Type::List(inner) | Type::Optional(inner) | Type::Type(Some(inner)) => {
                let inner = Arc::clone(inner);
                self.is_free_of(id, &inner)
            }
            Type::Map(entry) => {
                let entry = Arc::clone(entry);
                self.is_free_of(id, &entry.0) && self.is_free_of(id, &entry.1)
            }
            _ => true,
        }
    }

    /// `t` with what its variables stand for; with `close`, unknown ones become `dyn`.
    pub fn resolve(&mut self, t: &Type, close: bool) -> Type {
        self.steps += 1;
        if self.exhausted() {
            return Type::Dyn;
        }
        match t {
            Type::Param(id) => match self.find(*id).cloned() {
                Some(known) => self.resolve(&known, close),
                None if close => Type::Dyn,
                None => t.clone(),
            },
            Type::List(inner) => Type::list(self.resolve(inner, close)),
            Type::Optional(inner) => Type::optional(self.resolve(inner, close)),
            Type::Type(Some(inner)) => Type::Type(Some(Arc::new(self.resolve(inner, close)))),
            Type::Map(entry) => Type::map(self.resolve(&entry.0, close), self.resolve(&entry.1, close)),
            other => other.clone(),
        }
    }

    /// The more general of two types of which one may stand for the other.
    pub fn general(a: &Type, b: &Type) -> Type {
        if a.is_general(b) { a.clone() } else { b.clone() }
    }
}

/// `t` with its variables numbered from `first` on.
pub fn instantiate(t: &Type, first: u32) -> Type {
    match t {
        Type::Param(id) => Type::Param(first + id),
        Type::List(inner) => Type::list(instantiate(inner, first)),
        Type::Optional(inner) => Type::optional(instantiate(inner, first)),
        Type::Type(Some(inner)) => Type::Type(Some(Arc::new(instantiate(inner, first)))),
        Type::Map(entry) => Type::map(instantiate(&entry.0, first), instantiate(&entry.1, first)),
        other => other.clone(),
    }
}
