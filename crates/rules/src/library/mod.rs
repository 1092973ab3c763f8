//! The functions that expressions may call. Each file holds one library: its functions as signatures
//! with what they do.
//!
//! ```text
//! ("string_char_at_int: string.charAt(int) -> string", char_at)
//!   the form's id ──┘     │            │        └─ result
//!   called on a string ───┘            └─ arguments; one capital letter is any type
//! ```

mod authorization;
mod collections;
mod formats;
mod lists;
mod network;
mod operators;
mod optional;
mod quantities;
mod regexes;
mod sets;
mod strings;
mod strings_format;
mod times;
mod urls;
mod versions;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

pub use collections::{index, insert, is_true};
pub use formats::Format;
pub use network::Cidr;
pub use regexes::run_with;
pub use strings_format::check as check_format;
pub use urls::Url;
pub use versions::Semver;

use crate::meter::{Error, Meter};
use crate::types::{self, Type};
use crate::value::{Out, Val};

/// What a function does with its arguments; the receiver is the first.
pub type Imp = for<'a> fn(&mut Meter, &[Val<'a>]) -> Out<'a>;

/// One library: signatures and what they do.
type Table = &'static [(&'static str, Imp)];

/// A function, by all its forms.
pub struct Function {
    pub name: &'static str,
    pub overloads: Vec<Overload>,
}

/// One form of a function.
pub struct Overload {
    pub id: &'static str,
    /// Is it called on its first argument?
    pub member: bool,
    pub params: Vec<Type>,
    pub result: Type,
    /// How many type variables it has.
    pub variables: u32,
    /// Do values decide by themselves whether they fit? Operators do.
    pub open: bool,
    pub run: Imp,
}

static FUNCTIONS: LazyLock<HashMap<&'static str, Function>> = LazyLock::new(|| {
    let mut functions: HashMap<&'static str, Function> = HashMap::new();
    let tables: [(Table, bool); 18] = [
        (operators::TABLE, true),
        (collections::TABLE, true),
        (strings::OPEN, true),
        (regexes::OPEN, true),
        (operators::CONVERSIONS, false),
        (times::TABLE, false),
        (strings::TABLE, false),
        (strings_format::TABLE, false),
        (lists::TABLE, false),
        (sets::TABLE, false),
        (optional::TABLE, false),
        (regexes::TABLE, false),
        (urls::TABLE, false),
        (network::TABLE, false),
        (quantities::TABLE, false),
        (versions::TABLE, false),
        (formats::TABLE, false),
        (authorization::TABLE, false),
    ];
    for ((signature, run), open) in tables.iter().flat_map(|(t, open)| t.iter().map(move |e| (e, *open))) {
        let (name, overload) = parse(signature, *run, open);
        functions.entry(name).or_insert_with(|| Function { name, overloads: Vec::new() }).overloads.push(overload);
    }
    functions
});

/// The function of this name.
pub fn function(name: &str) -> Option<&'static Function> {
    FUNCTIONS.get(name)
}

/// The type that an expression may name so.
pub fn type_named(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "string" => Type::String,
        "null_type" => Type::Null,
        "type" => Type::Type(None),
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "optional_type" => Type::optional(Type::Dyn),
        types::IP => Type::Named(types::IP),
        types::CIDR => Type::Named(types::CIDR),
        _ => return None,
    })
}

/// What a value gives that fits no form of a function.
pub fn no_such_overload(function: &str, args: &[Val<'_>]) -> Error {
    let names: Vec<String> = args.iter().map(|a| a.type_of().runtime_name().to_owned()).collect();
    Error::no_overload_of(&format!("{function}({})", names.join(", ")))
}

/// Is `value` what `t` asks for, as far as can be seen without looking at every element?
pub fn is_instance(t: &Type, value: &Val<'_>) -> bool {
    match (t, value) {
        (Type::Dyn | Type::Param(_), _) => true,
        (Type::Null, Val::Null)
        | (Type::Bool, Val::Bool(_))
        | (Type::Int, Val::Int(_))
        | (Type::Uint, Val::Uint(_))
        | (Type::Double, Val::Double(_))
        | (Type::String, Val::String(_))
        | (Type::Bytes, Val::Bytes(_))
        | (Type::Duration, Val::Duration(_))
        | (Type::Timestamp, Val::Timestamp(_))
        | (Type::Type(_), Val::Type(_))
        | (Type::Optional(_), Val::Optional(_)) => true,
        (Type::List(items), Val::List(list)) => match list.get(0) {
            Some(Ok(first)) => is_instance(items, &first),
            Some(Err(_)) => false,
            None => true,
        },
        (Type::Map(entry), Val::Map(map)) => {
            if matches!((&entry.0, &entry.1), (Type::Dyn | Type::Param(_), Type::Dyn | Type::Param(_))) {
                return true;
            }
            match map.keys().first() {
                Some(key) => {
                    is_instance(&entry.0, key) && matches!(map.find(key), Some(Ok(v)) if is_instance(&entry.1, &v))
                }
                None => true,
            }
        }
        (Type::Named(name), value) => matches!(value.type_of(), Type::Named(own) if own == *name),
        _ => false,
    }
}

/// The function's name and one form of it. Signatures are ours: what cannot be read is `dyn`.
fn parse(signature: &'static str, run: Imp, open: bool) -> (&'static str, Overload) {
    let (id, rest) = signature.split_once(": ").unwrap_or(("", signature));
    let (head, result) = rest.rsplit_once(" -> ").unwrap_or((rest, "dyn"));
    let (head, args) = head.split_once('(').unwrap_or((head, ""));
    let args = args.strip_suffix(')').unwrap_or(args);
    // A receiver stands before a colon-free dot, in angle brackets: <list<A>>.size
    let (receiver, name) = match head.strip_prefix('<').and_then(|h| h.split_once(">.")) {
        Some((receiver, name)) => (Some(receiver), name),
        None => (None, head),
    };
    let mut reader = Reader { names: Vec::new() };
    let mut params: Vec<Type> = receiver.iter().map(|r| reader.read(r)).collect();
    params.extend(split(args).into_iter().map(|a| reader.read(a)));
    let result = reader.read(result);
    let variables = u32::try_from(reader.names.len()).unwrap_or(0);
    (name, Overload { id, member: receiver.is_some(), params, result, variables, open, run })
}

/// Arguments, at the commas that are not within brackets.
fn split(args: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (i, c) in args.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                out.push(args[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    if !args[start..].trim().is_empty() {
        out.push(args[start..].trim());
    }
    out
}

struct Reader {
    names: Vec<String>,
}

impl Reader {
    fn read(&mut self, text: &str) -> Type {
        if let Some((head, inner)) = text.split_once('<') {
            let inner = inner.strip_suffix('>').unwrap_or(inner);
            let mut types = split(inner).into_iter().map(|t| self.read(t)).collect::<Vec<_>>().into_iter();
            let mut next = || types.next().unwrap_or(Type::Dyn);
            return match head {
                "list" => Type::list(next()),
                "map" => Type::map(next(), next()),
                "optional" => Type::optional(next()),
                _ => Type::Type(Some(Arc::new(next()))),
            };
        }
        match text {
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "duration" => Type::Duration,
            "timestamp" => Type::Timestamp,
            "null" => Type::Null,
            "URL" => Type::Named(types::URL),
            "IP" => Type::Named(types::IP),
            "CIDR" => Type::Named(types::CIDR),
            "Quantity" => Type::Named(types::QUANTITY),
            "Semver" => Type::Named(types::SEMVER),
            "Format" => Type::Named(types::FORMAT),
            "Authorizer" => Type::Named(types::AUTHORIZER),
            "PathCheck" => Type::Named(types::PATH_CHECK),
            "GroupCheck" => Type::Named(types::GROUP_CHECK),
            "ResourceCheck" => Type::Named(types::RESOURCE_CHECK),
            "Decision" => Type::Named(types::DECISION),
            name if name.len() == 1 && name.as_bytes()[0].is_ascii_uppercase() => {
                let known = self.names.iter().position(|n| n == name);
                let place = known.unwrap_or_else(|| {
                    self.names.push(name.to_owned());
                    self.names.len() - 1
                });
                Type::Param(u32::try_from(place).unwrap_or(0))
            }
            _ => Type::Dyn,
        }
    }
}
